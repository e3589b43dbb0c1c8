"""Memory that is zero until somebody writes."""

from __future__ import annotations

import numpy as np

from storage.lazy_zeros import untouched


def test_untouched_numbers_are_zero_and_their_own() -> None:
    first, second = untouched(5_000, np.int32), untouched(5_000, np.int32)
    first[7] += 1
    assert first.shape == second.shape == (5_000,)
    assert (first.sum(), second.sum()) == (1, 0)
