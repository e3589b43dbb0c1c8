"""Sessions that heartbeats name by one number, because nothing has changed since one named each of them.

Ten thousand consumers that nothing comes for are renewed every few seconds. To name each costs both sides something
each time, so those whose poll waits at a second heartbeat as at the first are enlisted: the owners' process remembers
which owners, sessions and turns stand in the roster, and so does this one. A roster stands for a session for as long as
the poll is under way with which it was enlisted; a poll is asked at one owner, in one session. A session that has
another poll by now, or none, is struck off, and named again. What was struck off never comes back, and each heartbeat
says all that ever was, so it does not matter which of them are lost or late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from sluice.actors.consumer.session import NEVER, Lease, LongPoll


class Enlisted(Protocol):
    """A session, as far as a roster looks at it."""

    @property
    def lease(self) -> Lease:
        """Return the lease of the session."""

    @property
    def poll(self) -> LongPoll:
        """Return the long poll of the session."""


M = TypeVar("M", bound=Enlisted)


class Roster(Generic[M]):
    """number: by which the owners' process knows it. process: theirs. size: how many were enlisted. lease: the shortest
    that anybody has who is left, in ms. members, polls: who is enlisted, and at the same place the number of the poll
    (`LongPoll.current`) that was under way then.
    """

    def __init__(self, number: int, process: str, members: Sequence[M], polls: Sequence[int]) -> None:
        self.number, self.process, self.size = number, process, len(members)
        self.struck: list[int] = []
        """The places of those that were struck off."""
        self._members, self._polls = list(members), list(polls)
        self._keep(range(self.size))

    def _keep(self, places: Sequence[int]) -> None:
        """Keep the members at these places only. Lists hold everything that each heartbeat reads, for speed."""
        self._places = list(places)
        self._left = [self._members[place] for place in places]
        self._waiting = [self._polls[place] for place in places]
        self._long_polls = [member.poll for member in self._left]
        self._leases = [member.lease for member in self._left]
        self.lease = min((lasts for lease in self._leases if (lasts := lease.lasts)), default=NEVER)

    def __len__(self) -> int:
        """How many are left."""
        return len(self._left)

    def member(self, place: int) -> M:
        """Return the member that was enlisted at a place."""
        return self._members[place]

    def poll(self, place: int) -> int:
        """Return the poll with which a session was enlisted at a place."""
        return self._polls[place]

    def all(self) -> list[M]:
        """Return the members that are left."""
        return list(self._left)

    def strike(self, keeps: Callable[[M], bool] | None = None) -> list[M]:
        """Strike off all whose poll is another one by now, or that are not to be kept; returns them."""
        current = [poll.current for poll in self._long_polls]
        if keeps is None and current == self._waiting:
            return []
        kept: list[int] = []
        gone: list[int] = []
        for place, member, poll, now in zip(self._places, self._left, self._waiting, current, strict=True):
            stays = poll == now > 0 and (keeps is None or keeps(member))
            (kept if stays else gone).append(place)
        self.struck += gone
        self._keep(kept)
        return [self._members[place] for place in gone]

    def renew(self, sent: int) -> None:
        """Renew the leases by a heartbeat that was sent at `sent` (monotonic ms) and heard. A member with another poll
        since then may have another session, and is not renewed.
        """
        for poll, waiting, lease in zip(self._long_polls, self._waiting, self._leases, strict=True):
            if poll.current == waiting:
                lease.renew(sent)
