"""Frames at a client: the columns against a plain dictionary; ids of acknowledgements against protobuf."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.consumer.unacked_messages import Received, UnackedMessageTracker
from sluice.actors.pulsar.codec.message_ids import position_of, read_ids
from sluice.actors.pulsar.codec.protocol import AckCommand, MalformedCommand, MessageId, command
from sluice.actors.pulsar.codec.send_decoder import decode_sends
from sluice.actors.pulsar.conversation.consuming.unacked_frames import (
    MESSAGE_BYTES,
    PIECE_BYTES,
    TABLE_BYTES,
    UnackedFrames,
)
from tests.actors.pulsar.made import NOW, batch, part

PLACES = range(12)


def a_part() -> Received:
    (group,) = decode_sends([batch(*({} for _ in range(40)))], now=NOW, producer="till")
    return part(group.batch)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.sampled_from(PLACES), min_size=1, max_size=5, unique=True)),
        st.tuples(st.just("take"), st.lists(st.sampled_from(PLACES), max_size=5)),
        st.tuples(st.just("pop"), st.lists(st.sampled_from(PLACES), min_size=1, max_size=1)),
    ),
    max_size=12,
)


@given(steps)
def test_taken_frames_are_the_last_sent(given_steps: list[tuple[str, list[int]]]) -> None:
    told: list[int] = []
    sent = UnackedFrames(told.append)
    model: dict[int, tuple[Received, int, int]] = {}
    for do, positions in given_steps:
        if do == "add":
            some = a_part()
            firsts, counts = np.arange(len(positions)) * 4, np.arange(len(positions)) % 3 + 1
            sent.add(some, firsts, counts, np.array(positions), {})
            model |= {at: (some, 4 * n, n % 3 + 1) for n, at in enumerate(positions)}
        elif do == "pop" and positions[0] in model:
            sent.pop(positions[0])
            del model[positions[0]]
        elif do == "take":
            rows, counts = sent.remove(np.array(positions, np.int64))
            taken = [model.pop(at, None) for at in positions]
            assert counts.tolist() == [0 if one is None else one[2] for one in taken]
            expected = sorted((id(p), row) for p, first, n in filter(None, taken) for row in range(first, first + n))
            assert sorted((id(p), row) for p, several in rows for row in several.tolist()) == expected
        parts = len({id(some) for some, _, _ in model.values()})
        least = TABLE_BYTES * parts + PIECE_BYTES * len(model) + MESSAGE_BYTES * sent.messages
        assert sum(told) >= least if model else sum(told) == 0
        assert list(sent) == list(model)
        assert sent.messages == sum(n for _, _, n in model.values())
        assert sent.known(np.array(PLACES)).tolist() == [at in model for at in PLACES]
        for at, (some, first, n) in model.items():
            piece = sent.get(at)
            assert piece is not None
            assert (piece.part, piece.first, piece.size) == (some, first, n)


@pytest.mark.parametrize(("rows", "each"), [(1, 1), (10, 1), (1_000, 1), (1_000, 100), (1_000, 1_000)])
def test_counted_bytes_match_the_memory_used(rows: int, each: int) -> None:
    """Within a fifth, with what the consumer keeps of each part and without the messages' contents."""
    told: list[int] = []
    sent, holding, at = UnackedFrames(told.append), UnackedMessageTracker(), 1 << 40

    def add(at: int) -> None:
        positions = np.arange(at, at + rows, dtype=np.int64)
        some = Received(
            rows=pa.record_batch({"payload": [b""] * rows}),
            partition=0,
            positions=positions,
            dispatch=positions.copy(),
            redeliveries=np.zeros(rows, np.uint8),
            deliver_at=np.zeros(rows, np.int64),
            epoch=1,
            session=1,
        )
        some.release()
        holding.add(some)
        firsts = np.arange(0, rows, each)
        sent.add(some, firsts, np.full(len(firsts), each), positions[firsts], {})

    add(at)
    counted = sum(told)
    tracemalloc.start()
    try:
        for _ in range(max(20_000 // rows, 20)):
            at += rows
            add(at)
        cost, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 <= cost / (sum(told) - counted) <= 1.2


numbers = st.one_of(st.integers(0, 300), st.integers(0, (1 << 64) - 1))
ids = st.fixed_dictionaries(
    {"ledger": numbers, "entry": numbers},
    optional={
        "partition": st.integers(-1, 5),
        "batch_index": st.integers(-1, 5),
        "ack_set": st.lists(st.integers(0, 9), max_size=2),
    },
)


@given(st.lists(ids, min_size=1, max_size=12))
def test_vectorized_ids_are_those_that_protobuf_reads(given_ids: list[dict[str, Any]]) -> None:
    encoded = command("ack", message_id=given_ids).SerializeToString()
    positions, others = read_ids(AckCommand.FromString(encoded).ack.message_id, 5)
    found = [position_of(one) for one in others] + positions.tolist()
    wanted = [position_of(MessageId(**one)) for one in given_ids]
    assert sorted(found, key=str) == sorted(wanted, key=str)
    assert sum(len(one.ack_set) for one in others) == sum(len(one.get("ack_set", [])) for one in given_ids)


@pytest.mark.parametrize("many", [1, 9])
def test_ids_that_are_none_are_refused(many: int) -> None:
    with pytest.raises(MalformedCommand):
        read_ids([b"\x08"] * many, 5)
