"""Columns of integers for records that are written often: each has the narrowest type that holds it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_KINDS: dict[int, Any] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<i8")}


def narrow(values: npt.NDArray[np.int64]) -> list[Any]:
    """Numbers of 0 or more, int64 (n,), as [bytes a number, bytes]."""
    most = int(values.max(initial=0))
    width = next(width for width, kind in _KINDS.items() if most <= np.iinfo(kind).max)
    return [width, values.astype(_KINDS[width]).tobytes()]


def wide(column: Any) -> npt.NDArray[np.int64]:
    """The numbers of `narrow` back, int64 (n,). Raises LookupError, TypeError or ValueError if it is none."""
    width, data = column
    numbers: npt.NDArray[np.int64] = np.frombuffer(data, _KINDS[width]).astype(np.int64)
    return numbers
