"""A count of the memory that a process has released, by what was once taken.

An owner that has ended, and a client that has left, leave objects behind that refer to each other. Only Python's
collector finds those, and only by looking at everything, during which nothing else happens. So what leaves is counted
here, and the collector need not look where a process only grows (`cluster.base.collector`). What came after the last
look at young objects is found by the next one, and does not count.
"""

from __future__ import annotations

OWNER, CLIENT, CONNECTION = 400, 200, 100
"""Blocks of memory, roughly, of an owner of a topic or subscription, of a consumer or producer of a partition, and of a
client's connection.
"""


class GcPressure:
    """The released memory of one process. blocks: how many are not used any more, freed or not. looks: how often the
    collector has looked at young objects.
    """

    def __init__(self) -> None:
        self.blocks = self.looks = 0

    def add(self, blocks: int, looks: int) -> None:
        """Count the blocks of an object that has ended. looks: the collector's looks when it came."""
        if looks != self.looks:
            self.blocks += blocks

    def looked(self) -> None:
        """Note that the collector has looked: objects that are there now are no longer young."""
        self.looks += 1


LET_GO = GcPressure()
"""The count of this process."""
