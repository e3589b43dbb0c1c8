"""A consumer is gone without a word when its lease runs out or its process ends, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.actors.dispatcher.delivery import leases
from sluice.actors.dispatcher.delivery.leases import Leases
from sluice.actors.dispatcher.delivery.membership import LeaseState, Membership
from sluice.actors.dispatcher.delivery.sessions import Session, Sessions
from sluice.actors.key_shared.dispatch import KeySharedDispatcher
from sluice.actors.messages import SubscriptionSettings


class Watch:
    """A watch on processes that end when the test decides."""

    def __init__(self) -> None:
        self.over: dict[str, asyncio.Event] = {}

    def sees(self, process: str) -> bool:
        return bool(process)

    async def ended(self, process: str) -> None:
        await self.over.setdefault(process, asyncio.Event()).wait()

    async def end(self, process: str) -> None:
        self.over.setdefault(process, asyncio.Event()).set()
        for _ in range(5):
            await asyncio.sleep(0)


class Owner:
    """The leases of a dispatcher with its members, sessions and core. The owner records ends and counts wakeups."""

    def __init__(self, watch: Watch | None, rows: list[dict[str, Any]] | None = None) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self.ended: list[tuple[str, str]] = []
        self.woken = self.dirtied = 0
        self.now = 1_000
        self.turns: list[int] = []
        """How many sessions were open each time that others had a turn."""
        clock = SimpleNamespace(monotonic=lambda: self.now, now=lambda: 1_000, sleep=self._sleep)
        ports: Any = SimpleNamespace(watch=watch, spawn=self._spawn, clock=clock, log=self._log)
        self.membership = Membership(rows or (), lease_ms=10_000)
        self.sessions, self.core = Sessions(), KeySharedDispatcher(SubscriptionSettings())
        store: Any = SimpleNamespace(dirty=self._dirty)
        context: Any = SimpleNamespace(
            ports=ports,
            topic=None,
            membership=self.membership,
            sessions=self.sessions,
            core=self.core,
            store=store,
            wakeups=SimpleNamespace(came_or_went=self._wake),
            ownership=None,
        )
        self.leases = Leases(context)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.ensure_future(work))
        return self.tasks[-1]

    async def _sleep(self, milliseconds: int) -> None:
        self.turns.append(len(self.sessions))
        await asyncio.sleep(milliseconds / 1000)

    def _wake(self) -> None:
        self.woken += 1

    def _dirty(self) -> None:
        self.dirtied += 1

    def _log(self, event: str, **fields: Any) -> None:
        if event == "session_ended":
            self.ended.append((fields["consumer"], fields["reason"]))

    def open(self, name: str, process: str) -> Session:
        number = self.core.join(name, now=0)
        self.membership.admit(f"{name}.0", name, process)
        self.membership.attach(f"{name}.0", number, 1_000)
        session = self.sessions.open(number, name, f"{name}.0")
        self.leases.watch_session(session, process)
        return session

    def awaited(self) -> dict[str, int]:
        return {member.incarnation: member.until for member in self.membership.all(LeaseState.AWAITED)}


@pytest.fixture
def watch() -> Watch:
    return Watch()


async def test_sessions_of_an_ended_process_end_at_once_and_no_others(watch: Watch) -> None:
    owner = Owner(watch)
    for name, process in (("a", "p1"), ("b", "p2"), ("c", "p1"), ("d", "")):
        owner.open(name, process)
    await watch.end("p1")
    assert owner.ended == [("a", "its process ended"), ("c", "its process ended")]
    assert [session.name for session in owner.sessions.all()] == ["b", "d"]


async def test_session_that_is_over_is_watched_no_more(watch: Watch) -> None:
    owner = Owner(watch)
    session = owner.open("a", "p1")
    await asyncio.sleep(0)
    owner.sessions.close(session)
    await watch.end("p1")
    assert owner.tasks[0].cancelled()
    assert owner.ended == []


async def test_without_a_watch_the_lease_alone_counts() -> None:
    owner = Owner(None, [{"incarnation": "a.0", "process": "p1"}, {"incarnation": "b.0", "lease": 40_000}])
    owner.leases.expect_members()
    assert owner.tasks == []
    assert owner.awaited() == {"a.0": 13_500, "b.0": 41_000}


async def test_new_owner_waits_for_the_living_and_not_for_the_dead(watch: Watch) -> None:
    rows = [
        {"incarnation": "a.0", "process": "p1"},
        {"incarnation": "b.0", "process": "p2"},
        {"incarnation": "old.0"},  # written by an owner that knew nothing of processes
    ]
    owner = Owner(watch, rows)
    owner.leases.expect_members()
    assert set(owner.awaited()) == {"a.0", "b.0", "old.0"}
    await watch.end("p1")
    assert set(owner.awaited()) == {"b.0", "old.0"}
    assert len(owner.membership) == 2
    assert owner.woken == owner.dirtied == 1


async def test_a_consumer_back_before_the_end_keeps_its_session(watch: Watch) -> None:
    owner = Owner(watch, [{"incarnation": "a.0", "process": "p1"}])
    owner.leases.expect_members()
    owner.membership.attach("a.0", 1, 1_000)
    await watch.end("p1")
    assert len(owner.membership) == 1
    assert (owner.woken, owner.dirtied) == (0, 0)


AT_ONCE, MANY = 20, 48
"""So many leave in one change here, and so many end together, which are three turns."""


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a turn short, so that few consumers are a crowd."""
    monkeypatch.setattr(leases, "AT_ONCE", AT_ONCE)


