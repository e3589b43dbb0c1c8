"""Whatever bytes a disk, a store or a peer hands out, a decoder gives a value or refuses; nothing else ever.

Two sorts of damage. `raw`: any bytes at all, and real ones with a piece replaced, which the checksums must notice.
`checksummed`: a well-formed body with one value replaced by another kind of thing and a checksum that fits, as a broken
writer would leave it; there the decoder itself has to look. Neither may cost more than a multiple of the input, so
that a length in a damaged header makes nobody allocate what it claims.
"""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import google_crc32c
import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.bookie.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from actors.ledger.record import PartitionRecord, encode_record, unpack_record
from actors.messages import Poll
from actors.messages.settings import TopicSettings
from actors.wire import pack, unpack
from storage import redeliveries
from storage.batch import decode_body, make_batch
from storage.cursor import Cursor
from storage.delayed.bucket import BucketBuilder, decode_header, decode_segments
from storage.delayed.entries import Entries
from storage.delayed.manifest import BucketRecord, Manifest, decode_manifest, encode_manifest
from storage.delayed.segment import decode_segment, encode_segment
from storage.errors import Corrupt, Invalid
from storage.frame import PREFIX_BYTES, Header, decode_frame, encode_head, make_run
from storage.journal import ENVELOPE_BYTES, decode_envelope, decode_run, scan

SALT = b"saltsalt"
REFUSALS = (Corrupt, Invalid)


def _crc(body: bytes) -> bytes:
    return int(google_crc32c.value(body)).to_bytes(4, "little") + body


def _salted(body: bytes) -> bytes:
    return int(google_crc32c.value(SALT + body)).to_bytes(4, "little") + body


def _frame() -> bytes:
    rows = pa.record_batch({"key": pa.array([b"k"] * 3), "payload": pa.array([b"x"] * 3)})
    made = make_run(make_batch(rows, now=1, producer="p"))
    header = Header(1, 2, 20, 3, 3, 19, "p", 2, made.delayed, made.shape, made.crc)
    return encode_head(header, len(made.payload)) + bytes(made.payload)


def _entries() -> Entries:
    places = (1 << 32) + np.arange(20, dtype=np.int64)
    return Entries(np.arange(20, dtype=np.int64) * 700, places, np.arange(20).astype(np.uint32))


def _bucket() -> bytes:
    builder = BucketBuilder("t/0/s", 7, 3, step_ms=1000, max_entries=5)
    builder.append(_entries())
    sealed = builder.finish()
    assert sealed is not None
    return bytes(sealed.data)


def _cursor() -> bytes:
    cursor = Cursor()
    cursor.chain([(1, 9), (2, None)], complete=True)
    cursor.acknowledge((1 << 32) + np.array([0, 1, 4, 7], np.int64))
    return cursor.encode()


def _redeliveries() -> bytes:
    places = (1 << 32) + np.array([0, 1, 4, 7], np.int64)
    return redeliveries.encode(
        redeliveries.Redeliveries(places, np.array([1, 2, 1, 9], np.uint8), places * 0 + 77, places % 2 == 0)
    )


def _redeliveries_seal(body: bytes) -> bytes:
    return _redeliveries()[:4] + _crc(body)


def _read_bucket(data: bytes) -> object:
    header = decode_header(data, "b", "t/0/s")
    return decode_segments(data[header.data_start :], header.table, 0, len(header.table), "b")


def _read_journal(data: bytes) -> object:
    envelope = decode_envelope(data[:ENVELOPE_BYTES], 0, SALT, 1) if len(data) >= ENVELOPE_BYTES else None
    if envelope is not None:
        decode_run(envelope, data[ENVELOPE_BYTES:])
    return list(scan(data, SALT, 1))


@dataclass(frozen=True)
class Decoder:
    """A decoder, real bytes for it, and, if its body is msgpack, the place of that and how it is sealed."""

    decode: Callable[[bytes], object]
    sample: Callable[[], bytes]
    body_at: int = -1
    seal: Callable[[bytes], bytes] = bytes
    most: int = 8_000_000
    """Bytes that it may take for an input of a few hundred."""


