"""The sessions at all dispatchers of one process, many of which one heartbeat renews.

A heartbeat comes from a process with consumers and goes to one dispatcher of a process, for all. To renew a session by
it is what an answer to a poll does: the argument, and its conditions, are those of `membership` and `store`. The owner
must be certain, at the moment at which it renews, that it has not been replaced; the consumer counts from the moment
at which it sent the heartbeat, and only for the session and the owner that it asked for (`actors.consumer.heartbeats`).

A roster shortens what is said and not what is looked at: both sides know what stands in it, which never changes but for
what is struck off, and each session in it is asked for as if the heartbeat had named it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Protocol

from sluice.actors.messages import Heartbeat, HeartbeatAnswer
from sluice.actors.ownership.ownership_proof import OwnershipProof
from sluice.actors.ports import Address, Ports
from sluice.storage.errors import SluiceError

PROOF_MS = 200
"""Heartbeats of several processes make do with one look at what proves this one's ownership, if it is no older."""
FORGET_MS = 60_000
"""A roster that is not asked for so long is forgotten: its process has ended, or names its sessions by themselves."""
MOST_ROSTERS = 10_000
"""With more of them those that were not asked for the longest are forgotten."""

Asked = tuple[Address, int, int]
"""A dispatcher, the number of a session there, and the turn of the poll that waits, 0 if none does."""


class Beat(Enum):
    """What a heartbeat was for one session. UNASKED: it was renewed, but the poll does not wait here."""

    RENEWED = "renewed"
    REFUSED = "refused"
    UNASKED = "unasked"


class SessionOwner(Protocol):
    """A dispatcher, as heartbeats see it."""

    def heartbeat(self, number: int, turn: int, now: int) -> Beat:
        """Renew a session, unless it is over, or this dispatcher is not certain that it still is the owner. turn: of
        the poll that should wait here for messages, 0 if none does. now: monotonic ms.
        """


class _Roster:
    """Sessions that go by one number. asked: monotonic ms at which they were asked for last."""

    def __init__(self, sessions: Sequence[Asked | None], asked: int) -> None:
        self._sessions = list(sessions)
        self.asked = asked

    def ask(self, now: int, struck: Iterable[int]) -> None:
        """All are asked for but these, from now on."""
        self.asked = now
        for place in struck:
            if 0 <= place < len(self._sessions):
                self._sessions[place] = None

    def from_place(self, first: int) -> Iterable[tuple[int, Asked]]:
        """All that are left, with their places in a heartbeat where the first one has that place."""
        return ((place, asked) for place, asked in enumerate(self._sessions, first) if asked is not None)


class ProcessSessions:
    """Every dispatcher of a process that serves; see `Ports.process`."""

    def __init__(self) -> None:
        self._owners: dict[Address, SessionOwner] = {}
        self._rosters: dict[int, _Roster] = {}
        """In order of when they were asked for."""

    def join(self, address: Address, owner: SessionOwner) -> None:
        """This dispatcher serves from now on."""
        self._owners[address] = owner

    def leave(self, address: Address) -> None:
        """It has ended."""
        self._owners.pop(address, None)

    async def heartbeat(self, ports: Ports, request: Heartbeat) -> HeartbeatAnswer:
        """See messages.Heartbeat. ports: of whoever was asked."""
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
        """A new roster."""
        self._rosters[number] = _Roster(sessions, now)
        while len(self._rosters) > MOST_ROSTERS or now - self._oldest().asked > FORGET_MS:
            del self._rosters[next(iter(self._rosters))]

    def _oldest(self) -> _Roster:
        """Which was not asked for the longest; there is one."""
        return next(iter(self._rosters.values()))
