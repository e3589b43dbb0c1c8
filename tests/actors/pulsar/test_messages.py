"""SEND to rows, rows to MESSAGE: nothing that a client said is lost on the way, and nothing malformed gets in."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.pulsar.codec import delivery_encoder, send_decoder
from sluice.actors.pulsar.codec.compression import CODECS, LZ4, MAX_INFLATED, ZSTD
from sluice.actors.pulsar.codec.delivery_encoder import EncodedFrames, encode_part
from sluice.actors.pulsar.codec.frames import Cutter, body_of
from sluice.actors.pulsar.codec.message_encoder import Addressee
from sluice.actors.pulsar.codec.metadata_checks import MOST_CHUNKS
from sluice.actors.pulsar.codec.protocol import Command, Metadata, ServerError, Single, parse
from sluice.actors.pulsar.codec.send_decoder import Group, Send, decode_sends
from sluice.storage.format.batch import StoredBatch, make_batch
from sluice.storage.format.hashing import masked_hash
from tests.actors.pulsar.made import NOW, U32, batch, fill, part, sent, single, taken


@pytest.fixture(autouse=True, scope="module", params=[1, 1 << 30], ids=["vectorized", "alone"])
def _pace(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything is to be the same, whether messages are read and written together or one by one."""
    before = send_decoder.VECTORIZED_FROM, delivery_encoder.VECTORIZED_FROM
    send_decoder.VECTORIZED_FROM = delivery_encoder.VECTORIZED_FROM = request.param
    yield
    send_decoder.VECTORIZED_FROM, delivery_encoder.VECTORIZED_FROM = before


def decoded(*given_sends: Send) -> StoredBatch:
    """The rows of frames that are well formed."""
    groups = groups_of(*given_sends)
    assert [send.error for send in given_sends] == [None] * len(given_sends)
    assert len(groups) == 1
    return groups[0].batch


def groups_of(*given_sends: Send) -> list[Group]:
    return decode_sends(list(given_sends), now=NOW, producer="till")


def back(pieces: EncodedFrames) -> list[tuple[Any, Any, bytes]]:
    """Command, metadata and payload of each frame."""
    found = []
    for frame in Cutter().feed(pieces.data):
        body = body_of(frame.rest)
        assert not body.damaged
        told = parse(Command, frame.command).message
        found.append((told, parse(Metadata, body.metadata), bytes(body.payload)))
    return found


def frames(given_part: Any) -> list[tuple[Any, Any, bytes]]:
    return back(encode_part(given_part, Addressee(3, 2, None)))


def behind(send: Send, more: bytes) -> Send:
    """A frame with these bytes behind its metadata."""
    send.body = type(send.body)(memoryview(bytes(send.body.metadata) + more), send.body.payload, damaged=False)
    return send


def singles(payload: bytes) -> list[tuple[Any, bytes]]:
    """The messages of a batch."""
    found, at = [], 0
    while at < len(payload):
        size = U32.unpack_from(payload, at)[0]
        one = parse(Single, payload[at + 4 : at + 4 + size])
        at += 4 + size
        found.append((one, payload[at : at + one.payload_size]))
        at += one.payload_size
    return found


SEALED = b"\x0a\x01k\x12\x01v"
"""An encryption key, its name and its value."""
ZEROS = pa.Codec("lz4_raw").compress(bytes(MAX_INFLATED + 1), asbytes=True)
MESSAGE = {
    "partition_key": b"k1",
    "ordering_key": b"o\xff",
    "event_time": 77,
    "properties": [(b"b", b"1"), (b"a", "ä".encode()), (b"b", b"2")],
}


def test_a_single_message_comes_out_as_it_went_in() -> None:
    sent_one = single(b"paid", **MESSAGE, deliver_at_time=NOW + 5, schema_version=b"\0" * 8, null_value=True)
    wanted = Metadata.FromString(bytes(sent_one.body.metadata))
    ((told, metadata, payload),) = frames(part(decoded(sent_one)))
    assert (metadata, payload) == (wanted, b"paid")
    assert (told.message_id.ledger, told.message_id.entry, told.message_id.partition) == (1, 0, 2)


