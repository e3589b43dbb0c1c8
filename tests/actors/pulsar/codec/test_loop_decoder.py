"""The loop over a few SEND frames gives the rows that decoding one by one gives."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.pulsar.codec.loop_decoder import read_few
from sluice.actors.pulsar.codec.protocol import command
from sluice.actors.pulsar.codec.send_decoder import decode_sends
from tests.actors.pulsar.codec.test_vectorized_decoder import common, cut_of, messages, one_by_one, plain, sent_frames
from tests.actors.pulsar.made import NOW, frame, single


def agree(given_frames: list[tuple[int, bytes]]) -> dict[int, Any]:
    """Compare rows, hashes and times of each producer with those of its frames one by one."""
    read = read_few(cut_of([one for _, one in given_frames]), 0, len(given_frames))
    for producer, sends in read.items():
        if sends is None:
            continue
        alone = one_by_one([one for number, one in given_frames if number == producer])
        (group,) = decode_sends(alone, now=NOW, producer="till")
        made = sends.run("till", lambda: NOW)
        names = group.batch.rows.schema.names
        assert made.rows.select(names).to_pylist() == group.batch.rows.to_pylist()
        assert all(column.null_count == len(made) for column in made.rows.drop_columns(names).columns)
        assert made.hashes.tolist() == group.batch.hashes.tolist()
        due = [None if one.deliver_at is None else one.deliver_at.tolist() for one in (made, group.batch)]
        assert due[0] == due[1]
        assert sends.sequence.tolist() == [send.command.sequence_id for send in alone]
        assert sends.rows.tolist() == [send.rows for send in alone]
    return read


@given(st.lists(sent_frames(messages, common), min_size=1, max_size=12))
def test_any_frames_then_the_loop_gives_rows_or_leaves_them(given_frames: list[tuple[int, bytes]]) -> None:
    agree(given_frames)


@given(st.lists(sent_frames(plain, st.just({})), min_size=1, max_size=4), st.data())
def test_damaged_byte_then_the_loop_leaves_the_frame(
    given_frames: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    frames = [bytearray(one) for _, one in given_frames]
    victim = data.draw(st.integers(0, len(frames) - 1))
    covered = bytes(frames[victim]).index(b"\x0e\x01")
    frames[victim][data.draw(st.integers(covered, len(frames[victim]) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    read = read_few(cut_of([bytes(one) for one in frames]), 0, len(frames))
    assert read.get(given_frames[victim][0]) is None


def test_single_messages_of_two_producers_then_all_are_taken() -> None:
    made = [(1 + number % 2, single(b"x", partition_key=b"k", sequence_id=number)) for number in range(20)]
    frames = [(producer, _framed(producer, one)) for producer, one in made]
    read = agree(frames)
    assert all(read[producer] is not None and len(read[producer]) == 10 for producer in (1, 2))


def test_producers_of_one_place_then_their_rows_lie_side_by_side() -> None:
    made = [(producer, single(b"%d" % producer, partition_key=b"k", sequence_id=1)) for producer in range(6)]
    cut = cut_of([_framed(producer, one) for producer, one in made])
    read = read_few(cut, 0, len(cut), place=lambda producer: producer % 2)
    assert list(read) == [0, 2, 4, 1, 3, 5]
    taken = [sends.batch for sends in read.values() if sends is not None and sends.batch is not None]
    assert len(taken) == 6
    assert [(one.cut_from or (None, 0, 0))[1:] for one in taken] == [(at, at + 1) for at in range(6)]


def _framed(producer: int, one: Any) -> bytes:
    asked = command("send", producer_id=producer, sequence_id=one.command.sequence_id)
    return frame(asked, bytes(one.body.metadata), bytes(one.body.payload))
