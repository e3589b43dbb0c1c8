"""Operations of the judge on whole columns: sort, match, find the latest before. No Python loop over rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.loadgen.base.history import Int64s

Mask = npt.NDArray[np.bool_]


def ints(table: pa.Table, name: str) -> Int64s:
    """A column of whole numbers, shape (n,)."""
    return np.asarray(table.column(name).to_numpy(), np.int64)


def mask(column: pa.ChunkedArray) -> Mask:
    """A column of yes and no, shape (n,)."""
    return np.asarray(column.to_numpy(), np.bool_)


def sorted_pairs(high: Int64s, low: Int64s) -> Int64s:
    """Row numbers in the order of (high, low), from 0 up; compared as one number where they fit into one: faster."""
    width = int(low.max(initial=0)).bit_length()
    if int(high.max(initial=0)).bit_length() + width < 64 and low.min(initial=0) >= 0:
        return np.argsort((high << width) | low, kind="stable")
    return np.lexsort((low, high))


def one_to_one(message: Int64s, partition: Int64s, position: Int64s, count: int) -> bool:
    """Whether every message has one place and every place one message; messages are numbers below `count`."""
    place = np.full(count, -1)
    where = np.zeros(count, np.int64)
    place[message], where[message] = position, partition
    if (place[message] != position).any() or (where[message] != partition).any():
        return False
    seen = np.zeros(count, np.bool_)
    seen[message] = True
    order = sorted_pairs(where[seen], place[seen])
    same = (np.diff(where[seen][order]) == 0) & (np.diff(place[seen][order]) == 0)
    return not same.any()


def distinct(*columns: Int64s) -> Int64s:
    """Row numbers of one representative of each distinct tuple, sorted by the columns, the first one first."""
    order = np.lexsort(columns[::-1])
    keep = np.zeros(len(order), np.bool_)
    if len(order):
        keep[0] = True
    for column in columns:
        keep[1:] |= np.diff(column[order]) != 0
    return order[keep]


def running_end(ends: Int64s, new_key: Mask) -> Int64s:
    """The maximum of `ends` over the earlier rows of the same key; the smallest int64 for a key's first row.

    A running maximum must not leak from one key into the next: ends are ranked, and each key's ranks lifted above
    those of all keys before it.
    """
    order = np.argsort(ends, kind="stable")
    ranks = np.empty(len(ends), np.int64)
    ranks[order] = np.arange(len(ends))
    lifted = np.maximum.accumulate(ranks + np.cumsum(new_key) * len(ends))
    result = np.full(len(ends), np.iinfo(np.int64).min)
    result[1:] = ends[order[lifted[:-1] % len(ends)]]
    result[new_key] = np.iinfo(np.int64).min
    return result


def last_before(
    places: tuple[Int64s, Int64s, Int64s], times: Int64s, asked: tuple[Int64s, Int64s, Int64s], moments: Int64s
) -> Int64s:
    """Return for each asked place and moment the row of that place with the latest time up to the moment, or -1."""
    rows = len(times)
    columns = [np.concatenate([place, ask]) for place, ask in zip(places, asked, strict=True)]
    when = np.concatenate([times, moments])
    is_ask = np.arange(len(when)) >= rows
    order = np.lexsort((is_ask, when, *columns[::-1]))
    new = np.ones(len(order), np.bool_)
    for column in columns:
        new[1:] &= np.diff(column[order]) == 0
    new[1:] = ~new[1:]
    # The index of the last delivery so far; below the start of the place's group it belongs to another place.
    spots = np.arange(len(order))
    last = np.maximum.accumulate(np.where(is_ask[order], -1, spots))
    group = np.maximum.accumulate(np.where(new, spots, 0))
    found = np.where(last >= group, order[last], -1)
    result = np.full(len(moments), -1)
    asks = is_ask[order]
    result[order[asks] - rows] = found[asks]
    return result
