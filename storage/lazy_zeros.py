"""Zeroed memory that takes up pages only when they are written."""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt


def untouched(count: int, *dtypes: type[Any]) -> list[npt.NDArray[Any]]:
    """So many numbers of each type, all 0, each of shape (count,). A page of them takes memory from when something else
    is written there.

    For tables of which most are never used: numpy's zeros come from memory that was used before. Those that are used
    together are made together: what they have of one place lies side by side, so it takes one page and not one for each
    table, and a process may have only so many mappings.
    """
    record = np.dtype([(f"f{number}", dtype) for number, dtype in enumerate(dtypes)], align=True)
    pages = mmap.mmap(-1, count * record.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages refuses
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    records = np.frombuffer(pages, record, count)
    return [records[name] for name in record.names or ()]