def _wire(kind: Any, request: Any) -> Decoder:
    packed = pack(request)
    return Decoder(lambda data: unpack(kind, data, packed.attachments, packed.handles), lambda: packed.head, 0)


def _cursor_seal(body: bytes) -> bytes:
    return _cursor()[:4] + _crc(body)


def _poll() -> Poll:
    return Poll(session=1, turn=2, granted=3, wait=4, ack_turn=5, acks=np.arange(3, dtype=np.int64))


def _record() -> bytes:
    packed: bytes = msgpack.packb(
        encode_record(PartitionRecord(topic="t", partition=0, settings=TopicSettings(partitions=1)))
    )
    return packed


def _manifest() -> bytes:
    return encode_manifest(Manifest(4, (BucketRecord(3, 1, 10, 19, 5, 2, 100, 200, 64, 1000),)))


DECODERS = {
    "frame": Decoder(decode_frame, _frame),
    "body": Decoder(lambda data: decode_body(data, 0, 3), lambda: _frame()[PREFIX_BYTES:]),
    "journal": Decoder(_read_journal, lambda: bytes(ENVELOPE_BYTES) + _frame()),
    "checkpoint": Decoder(
        lambda data: decode_checkpoint(data, SALT), lambda: encode_checkpoint(Checkpoint(), SALT), 4, _salted
    ),
    "cursor": Decoder(Cursor.decode, _cursor, 8, _cursor_seal),
    "redeliveries": Decoder(redeliveries.decode, _redeliveries, 8, _redeliveries_seal),
    "manifest": Decoder(lambda data: decode_manifest(data, "m"), _manifest, 4, _crc),
    "bucket": Decoder(_read_bucket, _bucket),
    "segment": Decoder(lambda data: decode_segment(data, "s"), lambda: encode_segment(_entries())),
    "partition record": Decoder(unpack_record, _record, 0),
    "wire": _wire(Poll, _poll()),
}

STRANGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=9),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(0, 9), max_size=2),
)


def put_in(value: Any, path: list[int], strange: Any) -> Any:
    """The value with one of its parts, found along the path, replaced."""
    if path and isinstance(value, list) and value:
        at = path[0] % len(value)
        return [*value[:at], put_in(value[at], path[1:], strange), *value[at + 1 :]]
    if path and isinstance(value, dict) and value:
        key = list(value)[path[0] % len(value)]
        return {**value, key: put_in(value[key], path[1:], strange)}
    return strange


@pytest.mark.parametrize("name", DECODERS)
def test_real_bytes_are_read(name: str) -> None:
    decoder = DECODERS[name]
    if name not in ("body", "journal"):
        assert decoder.decode(decoder.sample()) is not None
    body = decoder.sample()[decoder.body_at :]
    if decoder.body_at >= 0:
        assert decoder.seal(body) == decoder.sample(), "the seal of this test is not the decoder's"


@pytest.mark.parametrize("name", DECODERS)
def test_any_bytes_are_read_or_refused(name: str) -> None:
    decoder = DECODERS[name]
    sample = decoder.sample()

    @given(st.integers(0, len(sample)), st.integers(0, 16), st.binary(max_size=24))
    @settings(max_examples=80, deadline=None, derandomize=True)
    def damaged(at: int, taken: int, put: bytes) -> None:
        for data in (put, sample[:at] + put + sample[at + taken :]):
            with contextlib.suppress(*REFUSALS):
                decoder.decode(data)

    tracemalloc.start()
    try:
        damaged()
        assert tracemalloc.get_traced_memory()[1] < decoder.most
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", [name for name, decoder in DECODERS.items() if decoder.body_at >= 0])
def test_a_sealed_body_of_another_form_is_read_or_refused(name: str) -> None:
    decoder = DECODERS[name]
    body = msgpack.unpackb(decoder.sample()[decoder.body_at :], strict_map_key=False)

    @given(st.lists(st.integers(0, 20), max_size=4), STRANGE)
    @settings(max_examples=120, deadline=None, derandomize=True)
    def changed(path: list[int], strange: Any) -> None:
        with contextlib.suppress(*REFUSALS):
            decoder.decode(decoder.seal(msgpack.packb(put_in(body, path, strange))))

    changed()
