"""A consumer that lost its session believes of its acknowledgements only what was confirmed."""

from __future__ import annotations

import pytest

from sluice.actors.consumer.partition import ACK_LINGER
from sluice.actors.dispatcher.delivery.subscription import GROUP_MS
from sluice.storage.errors import Fenced
from tests.scenarios.key_shared.broker import Broker, play

LEASE_MS = 3_000


def test_a_lost_acknowledgement_is_told_to_who_asks_later() -> None:
    """Said, then void with its session before anybody asked: the next wait must not answer that all is durable."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", acking=False)
        await broker.publish("a", "b")
        await broker.until(lambda: len(client.got) == 2)
        heal = broker.world.partition(["c"], ["broker"])
        client.ack(*client.got)
        await broker.until(lambda: bool(client.parts[0].losses.count), 10 * LEASE_MS)
        heal()
        await broker.until(lambda: len(client.got) == 4, 60_000)
        assert client.came() == ["a", "b", "a", "b"]
        with pytest.raises(Fenced, match="lost before"):
            await client.parts[0].wait_confirmed()
        await client.parts[0].wait_confirmed()  # told once
        client.ack(*client.got[2:])
        await client.parts[0].wait_confirmed()
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario, lease_ms=LEASE_MS)


def test_awaited_acknowledgement_is_sent_at_once_and_once() -> None:
    """Nothing lingers for a poll to ride on, and one request says it and asks whether it is durable."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", acking=False)
        for number in range(1, 6):
            await broker.publish("a")
            await broker.until(lambda number=number: len(client.got) == number)  # type: ignore[misc]
            await broker.quiet(2 * GROUP_MS)
            client.ack(client.got[-1])
            calls, now = broker.world.network.calls.get("Acknowledge", 0), broker.world.loop.now
            await client.parts[0].wait_confirmed()
            assert broker.world.loop.now - now < ACK_LINGER
            await broker.quiet(5 * ACK_LINGER)
            assert broker.world.network.calls["Acknowledge"] == calls + 1
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario)


def test_acknowledging_what_was_taken_away_is_told() -> None:
    """The session was lost with messages in hand; finishing them then acknowledges nothing."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", acking=False)
        await broker.publish("a")
        await broker.until(lambda: len(client.got) == 1)
        heal = broker.world.partition(["c"], ["broker"])
        await broker.until(lambda: client.got[0].part.revoked, 10 * LEASE_MS)
        heal()
        await broker.until(lambda: len(client.got) == 2, 60_000)
        await client.parts[0].wait_confirmed()  # nothing was acknowledged, so nothing is missing
        client.parts[0].acknowledge(client.got[0].part)
        with pytest.raises(Fenced, match="lost before"):
            await client.parts[0].wait_confirmed()

    play(scenario, lease_ms=LEASE_MS)


def test_a_lost_acknowledgement_is_told_to_who_closes() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", acking=False)
        await broker.publish("a")
        await broker.until(lambda: len(client.got) == 1)
        heal = broker.world.partition(["c"], ["broker"])
        client.ack(*client.got)
        await broker.until(lambda: bool(client.parts[0].losses.count), 10 * LEASE_MS)
        heal()
        await client.parts[0].close()
        with pytest.raises(Fenced, match="lost before"):
            await client.parts[0].wait_confirmed()

    play(scenario, lease_ms=LEASE_MS)


def test_given_up_consumer_does_not_reclaim_its_messages() -> None:
    """The consumer cannot find the new owner in time. Its messages go to another, and it must not claim them when it
    comes.
    """

    async def scenario(broker: Broker) -> None:
        broker.world.network.faults.gone_hint = 1.0
        late = await broker.join("late", acking=False)
        await broker.publish("a", "b")
        await broker.until(lambda: len(late.got) == 2)
        heal = broker.world.partition(["late"], ["controller"])
        broker.world.crash(next(name for name in broker.world.alive("dispatcher-")))
        other = await broker.join("other", acking=False)
        await broker.until(lambda: len(other.got) == 2, 20 * LEASE_MS)
        heal()
        await broker.until(lambda: late.got[0].part.revoked, 20 * LEASE_MS)
        assert "lost" in [event.kind for event in late.events]
        assert sorted(message.key for message in other.held()) == ["a", "b"]
        assert (await broker.consumer_stats())["other"]["unackedMessages"] == 2
        assert (await broker.stats())["watchdogStalls"] == 0
        other.ack(*other.got)
        await broker.publish("c", "d", "e", "f")
        await broker.until(lambda: len(late.got) + len(other.got) == 8)

    play(scenario, lease_ms=2 * LEASE_MS)  # longer than a call that nobody answers
