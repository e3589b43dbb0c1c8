"""One heartbeat renews the leases of all sessions between two processes, and is believed for no more than it says."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sluice.actors.consumer.heartbeats import Heartbeats, SessionHeartbeat
from sluice.actors.consumer.session import MOST_WAIT, MOST_WAIT_COMPARED, SHORT_WAIT, Lease, LongPoll
from sluice.actors.controller.factories import make_dispatcher
from sluice.actors.dispatcher import Dispatcher
from sluice.actors.dispatcher.delivery.process_sessions import Beat
from sluice.actors.messages import HeartbeatAnswer
from sluice.actors.ports import InCommon, Ports, Unknown
from tests.scenarios.key_shared.broker import CONTROLLER, Broker, Client, play
from tests.sim.net import LinkFaults
from tests.sim.world import World

LEASE_MS = 6_000
LONG_MS = 1_200_000


def in_one_process(broker: Broker) -> None:
    """The dispatchers that are started from now on are in one process, as far as heartbeats are concerned."""
    together = InCommon()

    def make(ports: Ports, settings: dict[str, Any]) -> Dispatcher:
        return make_dispatcher(dataclasses.replace(ports, process=together), settings, CONTROLLER, broker.shared)

    broker.world.kinds["dispatcher"] = (make, lambda settings: "broker", lambda settings: None)


def lost(client: Client) -> int:
    """How many sessions it lost."""
    return sum(event.kind == "lost" for event in client.events)


def test_a_waiting_poll_outlasts_the_lease_many_times() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.quiet(100_000)
        broker.calls.clear()
        await broker.quiet(LONG_MS)
        assert broker.calls["Poll"] <= LONG_MS // MOST_WAIT_COMPARED + 1
        assert broker.calls["Attach"] == 0
        assert lost(client) == 0
        await broker.publish("a")
        await broker.until(lambda: client.came() == ["a"], 200)

    play(scenario, lease_ms=LEASE_MS)


def test_a_lost_answer_is_missed_by_the_next_heartbeat() -> None:
    """The poll waits for minutes, and its answer with the message is lost on its way."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.quiet(1_000_000)
        broker.calls.clear()
        await broker.until(lambda: broker.calls["Heartbeat"] == 1)
        await broker.quiet(100)  # it is answered
        heal = broker.world.partition(["broker"], ["c"], both=False)
        await broker.publish("a")
        await broker.quiet(200)
        assert client.came() == []
        heal()
        await broker.until(lambda: client.came() == ["a"], LEASE_MS // 2)
        await broker.quiet(LEASE_MS)
        assert lost(client) == 0
        assert broker.calls["Attach"] == 0

    play(scenario, lease_ms=LEASE_MS)


@pytest.mark.parametrize("compares", [False, True])
def test_a_poll_waits_longest_where_heartbeats_ask_for_it(compares: bool) -> None:
    """An owner of an earlier version does not say whether the poll waits."""

    async def scenario(world: World) -> None:
        poll = LongPoll(world.client("c"))
        assert poll.wait(unconfirmed=False) == SHORT_WAIT
        poll.heard(compares=compares)
        assert poll.wait(unconfirmed=False) == (MOST_WAIT_COMPARED if compares else MOST_WAIT)
        assert poll.wait(unconfirmed=True) == SHORT_WAIT

    World(1).play(scenario)


@pytest.mark.parametrize("together", [False, True])
def test_sessions_at_one_process_need_one_heartbeat(together: bool) -> None:
    async def scenario(broker: Broker) -> None:
        if together:
            in_one_process(broker)
            for name in broker.world.alive("dispatcher-"):
                broker.world.crash(name)
        client = await broker.join("c")
        await broker.quiet(200_000)
        broker.calls.clear()
        await broker.quiet(LONG_MS)
        beats = LONG_MS // (LEASE_MS // 4)
        assert broker.calls["Heartbeat"] <= (beats if together else 4 * beats) * 1.01
        assert broker.calls["Attach"] == 0
        await broker.publish("a", "b", "c", "d", "e")
        await broker.until(lambda: len(client.got) == 5, 500)

    play(scenario, partitions=4, lease_ms=LEASE_MS)


def test_a_heartbeat_from_before_a_freeze_renews_nothing() -> None:
    """The answer waits while the process is frozen for longer than its lease, and another consumer has the messages."""

    async def scenario(broker: Broker) -> None:
        frozen = await broker.join("frozen", acking=False)
        await broker.publish("a")
        await broker.until(lambda: len(frozen.got) == 1)
        await broker.quiet(100_000)
        broker.world.network.pairs["broker", "frozen"] = LinkFaults(delay_ms=(500, 500))
        asked = broker.calls["Heartbeat"]
        await broker.until(lambda: broker.calls["Heartbeat"] > asked)
        await broker.quiet(LEASE_MS // 4 + 100)  # one has been sent, and its answer is on its way
        broker.world.pause("frozen")
        other = await broker.join("other")
        await broker.until(lambda: len(other.got) == 1, 3 * LEASE_MS)
        broker.world.resume("frozen")
        await broker.quiet(0)
        assert frozen.parts[0].lease_over() or frozen.got[0].part.revoked
        await broker.quiet(1_000)
        assert frozen.held() == []

    play(scenario, lease_ms=LEASE_MS)


def test_one_way_cut_connections_end_the_lease_on_both_sides() -> None:
    """Heartbeats arrive and renew, and no answer does: the consumer stops, the dispatcher hears it attach again."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", acking=False)
        await broker.publish("a")
        await broker.until(lambda: len(client.got) == 1)
        await broker.quiet(100_000)
        heal = broker.world.partition(["broker"], ["c"], both=False)
        await broker.until(lambda: client.got[0].part.revoked, LEASE_MS + 1_000)
        other = await broker.join("other")
        heal()
        await broker.until(lambda: len(client.got) + len(other.got) == 2, 4 * LEASE_MS)

    play(scenario, lease_ms=LEASE_MS)


def test_heartbeats_that_are_late_for_all_end_no_lease() -> None:
    async def scenario(broker: Broker) -> None:
        clients = [await broker.join(f"c{number}") for number in range(3)]
        await broker.quiet(100_000)
        for client in clients:
            broker.world.network.pairs[client.name, "broker"] = LinkFaults(delay_ms=(LEASE_MS // 2, LEASE_MS // 2))
        await broker.quiet(10 * LEASE_MS)
        assert [lost(client) for client in clients] == [0, 0, 0]
        assert len((await broker.stats())["consumers"]) == 3

    play(scenario, lease_ms=LEASE_MS)


def test_a_replaced_owner_renews_by_heartbeat_no_longer() -> None:
    """The owner does not know of its replacement yet; within the time of trust a look at the proof of its process shows
    it.
    """

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", acking=False)
        await broker.publish("a")
        await broker.until(lambda: len(client.got) == 1)
        await broker.quiet(100_000)
        heal = broker.world.partition(["c"], ["controller"])
        make, _, _ = broker.world.kinds["dispatcher"]
        settings = next(row[2] for row in broker.world.placed() if row[0] == "dispatcher")
        await broker.world.start(
            "dispatcher-extra", lambda ports: make(ports, settings), machine="broker", placed=("dispatcher", settings)
        )
        await broker.until(lambda: client.got[0].part.revoked, LEASE_MS + LEASE_MS // 4 + 1_000)
        await broker.quiet(100)  # it asks the controller, and in vain
        heal()

    play(scenario, lease_ms=LEASE_MS)


class FakeSession:
    """A session with its lease, whose owner and number a test changes."""

    def __init__(self, ports: Ports) -> None:
        self.lease, self.place = Lease(ports), ("p/old", 7)
        self.beat = SessionHeartbeat(ports, self.lease, LongPoll(ports), lambda: self.place)


def test_a_heartbeat_counts_for_the_session_it_was_sent_for() -> None:
    """The consumer has attached to another owner meanwhile, which allows what it said itself and no more."""

    async def scenario(world: World) -> None:
        ports = world.client("c")
        session = FakeSession(ports)
        session.lease.start(ports.clock.monotonic(), LEASE_MS)
        attached = ports.clock.monotonic()
        await world.loop.pause(1_000)
        sent = ports.clock.monotonic()
        session.place = ("p/new", 9)
        session.lease.start(attached, LEASE_MS)
        session.beat.renewed("p/old", 7, sent, compares=True)
        assert session.lease.left() == (LEASE_MS, LEASE_MS - 1_000)
        session.beat.renewed("p/new", 9, sent, compares=True)
        assert session.lease.left() == (LEASE_MS, LEASE_MS)

    World(1).play(scenario)


def test_a_lease_is_renewed_from_when_the_heartbeat_was_sent() -> None:
    """The process was frozen before it found the answer: by then the lease is over on the other side."""

    async def scenario(world: World) -> None:
        ports = world.client("c")
        session = FakeSession(ports)
        sent = ports.clock.monotonic()
        session.lease.start(sent, LEASE_MS)
        await world.loop.pause(LEASE_MS + 1_000)
        session.beat.renewed("p/old", 7, sent, compares=True)
        assert session.lease.over()

    World(1).play(scenario)


def test_an_owner_that_is_not_certain_renews_nothing() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        (name,) = broker.world.alive("dispatcher-")
        dispatcher = broker.world.process(name).actor
        assert isinstance(dispatcher, Dispatcher)
        leases, store = dispatcher.parts.leases, dispatcher.parts.context.store
        session, now = client.parts[0].session, dispatcher.ports.clock.monotonic
        assert leases.heartbeat(session, 0, now()) is Beat.RENEWED
        store._trust = -1
        assert leases.heartbeat(session, 0, now()) is Beat.REFUSED

    play(scenario, lease_ms=LEASE_MS)


def test_places_that_were_refused_are_not_renewed() -> None:
    async def scenario(world: World) -> None:
        answers = [HeartbeatAnswer(refused=[1], elsewhere=[2]), Unknown("lost")]
        asked: list[Any] = []

        class Net:
            async def call(self, to: str, request: Any, timeout: int) -> Any:
                asked.append((to, list(request.owners), list(request.sessions)))
                return answers[min(len(asked), 2) - 1]

        ports = dataclasses.replace(world.client("c"), net=Net())  # type: ignore[arg-type]
        sessions = [FakeSession(ports) for _ in range(3)]
        for number, session in enumerate(sessions):
            session.place = (f"p/{number}", number + 1)
            session.lease.start(ports.clock.monotonic(), LEASE_MS)
            session.beat.start()
            session.beat.attached(LEASE_MS)
        await world.loop.pause(LEASE_MS // 4 + 50)
        lefts = [session.lease.left() for session in sessions]
        assert lefts[0] == (LEASE_MS, LEASE_MS - 50)
        assert lefts[1] == lefts[2] == (LEASE_MS, LEASE_MS - LEASE_MS // 4 - 50)
        await world.loop.pause(LEASE_MS // 4)
        assert sorted(asked[0][2]) == [1, 2, 3]
        assert ("p/2", ["p/2"], [3]) in asked, "whoever is elsewhere is asked by itself"

    World(1).play(scenario)


def test_a_new_session_trusts_in_heartbeats_that_are_answered() -> None:
    """The first poll waits long if the owner's process has answered the last heartbeat for others."""

    async def scenario(world: World) -> None:
        answers = [HeartbeatAnswer(compares=True), Unknown("lost")]

        class Net:
            async def call(self, to: str, request: Any, timeout: int) -> Any:
                return answers.pop(0)

        ports = dataclasses.replace(world.client("c"), net=Net())  # type: ignore[arg-type]

        def first_wait(place: str) -> int:
            session = FakeSession(ports)
            session.place = (place, 1)
            session.lease.start(ports.clock.monotonic(), LEASE_MS)
            session.beat.attached(LEASE_MS)
            return session.beat.poll.wait(unconfirmed=False)

        renewed = FakeSession(ports)
        renewed.lease.start(ports.clock.monotonic(), LEASE_MS)
        renewed.beat.start()
        renewed.beat.attached(LEASE_MS)
        assert first_wait("p/0") == SHORT_WAIT, "nothing is known of its process"
        await world.loop.pause(LEASE_MS // 4 + 50)
        assert first_wait("p/1") == MOST_WAIT_COMPARED
        assert first_wait("q/0") == SHORT_WAIT, "this is another process"
        while answers:
            await world.loop.pause(LEASE_MS // 4)
        assert first_wait("p/2") == SHORT_WAIT, "it did not answer the last one"

    World(1).play(scenario)


def test_a_heartbeat_loop_ends_with_its_last_member() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.quiet(100_000)
        heartbeats = client.ports.actor.of(Heartbeats)
        for part in client.parts:
            await part.close()
        await broker.quiet(LEASE_MS)
        broker.calls.clear()
        await broker.quiet(100_000)
        assert broker.calls["Heartbeat"] == 0
        assert not heartbeats._runs

    play(scenario, lease_ms=LEASE_MS)
