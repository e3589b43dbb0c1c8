"""How the files of tests are dealt to the lanes that run at the same time.

A test of a real cluster mostly waits, for leases and for new processes; a test without one computes. So one lane,
the last, takes the files without a cluster first, and the others take those with one: while these wait, something else
uses the processors. A lane that runs out of its kind helps with the other. A file stays in one lane, because its tests
share a cluster. The longest go first, so that no lane is left alone with one of them at the end.

A lane keeps a Spark session from the first file that uses one. A session takes 15 seconds of processor time to start.
So the first lane takes such files before others with a cluster; the second lane takes them last.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
LONGEST = (
    "tests/cluster/node/test_nodes.py",
    "tests/cluster/test_machines.py",
    "tests/loadgen/run/test_flood.py",
    "tests/cluster/launch/test_launch.py",
    "tests/loadgen/faults/test_chaos_live.py",
    "tests/benchmarks/test_small.py",
    "tests/cluster/workers/test_detached.py",
    "tests/sim/test_worlds.py",
    "tests/sim/test_crash_matrix.py",
    "tests/cluster/http/test_flood.py",
    "tests/cluster/gateway/test_known_attackers.py",
    "tests/sim/test_broker_seeds.py",
    "tests/cluster/launch/test_standalone.py",
)
"""Files that take long, the longest first. Behind them come those with Spark, then the slow ones."""
_MARK = re.compile(r"pytest\.mark\.(\w+)")
_SESSION = re.compile(r"\bdef test_\w+\([^)]*\bspark: ")
_LONGEST_FIRST = ("spark", "slow")


@cache
def marks(file: str) -> frozenset[str]:
    """Names of the marks in a file, whose own name is that of the tests' ids."""
    return frozenset(_MARK.findall((ROOT / file).read_text(encoding="utf-8")))


def has_cluster(file: str) -> bool:
    """Whether tests of a file start a real cluster."""
    return not marks(file).isdisjoint(("ray", "spark"))


@cache
def shares_spark(file: str) -> bool:
    """Whether tests of a file use the Spark session that a lane keeps."""
    return _SESSION.search((ROOT / file).read_text(encoding="utf-8")) is not None


def rank(file: str) -> int:
    """Which files of a kind go first."""
    if file in LONGEST:
        return LONGEST.index(file) - len(LONGEST)
    return next((at for at, mark in enumerate(_LONGEST_FIRST) if mark in marks(file)), len(_LONGEST_FIRST))


def order(file: str, lane: int, lanes: int) -> tuple[bool, bool, int]:
    """Return when a lane takes a file: its own kind before the other, its own Spark before none, then by rank."""
    return has_cluster(file) == (lane == lanes - 1), shares_spark(file) != (lane == 0), rank(file)


class Lanes(LoadFileScheduling):  # type: ignore[misc]
    """Deals whole files, to each lane its own kind first, and of a kind the longest."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        lane, lanes = self.nodes.index(node), len(self.nodes)
        file = min(self.workqueue, key=lambda file: order(file, lane, lanes))
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)
