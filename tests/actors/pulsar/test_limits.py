"""Limits of a topic for the clients of all gateways: rates, producers, consumers."""

from __future__ import annotations

import pytest

from sluice.actors.policies.limits import LimitRecords, Rate
from sluice.actors.policies.policy_records import of_topic
from sluice.actors.pulsar.codec.frames import Cutter, body_of, encode_message
from sluice.actors.pulsar.codec.protocol import Command, ServerError, parse
from sluice.actors.pulsar.conversation.gateway.gateway import Gateway
from sluice.actors.pulsar.conversation.limits.rates import Passed
from sluice.cluster.admin.broker import Broker, Named
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.scenarios.key_shared.broker import CONTROLLER
from tests.sim.worlds.gateway import SimGateway
from tests.sim.worlds.wire import Gone, Refusal, batch_frame

TOPIC, MANY = of_topic("orders"), 1


async def limited(clients: Clients, **limits: Rate | int | None) -> None:
    """Set limits for the topic, which hold at both gateways afterwards."""
    await LimitRecords(clients.broker.world.client("tool").meta).change(TOPIC, **limits)
    world = clients.broker.world

    async def everybody() -> list[str]:
        """The controller of these tests starts no gateways, and so knows of none."""
        return [world.process(name).ports.me for name in GATEWAYS]

    for name in GATEWAYS:
        actor = clients.broker.world.process(name).actor
        assert isinstance(actor, SimGateway)
        await actor.gateway.limits.refresh()
        actor.gateway.head_count.others = everybody  # type: ignore[method-assign]


def test_a_publish_rate_holds_and_nothing_is_lost() -> None:
    async def scenario(clients: Clients) -> None:
        await limited(clients, publish_rate=Rate(messages=10))
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.producer(wire, "till", SHARED)
        clock = clients.broker.ports.clock
        begun = clock.monotonic()
        for _ in range(60):
            await clients.send(wire, "c0")
        assert 4_500 <= clock.monotonic() - begun <= 8_000

    with_gateways(scenario)


@pytest.mark.parametrize("said", [-1_000_000, 0, 1_000_000])
def test_a_rate_counts_what_is_sent_and_not_what_is_said(said: int) -> None:
    """Neither does who says less of a SEND than is in it pass, nor do others wait for who says more."""

    async def scenario(clients: Clients) -> None:
        await limited(clients, publish_rate=Rate(messages=10))
        wire, other = [await clients.join(f"c{number}", GATEWAYS[0]) for number in range(2)]
        await clients.producer(wire, "till", SHARED)
        await clients.producer(other, "other", SHARED)
        clock = clients.broker.ports.clock
        begun = clock.monotonic()
        for number in range(60):
            frame = batch_frame(0, number, [(b"k", number)], now=1, due=0, by_key=False)
            wire.write(saying(frame, said))
            await clients.broker.until(lambda number=number: len(clients.answered["c0"]) > number)  # type: ignore[misc]
        await clients.send(other, "c1")
        assert 4_500 <= clock.monotonic() - begun <= 8_000

    with_gateways(scenario)


def saying(frame: bytes, messages: int) -> bytes:
    """A SEND that says to have so many messages."""
    (one,) = Cutter().feed(frame)
    told, body = parse(Command, one.command), body_of(one.rest)
    told.send.num_messages = messages
    return encode_message(told.SerializeToString(), bytes(body.metadata), body.payload)


def test_two_gateways_keep_one_publish_rate() -> None:
    async def scenario(clients: Clients) -> None:
        await limited(clients, publish_rate=Rate(messages=20))
        assert await sent_in_a_minute(clients, ["", ""]) <= 20 * 60 * 1.15

    with_gateways(scenario)


def test_a_role_has_a_publish_rate_over_all_gateways() -> None:
    """Others do not share it."""

    async def scenario(clients: Clients) -> None:
        clients.enforce()
        await limited(clients)
        for gateway in gateways(clients):
            gateway.rates.role_publish = Rate(messages=10)
        assert 10 * 60 * 0.9 <= await sent_in_a_minute(clients, ["root", "root"]) <= 10 * 60 * 1.25

    with_gateways(scenario)


def gateways(clients: Clients) -> list[Gateway]:
    found = []
    for name in GATEWAYS:
        actor = clients.broker.world.process(name).actor
        assert isinstance(actor, SimGateway)
        found.append(actor.gateway)
    return found


