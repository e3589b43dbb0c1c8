"""Python's collector of cycles, in processes of Sluice's own.

What imports made stays for good, and columns hold no cycles. Looking through all of it at every few hundred allocations
cost a broker a tenth of its time, and one with a thousand partitions, which are millions of objects, half of it. Young
objects grow with the partitions too: looking at them at every 50,000 still took a tenth of the time in which a thousand
partitions were sent to, and found next to nothing.

What has survived a look at so many stays for long: a broker of thousands of topics is millions of objects of that kind,
and a look at all of them, during which nothing else happens in the process, takes seconds. So these are set aside at
once (`gc.freeze`), and looked at again only when memory has grown to GROWTH times of what was left the last time. A
second look before that took five times as long as the first and found as little. Objects without cycles are freed as
ever. So garbage in old cycles takes no more memory than that, and looks at everything come while a process grows, and
not while it serves.

With many objects such a look takes seconds (5.7 s at ten million blocks of memory, and longer where others want the
processor), and where one takes longer than a lease all sessions of the process end, and come back. A process that only
grows has next to no garbage. So a process with many objects looks only when it has released half as much as is there
(`actors.runtime.gc_pressure`), or when it has grown so far that something else must have been released.

A user's own process is left as it is.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from sluice.actors.runtime.gc_pressure import LET_GO

THRESHOLDS = (200_000, 0, 1_000_000)
"""So many more young objects are looked at; with every second look also those that survived the one before, if they
were not set aside.
"""
GROWTH = 2
MANY, GROWTH_OF_MANY = 300_000, 100
"""From so many blocks of memory on it is that much, unless half of what is there may be garbage. A look at a million
takes 0.3 s, and 30 million blocks are about 3 GB.
"""


def collect_seldom() -> None:
    """Keep the collector from what exists by now, and let it seldom look at the rest. Call it after the imports."""
    gc.freeze()
    if not sys.getallocatedblocks():  # with another allocator than Python's own nobody counts
        gc.set_threshold(THRESHOLDS[0])
        return
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(OldObjects())


class OldObjects:
    """Called by Python before and after each look, see `gc.callbacks`."""

    def __init__(self) -> None:
        self._left, self._let_go = sys.getallocatedblocks(), LET_GO.blocks
        """Blocks of memory in use after the last look at everything, and those that had been let go of by then."""

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if phase != "stop":
            return
        LET_GO.looked()
        blocks = sys.getallocatedblocks()
        if info["generation"] == 2:
            self._left, self._let_go = blocks, LET_GO.blocks
            gc.set_threshold(*THRESHOLDS)
            gc.freeze()
        elif self._is_worth_it(blocks):  # one of the next two looks is at everything
            gc.unfreeze()
            gc.set_threshold(*THRESHOLDS[:2], 0)
        else:
            gc.freeze()

    def _is_worth_it(self, blocks: int) -> bool:
        if blocks < MANY:
            return blocks >= GROWTH * self._left
        garbage = LET_GO.blocks - self._let_go
        return garbage >= blocks / 2 or blocks >= GROWTH_OF_MANY * max(self._left, MANY)
