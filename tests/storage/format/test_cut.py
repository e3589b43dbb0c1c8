"""Rows that are taken out of a run are those of the run, whatever it is made of."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from sluice.storage.errors import Corrupt
from sluice.storage.format.batch import decode_body, make_batch
from sluice.storage.format.checked_payload import payload_crc
from sluice.storage.format.cut import cut_run
from sluice.storage.format.frame import Run, index_columns, make_run

COUNT = 200


def run_of(compression: str | None, *, delayed: bool) -> Run:
    """Messages of 100 bytes, some without key, every third one with a property."""
    rng = np.random.default_rng(7)
    rows = {
        "key": pa.array([None if row % 7 == 0 else b"key-%d" % row for row in range(COUNT)], pa.binary()),
        "payload": pa.array([rng.bytes(50) * 2 for _ in range(COUNT)]),
        "properties": pa.array(
            [[("n", str(row))] if row % 3 == 0 else None for row in range(COUNT)], pa.map_(pa.string(), pa.string())
        ),
    }
    if delayed:
        rows["deliver_at"] = pa.array([row % 2 * 1_000 for row in range(COUNT)], pa.int64())
    return make_run(make_batch(pa.table(rows), now=9, producer="p"), compression)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("delayed", [False, True], ids=["at once", "delayed"])
@pytest.mark.parametrize("rows", [[0], [3, 4, 199], list(range(0, COUNT, 11))], ids=str)
def test_the_rows_are_those_of_the_run(compression: str | None, delayed: bool, rows: list[int]) -> None:
    run = run_of(compression, delayed=delayed)
    wanted = np.array(rows, np.uint32)
    cut = cut_run(run.payload, run.count, run.delayed, run.shape, wanted)
    assert cut is not None
    assert (cut.count, cut.delayed, cut.shape) == (len(rows), delayed, run.shape)
    assert payload_crc(cut.payload) == cut.crc
    assert len(cut.payload) < len(run.payload)

    def columns(one: Run) -> tuple[pa.RecordBatch, list[int], list[int]]:
        size = one.count * (12 if one.delayed else 4)
        due, hashes = index_columns(one.payload[:size], one.count, one.delayed)
        times = [0] * one.count if due is None else due.tolist()
        return decode_body(one.payload[size:], one.shape, one.count), times, hashes.tolist()

    (all_rows, all_due, all_hashes), (got, due, hashes) = columns(run), columns(cut)
    assert got.equals(all_rows.take(pa.array(rows)))
    assert due == [all_due[row] for row in rows]
    assert hashes == [all_hashes[row] for row in rows]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_most_of_a_run_is_not_cut_out_of_it(compression: str | None) -> None:
    """A compressed run reaches the limit at a smaller share: its rows take more bytes once they are cut out."""
    run = run_of(compression, delayed=False)
    share = 0.9 if compression is None else 0.6
    rows = np.arange(int(COUNT * share), dtype=np.uint32)
    assert cut_run(run.payload, run.count, run.delayed, run.shape, rows) is None


def test_damaged_payload_is_not_cut() -> None:
    run = run_of(None, delayed=False)
    damaged = bytes(run.payload[: COUNT * 4]) + b"\x00" * (len(run.payload) - COUNT * 4)
    with pytest.raises(Corrupt):
        cut_run(damaged, run.count, run.delayed, run.shape, np.array([1], np.uint32))
