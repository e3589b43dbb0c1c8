"""Producers without a home have a partition to themselves for as long as they are heard, over changes of its owner."""

from __future__ import annotations

import pytest

from sluice.actors.messages import AccessMode
from sluice.actors.producer.producer import Entrance, PartitionProducer, ProducerConfig
from sluice.actors.topic.partition.access import HEARD_MS
from sluice.storage.errors import Conflict, ProducerFenced, SluiceError
from tests.scenarios.key_shared.broker import TOPIC, Broker, play


def of_process(broker: Broker, process: str, access: AccessMode) -> PartitionProducer:
    """A producer in a process of its own."""
    ports = broker.world.client(process)
    config = ProducerConfig(TOPIC, 0, f"name-{process}", f"{process}-1", entrance=Entrance(access=access))
    return PartitionProducer(ports, broker.directory, config)


async def wanted(broker: Broker, process: str, access: AccessMode) -> tuple[PartitionProducer, list[str]]:
    """A producer that is being opened, and the outcome once there is one: "open", or its error's name."""
    producer, outcome = of_process(broker, process, access), list[str]()

    async def open_it() -> None:
        try:
            await producer.open()
            outcome.append("open")
        except SluiceError as error:
            outcome.append(type(error).__name__)

    broker.world.background(open_it(), process)
    return producer, outcome


def test_a_silent_holder_gives_way_and_hears_of_it() -> None:
    async def scenario(broker: Broker) -> None:
        holder = of_process(broker, "holder", "exclusive")
        await holder.open()
        await broker.quiet(5 * HEARD_MS)
        with pytest.raises(ProducerFenced, match="Topic has existing producers"):
            await of_process(broker, "other", "exclusive").open()
        with pytest.raises(Conflict, match="existing exclusive producer"):
            await of_process(broker, "shared", "shared").open()
        _, came = await wanted(broker, "next", "wait_for_exclusive")
        await broker.quiet(2 * HEARD_MS)
        assert came == []
        broker.world.pause("holder")
        await broker.until(lambda: came == ["open"], 2 * HEARD_MS)
        broker.world.resume("holder")
        await broker.until(lambda: holder.closed is not None)
        assert isinstance(holder.closed, ProducerFenced)

    play(scenario)


def test_a_holder_keeps_its_place_over_a_new_owner() -> None:
    async def scenario(broker: Broker) -> None:
        holder = of_process(broker, "holder", "exclusive")
        await holder.open()
        broker.world.crash(holder.address.partition("/")[0])
        _, came = await wanted(broker, "next", "wait_for_exclusive")
        await broker.quiet(6 * HEARD_MS)
        assert (came, holder.closed) == ([], None)
        assert holder.topic_epoch == 0
        holder.close()
        await holder.leave()
        await broker.until(lambda: came == ["open"])

    play(scenario)


def test_a_fencing_producer_ends_the_holder_at_once() -> None:
    async def scenario(broker: Broker) -> None:
        holder = of_process(broker, "holder", "exclusive")
        await holder.open()
        await of_process(broker, "newer", "exclusive_with_fencing").open()
        await broker.until(lambda: holder.closed is not None, HEARD_MS)
        assert isinstance(holder.closed, ProducerFenced)

    play(scenario)
