"""Sessions in a roster are renewed as if each were named, and no more than that is believed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sluice.actors.consumer.heartbeats import ROSTERS, Heartbeats, SessionHeartbeat
from sluice.actors.consumer.roster import Roster
from sluice.actors.consumer.session import Lease, LongPoll
from sluice.actors.dispatcher.delivery import process_sessions
from sluice.actors.dispatcher.delivery.process_sessions import FORGET_MS, Beat, ProcessSessions
from sluice.actors.messages import Heartbeat, HeartbeatAnswer, Poll
from sluice.actors.ports import InCommon, Ports, Unknown
from tests.sim.world import World

LEASE_MS = 6_000
BEAT_MS = LEASE_MS // 4


class Owners:
    """Dispatchers of one process, as heartbeats see them: which turns wait there, by session, and who was renewed."""

    def __init__(self) -> None:
        self.waiting: dict[int, int] = {}
        self.renewed: list[int] = []

    def heartbeat(self, number: int, turn: int, now: int) -> Beat:
        """See SessionOwner."""
        self.renewed.append(number)
        if number not in self.waiting:
            return Beat.REFUSED
        return Beat.RENEWED if self.waiting[number] == turn else Beat.UNASKED


class Consumers:
    """Consumers of one process with a poll each that waits for ever, and the process of their owners."""

    def __init__(self, world: World, count: int) -> None:
        self.world, self.owners, self.heard = world, Owners(), list[Heartbeat]()
        self.lost = 0
        """The number of answers to heartbeats that are lost from now on."""
        self.meanwhile: Callable[[], None] | None = None
        """A call made while a heartbeat that enlists a session is under way."""
        self.ports: Ports = dataclasses.replace(world.client("c"), net=self, process=InCommon())  # type: ignore[arg-type]
        self.restart()
        self.all = [Consumer(self, number + 1) for number in range(count)]

    def restart(self) -> None:
        """The owners' process knows no roster."""
        self.process = ProcessSessions()
        self.process.join("p/owner", self.owners)

    async def call(self, to: str, request: Any, timeout: int) -> Any:
        """See Net."""
        if isinstance(request, Poll):
            self.owners.waiting[request.session] = request.turn
            await asyncio.get_running_loop().create_future()
        assert isinstance(request, Heartbeat)
        self.heard.append(request)
        answer = await self.process.heartbeat(self.ports, request)
        if request.enlists and self.meanwhile is not None:
            self.meanwhile()
        if self.lost:
            self.lost -= 1
            return Unknown("the answer was lost")
        return answer

    async def beats(self, count: int) -> None:
        """Wait for `count` heartbeats."""
        self.heard.clear()
        while len(self.heard) < count:
            await self.world.loop.pause(50)
        await self.world.loop.pause(50)

    def missed(self) -> list[int]:
        """How many of the last heartbeats did not renew each."""
        lefts = [left for each in self.all if (left := each.lease.left()) is not None]
        return [(LEASE_MS - left) // BEAT_MS for _, left in lefts]

    def named(self) -> list[int]:
        """How many sessions each heartbeat named."""
        return [len(request.owners) for request in self.heard]

    def enlisted(self) -> int:
        """How many sessions have no name in the last heartbeat."""
        last = self.heard[-1]
        return len(self.all) - len(last.owners)


class Consumer:
    """One with its lease and its polls."""

    def __init__(self, of: Consumers, session: int) -> None:
        self._of, self.session, self.turn, self.asks = of, session, 0, 0
        self.lease, self.poll = Lease(of.ports), LongPoll(of.ports)
        self.beat = SessionHeartbeat(of.ports, self.lease, self.poll, lambda: ("p/owner", self.session))
        self.lease.start(of.ports.clock.monotonic(), LEASE_MS)
        self.beat.start()
        self.beat.attached(LEASE_MS)
        of.world.background(self._ask_for_ever(), "polls")

    async def _ask_for_ever(self) -> None:
        while True:
            self.turn, self.asks = self.turn + 1, self.asks + 1
            await self.poll.ask("p/owner", Poll(session=self.session, turn=self.turn, granted=1, wait=LEASE_MS))


def play(count: int, scenario: Callable[[Consumers], Awaitable[None]]) -> None:
    """With so many consumers, who are in a roster when it begins."""

    async def begin(world: World) -> None:
        consumers = Consumers(world, count)
        await consumers.beats(3)
        await scenario(consumers)

    World(1).play(begin)


def test_session_waiting_at_two_heartbeats_is_not_named_again() -> None:
    async def scenario(consumers: Consumers) -> None:
        assert consumers.named() == [5, 5, 0]
        consumers.owners.renewed.clear()
        await consumers.beats(10)
        assert consumers.named() == [0] * 10
        assert sorted(consumers.owners.renewed) == sorted([1, 2, 3, 4, 5] * 10)
        assert consumers.missed() == [0] * 5
        assert [each.asks for each in consumers.all] == [1] * 5

    play(5, scenario)


def test_a_session_that_ended_is_refused_in_a_roster() -> None:
    async def scenario(consumers: Consumers) -> None:
        del consumers.owners.waiting[3]
        await consumers.beats(1)
        assert [each.asks for each in consumers.all] == [1, 1, 2, 1, 1], "who is not renewed polls at once"
        assert consumers.missed() == [0, 0, 1, 0, 0]
        await consumers.beats(1)
        assert consumers.named() == [1]
        await consumers.beats(2)
        assert consumers.named() == [1, 0]

    play(5, scenario)


def test_a_lost_answer_is_missed_in_a_roster() -> None:
    """The poll of that turn does not wait there any more, and nothing came."""

    async def scenario(consumers: Consumers) -> None:
        consumers.owners.waiting[2] = 99
        await consumers.beats(1)
        assert [each.asks for each in consumers.all] == [1, 2, 1]
        assert consumers.missed() == [0] * 3, "its session stands"

    play(3, scenario)


def test_session_that_polls_again_is_struck_off_and_others_stay() -> None:
    async def scenario(consumers: Consumers) -> None:
        consumers.all[4].poll.again()
        await consumers.beats(1)
        assert consumers.named() == [1]
        assert consumers.heard[0].struck == [[4]]
        consumers.owners.renewed.clear()
        await consumers.beats(2)
        assert consumers.enlisted() == 5
        assert consumers.owners.renewed.count(5) == 2, "once a heartbeat, and not in its old place as well"

    play(5, scenario)


def test_a_roster_of_which_little_is_left_is_made_anew() -> None:
    async def scenario(consumers: Consumers) -> None:
        for each in consumers.all[:3]:
            each.poll.again()
        await consumers.beats(3)
        assert consumers.named() == [5, 3, 0]
        assert consumers.heard[1].rosters != consumers.heard[2].rosters

    play(5, scenario)


def test_an_answer_that_comes_late_renews_no_other_session() -> None:
    """While it was under way the consumer attached to another owner, which may have been asked before it."""

    async def scenario(consumers: Consumers) -> None:
        one = consumers.all[0]
        roster = Roster(1, "p", [each.beat for each in consumers.all], [each.poll.current for each in consumers.all])
        begun = consumers.ports.clock.monotonic()
        await consumers.world.loop.pause(500)
        sent = consumers.ports.clock.monotonic()
        one.session = 77
        one.lease.start(begun, LEASE_MS)
        one.poll.again()
        roster.renew(sent)
        assert one.lease.left() == (LEASE_MS, LEASE_MS - 500)
        assert consumers.all[1].lease.left() == (LEASE_MS, LEASE_MS)

    play(2, scenario)


def test_a_process_that_forgot_the_roster_is_told_the_names() -> None:
    async def scenario(consumers: Consumers) -> None:
        consumers.restart()
        await consumers.beats(1)
        assert consumers.missed() == [1] * 4
        await consumers.beats(2)
        assert consumers.named() == [4, 0]
        assert [each.asks for each in consumers.all] == [1] * 4
        assert not any(each.lease.over() for each in consumers.all)

    play(4, scenario)


def test_a_heartbeat_without_an_answer_is_missed_by_all() -> None:
    async def scenario(consumers: Consumers) -> None:
        consumers.lost = 1
        await consumers.beats(1)
        assert [each.asks for each in consumers.all] == [2] * 3
        assert consumers.missed() == [1] * 3
        await consumers.beats(3)
        assert consumers.named() == [3, 3, 0]

    play(3, scenario)


def test_session_that_leaves_is_not_renewed_again() -> None:
    async def scenario(consumers: Consumers) -> None:
        one = consumers.all[1]
        one.beat.end()
        del consumers.owners.waiting[one.session]  # its dispatcher heard that it left
        await consumers.beats(3)
        consumers.owners.renewed.clear()
        await consumers.beats(2)
        assert 2 not in consumers.owners.renewed
        assert consumers.named() == [0, 0]

    play(3, scenario)


def test_session_lost_meanwhile_hastens_no_other() -> None:
    async def scenario(consumers: Consumers) -> None:
        one, other = consumers.all[:2]

        def lose() -> None:
            one.lease.end()
            one.poll.again()

        consumers.meanwhile = lose
        one.poll.again()
        other.poll.again()
        await consumers.beats(2)
        consumers.heard.clear()
        await consumers.world.loop.pause(10 * BEAT_MS)
        assert len(consumers.heard) <= 11

    play(4, scenario)


def test_many_small_rosters_become_one() -> None:
    """The consumers' polls began to wait in turn."""

    async def scenario(consumers: Consumers) -> None:
        most = 0
        for each in consumers.all:
            each.poll.again()
            await consumers.beats(1)
            most = max(most, len(consumers.heard[-1].rosters))
        await consumers.beats(4)
        assert most > ROSTERS // 2
        assert len(consumers.heard[-1].rosters) <= ROSTERS
        assert consumers.enlisted() == len(consumers.all)

    play(2 * ROSTERS, scenario)


def test_rosters_end_with_the_last_consumer() -> None:
    async def scenario(consumers: Consumers) -> None:
        for each in consumers.all:
            each.beat.end()
        consumers.heard.clear()
        await consumers.world.loop.pause(3 * BEAT_MS)
        assert len(consumers.heard) <= 1
        assert not consumers.ports.actor.of(Heartbeats)._rosters

    play(3, scenario)


def test_rosters_that_nobody_asks_for_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 20
    monkeypatch.setattr(process_sessions, "MOST_ROSTERS", most)

    async def scenario(world: World) -> None:
        ports = dataclasses.replace(world.client("c"), process=InCommon())
        sessions, owners = ProcessSessions(), Owners()
        sessions.join("p/owner", owners)
        owners.waiting[1] = 1

        async def ask(*rosters: int, enlist_as: int = 0) -> HeartbeatAnswer:
            named: dict[str, Any] = {"owners": ["p/owner"], "sessions": [1], "turns": [1]} if enlist_as else {}
            request = Heartbeat(
                **(named or {"owners": [], "sessions": []}),
                rosters=list(rosters),
                firsts=list(range(len(rosters))),
                struck=[[] for _ in rosters],
                enlists=[0] if enlist_as else [],
                enlist_as=enlist_as,
            )
            return await sessions.heartbeat(ports, request)

        assert (await ask(enlist_as=7)).enlisted
        assert (await ask(enlist_as=8)).enlisted
        await world.loop.pause(FORGET_MS)
        assert (await ask(7)).unknown == []
        await world.loop.pause(100)
        await ask(enlist_as=9)
        assert (await ask(7, 8, 9)).unknown == [8]
        for number in range(10, 10 + most):
            await ask(enlist_as=number)
        assert (await ask(9, 10)).unknown == [9]

    World(1).play(scenario)
