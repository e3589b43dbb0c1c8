"""Producers that have a topic to themselves, over several gateways, and over the death of gateways and owners."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from storage.errors import ProducerFenced, Unavailable
from tests.scenarios.key_shared.broker import Broker, play
from tests.sim.pipes import Pipes
from tests.sim.worlds.gateway import SimGateway
from tests.sim.worlds.wire import Refusal, Wire, batch_frame

GATEWAYS = ("gateway-0", "gateway-1")
SHARED, EXCLUSIVE, WAIT, FENCING = range(4)


class Clients:
    """Clients of two gateways."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.pipes = Pipes(broker.world)
        self.ended: list[str] = []
        self.receipts: list[str] = []

    async def open(self) -> None:
        """Start the gateways."""
        for name in GATEWAYS:
            await self.broker.world.start(name, lambda ports, name=name: SimGateway(ports, name))  # type: ignore[misc]

    async def join(self, name: str, gateway: str) -> Wire:
        """A client connects."""

        def heard(said: str, body: Any, _: Any) -> None:
            if said == "close_producer":
                self.ended.append(name)
            if said == "send_receipt":
                self.receipts.append(name)

        self.broker.world.client(name)
        process = self.broker.world.process(name)
        wire = Wire(self.pipes, process, [gateway], random.Random(1), heard=heard, lost=lambda: None)
        await wire.connect("orders", 1)
        return wire

    async def producer(self, wire: Wire, name: str, mode: int, **more: Any) -> Any:
        """Ask for a producer. Raises Refusal."""
        return await wire.ask("producer", topic="orders", producer_id=0, producer_name=name, access_mode=mode, **more)

    async def send(self, wire: Wire, name: str) -> None:
        """Send something, and wait for its receipt."""
        before = self.receipts.count(name)
        wire.write(batch_frame(0, 0, [(b"k", before)], now=self.broker.ports.clock.now(), due=0, by_key=True))
        await self.broker.until(lambda: self.receipts.count(name) > before)


async def told(broker: Broker) -> None:
    """The subscription has found the topic's new owner."""
    while True:
        try:
            await broker.stats()
            return
        except Unavailable:
            await broker.quiet(100)


def with_gateways(scenario: Callable[[Clients], Coroutine[Any, Any, None]]) -> None:
    """Play it."""

    async def main(broker: Broker) -> None:
        clients = Clients(broker)
        await clients.open()
        await scenario(clients)
        await told(broker)

    play(main)


def new_topic_owner(broker: Broker) -> None:
    """The topic's owner ends; another one takes over."""
    broker.world.network.faults.gone_hint = 1.0
    broker.world.crash(next(name for name in broker.world.alive("topic-")))


def test_one_at_another_gateway_is_in_the_way() -> None:
    async def scenario(clients: Clients) -> None:
        first, second = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        assert (await clients.producer(first, "a", EXCLUSIVE)).topic_epoch == 0
        with pytest.raises(Refusal):
            await clients.producer(second, "b", EXCLUSIVE)
        with pytest.raises(Refusal):
            await clients.producer(second, "b", SHARED)
        assert (await clients.producer(second, "b", FENCING)).topic_epoch == 1
        await clients.broker.until(lambda: clients.ended == ["c0"])
        await clients.send(second, "c1")
        with pytest.raises(Refusal, match="epoch 0 is over"):
            await clients.producer(first, "a", EXCLUSIVE, topic_epoch=0, epoch=1)

    with_gateways(scenario)


def test_the_epoch_outlives_the_gateway_and_the_owner() -> None:
    async def scenario(clients: Clients) -> None:
        first = await clients.join("c0", GATEWAYS[0])
        assert (await clients.producer(first, "a", EXCLUSIVE)).topic_epoch == 0
        clients.broker.world.crash(GATEWAYS[0])
        new_topic_owner(clients.broker)
        second, third = [await clients.join(name, GATEWAYS[1]) for name in ("c1", "c2")]
        assert (await clients.producer(second, "b", EXCLUSIVE)).topic_epoch == 1
        with pytest.raises(Refusal, match="epoch 0 is over"):
            await clients.producer(third, "a", EXCLUSIVE, topic_epoch=0, epoch=1)

    with_gateways(scenario)


def test_who_was_alone_comes_back_by_another_gateway() -> None:
    """The death of a gateway costs a reconnection."""

    async def scenario(clients: Clients) -> None:
        first = await clients.join("c0", GATEWAYS[0])
        epoch = (await clients.producer(first, "a", EXCLUSIVE)).topic_epoch
        clients.broker.world.crash(GATEWAYS[0])
        again = await clients.join("c1", GATEWAYS[1])
        assert (await clients.producer(again, "a", EXCLUSIVE, topic_epoch=epoch, epoch=1)).topic_epoch == epoch
        await clients.send(again, "c1")

    with_gateways(scenario)


def test_who_is_alone_stays_so_when_the_owner_changes() -> None:
    async def scenario(clients: Clients) -> None:
        first, second = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        await clients.producer(first, "a", EXCLUSIVE)
        new_topic_owner(clients.broker)
        for mode in (EXCLUSIVE, SHARED):
            with pytest.raises(Refusal):
                await clients.producer(second, "b", mode)
        await clients.send(first, "c0")

    with_gateways(scenario)


def test_who_waits_comes_when_the_other_leaves() -> None:
    async def scenario(clients: Clients) -> None:
        first, second = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        await clients.producer(first, "a", EXCLUSIVE)
        assert not (await clients.producer(second, "b", WAIT)).producer_ready
        await clients.send(first, "c0")
        await first.ask("close_producer", producer_id=0)
        while "c1" not in clients.receipts:  # what comes before it is ready is dropped
            second.write(batch_frame(0, 0, [(b"k", 0)], now=clients.broker.ports.clock.now(), due=0, by_key=True))
            await clients.broker.quiet(100)

    with_gateways(scenario)


def test_producers_of_sluice_write_no_more() -> None:
    async def scenario(clients: Clients) -> None:
        await clients.broker.publish("a")
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.producer(wire, "alone", EXCLUSIVE)
        errors = await clients.broker.offer("a")
        assert [type(error) for error in errors] == [ProducerFenced]

    with_gateways(scenario)
