"""The format of recorded calls: chunks of calls of one dispatcher, one behind the other in files.

    file      magic (8 bytes), version (u16), then chunks
    chunk     length, length unpacked, CRC32C of the packed bytes (u32 each), then the body, packed with zstd, or as it
              is where both lengths are the same
    body      msgpack: topic, partition, subscription, epoch, number of the first call, ms of the wall clock, calls
    call      number of its name in CALLS, arguments, named arguments or nil, outcome, error or ""

An array is a msgpack extension: its type, and its bytes. An int64 array is its first value and the differences, in the
narrowest type; one that counts up is its first value and its length. The outcome of a dispatch has each consumer's
number and share; a dispatch of more than `FEW` messages has the checksum of their positions in place of these.
A crash may cut the last chunk of a file of the ring; a file that was exported is whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import google_crc32c
import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.msgpack import Encoder, Ext

from sluice.actors.key_shared import Share
from sluice.storage.errors import Corrupt, Invalid, NotFound

MAGIC = b"SLFLIGHT"
VERSION = 2
HEADER = MAGIC + struct.pack("<H", VERSION)
MOST_EXPORTED = 64 * 1024 * 1024
EVERY_MS = 500
"""A chunk has the calls of so long, ms."""
_CHUNK = struct.Struct("<III")
MOST_UNPACKED = 256 * 1024 * 1024
"""A chunk that claims more bytes is refused."""
_TYPES = ("<i8", "<u4", "<u2", "|u1", "|b1", "<i4", "<u8")
_NUMBERS = {np.dtype(name).num: bytes((number,)) for number, name in enumerate(_TYPES)}
_ARRAY, _DIFFERENCES, _COUNTS_UP = 1, 2, 3
FEW = 32
_ZSTD = pa.Codec("zstd", compression_level=1)
_PROBE = 8 * 1024
"""A body whose first bytes, so many, get no shorter is mostly hashes, and is kept as it is."""

CALLS = (
    "begin", "snapshot", "gap", "route", "append", "acknowledge_soon", "grant", "mark_deleted", "reach", "due",
    "acknowledge", "reset", "join", "bring", "retire", "leave_all", "negative_acknowledge", "redeliver_all",
    "never_arrived", "remember", "clock_was_set", "remove", "take_events", "take_revoked",
    "ring.keep", "ring.offer", "ring.give_place", "ring.hand_over_told", "ring.give_up", "ring.restore",
    "parking.load", "parking.park", "parking.examined", "parking.redrive", "parking.decide", "parking.resume",
    "remark",
)  # fmt: skip
"""Every call that is kept, and remarks, which are none. A name keeps its number for good."""
NUMBERS = {name: number for number, name in enumerate(CALLS)}


class RecordedCall(NamedTuple):
    """A call of the decisions, with its outcome in the form of `outcome`. error: what it raised, else empty."""

    number: int
    arguments: tuple[Any, ...]
    named: dict[str, Any] | None = None
    outcome: Any = None
    error: str = ""

    @property
    def name(self) -> str:
        """Name of the method."""
        return CALLS[self.number]


class RecordedSubscription(NamedTuple):
    """The dispatcher that calls were recorded of."""

    topic: str
    partition: int
    subscription: str
    epoch: int


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """Calls of one dispatcher in a row. first: number of the first of them. at: wall clock when it was written, ms.

    calls: the values of RecordedCall, as tuples.
    """

    of: RecordedSubscription
    first: int
    at: int
    calls: Sequence[tuple[Any, ...]]

    def __iter__(self) -> Iterator[RecordedCall]:
        return map(RecordedCall._make, self.calls)


def outcome(value: Any) -> Any:
    """Return the answer of a call in the form in which it is kept and compared."""
    if isinstance(value, list) and value and isinstance(value[0], Share):
        return tuple(map(_share, value))
    if isinstance(value, np.ndarray):
        return len(value)
    return int(value) if isinstance(value, int | np.integer) else None


def _share(share: Share) -> tuple[Any, ...]:
    """Numbers of consumers, ends of their shares, positions or their checksum, redelivery counts likewise, dispatch."""
    again: Any = ()
    if len(share.redeliveries) and share.redeliveries.any():
        again = _few(share.redeliveries)
    consumers, ends = tuple(share.consumers.tolist()), tuple(share.ends.tolist())
    return consumers, ends, _few(share.positions), again, share.dispatch


def _few(values: npt.NDArray[Any]) -> Any:
    return tuple(values.tolist()) if len(values) <= FEW else google_crc32c.value(values.tobytes())


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        kind = _NUMBERS[value.dtype.num]
        if kind == b"\0" and len(value) > FEW:
            return _differences(value)
        return Ext(_ARRAY, kind + value.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be recorded")


def _differences(values: npt.NDArray[np.int64]) -> Ext:
    first, steps = values[:1].tobytes(), np.diff(values)
    least, most = int(steps.min()), int(steps.max())
    if least == most == 1:
        return Ext(_COUNTS_UP, first + struct.pack("<I", len(values)))
    narrow = next((number for number in (3, 2, 1) if most < 1 << 8 * np.dtype(_TYPES[number]).itemsize), 0)
    number = narrow if least >= 0 else 0
    return Ext(_DIFFERENCES, bytes((number,)) + first + steps.astype(_TYPES[number]).tobytes())


def _array(code: int, data: bytes) -> npt.NDArray[Any]:
    if code == _COUNTS_UP:
        first, length = struct.unpack("<qI", data)
        if length > MOST_UNPACKED // 8:
            raise ValueError("an array that is too long")
        return np.arange(first, first + length)
    if code not in (_ARRAY, _DIFFERENCES) or not data or data[0] >= len(_TYPES):
        raise ValueError("an array of an unknown type")
    if code == _ARRAY:
        return np.frombuffer(data, _TYPES[data[0]], offset=1).copy()
    steps = np.frombuffer(data, _TYPES[data[0]], offset=9)
    return np.cumsum(np.concatenate([np.frombuffer(data[1:9], "<i8"), steps.astype(np.int64)]))


def _routed(call: tuple[Any, ...]) -> tuple[Any, ...]:
    """A dispatch with its outcome in the form in which it is kept; another call as it is."""
    return (*call[:3], outcome(call[3]), call[4]) if type(call[3]) is list else call


_ENCODER = Encoder(enc_hook=_plain)


def pack(chunk: RecordedCalls) -> bytes:
    """Return a chunk as it stands in a file."""
    body = _ENCODER.encode([*chunk.of, chunk.first, chunk.at, list(map(_routed, chunk.calls))])
    packed: bytes = body
    if len(body) <= 2 * _PROBE or len(_ZSTD.compress(body[:_PROBE])) < _PROBE * 9 // 10:
        packed = _ZSTD.compress(body, asbytes=True)
        packed = packed if len(packed) < len(body) else body
    return _CHUNK.pack(len(packed), len(body), google_crc32c.value(packed)) + packed


def unpack(data: bytes, name: str, *, whole: bool = True) -> Iterator[RecordedCalls]:
    """Yield the chunks of a file's bytes. name: of the file, for errors. whole: a cut at the end is an error.

    Raises Corrupt.
    """
    if not whole and HEADER.startswith(data):
        return
    if len(data) < len(HEADER) or data[: len(MAGIC)] != MAGIC:
        raise Corrupt(f"{name} is no recording of Sluice: it does not begin with {MAGIC.decode()}")
    (version,) = struct.unpack_from("<H", data, len(MAGIC))
    if version != VERSION:
        raise Corrupt(f"{name} has version {version} of the recording; this Sluice reads {VERSION}")
    at = len(HEADER)
    if at == len(data):
        raise Corrupt(f"{name} is cut: it has no record; copy or export the file again")
    while at < len(data):
        end = at + _CHUNK.size
        length, unpacked, checksum = _CHUNK.unpack_from(data, at) if end <= len(data) else (len(data), 0, 0)
        if end + length > len(data):
            if whole:
                raise Corrupt(f"{name} is cut: the record at byte {at} is not complete; copy or export the file again")
            return
        packed = data[end : end + length]
        if google_crc32c.value(packed) != checksum or unpacked > MOST_UNPACKED:
            raise Corrupt(f"{name} is damaged at byte {at}: the record's checksum is wrong")
        yield _chunk(packed, unpacked, f"{name} at byte {at}")
        at = end + length


def _chunk(packed: bytes, unpacked: int, where: str) -> RecordedCalls:
    try:
        body = packed if len(packed) == unpacked else pa.decompress(packed, unpacked, codec="zstd", asbytes=True)
        values = msgpack.unpackb(body, ext_hook=_array, use_list=False, strict_map_key=False)
        topic, partition, subscription, epoch, first, at, calls = values
        of = RecordedSubscription(str(topic), int(partition), str(subscription), int(epoch))
        found = RecordedCalls(of, int(first), int(at), calls)
        if not all(map(_is_call, found)):
            raise ValueError("a call of an unknown name or form")
        return found
    except Exception as error:
        raise Corrupt(f"{where} cannot be read: {error}") from None


def _is_call(call: RecordedCall) -> bool:
    known = 0 <= call.number < len(CALLS) and isinstance(call.arguments, tuple)
    return known and isinstance(call.named, dict | None) and isinstance(call.error, str)


def assemble(chunks: Iterable[bytes]) -> bytes:
    """Return a file of chunks that `pack` made."""
    return b"".join([HEADER, *chunks])


def since_last_state(chunks: Iterable[RecordedCalls], at: int) -> list[RecordedCalls]:
    """Leave out what came before each dispatcher's last known state before `at` (ms)."""
    kept: dict[RecordedSubscription, list[RecordedCalls]] = {}
    for chunk in chunks:
        mine = kept.setdefault(chunk.of, [])
        if chunk.at < at and any(call.name in ("begin", "snapshot") for call in chunk):
            mine.clear()
        mine.append(chunk)
    return [chunk for mine in kept.values() for chunk in mine]


def excerpt(chunks: Iterable[RecordedCalls], start: int, end: int) -> bytes:
    """Return a file of the calls from `start` to `end` (ms), with those since the last known state before them.

    Raises NotFound if there is nothing, Invalid if it would be longer than MOST_EXPORTED bytes.
    """
    kept: dict[RecordedSubscription, list[RecordedCalls]] = {}
    for chunk in since_last_state(chunks, start):
        if chunk.at - EVERY_MS <= end:
            kept.setdefault(chunk.of, []).append(chunk)
    packed = [pack(chunk) for mine in kept.values() if mine[-1].at >= start for chunk in mine]
    if not packed:
        raise NotFound("nothing was recorded between these times")
    if sum(map(len, packed)) > MOST_EXPORTED:
        raise Invalid(f"that would be more than {MOST_EXPORTED} bytes; bring --from and --to closer together")
    return assemble(packed)
