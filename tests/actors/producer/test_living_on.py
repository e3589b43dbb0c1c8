"""A producer lives on when its partition knows nothing of it any more, and while no disk has room.

What it sends next is no gap.
"""

from __future__ import annotations

import pytest

from sluice.actors.messages import CreateTopic, RemoveTopic
from sluice.actors.ports import Unknown
from sluice.actors.producer.producer import Entrance, PartitionProducer, ProducerConfig
from sluice.storage.errors import ProducerFenced, SluiceError
from tests.scenarios.key_shared.broker import CONTROLLER, TOPIC, Broker, play


async def made_again(broker: Broker) -> None:
    """The topic is deleted, and there is another one of its name."""
    for request in (RemoveTopic(topic=TOPIC, force=True), CreateTopic(topic=TOPIC, settings=broker.topic)):
        assert not isinstance(await broker.ports.net.call(CONTROLLER, request, 10_000), Unknown)


async def opened(broker: Broker, incarnation: str, topic_epoch: int | None = None) -> int:
    """A producer of one name gets the topic to itself; the epoch that it is told."""
    broker.directory.invalidate(TOPIC)
    entrance = Entrance(broker.ports.me, "exclusive", topic_epoch)
    producer = PartitionProducer(
        broker.ports, broker.directory, ProducerConfig(TOPIC, 0, "p", incarnation, entrance=entrance)
    )
    await producer.open()
    producer.close()
    assert producer.topic_epoch is not None
    return producer.topic_epoch


async def publish(broker: Broker, *keys: str) -> None:
    """As Broker.publish, within a time."""
    outcomes: list[list[SluiceError]] = []

    async def offer() -> None:
        outcomes.append(await broker.offer(*keys))

    broker.world.background(offer(), "offer")
    await broker.until(lambda: bool(outcomes))
    assert outcomes == [[]]


def test_in_a_topic_that_was_deleted_and_made_again() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish("a", "b")
        await made_again(broker)
        await publish(broker, "c")
        await publish(broker, "d")
        broker.directory.invalidate(TOPIC)
        later = await broker.join("later")
        await broker.until(lambda: later.came() == ["c", "d"])

    play(scenario)


def test_exclusive_producer_comes_back_in_the_remade_topic() -> None:
    """If nobody else was there first: then it is fenced, and not taken for that one because its name is the same."""

    async def scenario(broker: Broker) -> None:
        told = await opened(broker, "one")
        await made_again(broker)
        assert await opened(broker, "one", told) == told
        await made_again(broker)
        assert await opened(broker, "two") == told + 1
        with pytest.raises(ProducerFenced, match="is over"):
            await opened(broker, "one", told)

    play(scenario)


@pytest.mark.parametrize("full_ms", [1_000, 60_000, 600_000])
def test_a_producer_that_waits_for_disk_space_goes_on_with_it(full_ms: int) -> None:
    """Within seconds, however long the disk was full."""

    async def scenario(broker: Broker) -> None:
        await broker.publish("a")
        (faults,) = {id(disk.faults): disk.faults for disk in broker.world._disks.values()}.values()
        before, faults.capacity = faults.capacity, 0
        waiting = broker.world.loop.create_task(broker.offer("b"))
        await broker.quiet(full_ms)
        assert not waiting.done()
        faults.capacity = before
        await broker.until(waiting.done, 5_000)
        later = await broker.join("later")
        await broker.until(lambda: later.came() == ["a", "b"])

    play(scenario)
