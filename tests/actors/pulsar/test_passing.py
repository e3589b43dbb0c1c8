"""Topics of which nothing is kept: who gets a message, who gets none, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from actors.controller import Controller
from actors.messages import StartGateways
from actors.ports import Ports, Unknown
from actors.pulsar.refusals import Refused
from storage.errors import Unavailable
from tests.actors.pulsar.two_gateways import EXCLUSIVE, FENCING, GATEWAYS, SHARED, Clients, with_gateways
from tests.sim.world import World
from tests.sim.worlds.broker import CONTROLLER
from tests.sim.worlds.gateway import SimGateway
from tests.sim.worlds.wire import Refusal, Wire, batch_frame

TOPIC = "non-persistent://public/default/passing"
ALONE, SPREAD, FAILOVER, KEYED = range(4)
PRODUCERS = SHARED, EXCLUSIVE, FENCING


async def producing(clients: Clients, name: str = "p", mode: int = SHARED, **more: Any) -> Wire:
    """A client that produces."""
    wire = await clients.join(name, GATEWAYS[0])
    asked = {"topic": TOPIC, "producer_id": 0, "producer_name": name, "access_mode": mode, **more}
    await wire.ask("producer", **asked)
    return wire


async def consuming(clients: Clients, name: str, kind: int, **more: Any) -> Wire:
    """A client that consumes, and whose room for 1,000 messages the gateway knows."""
    wire = await clients.join(name, GATEWAYS[0])
    await clients.consumer(wire, kind, name, topic=TOPIC, **more)
    await clients.broker.quiet(100)
    return wire


async def send(
    clients: Clients, wire: Wire, *numbers: int, key: bytes = b"k", by: str = "p", batch: bool = False
) -> None:
    """Messages of a key, one by one or as one batch, whose receipts have come when it returns."""
    before = clients.receipts.count(by)
    groups = [list(numbers)] if batch else [[number] for number in numbers]
    for group in groups:
        rows = [(key, number) for number in group]
        wire.write(batch_frame(0, group[0], rows, now=clients.broker.ports.clock.now(), due=0, by_key=False))
    await clients.broker.until(lambda: clients.receipts.count(by) == before + len(groups))
    await clients.broker.quiet(100)


def test_subscriptions_have_what_comes_while_they_are_there() -> None:
    async def scenario(clients: Clients) -> None:
        producer = await producing(clients)
        await send(clients, producer, 0, 1)
        one = await consuming(clients, "one", ALONE)
        await consuming(clients, "other", SPREAD, subscription="another")
        await send(clients, producer, 2, 3, 4, batch=True)
        assert clients.numbers("one") == clients.numbers("other") == [2, 3, 4]
        await one.ask("close_consumer", consumer_id=0)
        await send(clients, producer, 5)
        again = await consuming(clients, "again", ALONE)
        again.say("redeliver", consumer_id=0)
        await send(clients, producer, 6)
        assert clients.numbers("again") == [6]
        assert clients.numbers("other") == [2, 3, 4, 5, 6]

    with_gateways(scenario)


def test_who_has_no_room_misses_what_comes() -> None:
    async def scenario(clients: Clients) -> None:
        producer = await producing(clients)
        wire = await clients.join("slow", GATEWAYS[0])
        asked = {"topic": TOPIC, "subscription": "s", "type": ALONE, "consumer_id": 0, "consumer_name": "slow"}
        await wire.ask("subscribe", **asked)
        wire.say("flow", consumer_id=0, permits=2)
        await clients.broker.quiet(100)
        await send(clients, producer, 0, 1, 2, 3)
        wire.say("flow", consumer_id=0, permits=2)
        await clients.broker.quiet(100)
        await send(clients, producer, 4)
        assert clients.numbers("slow") == [0, 1, 4]

    with_gateways(scenario)


def test_shared_consumers_have_turns_and_keys_stay() -> None:
    async def scenario(clients: Clients) -> None:
        producer = await producing(clients)
        for name, kind in (("a", SPREAD), ("b", SPREAD), ("c", KEYED), ("d", KEYED)):
            await consuming(clients, name, kind, subscription=f"of-{kind}")
        for number in range(40):
            await send(clients, producer, number, key=b"key-%d" % (number % 8))
        assert len(clients.numbers("a")) == len(clients.numbers("b")) == 20
        keys = [{message.key for message in clients.came[name]} for name in ("c", "d")]
        assert not keys[0] & keys[1]
        assert len(keys[0] | keys[1]) == 8
        assert all(keys)
        assert len(clients.numbers("c")) + len(clients.numbers("d")) == 40

    with_gateways(scenario)


def test_of_a_failover_subscription_one_is_active() -> None:
    async def scenario(clients: Clients) -> None:
        producer = await producing(clients)
        await consuming(clients, "b", FAILOVER)
        first = await consuming(clients, "a", FAILOVER)
        await clients.broker.until(lambda: clients.active == {"a": True, "b": False})
        await send(clients, producer, 0)
        first.hang_up()
        await clients.broker.until(lambda: clients.active["b"])
        await send(clients, producer, 1)
        assert (clients.numbers("a"), clients.numbers("b")) == ([0], [1])

    with_gateways(scenario)


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_taken_stays_so_while_its_client_answers(frozen: bool) -> None:
    async def scenario(clients: Clients) -> None:
        await producing(clients, "p")
        await consuming(clients, "c", ALONE)
        late = await clients.join("late", GATEWAYS[0])
        asked = {"topic": TOPIC, "producer_id": 0, "producer_name": "p", "access_mode": SHARED}
        if not frozen:
            with pytest.raises(Refusal, match="is connected"):
                await late.ask("producer", **asked)
            with pytest.raises(Refusal, match="already connected"):
                await clients.consumer(late, ALONE, "late", topic=TOPIC)
            with pytest.raises(Refusal, match="another type"):
                await clients.consumer(late, SPREAD, "late", topic=TOPIC)
            return
        for name in ("p", "c"):
            clients.broker.world.pause(name)
        await late.ask("producer", **asked)
        await clients.consumer(late, ALONE, "late", topic=TOPIC)
        await clients.broker.quiet(100)
        await send(clients, late, 7, by="late")
        assert clients.numbers("late") == [7]
        for name in ("p", "c"):
            clients.broker.world.resume(name)

    with_gateways(scenario)


def test_what_cannot_be_of_them_is_refused() -> None:
    async def scenario(clients: Clients) -> None:
        for mode in PRODUCERS[1:]:
            with pytest.raises(Refusal, match="access mode"):
                await producing(clients, f"mode-{mode}", mode)
        for topic, words in (("non-persistent://no/where/t", "does not exist"), (f"{TOPIC}-partition-0", "partition")):
            with pytest.raises(Refusal, match=words):
                await producing(clients, words.split()[0], topic=topic)
        with pytest.raises(Refusal, match="give no ranges"):
            await consuming(clients, "sticky", KEYED, key_shared={"mode": 1})
        consumer = await consuming(clients, "c", ALONE)
        for name, more in (("seek", {"publish_time": 0}), ("get_last_id", {})):
            with pytest.raises(Refusal, match="nothing is kept"):
                await consumer.ask(name, consumer_id=0, **more)
        producer = await producing(clients, "p")
        refused: list[int] = []
        producer._heard = lambda said, body, _: refused.append(body.sequence_id) if said == "send_error" else None
        now = clients.broker.ports.clock.now()
        producer.write(batch_frame(0, 3, [(b"k", 3)], now=now, due=now + 1000, by_key=False))
        await clients.broker.until(lambda: refused == [3])
        await consumer.ask("unsubscribe", consumer_id=0)
        assert clients.numbers("c") == []

    with_gateways(scenario)


def test_a_topic_is_listed_while_somebody_uses_it() -> None:
    async def scenario(clients: Clients) -> None:
        watcher = await clients.join("watcher", GATEWAYS[0])

        async def listed(mode: int) -> list[str]:
            answer = await watcher.ask("topics_of", namespace="public/default", mode=mode)
            return [name for name in answer.topics if name.startswith("non-persistent")]

        producer = await producing(clients)
        assert [await listed(mode) for mode in range(3)] == [[], [TOPIC], [TOPIC]]
        await producer.ask("close_producer", producer_id=0)
        assert await listed(2) == []

    with_gateways(scenario)


def test_they_are_refused_where_there_is_another_gateway() -> None:
    """One that waits to take over the machine's port is none that clients could be at."""

    async def scenario(world: World) -> None:
        made: list[SimGateway] = []

        def gateway(ports: Ports, settings: dict[str, Any]) -> SimGateway:
            made.append(SimGateway(ports, ports.me))
            return made[-1]

        world.gateway_machines = ["m0", "m1"]
        world.kinds["gateway"] = (gateway, lambda settings: str(settings["machine"]), lambda settings: None)
        await world.start("controller", lambda ports: Controller(ports, bookies=[], gateways=True), fixed=True)
        ports = world.client("admin")
        assert not isinstance(await ports.net.call(CONTROLLER, StartGateways(), 60_000), Unknown)
        here, other = made
        with pytest.raises(Refused, match="this cluster has several"):
            await here.gateway.passing.check()
        other.gateway.url = ""
        await here.gateway.passing.check()
        world.pause(next(name for name in world.alive("gateway-") if name in other.ports.me))
        with pytest.raises(Unavailable):
            await here.gateway.passing.check()

    World(1).play(scenario)