async def sent_in_a_minute(clients: Clients, roles: list[str]) -> int:
    """How many messages are confirmed in the minute after the first 15 s, of as many as go, one client a gateway."""
    clock = clients.broker.ports.clock
    until = clock.monotonic() + 75_000

    async def send(number: int) -> None:
        name = f"c{number}"
        wire = await clients.join(name, GATEWAYS[number], roles[number])
        await clients.producer(wire, name, SHARED)
        while clock.monotonic() < until:
            await clients.send(wire, name)

    for number in range(len(roles)):
        clients.broker.world.client("tool").spawn(send(number), "sends")
    await clock.sleep(15_000)
    before = len(clients.receipts)
    await clock.sleep(60_000)
    return len(clients.receipts) - before


def test_a_dispatch_rate_of_a_role_holds_and_everything_comes() -> None:
    async def scenario(clients: Clients) -> None:
        clients.enforce()
        for gateway in gateways(clients):
            gateway.rates.role_dispatch = Rate(messages=10)
        writer = await clients.join("c0", GATEWAYS[0], "root")
        await clients.producer(writer, "till", SHARED)
        for _ in range(60):
            await clients.send(writer, "c0")
        reader = await clients.join("c1", GATEWAYS[0], "root")
        clock = clients.broker.ports.clock
        begun = clock.monotonic()
        await clients.consumer(reader, MANY, "a")
        await clients.broker.until(lambda: len(clients.numbers("c1")) == 60, 60_000)
        assert clock.monotonic() - begun >= 4_000

    with_gateways(scenario)


def test_client_that_is_held_back_stays_connected() -> None:
    """A batch that is worth minutes of a rate passes, and its client stays connected meanwhile."""

    async def scenario(clients: Clients) -> None:
        await limited(clients, publish_rate=Rate(messages=1))
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.producer(wire, "till", SHARED)
        await clients.send_batch(wire, "c0", 100)
        actor = clients.broker.world.process(GATEWAYS[0]).actor
        assert isinstance(actor, SimGateway)
        await clients.broker.ports.clock.sleep(80_000)
        assert actor.gateway.producers, "it is there as far as the gateway is concerned"

    with_gateways(scenario)


def test_a_dispatch_rate_holds_and_everything_comes() -> None:
    async def scenario(clients: Clients) -> None:
        await limited(clients, dispatch_rate=Rate(messages=10))
        writer, reader = await clients.join("c0", GATEWAYS[0]), await clients.join("c1", GATEWAYS[0])
        await clients.producer(writer, "till", SHARED)
        for _ in range(60):
            await clients.send(writer, "c0")
        clock = clients.broker.ports.clock
        begun = clock.monotonic()
        await clients.consumer(reader, MANY, "a")
        await clients.broker.until(lambda: len(clients.numbers("c1")) == 60, 60_000)
        assert clock.monotonic() - begun >= 4_000

    with_gateways(scenario)


@pytest.mark.parametrize("limits", [{"dispatch_rate": Rate(messages=1_000)}, {"dispatch_rate": None}])
def test_a_raised_dispatch_rate_holds_for_who_waits(limits: dict[str, Rate | None]) -> None:
    """A consumer that waits because of the earlier rate does not wait for the end of that rate's hour."""

    async def scenario(clients: Clients) -> None:
        await limited(clients, dispatch_rate=Rate(messages=1, period_s=3_600))
        writer, reader = await clients.join("c0", GATEWAYS[0]), await clients.join("c1", GATEWAYS[0])
        await clients.producer(writer, "till", SHARED)
        for _ in range(5):
            await clients.send(writer, "c0")
        await clients.consumer(reader, MANY, "a")
        await clients.broker.quiet(30_000)
        assert 0 < len(clients.numbers("c1")) < 5
        await limited(clients, **limits)
        await clients.broker.until(lambda: len(clients.numbers("c1")) == 5, 10_000)

    with_gateways(scenario)


