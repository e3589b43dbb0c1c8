"""Columns of a file of the history: only the bytes of what is wanted are read, and damage is not believed."""

from __future__ import annotations

import contextlib

import numpy as np
import pyarrow as pa
import pytest

from sluice.storage.errors import Corrupt
from sluice.storage.history.column_reader import EVERYTHING, PartColumns, Selection
from sluice.storage.history.part import PartWriter, SealedPart
from tests.storage.history.test_part import LEDGER, followed, footer_of

RUNS, ROWS = 8, 50
EACH = 2
HOUR = 3_600_000


class Object:
    """A file in a store; reads: what was asked of it."""

    def __init__(self, part: SealedPart) -> None:
        self.data = bytearray(part.data)
        self.reads: list[tuple[int, int]] = []

    def get(self, start: int, length: int) -> bytes:
        """A range."""
        self.reads.append((start, length))
        return bytes(self.data[start : start + length])


@pytest.fixture(scope="module")
def part() -> SealedPart:
    """Eight runs of 50 messages, an hour apart, two in a row group; payloads cannot be compressed."""
    chance = np.random.default_rng(7)
    runs = []
    for run in range(RUNS):
        keys = [b"k%d" % (row % 5) for row in range(ROWS - 1)] + [b"only-in-%d" % run]
        times = np.full(ROWS, run * HOUR) + np.arange(ROWS)
        runs.append({"key": keys, "payload": [chance.bytes(2_000) for _ in range(ROWS)], "publish_time": times})
    frames = followed(runs)
    writer = PartWriter(LEDGER, 0, 0)
    for start in range(0, RUNS, EACH):
        writer.add(frames[start : start + EACH])
    return writer.finish()


def opened(part: SealedPart) -> tuple[PartColumns, Object]:
    stored = Object(part)
    return PartColumns(footer_of(part), stored.get), stored


def rows_of(columns: PartColumns, names: list[str], first: int, last: int, wanted: Selection = EVERYTHING) -> pa.Table:
    found = [columns.read(number, names, first, last, wanted) for number in columns.groups(first, last, wanted)]
    return pa.concat_tables([table.select(names) for table in found if table is not None])


def test_a_column_costs_its_own_bytes(part: SealedPart) -> None:
    columns, stored = opened(part)
    rows = rows_of(columns, ["key"], 0, RUNS * ROWS - 1)
    assert rows.num_rows == RUNS * ROWS
    assert rows.column("key").to_pylist().count(b"k3") == RUNS * 10
    read = sum(length for _, length in stored.reads)
    assert read < len(part.data) / 20
    assert columns.bytes_read == read + part.footer_bytes
    assert len(stored.reads) == RUNS // EACH, "one request a row group"


@pytest.mark.parametrize(("first", "last"), [(0, 0), (49, 50), (120, 290), (399, 399), (100, 199)])
def test_entries_are_cut_exactly(part: SealedPart, first: int, last: int) -> None:
    columns, stored = opened(part)
    assert rows_of(columns, ["entry"], first, last).column("entry").to_pylist() == list(range(first, last + 1))
    groups = {start for start, _ in stored.reads}
    assert len(groups) == last // 100 - first // 100 + 1


def test_times_skip_row_groups_and_cut_rows(part: SealedPart) -> None:
    columns, stored = opened(part)
    wanted = Selection(since=3 * HOUR + 10, until=4 * HOUR + 5)
    assert columns.groups(0, RUNS * ROWS - 1, wanted) == [1, 2]
    rows = rows_of(columns, ["entry", "payload"], 0, RUNS * ROWS - 1, wanted)
    assert rows.column("entry").to_pylist() == [*range(160, 200), *range(200, 205)]
    assert sum(length for _, length in stored.reads) < len(part.data) * 0.55
    assert columns.groups(0, RUNS * ROWS - 1, Selection(since=8 * HOUR)) == []


def test_a_key_costs_its_column_where_it_is_not(part: SealedPart) -> None:
    """Every row group has keys on both sides of this one, so statistics say nothing."""
    columns, stored = opened(part)
    wanted = Selection(keys=(b"only-in-5", b"not-there"))
    assert columns.groups(0, RUNS * ROWS - 1, wanted) == [0, 1, 2, 3]
    rows = rows_of(columns, ["entry", "key", "payload"], 0, RUNS * ROWS - 1, wanted)
    assert rows.column("entry").to_pylist() == [299]
    assert rows.column("key").to_pylist() == [b"only-in-5"]
    assert sum(length for _, length in stored.reads) < len(part.data) * 0.3
    assert columns.groups(0, RUNS * ROWS - 1, Selection(keys=(b"zebra",))) == [], "above every key"


def test_nothing_but_rows_can_be_asked_for(part: SealedPart) -> None:
    columns, _ = opened(part)
    found = [columns.read(number, [], 0, 399, EVERYTHING) for number in range(4)]
    assert sum(table.num_rows for table in found if table is not None) == 400


def test_every_byte_of_a_column_is_checked(part: SealedPart) -> None:
    """Damage to the data of a page is found by the page's checksum; damage to its header makes it unreadable."""
    columns, stored = opened(part)
    columns.read(1, ["payload"], 0, 399, EVERYTHING)
    ((start, length),) = stored.reads
    whole = rows_of(columns, ["payload"], 0, 399)
    for place in np.linspace(start, start + length - 1, 60).astype(int).tolist():
        stored.data[place] ^= 0x40
        with contextlib.suppress(Corrupt):  # what no page's checksum covers may change nothing
            assert rows_of(columns, ["payload"], 0, 399).equals(whole), place
        stored.data[place] ^= 0x40
    stored.data[start + length // 2] ^= 1
    with pytest.raises(Corrupt, match="row group 1 cannot be read"):
        columns.read(1, ["payload"], 0, 399, EVERYTHING)
