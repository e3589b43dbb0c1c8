"""The loop over a few SEND frames gives the rows that decoding one by one gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.pulsar.codec import loop_decoder
from sluice.actors.pulsar.codec.frames import Cut
from sluice.actors.pulsar.codec.loop_decoder import SentRows, read_few, sends_of
from sluice.actors.pulsar.codec.protocol import command
from sluice.actors.pulsar.codec.send_decoder import decode_sends
from sluice.actors.pulsar.codec.vectorized_decoder import Sends
from tests.actors.pulsar.codec.test_vectorized_decoder import common, cut_of, messages, one_by_one, plain, sent_frames
from tests.actors.pulsar.made import NOW, frame, single


def decoded(cut: Cut) -> dict[int, Sends | None]:
    """Return the frames that the loop takes as columns."""
    read = read_few(cut, 0, len(cut))
    rows = {producer: sent for producer, sent in read.items() if isinstance(sent, SentRows)}
    others = {producer: sent for producer, sent in read.items() if not isinstance(sent, SentRows)}
    return others | sends_of(rows)


def agree(given_frames: list[tuple[int, bytes]]) -> dict[int, Any]:
    """Compare rows, hashes and times of each producer with those of its frames one by one."""
    read = decoded(cut_of([one for _, one in given_frames]))
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
    read = decoded(cut_of([bytes(one) for one in frames]))
    assert read.get(given_frames[victim][0]) is None


def test_single_messages_of_two_producers_then_all_are_taken() -> None:
    made = [(1 + number % 2, single(b"x", partition_key=b"k", sequence_id=number)) for number in range(20)]
    frames = [(producer, _framed(producer, one)) for producer, one in made]
    read = agree(frames)
    assert all(read[producer] is not None and len(read[producer]) == 10 for producer in (1, 2))


def test_rows_of_several_producers_then_they_lie_side_by_side() -> None:
    made = [(producer, single(b"%d" % producer, partition_key=b"k", sequence_id=1)) for producer in range(6)]
    taken = decoded(cut_of([_framed(producer, one) for producer, one in made]))
    batches = [sends.batch for sends in taken.values() if sends is not None and sends.batch is not None]
    assert [(one.cut_from or (None, 0, 0))[1:] for one in batches] == [(at, at + 1) for at in range(6)]


@pytest.mark.parametrize(
    "change",
    [
        {"producer_name": b"x" * 130},
        {"producer_name": "é".encode()},
        {"partition_key": b"k" * 130},
        {"partition_key": b"a\x10b"},
        {"partition_key": b""},
        {"publish_time": 1 << 63},
        {"sequence_id": (1 << 64) - 1},
        {"partition_key": b"aw==", "key_is_base64": True},
        {"key_is_base64": False},
        {"null_value": True},
        {"event_time": 5},
        {"ordering_key": b"o"},
        {"schema_version": b"\0" * 8},
        {},
    ],
)
def test_frame_near_the_plain_form_then_its_row_is_protobufs(change: dict[str, Any]) -> None:
    """The loop takes the plain form by a regular expression; every other frame by Pulsar's own messages."""
    one = single(b"x", **({"partition_key": b"k", "sequence_id": 7} | change))
    agree([(3, _framed(3, one)), (4, _framed(4, single(b"y", partition_key=b"k", sequence_id=300)))])


def _framed(producer: int, one: Any) -> bytes:
    asked = command("send", producer_id=producer, sequence_id=one.command.sequence_id)
    return frame(asked, bytes(one.body.metadata), bytes(one.body.payload))


def test_plain_frame_then_no_command_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = cut_of([_framed(3, single(b"x", partition_key=b"k")), _framed(4, single(b"y"))])
    read_few(cut, 0, 2)  # what the metadata have beside their columns is parsed once
    monkeypatch.setattr(loop_decoder, "parse", None)
    assert {*read_few(cut, 0, 2)} == {3, 4}
