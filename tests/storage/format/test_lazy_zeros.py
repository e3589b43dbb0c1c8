"""Memory that is zero until somebody writes."""

from __future__ import annotations

import numpy as np

from sluice.storage.format.lazy_zeros import untouched


def test_untouched_numbers_are_zero_and_their_own() -> None:
    (first,), (second, third) = untouched(5_000, np.int32), untouched(5_000, np.uint16, np.int64)
    first[7] += 1
    second[-1] = 3
    third[0] = -1
    assert first.shape == second.shape == third.shape == (5_000,)
    assert [each.dtype.name for each in (first, second, third)] == ["int32", "uint16", "int64"]
    assert (first.sum(), second.sum(), third.sum()) == (1, 3, -1)
