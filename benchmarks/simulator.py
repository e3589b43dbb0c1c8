"""How fast the simulator is: steps a second, and how many seeds an hour that makes, for each kind of world.

    .venv/bin/python benchmarks/simulator.py [--seeds N] [--small]

Prints one JSON object: for each world the seeds that were played, how many failed, `steps_per_s`, `seeds_per_hour`
and `virtual_s_per_s` (how much faster than the clock a cluster lives). One process, processor time and not wall
time, so that a busy machine changes the figures little.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from sluice.cluster.base.arguments import ArgumentParser, count

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.sim.runner import Scenario, run_seed
from tests.sim.worlds import WORLDS


def measure(scenario: Scenario, seeds: int) -> dict[str, Any]:
    """Play the seeds from 0 on; of several, the first one is played once more before, to have everything imported."""
    if seeds > 1:
        run_seed(scenario, 0)
    began = time.process_time()
    outcomes = [run_seed(scenario, seed) for seed in range(seeds)]
    spent = time.process_time() - began
    return {
        "seeds": seeds,
        "failed": sum(not outcome.clean for outcome in outcomes),
        "steps": sum(outcome.steps for outcome in outcomes),
        "steps_per_s": round(sum(outcome.steps for outcome in outcomes) / spent),
        "seeds_per_hour": round(seeds / spent * 3600),
        "virtual_s_per_s": round(sum(outcome.virtual_ms for outcome in outcomes) / 1000 / spent, 1),
    }


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=count, default=100, help="of each world")
    parser.add_argument("--small", action="store_true", help="one seed of each world, to see that it works")
    given = parser.parse_args()
    seeds = 1 if given.small else given.seeds
    print(json.dumps({name: measure(scenario, seeds) for name, scenario in WORLDS.items()}))


if __name__ == "__main__":
    main()
