"""How long to wait for a time of the wall clock, which may be set meanwhile: a while, and then look again.

Timers run by the monotonic clock. Who reckons from a clock that is behind by an hour would wait an hour too long, also
if the clock is right again a moment later.
"""

from __future__ import annotations

LOOK_MS = 10_000
"""So much later than it should a wait ends at most, once the clock is right again."""


def pause_until(at: int, now: int) -> int:
    """Milliseconds to wait before looking again whether it is `at`; both are ms since 1970."""
    return min(max(at - now, 1), LOOK_MS)
