"""The wall clock may be set meanwhile, and another process may have another one.

A task that waits for a time waits a while, and then looks again: timers run by the monotonic clock, and a task that
reckons from a clock that is behind by an hour would wait an hour too long, also if the clock is right again a moment
later. A time in a record was written by the clock of its writer.
"""

from __future__ import annotations

LOOK_MS = 10_000
"""The most ms by which a wait ends too late, once the clock is right again."""
RETURN_MS = 10 * 60 * 1000
"""The time for any client to come back to a new owner, however long it was silent by the owner's clock."""


def pause_until(at: int, now: int) -> int:
    """Return the milliseconds to wait before looking again whether it is `at`; both are ms since 1970."""
    return min(max(at - now, 1), LOOK_MS)


def heard_at(recorded: int, now: int, forget_ms: int) -> int:
    """Return when a client was heard last, by the clock of a new owner, which forgets a client that was silent for
    `forget_ms`. recorded: by the clock of an earlier owner. All are ms.
    """
    return min(max(recorded, now - forget_ms + RETURN_MS), now)
