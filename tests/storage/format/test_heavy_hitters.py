"""The heaviest items are found, in bounded memory, within the error that is told."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.storage.format.heavy_hitters import HeavyHitters


def fed(items: np.ndarray, size: int, group: int) -> HeavyHitters:
    found = HeavyHitters(size)
    for start in range(0, len(items), group):
        found.add(*_counted(items[start : start + group]))
    return found


def _counted(items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    distinct, counts = np.unique(items, return_counts=True)
    return distinct.astype(np.uint32), counts.astype(np.int64)


@pytest.mark.parametrize("skew", [1.1, 1.5, 2.0])
@pytest.mark.parametrize("group", [1, 100, 16_384])
def test_the_heaviest_of_skewed_keys_are_named(skew: float, group: int) -> None:
    rng = np.random.default_rng(11)
    items = (rng.zipf(skew, 20_000 if group == 1 else 200_000) % (1 << 31)).astype(np.uint32)
    found = fed(items, 512, group)
    distinct, counts = _counted(items)
    heaviest = distinct[np.argsort(-counts, kind="stable")[:5]].tolist()
    assert [item for item, _ in found.top(5)] == heaviest
    assert found.nbytes() <= 512 * 12
    assert found.total == len(items)
    assert found.error <= len(items) // 512
    true = dict(zip(distinct.tolist(), counts.tolist(), strict=True))
    assert all(true[item] - found.error <= weight <= true[item] for item, weight in found.top(512))


def test_nothing_stands_out_of_many_equal_ones() -> None:
    items = np.arange(100_000, dtype=np.uint32)
    found = fed(items, 64, 1_000)
    assert len(found.top(1_000)) <= 64
    assert found.error <= len(items) // 64 + 1


def test_former_heavy_hitter_fades() -> None:
    found = HeavyHitters(8)
    found.add(np.array([1], np.uint32), np.array([100]))
    for _ in range(4):
        found.halve()
        found.add(np.array([2], np.uint32), np.array([20]))
    assert found.top(1)[0][0] == 2
    assert found.total == sum(weight for _, weight in found.top(2))
