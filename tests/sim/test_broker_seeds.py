"""Worlds of the whole broker are clean, and together they are a check of everything that is promised.

Each run of the tests plays the first seeds, in which most planted defects of the broker are found (docs/simulation.md);
a release plays two thousand.
"""

from __future__ import annotations

import pytest

from tests.sim.runner import run_seed
from tests.sim.worlds import WORLDS

FIRST, SEEDS, BLOCK = 50, 2_000, 130
BLOCKS = [range(FIRST), *(range(first, first + BLOCK) for first in range(FIRST, SEEDS, BLOCK))]
"""Those that each run plays, and those of a release."""


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "seeds", [pytest.param(seeds, marks=[pytest.mark.release] if seeds.start else []) for seeds in BLOCKS], ids=str
)
def test_seeds_of_the_broker_are_clean(seeds: range) -> None:
    checked: dict[str, int] = {}
    for seed in seeds:
        outcome = run_seed(WORLDS["broker"], seed)
        assert outcome.clean, outcome.story
        for what, count in outcome.counters.items():
            checked[what] = checked.get(what, 0) + count
    for what in ("messages", "hashes_moved", "keys_in_flight_together", "redelivered", "order checked"):
        assert checked[what] > len(seeds), (what, checked)
    assert checked["messages"] > 100 * len(seeds)
    assert sum(count for what, count in checked.items() if what.startswith("fault")) > 10 * len(seeds)
