"""The exception of a handler of columns that names the rows that it could not handle."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


class FailedRows(Exception):
    """An error of some rows of a batch. The others are done, except the rows behind a failed one of their key.

    rows: their numbers, from 0 on. A handler that raises anything else has failed with all rows of its batch.
    """

    def __init__(self, rows: Iterable[int], why: str = "") -> None:
        super().__init__(why or "some rows have failed")
        self.rows: npt.NDArray[np.int64] = np.unique(np.fromiter(rows, np.int64))
