"""A consumer's session with a dispatcher, as the consumer keeps it: its lease and its long poll.

**The lease** runs by the consumer's own clock. It counts from the moment at which the last request that was answered
was sent, so a process that was frozen knows at once that its lease is over. Its end is told by a task of its own at the
moment at which it comes: whatever else the consumer waits for then, for an answer that does not come or for the owner
to be found, others may have its messages.

**The long poll.** While heartbeats renew the lease, which the answer to such a poll comes too late for, a poll waits
for messages for ten minutes. Otherwise, and while there are acknowledgements that its answer would confirm, it waits a
second. A part of the consumer that learns meanwhile that the session is over, or may not have been heard, has the poll
repeated; a repetition of a turn brings the same delivery again.

A heartbeat asks as well whether the poll waits where it was sent to, so a lost answer is not missed for longer than
that. An owner of an earlier version does not say so; there a poll waits half a minute at most.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.actors.consumer.negative_acks import CALL_TIMEOUT
from sluice.actors.messages import Delivery, Poll
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.runtime.waiting import CancellableWait, Signal

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


SHORT_WAIT = 1_000
MOST_WAIT, MOST_WAIT_COMPARED = 30_000, 600_000


class LongPoll:
    """One poll at a time."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._most, self._beats, self._quiet = MOST_WAIT, False, False
        self._interruption = CancellableWait()
        self._asked = 0
        self.turn = self.current = 0
        """The numbers of the poll that is under way, 0 if none is: its turn in the session, and its number among all
        polls.
        """

    def wait(self, *, unconfirmed: bool) -> int:
        """How long the next poll waits, in ms. unconfirmed: acknowledgements wait for its answer."""
        return self._most if self._beats and not unconfirmed else SHORT_WAIT

    @property
    def wants_heartbeats(self) -> bool:
        """Nothing comes, and it could wait longer."""
        return self._quiet and not self._beats

    def answered(self, came: int) -> None:
        """With so many messages."""
        self._quiet = not came

    def heard(self, *, compares: bool) -> None:
        """A heartbeat renewed the lease. compares: see messages.HeartbeatAnswer."""
        self._beats, self._most = True, MOST_WAIT_COMPARED if compares else MOST_WAIT

    def again(self) -> None:
        """Ask again: nobody knows whether there is a session that the poll waits for."""
        self._beats = False
        self.turn = self.current = 0
        self._interruption.end()

    async def ask(self, to: Address, request: Poll) -> Delivery | Unknown:
        """The answer; Unknown also when it is to be asked again. Raises the refusal."""
        timeout = request.wait + CALL_TIMEOUT - SHORT_WAIT
        self._asked += 1
        self.turn, self.current = request.turn, self._asked
        try:
            answer = await self._interruption.run(self._ports.net.call(to, request, timeout))
        finally:
            self.turn = self.current = 0
        return Unknown("the poll is to be asked again") if answer is None else answer
