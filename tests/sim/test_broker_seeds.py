"""Worlds of the whole broker are clean, and together they are a check of everything that is promised.

Each run of the tests plays the first seeds, in which most planted defects of the broker are found (docs/simulation.md);
a release plays two thousand.
"""

from __future__ import annotations

import pytest

from tests.sim.runner import run_seed
from tests.sim.worlds import WORLDS

SEEDS, BLOCK = 2_000, 125
BLOCKS = [pytest.param(first, marks=[pytest.mark.release] if first else []) for first in range(0, SEEDS, BLOCK)]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("first", BLOCKS)
def test_seeds_of_the_broker_are_clean(first: int) -> None:
    checked: dict[str, int] = {}
    for seed in range(first, first + BLOCK):
        outcome = run_seed(WORLDS["broker"], seed)
        assert outcome.clean, outcome.story
        for what, count in outcome.counters.items():
            checked[what] = checked.get(what, 0) + count
    for what in ("messages", "hashes_moved", "keys_in_flight_together", "redelivered", "order checked"):
        assert checked[what] > BLOCK, (what, checked)
    assert checked["messages"] > 100 * BLOCK
    assert sum(count for what, count in checked.items() if what.startswith("fault")) > 10 * BLOCK
