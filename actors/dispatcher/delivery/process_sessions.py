"""The sessions at all dispatchers of one process; one heartbeat renews many of them.

A heartbeat comes from a process with consumers and goes to one dispatcher of a process, for all dispatchers there. A
heartbeat renews a session as an answer to a poll does: the argument, and its conditions, are those of `membership` and
`CursorStore`. The owner must be certain, at the moment at which it renews, that it has not been replaced. The consumer
counts from the moment at which it sent the heartbeat, and only for the session and the owner that it asked for
(`actors.consumer.heartbeats`).

A roster shortens the heartbeat, not the work: both sides know the sessions in it, which never change except that some
are struck off. Each session in it is asked for as if the heartbeat had named it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Protocol

from sluice.actors.messages import Heartbeat, HeartbeatAnswer
from sluice.actors.ownership.fenced_record import OwnershipProof
from sluice.actors.ports import Address, Ports
from sluice.storage.errors import SluiceError

PROOF_MS = 200
"""The age (ms) up to which heartbeats of several processes share one proof of this process's ownership."""
FORGET_MS = 60_000
"""The time after which an unused roster is forgotten: its process has ended, or names its sessions one by one."""
MOST_ROSTERS = 10_000
"""The most rosters that are kept; the ones that were unused for the longest time are forgotten first."""

Asked = tuple[Address, int, int]
"""A dispatcher, the number of a session there, and the turn of the poll that waits, 0 if none does."""


class Beat(Enum):
    """The result of a heartbeat for one session. UNASKED: it was renewed, but the poll does not wait here."""

    RENEWED = "renewed"
    REFUSED = "refused"
    UNASKED = "unasked"


class SessionOwner(Protocol):
    """A dispatcher, as heartbeats see it."""

    def heartbeat(self, number: int, turn: int, now: int) -> Beat:
        """Renew a session, unless it is over, or this dispatcher is not certain that it still is the owner.

        turn: of the poll that should wait here for messages, 0 if none does. now: monotonic ms.
        """


class _Roster:
    """A set of sessions that go by one number. asked: monotonic ms at which they were asked for last."""

    def __init__(self, sessions: Sequence[Asked | None], asked: int) -> None:
        self._sessions = list(sessions)
        self.asked = asked

    def ask(self, now: int, struck: Iterable[int]) -> None:
        """Ask for all sessions; those at the places in `struck` leave the roster for good."""
        self.asked = now
        for place in struck:
            if 0 <= place < len(self._sessions):
                self._sessions[place] = None

    def from_place(self, first: int) -> Iterable[tuple[int, Asked]]:
        """Return the sessions that are left, with their places in a heartbeat; `first`: the place of the first one."""
        return ((place, asked) for place, asked in enumerate(self._sessions, first) if asked is not None)


class ProcessSessions:
    """The dispatchers that serve in a process, by address; see `Ports.process`."""

    def __init__(self) -> None:
        self._owners: dict[Address, SessionOwner] = {}
        self._rosters: dict[int, _Roster] = {}
        """Invariant: in the order in which they were asked for."""

    def join(self, address: Address, owner: SessionOwner) -> None:
        """Note a dispatcher that serves from now on."""
        self._owners[address] = owner

    def leave(self, address: Address) -> None:
        """Forget a dispatcher that has ended."""
        self._owners.pop(address, None)

    async def heartbeat(self, ports: Ports, request: Heartbeat) -> HeartbeatAnswer:
        """See messages.Heartbeat. ports: of the dispatcher that was asked."""
        try:
            await ports.process.of(OwnershipProof).prove(ports, PROOF_MS)
        except SluiceError as error:
            ports.log("notice_unknown", error=str(error))  # an owner may be certain without it
        answer, now = HeartbeatAnswer(compares=True, enlisted=bool(request.enlists)), ports.clock.monotonic()
        turns = [*request.turns, *[0] * (len(request.owners) - len(request.turns))]  # an earlier version says none
        named = list(zip(request.owners, request.sessions, turns, strict=False))
        self._renew(enumerate(named), now, answer)
        for number, first, struck in zip(request.rosters, request.firsts, request.struck, strict=False):
            roster = self._rosters.pop(number, None)
            if roster is None:
                answer.unknown.append(number)
                continue
            self._rosters[number] = roster
            roster.ask(now, struck)
            self._renew(roster.from_place(first), now, answer)
        if request.enlists:
            failed = dict.fromkeys([*answer.refused, *answer.elsewhere, *answer.unasked])
            places = [place if 0 <= place < len(named) and place not in failed else -1 for place in request.enlists]
            self._enlist(request.enlist_as, [named[place] if place >= 0 else None for place in places], now)
        return answer

    def _renew(self, places: Iterable[tuple[int, Asked]], now: int, answer: HeartbeatAnswer) -> None:
        owners = self._owners
        for place, (address, session, turn) in places:
            owner = owners.get(address)
            if owner is None:
                answer.elsewhere.append(place)
            elif (beat := owner.heartbeat(session, turn, now)) is Beat.REFUSED:
                answer.refused.append(place)
            elif beat is Beat.UNASKED:
                answer.unasked.append(place)

    def _enlist(self, number: int, sessions: Sequence[Asked | None], now: int) -> None:
        """Add a roster, and forget old ones."""
        self._rosters[number] = _Roster(sessions, now)
        while len(self._rosters) > MOST_ROSTERS or now - self._oldest().asked > FORGET_MS:
            del self._rosters[next(iter(self._rosters))]

    def _oldest(self) -> _Roster:
        """Return the roster that was unused for the longest time; there is one."""
        return next(iter(self._rosters.values()))
