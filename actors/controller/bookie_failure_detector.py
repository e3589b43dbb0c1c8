"""Which bookies are lost for good: a decision without I/O, made for the controller.

A bookie that is down usually comes back: its process is started again on the same disk, and copying gigabytes because
of a restart would be worse than waiting. It is lost when its disk refused it REFUSALS times in a row (the cookie says
that the disk was emptied or swapped: what it held is gone), or when it could not be started for `lost_after` ms (its
machine does not come back). Being wrong is harmless: the copies are made from the others, and a bookie that comes back
after all is used again.

A start that failed is tried again later and later, RETRY_FIRST ms up to RETRY_MOST, so that a broken disk costs no more
than a line in the log now and then.
"""

from __future__ import annotations

from dataclasses import dataclass

REFUSALS = 3
RETRY_FIRST, RETRY_MOST = 500, 10_000
LOST_AFTER_MS = 600_000
"""Ten minutes: longer than the reboot of a machine."""


@dataclass(slots=True)
class _Absence:
    since: int
    failures: int = 0
    refusals: int = 0
    retry_at: int = 0


class BookieFailureDetector:
    """Which bookies are down, since when, and which of them are given up. Times are monotonic milliseconds."""

    def __init__(self, lost_after: int = LOST_AFTER_MS) -> None:
        self._lost_after = lost_after
        self._down: dict[str, _Absence] = {}

    def down(self, bookie: str, now: int) -> None:
        """Note that a bookie was found dead, or is to be started for the first time. Idempotent."""
        self._down.setdefault(bookie, _Absence(now, retry_at=now))

    def failed(self, bookie: str, now: int, *, refused: bool) -> None:
        """Note that a start failed, and delay the next one. refused: the cookie says that the disk is not the bookie's
        own.
        """
        self.down(bookie, now)
        absence = self._down[bookie]
        absence.failures += 1
        absence.refusals = absence.refusals + 1 if refused else 0
        absence.retry_at = now + min(RETRY_FIRST << min(absence.failures - 1, 10), RETRY_MOST)

    def back(self, bookie: str) -> None:
        self._down.pop(bookie, None)

    def may_start(self, bookie: str, now: int) -> bool:
        """Whether it is time to try again."""
        absence = self._down.get(bookie)
        return absence is None or now >= absence.retry_at

    def lost(self, now: int) -> tuple[str, ...]:
        """The bookies that are lost for good, in order of id."""
        return tuple(
            bookie
            for bookie, absence in sorted(self._down.items())
            if absence.refusals >= REFUSALS or now - absence.since >= self._lost_after
        )
