"""Heartbeats: one request renews the leases of all sessions between this process and another one.

A consumer that is sent something, or says something, renews its lease by that. The others, perhaps ten thousand, are
renewed together: one timer, and one request for each process that has dispatchers of theirs. So a poll may wait as long
as there is nothing.

What a heartbeat may be believed for is what an answered poll may be. A lease is renewed from the moment at which the
heartbeat was *sent*: one that a process sent before it was frozen, and whose answer it finds when it goes on, renews
nothing any more. And it counts for the owner and the session that were asked for alone: an answer of an owner that the
consumer has left since says nothing of what the next one allows. A heartbeat that is lost, late or answered in part
renews less, never more; a session that is not renewed polls again at once, and from then on as often as a lease of its
own wants, until a heartbeat is heard again.

Those whose polls go on waiting have one number together (`roster`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sluice.actors.consumer.roster import Roster
from sluice.actors.consumer.session import Lease, LongPoll
from sluice.actors.messages import Heartbeat, HeartbeatAnswer
from sluice.actors.messages.limits import MOST_BEATS
from sluice.actors.ownership.fenced_record import process_of
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import SluiceError

FRACTION = 4
"""The number of heartbeats in the time of a lease."""
TRIES = 3
"""The number of owners in a process that are asked in turn, if those asked before have ended."""
IDLE_MS = 2_500
"""Between two looks while nobody has a session."""
ROSTERS = 50
"""With more of them, the small ones are made into one."""
NUMBERS = 1 << 62
"""The rosters of a process are numbered from anywhere below this, so that those of two processes do not meet."""


class SessionHeartbeat:
    """The session of one consumer at one dispatcher. owner: address and session by now; None once it closes."""

    def __init__(
        self, ports: Ports, lease: Lease, poll: LongPoll, owner: Callable[[], tuple[Address, int] | None]
    ) -> None:
        self.lease, self.poll, self.owner = lease, poll, owner
        self._ports = ports
        self._heartbeats = ports.actor.of(Heartbeats)
        self._named = 0
        self.number = 0

    def start(self) -> None:
        """From now on it is renewed, unless the consumer closed while it was attached."""
        if self.owner() is not None:
            self.number = self._heartbeats.join(self._ports, self)

    def attached(self, lease: int) -> None:
        """There is a session with a lease of so many ms. If that process answers heartbeats for others, the next one
        renews this session as well: its polls need not end meanwhile.
        """
        self._heartbeats.hasten(lease)
        place = self.owner()
        compares = self._heartbeats.heard_by(process_of(place[0])) if place is not None else None
        if compares is not None:
            self.poll.heard(compares=compares)

    def end(self) -> None:
        """The consumer closes."""
        self._heartbeats.leave(self.number)

    def stays(self) -> bool:
        """To be called whenever it is named: whether its poll waited already the last time."""
        before, self._named = self._named, self.poll.current
        return 0 < before == self._named

    def renewed(self, owner: Address, session: int, sent: int, *, compares: bool) -> None:
        """A heartbeat that was sent at that time (monotonic ms) for this session was heard by that owner. compares: see
        HeartbeatAnswer.
        """
        if self.owner() == (owner, session):
            self.lease.renew(sent)
            self.poll.heard(compares=compares)

    def unasked(self, poll: int) -> None:
        """The poll that was under way when the heartbeat was sent does not wait there. Unless it was answered
        meanwhile, it is asked again.
        """
        if poll and self.poll.current == poll:
            self.poll.again()

    def missed(self) -> None:
        """The last heartbeat did not renew it: it must see to its lease by itself."""
        self.poll.again()


@dataclass(slots=True)
class _Named:
    """A session that a heartbeat names. turn, poll: of its `LongPoll`, when the heartbeat was sent."""

    member: SessionHeartbeat
    owner: Address
    session: int
    turn: int = 0
    poll: int = 0


@dataclass(slots=True)
class _Group:
    """The sessions that one heartbeat asks a process for."""

    named: list[_Named] = field(default_factory=list)
    rosters: list[Roster[SessionHeartbeat]] = field(default_factory=list)

    def parts(self) -> Iterator[_Group]:
        """The same in heartbeats that are not too long."""
        for first in range(0, max(len(self.named), 1), MOST_BEATS):
            yield _Group(self.named[first : first + MOST_BEATS], [] if first else self.rosters)

    def owners(self) -> list[Address]:
        """Return the owners that can be asked, each of them for all sessions of the group."""
        enlisted = [place for roster in self.rosters for member in roster.all()[:TRIES] if (place := member.owner())]
        return [one.owner for one in self.named] + [owner for owner, _ in enlisted]

    def staying(self) -> list[int]:
        """Places of those named whose polls waited already when they were named before."""
        return [place for place, one in enumerate(self.named) if one.member.stays()]

    def request(self) -> Heartbeat:
        """The heartbeat as of now."""
        for one in self.named:
            one.turn, one.poll = one.member.poll.turn, one.member.poll.current
        firsts, first = [], len(self.named)
        for roster in self.rosters:
            firsts.append(first)
            first += roster.size
        return Heartbeat(
            owners=[one.owner for one in self.named],
            sessions=[one.session for one in self.named],
            turns=[one.turn for one in self.named],
            rosters=[roster.number for roster in self.rosters],
            firsts=firsts,
            struck=[list(roster.struck) for roster in self.rosters],
        )

    def missed(self) -> None:
        """Note that no session of the group was renewed."""
        for one in self.named:
            one.member.missed()
        for roster in self.rosters:
            for member in roster.all():
                member.missed()

    def heard(self, request: Heartbeat, sent: int, answer: HeartbeatAnswer) -> None:
        """All were renewed but those of whom the answer says something else."""
        not_renewed = dict.fromkeys([*answer.refused, *answer.elsewhere])
        for place in not_renewed:
            member, _ = self._asked(request, place)
            member.missed()
        for place, one in enumerate(self.named):
            if place not in not_renewed:
                one.member.renewed(one.owner, one.session, sent, compares=answer.compares)
        for roster in self.rosters:
            if roster.number not in answer.unknown:
                roster.renew(sent)  # but for those who missed it, whose polls are over
        for place in answer.unasked:
            member, poll = self._asked(request, place)
            member.unasked(poll)

    def _asked(self, request: Heartbeat, place: int) -> tuple[SessionHeartbeat, int]:
        """Return the session that a request named at a place, and the poll with which it was named."""
        if place < len(self.named):
            return self.named[place].member, self.named[place].poll
        at = bisect_right(request.firsts, place) - 1
        return self.rosters[at].member(place - request.firsts[at]), self.rosters[at].poll(place - request.firsts[at])


class Heartbeats:
    """The heartbeats of all consumers that have their ports in common; see `Ports.actor`."""

    def __init__(self) -> None:
        self._members: dict[int, SessionHeartbeat] = {}
        self._loose: dict[int, SessionHeartbeat] = {}
        """The members that no roster has."""
        self._rosters: dict[int, Roster[SessionHeartbeat]] = {}
        self._alone: dict[Address, None] = {}
        """Owners that the other dispatchers of their process do not know: they are asked by themselves."""
        self._heard: dict[str, bool] = {}
        """Processes that answered the last heartbeat, and whether they compare (see HeartbeatAnswer)."""
        self._joined = Signal()
        self._numbers = self._turn = self._last_roster = 0
        self._pause = IDLE_MS
        self._runs = False

    def join(self, ports: Ports, member: SessionHeartbeat) -> int:
        """From now on its sessions are renewed; returns the number by which it leaves."""
        self._numbers += 1
        self._members[self._numbers] = self._loose[self._numbers] = member
        if not self._runs:
            self._runs = True
            ports.spawn(self._run(ports), "heartbeats")
        return self._numbers

    def hasten(self, lease: int) -> None:
        """A member has a lease of so many ms."""
        if lease // FRACTION < self._pause:
            self._pause = max(lease // FRACTION, 1)
            self._joined.set()

    def heard_by(self, process: str) -> bool | None:
        """Whether a process that answered the last heartbeat compares (see HeartbeatAnswer); None if it did not."""
        return self._heard.get(process)

    def leave(self, number: int) -> None:
        """Remove a session that closes."""
        self._members.pop(number, None)
        self._loose.pop(number, None)

    async def _run(self, ports: Ports) -> None:
        while self._members:
            self._joined.clear()
            await self._joined.wait(ports, self._pause)
            self._beat(ports)
        self._runs = False
        self._rosters.clear()

    def _beat(self, ports: Ports) -> None:
        """Ask every process that has a session whose lease nothing else has renewed lately."""
        groups: dict[str, _Group] = {}
        pause, owners = IDLE_MS, dict[Address, None]()
        for roster in self._sift():
            pause = min(pause, max(roster.lease // FRACTION, 1))
            groups.setdefault(roster.process, _Group()).rosters.append(roster)
        for member in self._loose.values():
            place, time = member.owner(), member.lease.left()
            if place is None or time is None or not place[1]:
                continue
            (owner, session), (lease, left) = place, time
            owners[owner] = None
            pause = min(pause, max(lease // FRACTION, 1))
            # One whose lease is young could have its polls wait longer once a heartbeat was heard.
            if left <= lease - lease // FRACTION or member.poll.wants_heartbeats:
                asked = owner if owner in self._alone else process_of(owner)
                groups.setdefault(asked, _Group()).named.append(_Named(member, owner, session))
        self._pause = pause
        self._alone = {owner: None for owner in self._alone if owner in owners}
        known = {process_of(owner) for owner in owners} | {roster.process for roster in self._rosters.values()}
        self._heard = {process: compares for process, compares in self._heard.items() if process in known}
        self._turn += 1
        for process, group in groups.items():
            for part in group.parts():
                ports.spawn(self._ask(ports, process, part, pause * FRACTION), "heartbeat")

    async def _ask(self, ports: Ports, process: str, group: _Group, timeout: int) -> None:
        """timeout: an answer is of use for as long as a lease; meanwhile others are under way."""
        owners, staying = group.owners(), group.staying()
        number = self._next_roster(ports) if staying else 0
        answer: HeartbeatAnswer | Unknown = Unknown("nobody was there to be asked")
        for attempt in range(min(TRIES, len(owners))):
            sent, request = ports.clock.monotonic(), group.request()
            request.enlists, request.enlist_as = staying, number
            try:
                answer = await ports.net.call(owners[(self._turn + attempt) % len(owners)], request, timeout)
            except SluiceError as error:  # one that is not taken over yet, or an older version
                answer = Unknown(str(error), gone=True)
            if not (isinstance(answer, Unknown) and answer.gone):
                break  # whoever was asked may have ended alone: then another one of its process is asked
        if isinstance(answer, Unknown):
            self._heard.pop(process, None)
            group.missed()
            return
        self._heard[process] = answer.compares
        group.heard(request, sent, answer)
        for place in answer.elsewhere:
            if place < len(group.named):
                self._alone[group.named[place].owner] = None
        for roster in group.rosters:
            if roster.number in answer.unknown:
                self._dissolve(roster)
        if answer.enlisted:
            self._enlist(number, process, [group.named[place] for place in staying])

    # -- rosters --------------------------------------------------------------------------------------------------

    def _next_roster(self, ports: Ports) -> int:
        self._last_roster = (self._last_roster or ports.rng.randrange(NUMBERS)) + 1
        return self._last_roster

    def _enlist(self, number: int, process: str, named: list[_Named]) -> None:
        """That process knows these by a number from now on, as far as their polls still wait."""
        roster = Roster(number, process, [one.member for one in named], [one.poll for one in named])
        roster.strike(lambda member: self._loose.get(member.number) is member)
        for member in roster.all():
            del self._loose[member.number]
        if len(roster):
            self._rosters[number] = roster

    def _sift(self) -> list[Roster[SessionHeartbeat]]:
        """Name those by themselves again whose polls are others by now; returns the rosters that are left."""
        for roster in list(self._rosters.values()):
            self._release(roster.strike())
            if len(roster) * 2 < roster.size:
                self._dissolve(roster)
        if len(self._rosters) > ROSTERS:
            average = sum(map(len, self._rosters.values())) // len(self._rosters)
            for roster in [each for each in self._rosters.values() if len(each) <= average]:
                self._dissolve(roster)
        return list(self._rosters.values())

    def _dissolve(self, roster: Roster[SessionHeartbeat]) -> None:
        if self._rosters.pop(roster.number, None) is not None:
            self._release(roster.all())

    def _release(self, members: list[SessionHeartbeat]) -> None:
        for member in members:
            if self._members.get(member.number) is member:
                self._loose[member.number] = member
