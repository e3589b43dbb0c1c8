"""Ranges of what is stored: where they begin and end, how they are cut, and what a reader of one gets."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from sluice.actors.consumer.payload import DecodedRun
from sluice.actors.messages import Ends
from sluice.cluster.base.loop import LoopThread
from sluice.cluster.client.log_reader import StoredRange, ranges_of, read_range
from sluice.storage.errors import Invalid, NotFound
from sluice.storage.format.position import position


def test_an_open_ledger_reaches_as_far_as_is_confirmed() -> None:
    ends = Ends(first=position(4, 0), last=position(9, 6), next=position(9, 7), ledgers=[(4, 99), (9, None)])
    assert ranges_of(2, ends) == [StoredRange(2, 4, 0, 99), StoredRange(2, 9, 0, 6)]


def test_nothing_confirmed_is_no_range() -> None:
    assert ranges_of(0, Ends(first=0, last=-1, next=0)) == []
    opened = Ends(first=position(1, 0), last=-1, next=position(1, 0), ledgers=[(1, None)])
    assert ranges_of(0, opened) == []
    # A new ledger was opened, an empty one closed, and the last confirmed message lies before both.
    behind = Ends(first=position(1, 0), last=position(1, 4), next=position(3, 0), ledgers=[(1, 4), (2, -1), (3, None)])
    assert ranges_of(0, behind) == [StoredRange(0, 1, 0, 4)]


def test_pieces_cover_a_range_once_in_order() -> None:
    pieces = StoredRange(1, 7, 10, 34).split(10)
    assert [(piece.first, piece.last) for piece in pieces] == [(10, 19), (20, 29), (30, 34)]
    assert {(piece.partition, piece.ledger) for piece in pieces} == {(1, 7)}
    assert StoredRange(1, 7, 10, 10).split(1_000) == [StoredRange(1, 7, 10, 10)]
    with pytest.raises(Invalid, match="at least 1 message"):
        StoredRange(1, 7, 10, 34).split(0)


class Runs:
    """Payloads of one ledger in runs of ten messages; everything below `trimmed` is gone."""

    def __init__(self, trimmed: int = 0) -> None:
        self.trimmed = trimmed

    async def run(self, ledger: int, entry: int) -> DecodedRun:
        if entry < self.trimmed:
            raise NotFound(f"ledger {ledger} was trimmed")
        first = entry // 10 * 10
        rows = pa.record_batch({"payload": pa.array([b"%d" % n for n in range(first, first + 10)])})
        due = np.arange(first, first + 10) * 100 if first == 20 else None
        return DecodedRun(ledger, first, rows, due, 100)


def test_a_reader_gets_its_range_and_nothing_beside_it() -> None:
    loop = LoopThread("test")
    try:
        parts = list(read_range(loop, cast(Any, Runs()), StoredRange(3, 5, 8, 31)))
        assert [len(part) for part in parts] == [2, 10, 10, 2]
        payloads = [value for part in parts for value in part.rows.column("payload").to_pylist()]
        assert payloads == [b"%d" % n for n in range(8, 32)]
        positions = np.concatenate([part.positions for part in parts])
        assert positions.tolist() == [position(5, n) for n in range(8, 32)]
        assert {part.partition for part in parts} == {3}
        assert parts[2].deliver_at.tolist() == [n * 100 for n in range(20, 30)]
        assert not parts[1].deliver_at.any()
        with pytest.raises(NotFound, match="trimmed"):
            list(read_range(loop, cast(Any, Runs(trimmed=10)), StoredRange(3, 5, 8, 31)))
    finally:
        loop.stop()
