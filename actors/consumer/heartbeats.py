"""Heartbeats: one request renews the leases of all sessions between this process and another one.

A consumer that is sent something, or says something, renews its lease by that. The others, of which there may be ten
thousand, are renewed together: one timer, and one request for each process that has dispatchers of theirs. So a poll
may wait as long as there is nothing.

What a heartbeat may be believed for is what an answered poll may be. A lease is renewed from the moment at which the
heartbeat was *sent*: one that a process sent before it was frozen, and whose answer it finds when it goes on, renews
nothing any more. And it counts for the owner and the session that were asked for alone: an answer of an owner that the
consumer has left since says nothing of what the next one allows. A heartbeat that is lost, late or answered in part
renews less, never more; whoever is not renewed polls again at once, and from then on as often as a lease of its own
wants, until a heartbeat is heard again.
"""

from __future__ import annotations

from collections.abc import Callable

from actors.consumer.lease import Lease
from actors.consumer.long_poll import LongPoll
from actors.messages import Heartbeat
from actors.messages.limits import MOST_BEATS
from actors.ownership_proof import process_of
from actors.ports import Address, Ports, Unknown
from actors.signal import Signal
from storage.errors import SluiceError

FRACTION = 4
"""So often in the time of a lease a heartbeat is sent."""
TRIES = 3
"""So many owners in a process are asked, one after the other, if those asked before have ended."""
IDLE_MS = 2_500
"""Between two looks while nobody has a session."""


class SessionHeartbeat:
    """The session of one consumer at one dispatcher. owner: address and session by now; None once it closes."""

    def __init__(
        self, ports: Ports, lease: Lease, poll: LongPoll, owner: Callable[[], tuple[Address, int] | None]
    ) -> None:
        self._ports, self._lease, self._poll, self.owner = ports, lease, poll, owner
        self._heartbeats = ports.actor.of(Heartbeats)
        self._number = 0

    def begin(self) -> None:
        """From now on it is renewed, unless the consumer closed while it was attached."""
        if self.owner() is None:
            return
        self._number = self._heartbeats.join(self._ports, self)

    def attached(self, lease: int) -> None:
        """There is a session with a lease of so many ms."""
        self._heartbeats.hasten(lease)

    def end(self) -> None:
        """The consumer closes."""
        self._heartbeats.leave(self._number)

    def left(self) -> tuple[int, int] | None:
        """How long the lease lasts, and for how long still, in ms; None if there is none."""
        return self._lease.left()

    @property
    def wants(self) -> bool:
        """Whether it is to be renewed although its lease is young: its polls could wait longer then."""
        return self._poll.wants_heartbeats

    @property
    def turn(self) -> int:
        """That of the poll that is under way, 0 if none is."""
        return self._poll.turn

    def renewed(self, owner: Address, session: int, sent: int, *, compares: bool) -> None:
        """A heartbeat that was sent at that time (monotonic ms) for this session was heard by that owner. compares: see
        HeartbeatAnswer.
        """
        if self.owner() == (owner, session):
            self._lease.renew(sent)
            self._poll.heard(compares=compares)

    def unasked(self, owner: Address, session: int, turn: int) -> None:
        """The poll that was under way when the heartbeat was sent does not wait there. Unless it was answered
        meanwhile, it is asked again.
        """
        if turn and self.owner() == (owner, session) and self._poll.turn == turn:
            self._poll.again()

    def missed(self) -> None:
        """The last heartbeat did not renew it: it must see to its lease by itself."""
        self._poll.again()


class Heartbeats:
    """Of all consumers that have their ports in common; see `Ports.actor`."""

    def __init__(self) -> None:
        self._members: dict[int, SessionHeartbeat] = {}
        self._alone: dict[Address, None] = {}
        """Owners that the other dispatchers of their process do not know: they are asked by themselves."""
        self._joined = Signal()
        self._numbers = self._turn = 0
        self._pause = IDLE_MS
        self._runs = False

    def join(self, ports: Ports, member: SessionHeartbeat) -> int:
        """From now on its sessions are renewed; returns the number by which it leaves."""
        self._numbers += 1
        self._members[self._numbers] = member
        if not self._runs:
            self._runs = True
            ports.spawn(self._run(ports), "heartbeats")
        return self._numbers

    def hasten(self, lease: int) -> None:
        """A member has a lease of so many ms."""
        if lease // FRACTION < self._pause:
            self._pause = max(lease // FRACTION, 1)
            self._joined.set()

    def leave(self, number: int) -> None:
        """It closes."""
        self._members.pop(number, None)

    async def _run(self, ports: Ports) -> None:
        while self._members:
            self._joined.clear()
            await self._joined.wait(ports, self._pause)
            self._beat(ports)
        self._runs = False

    def _beat(self, ports: Ports) -> None:
        """Ask every process that has a session whose lease nothing else has renewed lately."""
        groups: dict[str, list[tuple[SessionHeartbeat, Address, int]]] = {}
        pause, owners = IDLE_MS, dict[Address, None]()
        for member in self._members.values():
            place, time = member.owner(), member.left()
            if place is None or time is None or not place[1]:
                continue
            (owner, session), (lease, left) = place, time
            owners[owner] = None
            pause = min(pause, max(lease // FRACTION, 1))
            if left <= lease - lease // FRACTION or member.wants:
                asked = owner if owner in self._alone else process_of(owner)
                groups.setdefault(asked, []).append((member, owner, session))
        self._pause = pause
        self._alone = {owner: None for owner in self._alone if owner in owners}
        self._turn += 1
        for group in groups.values():
            for first in range(0, len(group), MOST_BEATS):
                ports.spawn(self._ask(ports, group[first : first + MOST_BEATS], pause * FRACTION), "heartbeat")

    async def _ask(self, ports: Ports, group: list[tuple[SessionHeartbeat, Address, int]], timeout: int) -> None:
        """timeout: an answer is of use for as long as a lease; meanwhile others are under way."""
        request = Heartbeat(owners=[owner for _, owner, _ in group], sessions=[session for _, _, session in group])
        for attempt in range(min(TRIES, len(group))):
            sent, request.turns = ports.clock.monotonic(), [member.turn for member, _, _ in group]
            try:
                answer = await ports.net.call(group[(self._turn + attempt) % len(group)][1], request, timeout)
            except SluiceError as error:  # one that is not taken over yet, or an older version
                answer = Unknown(str(error), gone=True)
            if not (isinstance(answer, Unknown) and answer.gone):
                break  # whoever was asked may have ended alone: then another one of its process is asked
        if isinstance(answer, Unknown):
            for member, _, _ in group:
                member.missed()
            return
        for place in answer.elsewhere:
            self._alone[group[place][1]] = None
        not_renewed = dict.fromkeys([*answer.refused, *answer.elsewhere])
        for place, (member, owner, session) in enumerate(group):
            if place in not_renewed:
                member.missed()
            else:
                member.renewed(owner, session, sent, compares=answer.compares)
        for place in answer.unasked:
            member, owner, session = group[place]
            member.unasked(owner, session, request.turns[place])
