"""Processes of Sluice's own look for cycles seldom."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import gc
from cluster.collector import THRESHOLDS, collect_seldom

def looks(allocations):
    before = gc.get_stats()
    kept = [[] for _ in range(allocations)]
    return [after["collections"] - then["collections"] for after, then in zip(gc.get_stats(), before)]

eager = looks(200_000)
collect_seldom()
assert gc.get_freeze_count() > 10_000
assert gc.get_threshold() == THRESHOLDS
seldom = looks(200_000)
assert eager[1] > 0 and seldom[0] <= 4 and seldom[1:] == [0, 0], (eager, seldom)

class Cycle:
    alive = 0
    def __init__(self):
        self.me = self
        Cycle.alive += 1
    def __del__(self):
        Cycle.alive -= 1

for _ in range(THRESHOLDS[0] * 3):
    Cycle()
assert Cycle.alive < THRESHOLDS[0] * 2, Cycle.alive
"""


def test_what_is_there_is_not_looked_through_and_cycles_still_go() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=60)
