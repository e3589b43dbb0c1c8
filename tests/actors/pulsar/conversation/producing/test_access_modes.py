"""Producers that have a topic to themselves, over several gateways, and over the death of gateways and owners."""

from __future__ import annotations

import pytest

from sluice.storage.errors import ProducerFenced
from tests.actors.pulsar.two_gateways import (
    EXCLUSIVE,
    FENCING,
    GATEWAYS,
    SHARED,
    WAIT,
    Clients,
    new_topic_owner,
    with_gateways,
)
from tests.sim.worlds.wire import Refusal, batch_frame


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


def test_a_made_up_epoch_leaves_the_topic_as_it_was() -> None:
    async def scenario(clients: Clients) -> None:
        stranger, other = [await clients.join(f"c{number}", GATEWAYS[0]) for number in range(2)]
        with pytest.raises(Refusal, match="was never given"):
            await clients.producer(stranger, "a", EXCLUSIVE, topic_epoch=(1 << 64) - 1)
        new_topic_owner(clients.broker)
        assert (await clients.producer(other, "b", EXCLUSIVE)).topic_epoch == 0
        await clients.send(other, "c1")

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


def test_exclusive_producer_returns_by_another_gateway() -> None:
    """The death of a gateway costs a reconnection."""

    async def scenario(clients: Clients) -> None:
        first = await clients.join("c0", GATEWAYS[0])
        epoch = (await clients.producer(first, "a", EXCLUSIVE)).topic_epoch
        clients.broker.world.crash(GATEWAYS[0])
        again = await clients.join("c1", GATEWAYS[1])
        assert (await clients.producer(again, "a", EXCLUSIVE, topic_epoch=epoch, epoch=1)).topic_epoch == epoch
        await clients.send(again, "c1")

    with_gateways(scenario)


def test_exclusive_access_survives_a_change_of_owner() -> None:
    async def scenario(clients: Clients) -> None:
        first, second = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        await clients.producer(first, "a", EXCLUSIVE)
        new_topic_owner(clients.broker)
        for mode in (EXCLUSIVE, SHARED):
            with pytest.raises(Refusal):
                await clients.producer(second, "b", mode)
        await clients.send(first, "c0")

    with_gateways(scenario)


def test_waiting_producer_opens_when_the_other_leaves() -> None:
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
