"""Whatever bytes a disk, a store or a peer hands out, a decoder gives a value or refuses; nothing else ever.

Two sorts of damage. Raw: any bytes at all, and real ones with a piece replaced, which the checksums must notice.
Sealed: a well-formed body with one value replaced by another kind of thing and a checksum that fits, as a broken
writer would leave it; there the decoder itself has to look. Neither may cost more than a multiple of the input, so
that a length in a damaged header makes nobody allocate what it claims.

Records of the metadata are among them: what reads them in a loop for all topics would end with the first odd one.
"""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import google_crc32c
import msgpack
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from sluice.actors.bookie.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from sluice.actors.bookie.cookie import decode_cookie
from sluice.actors.controller.draining import Drain, drain_in
from sluice.actors.controller.pools import PoolRecord, pool_in
from sluice.actors.dispatcher.delivery.subscription import SubscriptionState, settings_in
from sluice.actors.ledger.garbage_collection import released_in
from sluice.actors.ledger.record import PartitionRecord, encode_record, unpack_record
from sluice.actors.messages import Poll, SubscriptionSettings
from sluice.actors.messages.settings import TopicSettings, stored_settings
from sluice.actors.ownership.fenced_record import record_in
from sluice.actors.ownership.ids import base_in
from sluice.actors.policies.backlog_quotas import Quota
from sluice.actors.policies.limits import Limits, Rate
from sluice.actors.policies.namespaces import NamespacePolicies, Tenant
from sluice.actors.policies.permissions import Grants
from sluice.actors.policies.policy_records import decoded
from sluice.actors.policies.retention import Lifetime, Retention
from sluice.actors.ports.wire import pack, unpack
from sluice.actors.pulsar.conversation.gateway.schemas import versions_in
from sluice.storage.delayed.bucket import BucketBuilder, decode_header, decode_segments
from sluice.storage.delayed.entries import Entries
from sluice.storage.delayed.manifest import BucketRecord, Manifest, decode_manifest, encode_manifest
from sluice.storage.delayed.segment import decode_segment, encode_segment
from sluice.storage.errors import Corrupt, Invalid
from sluice.storage.format import redeliveries
from sluice.storage.format.batch import decode_body, make_batch
from sluice.storage.format.cursor import Cursor
from sluice.storage.format.frame import PREFIX_BYTES, Header, decode_frame, encode_head, make_run
from sluice.storage.format.journal import ENVELOPE_BYTES, decode_envelope, decode_run, scan

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
    form: Any = msgspec.msgpack
    """Encodes and decodes the body, if that is something else."""


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


def _subscription() -> bytes:
    state = SubscriptionState.begun(SubscriptionSettings(), Cursor())
    state.membership.admit("a.0", "a", "p")
    state.set_properties({"team": "billing"})
    return msgspec.msgpack.encode({**state.to_record(), "epoch": 3, "owner": "broker/a", "untold": ["broker"]})


def _json(kind: type[Any], value: Any) -> Decoder:
    """A record of policies."""
    return Decoder(lambda data: decoded(data, kind, "it"), lambda: msgspec.json.encode(value), 0, form=msgspec.json)


def _pool() -> PoolRecord:
    return PoolRecord(
        epoch=1, topic="t", subscription="s", kind="detached", version="1", min_workers=1, max_workers=2, claimed_at=7
    )


RECORDS = {
    "fenced record": Decoder(lambda data: record_in("k", data), _subscription, 0),
    "subscription": Decoder(
        lambda data: SubscriptionState.stored(record_in("k", data), lambda *_, **__: None), _subscription, 0
    ),
    "subscription settings": Decoder(lambda data: settings_in("k", data), _subscription, 0),
    "topic settings": Decoder(
        lambda data: stored_settings(data, TopicSettings),
        lambda: msgspec.json.encode(TopicSettings(partitions=3)),
        0,
        form=msgspec.json,
    ),
    "pool": Decoder(lambda data: pool_in("p", data), lambda: msgspec.json.encode(_pool()), 0, form=msgspec.json),
    "drain": Decoder(
        lambda data: drain_in("n", data),
        lambda: msgspec.json.encode(Drain("n", "10.0.0.1", ["bookie-1"])),
        0,
        form=msgspec.json,
    ),
    "ids": Decoder(base_in, lambda: msgspec.msgpack.encode({"owner": "o", "base": 16}), 0),
    "released": Decoder(released_in, lambda: BitMap([1, 2, 99]).serialize()),
    "cookie": Decoder(decode_cookie, lambda: _crc(msgspec.msgpack.encode(["bookie-1", SALT, "c"])), 4, _crc),
    "schemas": Decoder(
        lambda data: versions_in("t", data), lambda: msgspec.msgpack.encode([[1, b"meaning", "digest"], b""]), 0
    ),
    "quota": _json(Quota, Quota(1, "producer_exception")),
    "limits": _json(Limits, Limits(publish_rate=Rate(10), producers=1)),
    "lifetime": _json(Lifetime, Lifetime(ttl_ms=5, retention=Retention(1, 2))),
    "policies": _json(NamespacePolicies, NamespacePolicies(deduplication=True, enforced=True)),
    "tenant": _json(Tenant, Tenant(("admin",))),
    "grants": _json(Grants, Grants({"a": ["produce"]}, {"s": ["a"]})),
}

DECODERS = {
    **RECORDS,
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
            tracemalloc.start()  # around this alone: drawing examples would take twice as long
            try:
                with contextlib.suppress(*REFUSALS):
                    decoder.decode(data)
                assert tracemalloc.get_traced_memory()[1] < decoder.most
            finally:
                tracemalloc.stop()

    damaged()


@pytest.mark.parametrize("name", [name for name, decoder in DECODERS.items() if decoder.body_at >= 0])
def test_a_sealed_body_of_another_form_is_read_or_refused(name: str) -> None:
    decoder = DECODERS[name]
    body = decoder.form.decode(decoder.sample()[decoder.body_at :])

    @given(st.lists(st.integers(0, 20), max_size=4), STRANGE)
    @settings(max_examples=120, deadline=None, derandomize=True)
    def changed(path: list[int], strange: Any) -> None:
        with contextlib.suppress(*REFUSALS):
            decoder.decode(decoder.seal(decoder.form.encode(put_in(body, path, strange))))

    changed()
