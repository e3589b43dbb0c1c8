"""Looks at a delayed index without loading it: makes the histogram of due times from headers and memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sluice.storage.delayed.bucket import SegmentTable
from sluice.storage.delayed.entries import Entries

Slot = tuple[int, int, int]
"""(first ms, last ms, messages) of one slot."""


def histogram(parts: Sequence[Entries], tables: Sequence[tuple[SegmentTable, int]], slots: int) -> list[Slot]:
    """Due times in about `slots` slots of equal width.

    parts: entries in memory, counted exactly. tables: with the first segment that is not loaded; a segment's entries
    are counted at the slot of the middle of its time range.
    """
    times: list[npt.NDArray[np.int64]] = [part.deliver_at for part in parts if len(part)]
    weights = [np.ones(column.size, np.int64) for column in times]
    for table, first in tables:
        low, high = table.min_time[first:], table.max_time[first:]
        times.append(low + (high - low) // 2)
        weights.append(table.count[first:].astype(np.int64))
    all_times = np.concatenate(times) if times else np.empty(0, np.int64)
    if not all_times.size or slots < 1:
        return []
    low_ms, high_ms = int(all_times.min()), int(all_times.max())
    width = (high_ms - low_ms) // slots + 1
    counts = np.zeros(slots, np.int64)
    np.add.at(counts, (all_times - low_ms) // width, np.concatenate(weights))
    return [(low_ms + i * width, low_ms + (i + 1) * width - 1, int(n)) for i, n in enumerate(counts)]
