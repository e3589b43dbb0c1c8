"""Frames of Pulsar's protocol: cuts them out of the bytes that were read, and makes them.

    [total u32][command length u32][command]                                          numbers are big-endian
    [total][command length][command][0x0e01][crc32c u32][metadata length u32][metadata][payload]      SEND and MESSAGE

`total` counts what follows it. The checksum covers metadata length, metadata and payload; it may be missing. Every
length is compared with the limit, and with what is there, before anything is kept for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from sluice.actors.pulsar.codec.protocol import MalformedCommand
from sluice.storage.format.batch import MAX_MESSAGE_BYTES
from sluice.storage.format.checked_payload import SUMMED_FROM, behind_another, payload_crc

Buffer = bytes | memoryview

U32 = struct.Struct(">I")
_TWO = struct.Struct(">II")
PAD = 16
"""The number of zeros behind the cut bytes, so that numbers of a few bytes can be read from any place in them."""
_ZEROS = b"\0" * PAD
CHECKSUMMED = b"\x0e\x01"
BROKER_ENTRY = b"\x0e\x02"
HEADROOM = 10 * 1024
"""The bytes that a frame may have beside the largest message."""
MAX_FRAME_BYTES = MAX_MESSAGE_BYTES + HEADROOM
"""Longest frame: a message of the largest size, and Pulsar's own allowance for what stands around it."""


@dataclass(frozen=True, slots=True)
class CommandFrame:
    """A frame. command: its bytes. rest: the bytes after the command, empty unless it carries messages."""

    command: memoryview
    rest: memoryview


@dataclass(frozen=True, slots=True)
class Body:
    """The part of a SEND behind its command. damaged: the checksum does not fit."""

    metadata: memoryview
    payload: memoryview
    damaged: bool


@dataclass(frozen=True, slots=True)
class Cut:
    """Whole frames, one behind the other in `data`. starts: where each begins, its length included; end: of the last.
    PAD zeros end the data, which belong to nobody.

    A sequence of Frames; one whose command reaches behind it raises MalformedCommand when it is looked at.
    """

    data: bytes
    starts: list[int]
    end: int

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: int) -> CommandFrame:
        start = self.starts[number]
        end = self.starts[number + 1] if number + 1 < len(self.starts) else self.end
        view = memoryview(self.data)[start + 4 : end]
        size = U32.unpack_from(view)[0]
        if size > len(view) - 4:
            raise MalformedCommand(f"a command of {size} bytes in a frame of {len(view)}")
        return CommandFrame(view[4 : 4 + size], view[4 + size :])

    def __iter__(self) -> Iterator[CommandFrame]:
        return (self[number] for number in range(len(self)))


class Cutter:
    """Bytes in, whole frames out. What is not whole yet is kept, and nothing is copied twice for waiting.

    What is fed in may be written over afterwards.
    """

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self.limit = limit
        """Longest frame."""
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 4

    @property
    def kept(self) -> int:
        """Bytes of a frame that is not whole."""
        return self._have

    def clear(self) -> None:
        """Forget what is kept: nothing more comes."""
        self._chunks, self._have = [], 0

    def feed(self, data: bytes | memoryview) -> Cut:
        """The frames that are whole now. Raises MalformedCommand; nothing can be read from such a client any more."""
        self._have += len(data)
        if self._have < self._need:
            self._chunks.append(bytes(data))
            return Cut(b"", [], 0)
        whole = b"".join((*self._chunks, data, _ZEROS))
        starts, at, end, read, limit = [], 0, self._have, U32.unpack_from, self.limit
        self._need = 4
        while end - at >= 4:
            total = read(whole, at)[0]
            if not 4 <= total <= limit:
                raise MalformedCommand(f"a frame of {total} bytes; it has 4 to {limit}")
            if end - at < 4 + total:
                self._need = 4 + total
                break
            starts.append(at)
            at += 4 + total
        left = whole[at:end]
        self._chunks, self._have = ([left] if left else []), len(left)
        return Cut(whole, starts, at)


def body_of(rest: memoryview) -> Body:
    """Metadata and payload of a frame that carries messages. Raises MalformedCommand if they are not there."""
    if rest[:2] == BROKER_ENTRY:
        if len(rest) < 6 or (size := U32.unpack_from(rest, 2)[0]) > len(rest) - 6:
            raise MalformedCommand("the broker's metadata reach behind the frame")
        rest = rest[6 + size :]
    damaged = False
    if rest[:2] == CHECKSUMMED:
        if len(rest) < 6:
            raise MalformedCommand("the frame ends in its checksum")
        damaged = google_crc32c.value(bytes(rest[6:])) != U32.unpack_from(rest, 2)[0]
        rest = rest[6:]
    if len(rest) < 4 or (size := U32.unpack_from(rest)[0]) > len(rest) - 4:
        raise MalformedCommand("the metadata reach behind the frame")
    return Body(rest[4 : 4 + size], rest[4 + size :], damaged)


def checksums(data: bytes, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """CRC32C of these slices of what was read or is to be sent."""
    one = google_crc32c.value
    return np.array([one(data[a:b]) for a, b in zip(begins.tolist(), ends.tolist(), strict=True)], np.int64)


def extended(crc: int, payload: Buffer, sums: Sequence[int] = ()) -> int:
    """Return the checksum of bytes and a payload behind them. crc: of the bytes. sums: of the payload (see Sums)."""
    if sums and len(payload) >= SUMMED_FROM:
        before, end = sums
        return behind_another(crc, before, end, len(payload))
    return payload_crc(payload, crc)


def encode(command: Any) -> bytes:
    """Return a frame that is only a command."""
    head: bytes = command.SerializeToString()
    return _TWO.pack(len(head) + 4, len(head)) + head


def front(head: bytes, body: int) -> bytes:
    """Return the front of a frame whose body passes through unchanged. head: encoded command; body: size in bytes."""
    return b"".join((_TWO.pack(len(head) + body + 4, len(head)), head))


def encode_message(head: bytes, metadata: bytes, payload: Buffer) -> bytes:
    """Return a frame that carries messages. head: its command, encoded."""
    return b"".join((message_front(head, metadata, payload), payload))


def message_front(head: bytes, metadata: bytes, payload: Buffer, sums: Sequence[int] = ()) -> bytes:
    """Return all of such a frame that stands before its payload. sums: of the payload (see Sums)."""
    sized = U32.pack(len(metadata)) + metadata
    crc = extended(google_crc32c.value(sized), payload, sums)
    total = len(head) + len(sized) + len(payload) + 10
    return b"".join((_TWO.pack(total, len(head)), head, CHECKSUMMED, U32.pack(crc), sized))
