"""A consumer's long poll: how long it waits, and how it is asked again before it is answered.

While heartbeats renew the lease, which the answer to such a poll comes too late for, a poll waits for messages for ten
minutes. Otherwise, and while there are acknowledgements that its answer would confirm, it waits a second. A part of the
consumer that learns meanwhile that the session is over, or may not have been heard, has the poll repeated; a repetition
of a turn brings the same delivery again.

A heartbeat asks as well whether the poll waits where it was sent to, so a lost answer is not missed for longer than
that. An owner of an earlier version does not say so; there a poll waits half a minute at most.
"""

from __future__ import annotations

from sluice.actors.consumer.negative_acks import CALL_TIMEOUT
from sluice.actors.messages import Delivery, Poll
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.runtime.signal import CancellableWait

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
