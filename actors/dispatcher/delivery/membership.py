"""Decides, without any I/O, who may hold messages of a subscription and until when.

A session is a lease: a consumer that gets no answer for that time stops by itself. An owner that was replaced does not
know it at once, and its answers still extend leases. It gives such answers only for `trust_ms` after it last knew that
it was the owner (`CursorStore`). So a new owner waits that much longer for each consumer that the record names. The
lease of an owner never changes, and the record names it with each member.

**What renews a lease** is an answer to this consumer, or to a heartbeat of its process, which asks for all sessions
that the process has at another one (`process_sessions`, `actors.consumer.heartbeats`). For promise 2 both must keep to
this:

1. The owner renews its side when it answers, and only while it is certain: no await lies between knowing that and
   renewing. All owners of a process share one proof (`actors.ownership.fenced_record`), which is as good as a proof
   for each.
2. The consumer renews its side from the moment at which it *sent* what was answered. So the owner's side, which counts
   from a later moment, never ends first, even if one of the two was frozen meanwhile or the answer is late.
3. An answer counts for the session and the owner that were asked for. A consumer that has come back to a newer owner
   has a lease of that one alone: a late answer of an earlier owner, or on an earlier connection, does not renew it.
4. A lost message renews nothing. Where requests arrive and answers do not, the consumer stops by itself; the owner,
   which still hears the consumer, keeps its messages until it attaches again. Where heartbeats are late for all, each
   renews from when it was sent, and a lease that ends meanwhile ends on the consumer's side first.

A message may be long on its way to a consumer whose lease heartbeats renew. It was sent within the session, and its
sender counts it as held there. So the consumer may take it as long as the session lasts, and not afterwards.

A member is in one of these states:

    JOINING   named in the record, so that a later owner will know of it; it has no session yet
    ATTACHED  has a session, until its lease runs out
    AWAITED   may hold messages of an earlier owner: nothing is sent until it is back, has ended, or must have stopped
    RETIRED   lost its place because it did not answer: its messages stay with it until its lease is over

A member whose session the dispatcher ended is `dismissed`: it stays in the record until it knows, and must begin a new
life.
A consumer has one number while its session lasts (`sessions`), and one name from owner to owner: its incarnation.
Times are monotonic milliseconds. An incarnation is `name.life`: `name.3` says that it knows the end
of its lives 0 to 2, and holds nothing of them any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgpack
import msgspec

from sluice.actors.consumer.session import NEVER
from sluice.storage.errors import InvariantViolation

REMEMBERED_ENDED = 10_000
"""The number of ended incarnations that are remembered, to know late copies of their first requests."""


class LeaseState(Enum):
    """The states of a member."""

    JOINING = "joining"
    ATTACHED = "attached"
    AWAITED = "awaited"
    RETIRED = "retired"


def trust_of(lease_ms: int) -> int:
    """Return how long (ms) after its last proof an owner extends leases without a new one."""
    return lease_ms // 4


def base_of(incarnation: str) -> str:
    """Return the part of an incarnation that all lives of one consumer share."""
    return incarnation.rpartition(".")[0] or incarnation


def life_of(incarnation: str) -> int:
    """Return the number of a life, from 0."""
    life = incarnation.rpartition(".")[2]
    return int(life) if life.isdecimal() else 0


@dataclass(slots=True)
class LeaseHolder:
    """A consumer that may hold messages. process: its process, empty if unknown. lease: ms that it may outlast its
    owner.
    """

    incarnation: str
    name: str
    process: str
    lease: int
    state: LeaseState
    dismissed: bool = False
    session: int = 0
    """The number of the session, also of one that the consumer lost with its place; 0 = none under this owner."""
    until: int = 0
    """When the lease is over; without meaning while the consumer joins."""

    def row(self) -> bytes:
        """Return the row in the record, a msgpack map."""
        row = {"name": self.name, "incarnation": self.incarnation, "process": self.process, "lease": self.lease}
        return msgspec.msgpack.encode({**row, "dismissed": True} if self.dismissed else row)


class Membership:
    """The members of one subscription on one partition, under one owner. rows: from the record; all are awaited."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = (), *, lease_ms: int) -> None:
        self.lease_ms = lease_ms
        self.trust_ms = trust_of(lease_ms)
        self._members: dict[str, LeaseHolder] = {}
        self._rows: dict[str, bytes] = {}
        """The rows of the record, made once: a record of a thousand consumers is written with each that comes.

        Invariant: every member has one, because a next owner waits only for members with a row.
        """
        self._in_state = dict.fromkeys(LeaseState, 0)
        """Invariant: how many of the members are in each state."""
        self._lives: dict[str, dict[str, None]] = {}
        """The incarnations of the members, by the part that all lives of one consumer share."""
        self._ended: dict[str, None] = {}
        for row in rows:
            lease = int(row.get("lease", lease_ms + self.trust_ms))
            self._add(
                LeaseHolder(
                    row["incarnation"],
                    str(row.get("name", "")),
                    str(row.get("process", "")),
                    lease,
                    LeaseState.AWAITED,
                    "dismissed" in row,
                )
            )

    def _add(self, member: LeaseHolder) -> None:
        self._members[member.incarnation] = member
        self._rows[member.incarnation] = member.row()
        self._in_state[member.state] += 1
        self._lives.setdefault(base_of(member.incarnation), {})[member.incarnation] = None

    def _remove(self, incarnation: str) -> LeaseHolder | None:
        member = self._members.pop(incarnation, None)
        if member is not None:
            del self._rows[incarnation]
            self._in_state[member.state] -= 1
            lives = self._lives[base_of(incarnation)]
            del lives[incarnation]
            if not lives:
                del self._lives[base_of(incarnation)]
        return member

    def _move(self, member: LeaseHolder, state: LeaseState) -> None:
        self._in_state[member.state] -= 1
        self._in_state[state] += 1
        member.state = state

    def _dismiss(self, member: LeaseHolder) -> None:
        """Note that the consumer must begin a new life."""
        member.dismissed = True
        self._rows[member.incarnation] = member.row()

    def start(self, now: int) -> None:
        """Begin to wait: no session that an earlier owner extends can outlast the leases as counted from now."""
        for member in self.all(LeaseState.AWAITED):
            member.until = now + member.lease

    def __len__(self) -> int:
        return len(self._members)

    def check(self) -> None:
        """Raise InvariantViolation where a next owner would not know of a member."""
        if self._rows.keys() != self._members.keys() or sum(self._in_state.values()) != len(self._members):
            raise InvariantViolation(f"{len(self._members)} members have {len(self._rows)} rows, {self._in_state}")

    def rows(self) -> msgspec.Raw:
        """Return the rows of all members, for the record: a msgpack array."""
        return msgspec.Raw(msgpack.Packer().pack_array_header(len(self._rows)) + b"".join(self._rows.values()))

    def all(self, state: LeaseState) -> list[LeaseHolder]:
        """Return the members in a state, oldest first."""
        if not self._in_state[state]:
            return []
        return [member for member in self._members.values() if member.state is state]

    def next_end(self) -> int:
        """Return when the first lease is over, if no member's is renewed.

        0 while the end of one is waited for, NEVER if there are no members.
        """
        first = NEVER
        for member in self._members.values():
            if member.state is LeaseState.ATTACHED:
                first = min(first, member.until)
            elif member.state is not LeaseState.JOINING:
                return 0
        return first

    def awaits(self, base: str) -> bool:
        """Return whether a consumer may be alive that has not come back to this owner; `base`: see `base_of`."""
        return any(base_of(member.incarnation) == base for member in self.all(LeaseState.AWAITED))

    def holder(self, session: int) -> LeaseHolder | None:
        """Return the member that has, or had, the session of that number."""
        return next((member for member in self._members.values() if member.session == session), None)

    def get(self, incarnation: str) -> LeaseHolder | None:
        """Return the member of that incarnation."""
        return self._members.get(incarnation)

    # -- coming ---------------------------------------------------------------------------------------------------

    def session(self, incarnation: str) -> int:
        """Return the number of the incarnation's session, 0 if it has none."""
        member = self._members.get(incarnation)
        return member.session if member is not None and member.state is LeaseState.ATTACHED else 0

    def is_void(self, incarnation: str, *, holds: bool) -> bool:
        """Return whether a consumer without a session must begin another life.

        It must if it had a session here or was dismissed, even if it holds nothing: the request may be a late copy of
        its first one, and then a session would own hashes for a lease without a consumer. It also must if other
        consumers have the messages that it holds.
        """
        if incarnation in self._ended:
            return True
        member = self._members.get(incarnation)
        return holds if member is None else member.dismissed

    def admit(self, incarnation: str, name: str, process: str) -> bool:
        """Let an incarnation join; True if the record must name it before it does."""
        if incarnation in self._members:
            return False
        lease = self.lease_ms + self.trust_ms
        self._add(LeaseHolder(incarnation, name, process, lease, LeaseState.JOINING))
        return True

    def refuse(self, incarnation: str) -> None:
        """Forget an incarnation that may not join. An awaited one may still hold messages, and stays."""
        member = self._members.get(incarnation)
        if member is not None and member.state is LeaseState.JOINING:
            self._remove(incarnation)

    def attach(self, incarnation: str, session: int, now: int) -> bool:
        """Note the session of an incarnation, and stop waiting for its earlier lives.

        True if one of them was awaited: the record may forget it.
        """
        member = self._members[incarnation]
        self._move(member, LeaseState.ATTACHED)
        member.session, member.until = session, now + self.lease_ms
        earlier = [other for other in self._lives_before(incarnation) if other.state is LeaseState.AWAITED]
        for other in earlier:
            self._remove(other.incarnation)
        return bool(earlier)

    def retired_lives(self, incarnation: str) -> list[LeaseHolder]:
        """Return the earlier lives that lost their place, and whose end this incarnation acknowledges."""
        return [member for member in self._lives_before(incarnation) if member.state is LeaseState.RETIRED]

    def _lives_before(self, incarnation: str) -> list[LeaseHolder]:
        if not incarnation.rpartition(".")[0]:
            return []
        lives = self._lives.get(base_of(incarnation), {})
        return [self._members[life] for life in lives if life != incarnation]

    def renew(self, incarnation: str, now: int) -> None:
        """Renew the lease of an incarnation that was heard or answered."""
        member = self._members.get(incarnation)
        if member is not None and member.state is LeaseState.ATTACHED:
            member.until = now + self.lease_ms

    # -- going ----------------------------------------------------------------------------------------------------

    def leave(self, incarnation: str) -> None:
        """Forget an incarnation that holds no messages any more."""
        member = self._remove(incarnation)
        if member is not None and member.session:
            self._remember(incarnation)

    def _remember(self, incarnation: str) -> None:
        self._ended[incarnation] = None
        while len(self._ended) > REMEMBERED_ENDED:
            del self._ended[next(iter(self._ended))]

    def retire(self, incarnation: str) -> LeaseHolder:
        """Retire an incarnation that does not answer: it loses its place, but keeps its messages."""
        member = self._members[incarnation]
        self._move(member, LeaseState.RETIRED)
        self._dismiss(member)
        return member

    def dismiss(self) -> None:
        """End every session, also those of members that have not come back yet.

        The consumers may work on their messages until they learn of it, or their leases end: until then nothing is
        sent.
        """
        for member in self._members.values():
            if member.state is not LeaseState.JOINING:
                self._move(member, LeaseState.AWAITED)
                self._dismiss(member)
                if member.session:
                    self._remember(member.incarnation)
                member.session = 0

    def ended(self, incarnation: str) -> LeaseHolder | None:
        """Forget an incarnation whose process has ended. Return the member if its lease was waited for."""
        member = self._members.get(incarnation)
        if member is None or member.state not in (LeaseState.AWAITED, LeaseState.RETIRED):
            return None
        self.leave(incarnation)
        return member

    def overdue(self, state: LeaseState, now: int) -> list[LeaseHolder]:
        """Return the members in a state whose leases are over."""
        return [member for member in self.all(state) if member.until <= now]

    def forget_overdue(self, now: int) -> bool:
        """Stop waiting for members that must have stopped; True if the record still names one of them."""
        gone = self.overdue(LeaseState.AWAITED, now)
        for member in gone:
            self._remove(member.incarnation)
        return bool(gone)
