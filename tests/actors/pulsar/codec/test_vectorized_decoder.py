"""SEND frames that are decoded together give the same rows and answers as one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.pulsar.codec import send_decoder
from sluice.actors.pulsar.codec.batch_decoder import of_like_size, starts_of
from sluice.actors.pulsar.codec.fields import Bytes
from sluice.actors.pulsar.codec.frames import Cut, Cutter, body_of
from sluice.actors.pulsar.codec.protocol import Command, Metadata, Single, command, parse
from sluice.actors.pulsar.codec.send_decoder import Send, decode_sends, run_of
from sluice.actors.pulsar.codec.vectorized_decoder import Sends, read_sends, receipts, sends_in
from sluice.storage.format.batch import LAST_TIME
from tests.actors.pulsar.made import NOW, U32, batch, frame, single

UNSIGNED = (1 << 64) - 1

text = st.text(max_size=4).map(str.encode)

messages = st.fixed_dictionaries(
    {"payload": st.binary(max_size=20)},
    optional={
        "partition_key": st.binary(max_size=15),
        "ordering_key": st.binary(max_size=15),
        "event_time": st.integers(0, LAST_TIME),
        "null_value": st.booleans(),
        "key_is_base64": st.just(False),
        "properties": st.lists(st.tuples(text, st.sampled_from([b"1", "ä".encode(), b"\xff"])), max_size=3),
    },
)
common = st.fixed_dictionaries(
    {},
    optional={
        "deliver_at_time": st.integers(0, LAST_TIME),
        "schema_version": st.sampled_from([b"", b"\0" * 8]),
        "producer_name": st.sampled_from([b"till", b"other"]),
        "sequence_id": st.integers(0, UNSIGNED),
        "publish_time": st.sampled_from([NOW, LAST_TIME, LAST_TIME + 1]),
    },
)
plain = st.fixed_dictionaries(
    {"payload": st.binary(max_size=20), "partition_key": st.binary(max_size=15)},
    optional={
        "key_is_base64": st.just(False),
        "null_value": st.just(False),
        "null_partition_key": st.just(False),
        "properties": st.lists(st.tuples(text, text), max_size=3),
    },
)


@st.composite
def sent_frames(draw: st.DrawFn, message: Any, more: Any) -> tuple[int, bytes]:
    """(Number of the producer, a SEND)."""
    several = draw(st.lists(message, min_size=1, max_size=3))
    fields = draw(more)
    alone = len(several) == 1 and draw(st.booleans())
    made = single(**several[0], **fields) if alone else batch(*several, **fields)
    producer = draw(st.integers(1, 3))
    highest = {"highest_sequence_id": draw(st.integers(0, 1 << 50))} if draw(st.booleans()) else {}
    asked = command("send", producer_id=producer, sequence_id=draw(st.integers(0, 1 << 50)), **highest)
    return producer, frame(asked, bytes(made.body.metadata), bytes(made.body.payload))


def cut_of(frames: list[bytes]) -> Cut:
    return Cutter().feed(b"".join(frames))


def one_by_one(frames: list[bytes]) -> list[Send]:
    return [Send(parse(Command, found.command).send, body_of(found.rest)) for found in cut_of(frames)]


def agree(sends: Sends, mine: list[bytes]) -> None:
    """Rows and receipts are those of the frames one by one."""
    alone = one_by_one(mine)
    (group,) = decode_sends(alone, now=NOW, producer="till")
    made = run_of(sends.table, now=NOW, producer="till")
    assert made.rows.to_pylist() == group.batch.rows.to_pylist()
    assert made.rows.schema == group.batch.rows.schema
    assert (made.hashes == group.batch.hashes).all()
    due = [None if one.deliver_at is None else one.deliver_at.tolist() for one in (made, group.batch)]
    assert due[0] == due[1]
    if sends.batch is not None:  # what frames of other producers have is a column here as well
        assert sends.batch.rows.select(made.rows.schema.names).to_pylist() == made.rows.to_pylist()
        others = sends.batch.rows.drop_columns(made.rows.schema.names)
        assert all(column.null_count == len(made) for column in others.columns)
        assert (sends.batch.hashes == made.hashes).all()
        times = sends.batch.deliver_at
        assert (None if times is None else times.tolist()) == due[0]
    assert sends.rows.tolist() == [send.rows for send in alone]
    assert sends.sequence.tolist() == [send.command.sequence_id for send in alone]


@given(st.lists(sent_frames(plain, st.just({})), min_size=1, max_size=12))
def test_plain_frames_are_all_decoded_vectorized(given_frames: list[tuple[int, bytes]]) -> None:
    read = read_sends(cut_of([one for _, one in given_frames]), 0, len(given_frames))
    assert read is not None
    assert set(read) == {producer for producer, _ in given_frames}
    for producer, sends in read.items():
        assert sends is not None
        agree(sends, [one for number, one in given_frames if number == producer])


@given(st.lists(sent_frames(messages, common), min_size=1, max_size=12))
def test_any_frames_give_the_same_rows_or_go_the_slow_way(given_frames: list[tuple[int, bytes]]) -> None:
    read = read_sends(cut_of([one for _, one in given_frames]), 0, len(given_frames))
    for producer, sends in (read or {}).items():
        if sends is not None:
            agree(sends, [one for number, one in given_frames if number == producer])


@given(st.lists(sent_frames(messages, common), min_size=1, max_size=6), st.sampled_from(["till", "ä"]))
def test_few_rows_are_what_columns_make_of_them(given_frames: list[tuple[int, bytes]], producer: str) -> None:
    frames = [one for _, one in given_frames]

    def decoded() -> list[Any]:
        sends = one_by_one(frames)
        groups = decode_sends(sends, now=NOW, producer=producer)
        due = [None if one.batch.deliver_at is None else one.batch.deliver_at.tolist() for one in groups]
        told = [(send.rows, send.error) for send in sends]
        return [[(one.batch.rows, one.batch.hashes.tolist()) for one in groups], due, told]

    few = decoded()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(send_decoder, "_few", lambda taken: None)
        assert decoded() == few


@given(st.lists(sent_frames(plain, st.just({})), min_size=1, max_size=4), st.data())
def test_a_damaged_byte_is_found_or_changes_nothing(given_frames: list[tuple[int, bytes]], data: st.DataObject) -> None:
    """Bytes in front of the checksum are not covered by it, so damage there may change the meaning of the frame."""
    frames = [bytearray(one) for _, one in given_frames]
    victim = data.draw(st.integers(0, len(frames) - 1))
    covered = bytes(frames[victim]).index(b"\x0e\x01")
    frames[victim][data.draw(st.integers(covered, len(frames[victim]) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    read = read_sends(cut_of([bytes(one) for one in frames]), 0, len(frames))
    assert read is None or read[given_frames[victim][0]] is None


@given(st.integers(120, 130), st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(0, 2))
def test_messages_whose_numbers_grow_are_found_at_once(first: int, counts: list[int], longer: int) -> None:
    """From some message on a number takes a byte more. longer: so are payloads, by which nobody may be misled."""
    payloads = [[bytes(3 + longer * (place % 3)) for place in range(count)] for count in counts]
    sends = [
        batch(
            *({"payload": one, "partition_key": b"k", "sequence_id": first + place} for place, one in enumerate(many))
        )
        for many in payloads
    ]
    bodies = [bytes(send.body.payload) for send in sends]
    ends = np.cumsum([len(body) for body in bodies])
    at = ends - [len(body) for body in bodies]
    alike, begin = of_like_size(Bytes(b"".join(bodies)), at, ends, np.array(counts))
    found = dict(zip(alike.tolist(), np.split(begin, np.cumsum(np.array(counts)[alike])[:-1]), strict=False))
    for number, body in enumerate(bodies):
        if number in found or not longer:
            assert found[number].tolist() == [at[number] + start for start in starts_of(body, counts[number]) or []]
    asked = command("send", producer_id=1, sequence_id=0)
    frames = [frame(asked, bytes(send.body.metadata), bytes(send.body.payload)) for send in sends]
    read = read_sends(cut_of(frames), 0, len(frames))
    assert read is not None
    assert read[1] is not None
    agree(read[1], frames)


@pytest.mark.parametrize(("count", "name", "plain"), [(60_000, 200, False), (60_000, 5, True), (300, 200, True)])
def test_frame_that_would_grow_is_decoded_alone(count: int, name: int, plain: bool) -> None:
    """Each message gets what the metadata say: of small ones that would be many times the frame."""
    one = Single(payload_size=0).SerializeToString()
    payload = (U32.pack(len(one)) + one) * count
    metadata = Metadata(producer_name=b"p" * name, sequence_id=1, publish_time=NOW, num_messages=count)
    asked = command("send", producer_id=1, sequence_id=1)
    read = read_sends(cut_of([frame(asked, metadata.SerializeToString(), payload)]), 0, 1)
    assert read is not None
    assert (read[1] is not None) is plain


def test_a_frame_of_another_kind_is_no_send() -> None:
    send = frame(command("send", producer_id=1, sequence_id=2), b"m", b"p")
    ping = frame(command("ping"), b"", b"")
    assert sends_in(cut_of([send, ping, send])).tolist() == [True, False, True]
    assert sends_in(cut_of([])).tolist() == []
    assert sends_in(cut_of([b"\0\0\0\x04\0\0\0\0"])).tolist() == [False]


@given(st.lists(sent_frames(plain, st.just({})), min_size=1, max_size=12))
def test_frames_that_all_have_keys_are_made_a_batch_at_once(given_frames: list[tuple[int, bytes]]) -> None:
    read = read_sends(cut_of([one for _, one in given_frames]), 0, len(given_frames))
    assert read is not None
    assert all(sends is not None and sends.batch is not None for sends in read.values())


def told(sends: Sends, producer: int, partition: int) -> list[Any]:
    return [parse(Command, found.command) for found in Cutter().feed(sends.receipts(producer, partition))]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1 << 40),
            st.integers(-1, 300),
            st.sampled_from([-1, 0, 5, 3 << 32 | 900_000]),
            st.lists(st.tuples(st.integers(0, 1 << 60), st.integers(-1, 1 << 60), st.integers(1, 300)), min_size=1),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_receipts_of_several_producers_are_those_of_each(given_sends: list[tuple[int, int, int, Any]]) -> None:
    several = []
    for producer, partition, first, frames in given_sends:
        sequence, highest, rows = np.array(frames, np.int64).T
        several.append(
            (producer, partition, Sends(sequence, highest, rows, pa.record_batch({"key": []}), 9, first=first))
        )
    each = [sends.receipts(producer, partition) for producer, partition, sends in several]
    assert receipts(several) == b"".join(each)


@pytest.mark.parametrize("first", [-1, 3 << 32 | 900_000])
@pytest.mark.parametrize("partition", [-1, 0, 300])
def test_receipts_say_where_each_frame_begins(first: int, partition: int) -> None:
    rows = np.array([1, 4, 2])
    sequence, highest = np.array([0, 130, 1 << 54]), np.array([-1, 133, 0])
    sends = Sends(sequence, highest, rows, pa.record_batch({"key": []}), 9, first=first)
    answers = told(sends, 70_000, partition)
    assert [one.type for one in answers] == [7, 7, 7]
    for number, one in enumerate(answers):
        receipt = one.send_receipt
        assert (receipt.producer_id, receipt.sequence_id) == (70_000, sequence[number])
        assert receipt.HasField("highest_sequence_id") == (highest[number] >= 0)
        at = receipt.message_id
        entry = 900_000 + [0, 1, 5][number]
        assert (at.ledger, at.entry) == ((3, entry) if first >= 0 else (UNSIGNED, UNSIGNED))
        assert at.partition == partition
