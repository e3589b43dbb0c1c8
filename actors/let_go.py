"""How much a process has let go of, by what it once took.

An owner that has ended, and a client that has left, leave objects behind that refer to each other. Only Python's
collector finds those, and only by looking at everything, during which nothing else happens. So what leaves is counted
here, and the collector need not look where a process only grows (`cluster.collector`).
"""

from __future__ import annotations

OWNER, CLIENT = 400, 200
"""Blocks of memory, roughly, of an owner of a topic or subscription, and of a consumer or producer of a partition."""


class LetGo:
    """Of one process. blocks: those that are not used any more, whether they are freed by now or not."""

    def __init__(self) -> None:
        self.blocks = 0

    def add(self, blocks: int) -> None:
        """Somebody who took so many has ended."""
        self.blocks += blocks


LET_GO = LetGo()
"""Of this process."""