def test_debt_remains_under_another_rate() -> None:
    """Else lowering a rate would let a waiting client go on at once."""

    async def scenario(clients: Clients) -> None:
        await limited(clients, dispatch_rate=Rate(messages=1))
        rates = gateways(clients)[0].rates
        assert 99_000 < rates.delivered(Passed("orders", 0, "", 100, 0)) <= 100_000
        for messages, least in ((10, 9_000), (1, 95_000)):
            await limited(clients, dispatch_rate=Rate(messages=messages))
            assert least < rates.delivered(Passed("orders", 0, "", 0, 0)) <= 100_000 // messages

    with_gateways(scenario)


@pytest.mark.parametrize("limits", [{"publish_rate": Rate(messages=1_000)}, {"publish_rate": None}])
def test_a_raised_publish_rate_holds_for_who_waits(limits: dict[str, Rate | None]) -> None:
    async def scenario(clients: Clients) -> None:
        await limited(clients, publish_rate=Rate(messages=1))
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.producer(wire, "till", SHARED)
        await clients.send_batch(wire, "c0", 1_000)
        await clients.broker.quiet(30_000)
        await limited(clients, **limits)
        clock = clients.broker.ports.clock
        begun = clock.monotonic()
        await clients.send(wire, "c0")
        assert clock.monotonic() - begun <= 10_000

    with_gateways(scenario)


def test_producers_are_counted_at_all_gateways() -> None:
    async def scenario(clients: Clients) -> None:
        await limited(clients, producers=2)
        wires = [await clients.join(f"c{number}", GATEWAYS[number % 2]) for number in range(3)]
        for number, wire in enumerate(wires[:2]):
            await clients.producer(wire, f"p{number}", SHARED)
        with pytest.raises(Refusal, match="max producers limit") as told:
            await clients.producer(wires[2], "p2", SHARED)
        assert told.value.code == ServerError.PRODUCER_BUSY
        await wires[0].ask("close_producer", producer_id=0)
        await clients.producer(wires[2], "p2", SHARED)

    with_gateways(scenario)


@pytest.mark.parametrize("limit", ["consumers", "consumers_per_subscription"])
def test_consumers_are_counted_at_all_gateways(limit: str) -> None:
    async def scenario(clients: Clients) -> None:
        await limited(clients, **{limit: 2})
        wires = [await clients.join(f"c{number}", GATEWAYS[number % 2]) for number in range(3)]
        for number, wire in enumerate(wires[:2]):
            await clients.consumer(wire, MANY, f"a{number}")
        with pytest.raises(Refusal, match="max consumers limit") as told:
            await clients.consumer(wires[2], MANY, "a2")
        assert told.value.code == ServerError.CONSUMER_BUSY
        if limit == "consumers_per_subscription":
            await clients.consumer(wires[2], MANY, "a2", subscription="another")

    with_gateways(scenario)


def test_a_role_has_so_many_connections() -> None:
    async def scenario(clients: Clients) -> None:
        clients.enforce()
        actor = clients.broker.world.process(GATEWAYS[0]).actor
        assert isinstance(actor, SimGateway)
        actor.gateway.access.most_per_role = 2
        wires = [await clients.enter(f"c{number}", GATEWAYS[0], "root") for number in range(2)]
        with pytest.raises(Gone):
            await clients.enter("c2", GATEWAYS[0], "root")
        await clients.enter("c3", GATEWAYS[0], "watcher")
        wires[0].hang_up()
        await clients.broker.quiet(1_000)
        await clients.enter("c4", GATEWAYS[0], "root")

    with_gateways(scenario)


def test_a_gateway_that_refuses_is_one_that_is_away() -> None:
    """As one of an earlier version does: nobody is kept out by that, and the others share their rates."""

    async def scenario(clients: Clients) -> None:
        await limited(clients, producers=2, publish_rate=Rate(messages=10))
        first, second = gateways(clients)

        async def everybody() -> list[str]:
            return [first.ports.me, CONTROLLER, second.ports.me]

        for gateway in (first, second):
            gateway.head_count.others = everybody  # type: ignore[method-assign]
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.producer(wire, "till", SHARED)
        for _ in range(20):
            await clients.send(wire, "c0")
        await second.rate_shares.measure()
        await first.rate_shares.measure()
        broker = Broker(clients.broker.ports, CONTROLLER)
        broker.gateways = everybody  # type: ignore[method-assign]
        assert len((await broker.clients(Named("orders", 0)))[0]["producers"]) == 1

    with_gateways(scenario)
