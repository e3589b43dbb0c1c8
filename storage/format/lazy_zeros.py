"""Zeroed memory that takes up pages only when they are written."""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt


def untouched(count: int, *dtypes: type[Any]) -> list[npt.NDArray[Any]]:
    """Return an array of zeros of each type, each of shape (count,). A page of them takes memory only once it is
    written to.

    For tables that mostly stay unused: numpy's zeros come from memory that was used before. Arrays that are used
    together are made together, because a process may have only a limited number of mappings.
    """
    starts = [0]
    for dtype in dtypes:
        starts.append(starts[-1] + -(-count * np.dtype(dtype).itemsize // mmap.PAGESIZE) * mmap.PAGESIZE)
    pages = mmap.mmap(-1, starts[-1], flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages refuses
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return [np.frombuffer(pages, dtype, count, start) for dtype, start in zip(dtypes, starts, strict=False)]