def test_unknown_metadata_passes_through() -> None:
    unknown = b"\xda\x25\x03abc"  # field 603
    sent_one = single(uuid=b"u", num_chunks=3, chunk_id=1, total_chunk_size=9, compression=1, uncompressed_size=99)
    raw = bytes(sent_one.body.metadata) + unknown
    sent_one.body = type(sent_one.body)(memoryview(raw), sent_one.body.payload, damaged=False)
    ((_, metadata, payload),) = frames(part(decoded(sent_one)))
    assert metadata.SerializeToString().endswith(unknown)
    assert (metadata.num_chunks, metadata.chunk_id, metadata.compression, payload) == (3, 1, 1, b"paid")


def test_an_encrypted_batch_is_one_row_that_nobody_reads() -> None:
    sent_one = single(b"\xffsecret", encryption_keys=[SEALED], num_messages=5, compression=3, uncompressed_size=4)
    wanted = Metadata.FromString(bytes(sent_one.body.metadata))
    assert len(decoded(sent_one)) == 1
    ((_, metadata, payload),) = frames(part(decoded(sent_one)))
    assert (metadata, payload) == (wanted, b"\xffsecret")


def test_a_batch_is_neighbouring_rows_and_a_batch_again() -> None:
    sent_one = batch(
        {**MESSAGE, "payload": b"one"},
        {"payload": b"", "null_value": True, "partition_key": b"k2"},
        {"payload": b"three", "null_partition_key": True},
        schema_version=b"\0" * 8,
    )
    rows = decoded(sent_one)
    assert rows.rows.column("batch_index").to_pylist() == [0, 1, 2]
    ((told, metadata, payload),) = frames(part(rows, first=7 << 32 | 40))
    assert (told.message_id.ledger, told.message_id.entry, metadata.num_messages) == (7, 40, 3)
    assert (metadata.producer_name, metadata.publish_time, metadata.schema_version) == (b"till", NOW, b"\0" * 8)
    first, second, third = singles(payload)
    assert first[1] == b"one"
    assert [(pair.key, pair.value) for pair in first[0].properties] == MESSAGE["properties"]
    assert (first[0].partition_key, first[0].ordering_key, first[0].event_time) == (b"k1", b"o\xff", 77)
    assert (second[0].null_value, second[0].partition_key, second[1]) == (True, b"k2", b"")
    assert (third[0].null_partition_key, third[0].HasField("partition_key")) == (True, False)
    assert [one.sequence_id for one, _ in (first, second, third)] == [0, 1, 2]


def test_bytes_as_keys_are_hashed_as_bytes() -> None:
    key = base64.b64encode(b"\xff\x00")
    rows = decoded(single(partition_key=key, key_is_base64=True), batch({"partition_key": key, "key_is_base64": True}))
    assert rows.rows.column("key").to_pylist() == [b"\xff\x00"] * 2
    assert rows.hashes.tolist() == [masked_hash(b"\xff\x00")] * 2
    (_, alone, _), (_, _, payload) = frames(part(rows))
    assert (alone.partition_key, alone.key_is_base64) == (key, True)
    assert (singles(payload)[0][0].partition_key, singles(payload)[0][0].key_is_base64) == (key, True)


def test_ks_4_without_a_key_the_clients_sequence_id_counts() -> None:
    """All chunks of a message have one number, so that the consumer that joins them gets them all."""
    chunks = [single(uuid=b"u", num_chunks=3, chunk_id=number, total_chunk_size=12) for number in range(3)]
    hashes = [int(group.batch.hashes[0]) for group in groups_of(*chunks)]
    assert hashes == [masked_hash(b"till-7")] * 3
    rows = decoded(single(), single(sequence_id=8), batch({}, {}, {"partition_key": b""}, {"ordering_key": b""}))
    keys = [b"till-7", b"till-8", b"till-0", b"till-1", b"", b""]
    assert rows.hashes.tolist() == [masked_hash(key) for key in keys], "an empty key is a key"
    assert rows.rows.column("key").to_pylist() == [None, None, None, None, b"", None]


