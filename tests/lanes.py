"""How the files of tests are dealt to the lanes that run at the same time.

A test of a real cluster mostly waits, for leases and for new processes; a test without one computes. So one lane,
the last, takes the files without a cluster first, and the others take those with one: while these wait, something else
uses the processors. A lane that runs out of its kind helps with the other. A file stays in one lane, because its tests
share a cluster.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
_CLUSTER = re.compile(r"pytest\.mark\.(?:ray|spark)\b")


@cache
def has_cluster(file: str) -> bool:
    """Whether tests of a file, as its name stands in the tests' ids, start a real cluster."""
    return _CLUSTER.search((ROOT / file).read_text(encoding="utf-8")) is not None


class Lanes(LoadFileScheduling):  # type: ignore[misc]
    """Deals whole files, and to each lane its own kind first."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        computes = node is self.nodes[-1]
        file = next((file for file in self.workqueue if has_cluster(file) != computes), None)
        if file is not None:
            self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)
