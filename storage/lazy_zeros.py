"""Zeroed memory that takes up pages only when they are written."""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt


def untouched(count: int, dtype: type[Any]) -> npt.NDArray[Any]:
    """So many numbers, all 0, shape (count,). A page of them takes memory from when something else is written there.

    For tables of which most are never used: numpy's zeros come from memory that was used before.
    """
    pages = mmap.mmap(-1, count * np.dtype(dtype).itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages refuses
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype)