def test_no_frame_has_holes_and_counts_do_not_mix() -> None:
    rows = decoded(batch(*({} for _ in range(6))), batch({}, {}))
    everything = part(rows)
    assert encode(everything).counts.tolist() == [6, 2]
    assert encode(taken(everything, [0, 1, 3, 4, 6, 7])).counts.tolist() == [2, 2, 2]
    again = part(rows, redeliveries=np.array([0, 0, 1, 1, 0, 0, 0, 0], np.uint8))
    assert encode(again).counts.tolist() == [2, 2, 2, 2]
    assert [told.redelivery_count for told, _, _ in frames(again)] == [0, 1, 0, 0]
    assert [told.message_id.entry for told, _, _ in frames(again)] == [0, 2, 4, 6]


def encode(given_part: Any, known: Any = None) -> EncodedFrames:
    return encode_part(given_part, Addressee(1, -1, None), known)


@given(st.data())
def test_rest_of_a_batch_keeps_its_ids(data: st.DataObject) -> None:
    """Each of the rows chosen is in one frame, at the place in the batch that it was sent with; only entries that the
    client has are not used again."""
    sizes = data.draw(st.lists(st.integers(1, 70), min_size=1, max_size=3))
    rows = decoded(*(batch(*({"payload": b"%d" % at} for at in range(size))) for size in sizes))
    homes = np.cumsum([0, *sizes[:-1]]).tolist()
    chosen = sorted(data.draw(st.sets(st.sampled_from(range(len(rows))), min_size=1)))
    known = {(1 << 32) + start for start in homes if data.draw(st.booleans())}
    shown = []
    counts = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 2, len(rows)).astype(np.uint8)
    pieces = encode(taken(part(rows, redeliveries=counts), chosen), known)
    assert len(set(pieces.positions)) == len(pieces.positions)
    counted = 0
    for position, (told, metadata, payload) in zip(pieces.positions, back(pieces), strict=True):
        entry = position - (1 << 32)
        assert told.message_id.entry == entry
        bits = np.unpackbits(np.array(list(told.ack_set), "<i8").view(np.uint8), bitorder="little")
        messages = singles(payload)
        counted += len(messages)
        assert metadata.num_messages == len(messages)
        for place, (single_, text) in enumerate(messages):
            hole = bool(len(bits)) and not bits[place]
            assert (single_.compacted_out, text == b"") == (hole, hole)
            if not hole:
                shown.append(entry + place)
                assert single_.sequence_id == int(text)
        if position in known or entry not in homes:
            assert not len(bits)
        elif len(bits):
            assert metadata.sequence_id == 0
    assert shown == chosen
    assert pieces.messages == counted


def test_native_messages_go_alone_with_text_or_base64_keys() -> None:
    data = pa.record_batch({"key": [b"k", b"\xff"], "payload": [b"a", b"b"]})
    (_, first, _), (_, second, _) = frames(part(make_batch(data, now=NOW, producer="p")))
    assert (first.partition_key, first.key_is_base64, first.HasField("num_messages")) == (b"k", False, False)
    assert (base64.b64decode(second.partition_key), second.key_is_base64) == (b"\xff", True)


