"""Processes of Sluice's own look for cycles seldom. Each test has a process, because there is one collector in it."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import gc
from sluice.cluster.base.collector import THRESHOLDS, collect_seldom

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


PROLOGUE = """
import gc, weakref
from sluice.cluster.base.collector import GROWTH, THRESHOLDS, collect_seldom

class Node:
    def __init__(self):
        self.self = self

def young(number):
    return [Node() for _ in range(number)]

collect_seldom()
looks = []
gc.callbacks.append(lambda phase, info: looks.append(info["generation"]) if phase == "stop" else None)
OLD = THRESHOLDS[0] * 5
"""


def run(program: str, **environment: str) -> str:
    """Run a program after the prologue, and return what it prints."""
    command = [sys.executable, "-c", PROLOGUE + program]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_present_objects_are_frozen_and_new_cycles_still_freed() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=60)


def test_old_objects_are_not_looked_at_again() -> None:
    said = run("""
import sluice.cluster.base.collector
sluice.cluster.base.collector.MANY = 1  # an object of Python 3.13 has fewer blocks of memory
kept = young(OLD)
assert set(looks) == {0}, looks
frozen = gc.get_freeze_count()
assert frozen > OLD // 2, frozen
looks.clear()
for _ in range(400):
    young(THRESHOLDS[0] // 10)  # garbage in cycles
print(max(looks), len(gc.get_objects()) < OLD)
""")
    assert said.split() == ["0", "True"]


def test_garbage_in_old_cycles_is_found_before_memory_grows_far() -> None:
    said = run("""
import sluice.cluster.base.collector
sluice.cluster.base.collector.MANY = 1_000_000_000
garbage = young(OLD)
assert gc.get_freeze_count() > OLD // 2
last = weakref.ref(garbage[0])
del garbage
kept = []
for _ in range(8 * GROWTH):
    kept += young(OLD)
    if last() is None:
        break
print(last() is None, 2 in looks, gc.get_threshold() == THRESHOLDS)
""")
    assert said.split() == ["True", "True", "True"]


def test_without_counts_of_memory_all_objects_are_looked_at() -> None:
    said = run(
        "kept = young(OLD)\nprint(gc.get_threshold()[0] == THRESHOLDS[0], gc.get_objects().count(kept[0]))",
        PYTHONMALLOC="malloc",
    )
    assert said.split() == ["True", "1"]


MANY_OBJECTS = """
import sys
import sluice.cluster.base.collector
from sluice.actors.runtime.gc_pressure import LET_GO

sluice.cluster.base.collector.MANY, sluice.cluster.base.collector.GROWTH_OF_MANY = 1, 4
gc.set_threshold(1_000, 0, 1_000_000)
before = sys.getallocatedblocks()

def grown_until_all_are_looked_at():
    kept = []
    while gc.get_threshold()[2]:  # 0: the next look is at everything
        kept += young(1_000)
    return sys.getallocatedblocks() / before
"""


def test_very_many_objects_are_looked_at_more_seldom() -> None:
    said = run(MANY_OBJECTS + "print(3.5 < grown_until_all_are_looked_at() < 5)")
    assert said.split() == ["True"]


def test_very_many_are_looked_at_when_half_may_be_garbage() -> None:
    said = run(
        MANY_OBJECTS
        + """
LET_GO.add(before, -1)  # half of what is there until it has doubled
print(grown_until_all_are_looked_at() < 2)
while 2 not in looks:  # it comes
    kept = young(1_000)
print(2 < grown_until_all_are_looked_at())  # what was let go of before that look is no reason for another one
"""
    )
    assert said.split() == ["True", "True"]
