"""Dividing a batch over partitions, and joining small ones."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from sluice.actors.producer.batches import split
from sluice.storage.format.batch import StoredBatch, make_batch
from sluice.storage.format.hashing import masked_hash


def made(count: int, delayed: bool = False) -> StoredBatch:
    """Messages 0 .. count-1 with a few keys."""
    columns: dict[str, object] = {
        "key": [f"k{number % 13}" for number in range(count)],
        "payload": [str(n) for n in range(count)],
    }
    if delayed:
        columns["deliver_at"] = list(range(count))
    return make_batch(pa.record_batch(columns), now=1, producer="p")


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_every_row_goes_to_the_partition_of_its_hash_in_order(partitions: int) -> None:
    """The places of the parts are the whole batch; within a part they rise."""
    whole = made(100, delayed=True)
    parts = split(whole, partitions)
    places = np.concatenate([rows for _, _, rows in parts])
    assert sorted(places.tolist()) == list(range(100))
    for partition, part, rows in parts:
        assert (np.diff(rows) > 0).all()
        assert part.rows["payload"].to_pylist() == [str(row).encode() for row in rows]
        assert {masked_hash(key) % partitions for key in part.rows["key"].to_pylist()} == {partition}
        assert part.deliver_at is None or part.deliver_at.tolist() == rows.tolist()


def test_a_part_without_delays_says_so() -> None:
    """No due times travel where there are none."""
    assert all(part.deliver_at is None for _, part, _ in split(made(10), 3))