def test_a_property_without_value_has_an_empty_one() -> None:
    """As whole columns bring it, from a data frame with gaps; a pair without value is none in Pulsar's protocol."""
    pairs = pa.array([[("a", None), ("b", "1")]], pa.map_(pa.string(), pa.string()))
    data = pa.record_batch({"payload": pa.array([b"a"]), "properties": pairs})
    ((_, metadata, _),) = frames(part(make_batch(data, now=NOW, producer="p")))
    assert [(one.HasField("value"), one.key, one.value) for one in metadata.properties] == [
        (True, b"a", b""),
        (True, b"b", b"1"),
    ]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (single(partition_key=b"!", key_is_base64=True), "base64"),
        (single(partition_key=b"k" * 1025), "1024"),
        (single(publish_time=1 << 60), "9999"),
        (single(deliver_at_time=1 << 60), "9999"),
        (single(properties=[(b"\xff", b"")]), "UTF-8"),
        (single(compression=9, uncompressed_size=4), "compression"),
        (batch({}, num_messages=0), "a batch of 0"),
        (batch({}, num_messages=2), "reaches behind"),
        (batch({}, num_messages=1 << 30), "a batch of"),
        (batch({}, {}, num_messages=1), "follow the last"),
        (batch({"payload_size": 99}), "reaches behind"),
        (batch({"payload_size": -1}), "reaches behind"),
        (sent(Metadata(producer_name=b"p", sequence_id=1), b""), "publish_time"),
        (sent(Metadata(), b""), "producer_name"),
        (single(compression=9, uncompressed_size=4, encryption_keys=[SEALED]), "compression"),
        *((single(compression=codec, uncompressed_size=2**31 - 1), "never become 2147483647") for codec in CODECS),
        (single(b"x" * 200_000, compression=ZSTD, uncompressed_size=2**31), "never become 2147483648"),
        (single(compression=LZ4, uncompressed_size=2**32 - 1, uuid=b"u"), "never become 4294967295"),
        (single(b"x" * 200_000, compression=LZ4, uncompressed_size=MAX_INFLATED + 1), "does not become"),
        (single(ZEROS, compression=LZ4, uncompressed_size=MAX_INFLATED + 2), "does not become"),
        (single(ZEROS, compression=LZ4, uncompressed_size=MAX_INFLATED), "cannot be inflated"),
        (single(num_messages=-5, encryption_keys=[SEALED]), "a batch of -5"),
        (single(encryption_keys=[b"\xff"]), "cannot be read"),
        (single(encryption_keys=[SEALED, b"\x0a\x01k"]), "no value"),
        (single(encryption_keys=[b"\x12\x01v"]), "no name"),
        (single(encryption_keys=[SEALED + b"\x1a\x03\x0a\x01a"]), "no value"),
        (behind(single(), b"\xfb\x01\x08\x01\xfc\x01"), "a group"),
        (single(uuid=b"u", num_chunks=2**31 - 1, chunk_id=0, total_chunk_size=9), "chunk 0 of 2147483647"),
        (single(uuid=b"u", num_chunks=MOST_CHUNKS + 1, chunk_id=0), "chunk 0 of"),
        (single(uuid=b"u", num_chunks=2, chunk_id=2), "chunk 2 of 2"),
        (single(uuid=b"u", num_chunks=2, chunk_id=-1), "chunk -1 of 2"),
        (single(uuid=b"u", num_chunks=2, chunk_id=0, total_chunk_size=-1), "of -1 bytes"),
        (single(uuid=b"u", num_chunks=2, chunk_id=0, total_chunk_size=11 << 20), "2 chunks do not make"),
        (single(num_chunks=2**31 - 1), "chunk 0 of 2147483647"),
        (batch({}, {}, producer_name=b"p" * 1025), "kept with each message"),
        (batch({}, {}, schema_version=b"v" * 1025), "kept with each message"),
        (batch({"null_value": True}, {}, producer_name=b"p" * 1025), "kept with each message"),
    ],
)
def test_malformed_send_is_refused_alone(wrong: Send, says: str) -> None:
    fine = single()
    groups = groups_of(wrong, fine)
    assert wrong.error is not None
    assert wrong.error[0] == ServerError.NOT_ALLOWED
    assert says in wrong.error[1]
    assert [len(group.batch) for group in groups] == [1]
    assert fine.error is None


def test_payload_that_inflates_too_far_passes_unchanged() -> None:
    sent_one = single(ZEROS, compression=LZ4, uncompressed_size=MAX_INFLATED + 1)
    ((_, metadata, payload),) = frames(part(decoded(sent_one)))
    assert (metadata.compression, metadata.uncompressed_size, payload) == (LZ4, MAX_INFLATED + 1, ZEROS)


def test_damage_is_a_checksum_error_and_clients_send_again() -> None:
    damaged = single()
    damaged.body = type(damaged.body)(damaged.body.metadata, damaged.body.payload, damaged=True)
    assert groups_of(damaged) == []
    assert damaged.error is not None
    assert damaged.error[0] == ServerError.CHECKSUM