def _crowd(watch: Watch | None) -> tuple[Owner, list[Session], int]:
    """Return an owner with MANY consumers of one process and one of another.

    Return also the sessions of the many, and the number of the last change of owners.
    """
    owner = Owner(watch)
    owner.open("stays", "p2")
    sessions = [owner.open(f"c{number}", "p1") for number in range(MANY)]
    return owner, sessions, owner.core.history.number


@pytest.mark.usefixtures("few_at_once")
async def test_many_that_detach_leave_in_few_changes_and_in_turns() -> None:
    """One change for each consumer would keep everything else waiting for seconds."""
    owner, sessions, before = _crowd(None)
    await asyncio.gather(*(owner.leases.end_in_turn(session, "detached") for session in sessions))
    assert [session.name for session in owner.sessions.all()] == ["stays"]
    assert [name for name, _ in owner.ended] == [session.name for session in sessions]
    assert owner.turns == [MANY + 1, MANY + 1 - AT_ONCE, MANY + 1 - 2 * AT_ONCE], "others have a turn in between"
    assert owner.core.history.number == before + 3
    assert owner.core.history.changes[-1].cause == "c40 and 7 others left"
    assert len(owner.core.consumers()) == len(owner.membership) == 1


@pytest.mark.usefixtures("few_at_once")
async def test_a_process_with_many_ends_in_few_changes(watch: Watch) -> None:
    owner, _, before = _crowd(watch)
    await watch.end("p1")
    for _ in range(10):
        await asyncio.sleep(0)
    assert [session.name for session in owner.sessions.all()] == ["stays"]
    assert owner.core.history.number == before + 3


@pytest.mark.usefixtures("few_at_once")
async def test_leases_that_end_together_are_few_changes() -> None:
    """A consumer that polls between two turns stays."""
    owner, sessions, before = _crowd(None)
    owner.now += 20_000
    owner.leases.renew(owner.sessions.all()[0])
    expired = asyncio.ensure_future(owner.leases.end_expired(owner.now))
    await asyncio.sleep(0)
    assert len(owner.sessions) == MANY + 1 - AT_ONCE
    owner.leases.renew(sessions[-1])
    await expired
    assert [session.name for session in owner.sessions.all()] == ["stays", sessions[-1].name]
    assert owner.core.history.number == before + 3


@pytest.mark.usefixtures("few_at_once")
async def test_a_session_that_detaches_twice_ends_once() -> None:
    """Both copies of the request get their answers when the session has ended."""
    owner, sessions, _ = _crowd(None)
    both = [owner.leases.end_in_turn(sessions[0], "detached") for _ in range(2)]
    await asyncio.gather(*both)
    assert owner.ended == [("c0", "detached")]
