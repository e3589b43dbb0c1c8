"""The lease of a consumer's session, by the consumer's own clock.

It counts from the moment at which the last request that was answered was sent, so a process that was frozen knows at
once that its lease is over. Its end is told by a task of its own at the moment at which it comes: whatever else the
consumer waits for then, for an answer that does not come or for the owner to be found, others may have its messages.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.actors.ports import Ports
from sluice.actors.runtime.signal import Signal

NEVER = 2**63
"""Later than every moment in milliseconds."""


class Lease:
    """The lease of the present session; there is none at first."""

    def __init__(self, ports: Ports) -> None:
        self._ports, self._now = ports, ports.clock.monotonic
        self._renewed = self._lasts = 0
        self._over_after = NEVER
        """The last moment of this lease: one number, because it is asked for each message whether it is over."""
        self._held = self._closed = False
        self._changed = Signal()

    def start(self, sent: int, milliseconds: int) -> None:
        """A session begins. sent: when it was requested, in monotonic milliseconds."""
        self._renewed, self._lasts, self._held = sent, milliseconds, True
        self._over_after = sent + milliseconds
        self._changed.set()

    def renew(self, sent: int) -> None:
        """A request that was sent then was answered."""
        self._renewed = max(self._renewed, sent)
        if self._held:
            self._over_after = self._renewed + self._lasts

    @property
    def lasts(self) -> int:
        """How long it lasts, in ms; 0 if there is none."""
        return self._lasts if self._held else 0

    def left(self) -> tuple[int, int] | None:
        """How long it lasts, and for how long still, in ms; None if there is none."""
        if not self._held:
            return None
        return self._lasts, self._renewed + self._lasts - self._ports.clock.monotonic()

    def end(self) -> None:
        """The session has ended."""
        self._held, self._over_after = False, NEVER

    def close(self) -> None:
        """The consumer closes, so the end of the lease is not reported any more."""
        self._closed = True
        self._changed.set()

    def over(self) -> bool:
        """The session was not renewed in time, so others may have its messages by now."""
        return self._now() > self._over_after

    def overdue(self) -> int:
        """For how many milliseconds the lease has been over; 0 while it lasts."""
        return max(0, self._ports.clock.monotonic() - self._renewed - self._lasts)

    async def watch(self, on_over: Callable[[], None]) -> None:
        """Call `on_over`, which calls `end`, whenever the lease of a session is over; until this is closed."""
        while not self._closed:
            self._changed.clear()
            if not self._held or self._until_told() > 0:
                await self._changed.wait(self._ports, self._until_told() if self._held else None, self._until_told)
            else:
                on_over()

    def _until_told(self) -> int:
        """Milliseconds until its end is told, unless it is renewed before."""
        return self._renewed + self._lasts + 1 - self._ports.clock.monotonic() if self._held else 0
