"""A caller that gives up waiting for a consumer's report does not stop the report."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.scenarios.key_shared.broker import Broker, Client, play


async def give_up(broker: Broker, work: Coroutine[Any, Any, object]) -> None:
    """Nothing travels from the consumer while this waits."""
    heal = broker.world.partition(["c"], ["broker"])
    task = asyncio.ensure_future(work)
    await broker.quiet(200)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    heal()


async def consumer_of_two(broker: Broker) -> Client:
    client = await broker.join("c", acking=False)
    await broker.publish("a", "a")
    await broker.until(lambda: len(client.got) == 2)
    return client


def test_acknowledgement_is_confirmed_after_caller_gave_up() -> None:
    async def scenario(broker: Broker) -> None:
        client = await consumer_of_two(broker)
        client.ack(client.got[0])
        await give_up(broker, client.parts[0].wait_confirmed())
        client.ack(client.got[1])
        await broker.world.within(10_000, client.parts[0].wait_confirmed(), "it is confirmed")
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario)


def test_returned_message_comes_again() -> None:
    async def scenario(broker: Broker) -> None:
        client = await consumer_of_two(broker)
        await give_up(broker, client.nack(client.got[0]))
        await broker.until(lambda: len(client.got) == 3)
        assert client.got[2].again == 1
        client.ack()
        await broker.world.within(10_000, client.parts[0].wait_confirmed(), "it is confirmed")
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario)


def test_returned_messages_all_come_again() -> None:
    async def scenario(broker: Broker) -> None:
        client = await consumer_of_two(broker)
        await give_up(broker, client.redeliver_all())
        await broker.until(lambda: len(client.got) == 4)
        client.ack()
        await broker.world.within(10_000, client.parts[0].wait_confirmed(), "it is confirmed")
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario)


def test_closing_consumer_leaves_although_caller_gives_up() -> None:
    """The held messages go to others at once, and not only when the lease is over."""

    async def scenario(broker: Broker) -> None:
        client = await consumer_of_two(broker)
        client.ack(client.got[0])
        await give_up(broker, client.parts[0].close())
        del broker.clients[client.name]  # it shows nothing any more, and may hear that it has left after the other has
        other = await broker.join("other")
        await broker.until(lambda: len(other.got) == 1)
        await broker.world.within(10_000, other.parts[0].wait_confirmed(), "it is confirmed")
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario, lease_ms=30_000)


def test_opening_given_up_leaves_its_session() -> None:
    """The session is left as soon as the answer names it, long before a lease is over."""

    async def scenario(broker: Broker) -> None:
        events: list[str] = []
        broker.world.ears.append(lambda process, event, fields: events.append(event))
        broker.world.network.faults.delay_ms = (200, 200)
        client = Client(broker, "c", "c", 10, acking=True, taking=True)
        opening = asyncio.ensure_future(client.open(()))
        await broker.until(lambda: "attached" in events)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        client.parts[0].begin_close()
        await broker.quiet(2_000)
        assert (await broker.stats())["consumers"] == []

    play(scenario, lease_ms=30_000)
