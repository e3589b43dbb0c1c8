"""Keeps a process's log from filling its disk: of warnings and errors of one kind it lets a few through.

Some of them are about a stranger that connects, or about a machine that has no descriptors left, and come as often as
that happens. A kind is the words that a line of the code logs, with any values in them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

MOST, WITHIN_S = 50, 60.0
"""So many lines of one kind are let through in so long."""


class FewOfEachKind(logging.Filter):
    """Lets the first lines of each kind through; the first one afterwards says how many there were in between."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True  # asked for by whoever set the level
        kind, now = str(record.msg), self._clock()
        since, count = self._seen.get(kind, (now, 0))
        if now - since >= WITHIN_S:
            if count > MOST:
                record.msg = f"{record.getMessage()} ({count - MOST:,} more lines of this kind were left out)"
                record.args = None
            since, count = now, 0
        self._seen[kind] = since, count + 1
        return count < MOST
