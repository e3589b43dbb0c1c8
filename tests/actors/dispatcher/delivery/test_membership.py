"""Membership against a slow model: a diary that is read from the start for each question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sluice.actors.dispatcher.delivery.membership import LeaseState, Membership, trust_of

LEASE, OTHER_LEASE = 1_000, 5_000
NAMES = st.sampled_from(["a", "b", "c"])
LIVES = st.integers(0, 3)


@dataclass(frozen=True)
class Entry:
    """An event in the life of an incarnation."""

    at: int
    what: str
    who: str


def rows_of(membership: Membership) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = msgpack.unpackb(membership.rows())
    return rows


class Diary(RuleBasedStateMachine):
    """The model: a consumer's rights follow from the diary alone."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.membership = Membership(lease_ms=LEASE)
        self.lease = LEASE
        self.diary: list[Entry] = []
        self.leases: dict[str, int] = {}
        self.processes: dict[str, str] = {}
        self.sessions = 0

    def note(self, what: str, who: str) -> None:
        self.diary.append(Entry(self.now, what, who))

    # -- the model: each question goes through the whole diary --

    def of(self, who: str) -> list[Entry]:
        """Return the incarnation's entries since it was last forgotten."""
        mine = [entry for entry in self.diary if entry.who == who]
        ends = [index for index, entry in enumerate(mine) if entry.what == "forgotten"]
        return mine[ends[-1] + 1 if ends else 0 :]

    def state(self, who: str) -> LeaseState | None:
        states = {
            "admitted": LeaseState.JOINING,
            "attached": LeaseState.ATTACHED,
            "retired": LeaseState.RETIRED,
            "awaited": LeaseState.AWAITED,
        }
        told = [states[entry.what] for entry in self.of(who) if entry.what in states]
        return told[-1] if told else None

    def until(self, who: str) -> int:
        """Return when the lease is over, counted from its last renewal here or from the start of this owner."""
        at = 0
        for entry in self.of(who):
            if entry.what in ("attached", "renewed"):
                at = entry.at + self.lease
            elif entry.what == "taken over":
                at = entry.at + self.leases[who]
        return at

    def dismissed(self, who: str) -> bool:
        return any(entry.what == "dismissed" for entry in self.of(who))

    def ended(self, who: str) -> bool:
        """Return whether the incarnation had a session under this owner and has lost it."""
        mine = [entry.what for entry in self.diary if entry.who in (who, "")]
        begun = max((index for index, what in enumerate(mine) if what == "another owner"), default=-1)
        return "attached" in mine[begun + 1 :] and self.state(who) not in (LeaseState.ATTACHED, LeaseState.RETIRED)

    def everybody(self) -> list[str]:
        return [who for who in dict.fromkeys(entry.who for entry in self.diary) if who and self.state(who) is not None]

    # -- rules --

    @rule(name=NAMES, life=LIVES, process=st.sampled_from(["", "p1", "p2"]), may=st.booleans(), holds=st.booleans())
    def comes(self, name: str, life: int, process: str, may: bool, holds: bool) -> None:
        who = f"{name}.{life}"
        known, void = self.state(who), self.dismissed(who) or self.ended(who)
        assert self.membership.is_void(who, holds=holds) == (void or (known is None and holds))
        if known is LeaseState.ATTACHED or void or (known is None and holds):
            return
        if self.membership.admit(who, name, process):
            assert known is None
            self.note("admitted", who)
            self.leases[who], self.processes[who] = self.lease + trust_of(self.lease), process
        if not may:
            self.membership.refuse(who)
            if self.state(who) is LeaseState.JOINING:
                self.note("forgotten", who)
            return
        earlier = [other for other in self.everybody() if other != who and other.partition(".")[0] == name]
        retired = [other for other in earlier if self.state(other) is LeaseState.RETIRED]
        assert [member.incarnation for member in self.membership.retired_lives(who)] == retired
        for other in retired:
            self.membership.leave(other)
            self.note("forgotten", other)
        awaited = [other for other in earlier if self.state(other) is LeaseState.AWAITED]
        self.sessions += 1
        assert self.membership.attach(who, self.sessions, self.now) == bool(awaited)
        assert self.membership.session(who) == self.sessions
        self.note("attached", who)
        for other in awaited:
            self.note("forgotten", other)

    @rule(name=NAMES, life=LIVES)
    def renews(self, name: str, life: int) -> None:
        who = f"{name}.{life}"
        self.membership.renew(who, self.now)
        if self.state(who) is LeaseState.ATTACHED:
            self.note("renewed", who)

    @rule(name=NAMES, life=LIVES, how=st.sampled_from(["leaves", "retires", "its process ends"]))
    def goes(self, name: str, life: int, how: str) -> None:
        who = f"{name}.{life}"
        state = self.state(who)
        if how == "its process ends":
            gone = self.membership.ended(who)
            assert (gone is not None) == (state in (LeaseState.AWAITED, LeaseState.RETIRED))
            if gone is not None:
                self.note("forgotten", who)
        elif state is LeaseState.ATTACHED and how == "leaves":
            self.membership.leave(who)
            self.note("forgotten", who)
        elif state is LeaseState.ATTACHED:
            session = self.membership.session(who)
            retired = self.membership.retire(who)
            assert (retired.incarnation, retired.session) == (who, session)
            self.note("retired", who)
            self.note("dismissed", who)

    @rule()
    def dismisses(self) -> None:
        self.membership.dismiss()
        for who in self.everybody():
            if self.state(who) is not LeaseState.JOINING:
                self.note("awaited", who)
                self.note("dismissed", who)

    @rule(milliseconds=st.sampled_from([1, 250, 1_000, 1_250, 6_250]))
    def time_passes(self, milliseconds: int) -> None:
        self.now += milliseconds
        for state in (LeaseState.ATTACHED, LeaseState.RETIRED):
            over = [w for w in self.everybody() if self.state(w) is state and self.until(w) <= self.now]
            assert sorted(member.incarnation for member in self.membership.overdue(state, self.now)) == sorted(over)
            for who in over:
                self.membership.leave(who)
                self.note("forgotten", who)
        over = [w for w in self.everybody() if self.state(w) is LeaseState.AWAITED and self.until(w) <= self.now]
        assert self.membership.forget_overdue(self.now) == bool(over)
        for who in over:
            self.note("forgotten", who)

    @rule(shorter=st.booleans())
    def owner_changes(self, shorter: bool) -> None:
        """Replace the owner. The next one may give other leases.

        The next owner waits for each old lease as long as its holder may trust it.
        """
        rows = rows_of(self.membership)
        self.lease = LEASE if shorter else OTHER_LEASE
        self.membership = Membership(rows, lease_ms=self.lease)
        self.membership.start(self.now)
        self.note("another owner", "")
        for who in self.everybody():
            self.note("awaited", who)
            self.note("taken over", who)

    @invariant()
    def all_is_as_the_diary_tells(self) -> None:
        rows = {row["incarnation"]: row for row in rows_of(self.membership)}
        assert sorted(rows) == sorted(self.everybody())
        for who in self.everybody():
            member = self.membership.get(who)
            assert member is not None
            assert (member.state, member.dismissed) == (self.state(who), self.dismissed(who))
            assert rows[who].get("dismissed", False) == member.dismissed
            assert (member.lease, member.process) == (self.leases[who], self.processes[who])
            assert (self.membership.session(who) > 0) == (member.state is LeaseState.ATTACHED)
            if member.state is not LeaseState.JOINING:
                assert member.until == self.until(who)


TestDiary = Diary.TestCase
TestDiary.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_record_without_leases_is_given_the_usual_one() -> None:
    membership = Membership([{"incarnation": "a.0"}], lease_ms=LEASE)
    membership.start(100)
    assert [member.until for member in membership.all(LeaseState.AWAITED)] == [100 + LEASE + trust_of(LEASE)]


def test_a_late_copy_of_a_first_request_is_void() -> None:
    """The copy holds nothing, like a newcomer's first request, but its consumer was here and has left."""
    membership = Membership([], lease_ms=LEASE)
    assert not membership.is_void("a.0", holds=False)
    assert membership.admit("a.0", "a", "")
    membership.attach("a.0", 1, 100)
    membership.leave("a.0")
    assert membership.is_void("a.0", holds=False)
