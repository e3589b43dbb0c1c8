"""What a handler of columns raises to say which rows it could not handle."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


class FailedRows(Exception):
    """These rows of the batch have failed, and the others are done; a row behind a failed one of its key is not.

    rows: their numbers, from 0 on. A handler that raises anything else has failed with all rows of its batch.
    """

    def __init__(self, rows: Iterable[int], why: str = "") -> None:
        super().__init__(why or "some rows have failed")
        self.rows: npt.NDArray[np.int64] = np.unique(np.fromiter(rows, np.int64))