@given(st.binary(max_size=120), st.binary(max_size=120), st.booleans())
def test_any_metadata_and_payload_are_rows_or_refused(metadata: bytes, payload: bytes, behind: bool) -> None:
    start = batch({}, {}).body if behind else single().body
    one = sent(Metadata(), b"")
    one.body = type(start)(memoryview(bytes(start.metadata) + metadata), memoryview(payload), damaged=False)
    groups = groups_of(one)
    assert (one.error is None) == bool(groups)
    for group in groups:
        frames(part(group.batch))


@given(st.data())
def test_any_change_of_a_batch_is_rows_or_refused(data: st.DataObject) -> None:
    start = batch(*({"partition_key": b"k%d" % n, "payload": b"p" * n} for n in range(4)), properties=[])
    raw = bytearray(start.body.payload)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    start.body = type(start.body)(start.body.metadata, memoryview(bytes(raw)), damaged=False)
    for group in groups_of(start):
        frames(part(group.batch))


def test_many_batches_of_every_kind_at_once() -> None:
    """Plain ones, one with properties, one malformed, one alone: in the order in which they came."""
    plain = [batch(*({"partition_key": b"k%d" % n, "payload": b"%d" % n} for n in range(size))) for size in (3, 7, 1)]
    wrong = batch({"payload": b"x"}, num_messages=2)
    rich = batch({"payload": b"rich", "properties": [(b"a", b"b")]}, {"payload": b"er"})
    given_sends = [plain[0], wrong, single(b"alone"), plain[1], rich, plain[2]]
    (group,) = groups_of(*given_sends)
    payloads = group.batch.rows.column("payload").to_pylist()
    assert payloads == [b"0", b"1", b"2", b"alone", *(b"%d" % n for n in range(7)), b"rich", b"er", b"0"]
    assert [send.rows for send in group.sends] == [3, 1, 7, 2, 1]
    assert wrong.error is not None
    assert encode(part(group.batch)).counts.tolist() == [3, 1, 7, 2, 1]


def test_more_rows_than_a_run_takes_are_several_runs() -> None:
    given_sends = [batch(*({} for _ in range(30_000))) for _ in range(3)]
    assert [len(group.batch) for group in groups_of(*given_sends)] == [60_000, 30_000]


def test_large_numbers_of_every_length() -> None:
    numbers = [0, 1, 127, 128, 1 << 14, (1 << 35) - 1, 1 << 49, (1 << 56) - 1, 1 << 56, (1 << 64) - 1]
    messages: list[dict[str, Any]] = [
        {"sequence_id": number, "event_time": number or 1, "payload": b"p" * n} for n, number in enumerate(numbers)
    ]
    for wanted in (messages[:8], messages):
        ((_, _, payload),) = frames(part(decoded(batch(*wanted))))
        assert [(one.sequence_id, one.event_time, len(data)) for one, data in singles(payload)] == [
            (message["sequence_id"], message["event_time"], len(message["payload"])) for message in wanted
        ]


FIELDS = st.fixed_dictionaries(
    {"payload": st.binary(max_size=20)},
    optional={
        "partition_key": st.text(max_size=8).map(str.encode),
        "ordering_key": st.binary(max_size=8),
        "event_time": st.integers(1, 1 << 63),
        "sequence_id": st.integers(0, (1 << 64) - 1),
        "null_value": st.just(True),
        "null_partition_key": st.just(True),
        "properties": st.lists(
            st.tuples(st.text(max_size=5).map(str.encode), st.text(max_size=5).map(str.encode)), min_size=1, max_size=3
        ),
    },
)


@given(st.lists(st.lists(FIELDS, min_size=1, max_size=5), min_size=1, max_size=5))
def test_batches_come_out_as_they_went_in(batches: list[list[dict[str, Any]]]) -> None:
    rows = decoded(*(batch(*messages) for messages in batches))
    found = [singles(payload) for _, _, payload in frames(part(rows))]
    assert [len(one) for one in found] == [len(messages) for messages in batches]
    for got, messages in zip(found, batches, strict=True):
        for number, ((one, payload), message) in enumerate(zip(got, messages, strict=True)):
            wanted = Single(payload_size=len(message["payload"]), sequence_id=number)
            fill(wanted, **{name: value for name, value in message.items() if name != "payload"})
            assert (one, payload) == (wanted, message["payload"])
