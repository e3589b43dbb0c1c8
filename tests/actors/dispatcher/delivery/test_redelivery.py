"""Redelivery delays and counts over a change of owner, as consumers see them."""

from __future__ import annotations

import asyncio

import pytest

from sluice.actors.runtime.wall_clock import LOOK_MS
from sluice.storage.errors import Unavailable
from tests.actors.dispatcher.test_rejoin import new_owner
from tests.scenarios.key_shared.broker import Broker, play

LEASE_MS = 6_000
"""Longer than a call that nobody answers."""
DELAY = 60_000


def test_a_delay_and_a_count_outlive_their_owner() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c1", acking=False)
        await broker.publish("a", "b")
        await broker.until(lambda: len(client.got) == 2)
        begun = broker.world.loop.now
        await client.nack(client.got[0], delay=DELAY)
        await new_owner(broker)
        await broker.until(lambda: len(client.got) == 3, 2 * DELAY)
        assert broker.world.loop.now - begun >= DELAY
        assert (client.got[2].key, client.got[2].again) == ("a", 1)
        client.ack()
        await broker.quiet(500)
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario, lease_ms=LEASE_MS)


def test_they_outlive_who_gave_it_back_as_well() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c1", acking=False)
        await broker.publish("a")
        await broker.until(lambda: len(client.got) == 1)
        begun = broker.world.loop.now
        await client.nack(client.got[0], delay=DELAY)
        client.crash()
        await new_owner(broker)
        other = await broker.join("c2")
        await broker.until(lambda: len(other.got) == 1, 2 * DELAY)
        assert broker.world.loop.now - begun >= DELAY
        assert other.got[0].again == 1

    play(scenario, lease_ms=LEASE_MS)


def test_nack_before_a_reread_is_delayed_and_counted() -> None:
    """A new owner knows a consumer's messages before it reads them; here it cannot read at all."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c1", acking=False)
        await broker.publish("a")
        await broker.until(lambda: len(client.got) == 1)
        await new_owner(broker)
        broker.world.network.refusals["ReadIndex"] = (1.0, (Unavailable("not now"),))
        session = client.parts[0].session
        await broker.until(lambda: client.parts[0].session != session, 20_000)
        begun = broker.world.loop.now
        await client.nack(client.got[0], delay=DELAY)
        broker.world.network.refusals.clear()
        await broker.until(lambda: len(client.got) == 2, 2 * DELAY)
        assert broker.world.loop.now - begun >= DELAY
        assert client.got[1].again == 1

    play(scenario, lease_ms=LEASE_MS)


@pytest.mark.parametrize("kept", [False, True])
def test_unanswered_nack_is_repeated_and_counts_once(kept: bool) -> None:
    """The owner ends before it answers. kept: whether it has recorded the nack."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c1", acking=False)
        await broker.publish("a")
        await broker.until(lambda: len(client.got) == 1)
        begun = broker.world.loop.now
        if kept:
            heal = broker.world.partition(["broker"], ["c1"])
        else:
            broker.world.network.refusals["NegativeAcknowledge"] = (1.0, (Unavailable("not now"),))
        back: asyncio.Future[None] = broker.world.loop.create_future()

        async def give_back() -> None:
            await client.nack(client.got[0], delay=DELAY)
            back.set_result(None)

        broker.world.background(give_back(), "give back")
        await broker.quiet(300)
        assert not back.done(), "nobody has confirmed it"
        await new_owner(broker)
        broker.world.network.refusals.clear()
        if kept:
            heal()
        await back
        await broker.until(lambda: len(client.got) == 2, 2 * DELAY)
        assert broker.world.loop.now - begun >= DELAY
        assert client.got[1].again == 1

    play(scenario, lease_ms=2 * LEASE_MS)


def test_everything_given_back_counts_at_the_next_owner() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c1", acking=False)
        await broker.publish("a", "b")
        await broker.until(lambda: len(client.got) == 2)
        await client.redeliver_all()
        await new_owner(broker)
        await broker.until(lambda: len(client.got) >= 4, 30_000)
        assert {message.again for message in client.got[2:]} == {1}

    play(scenario, lease_ms=LEASE_MS)


def test_counting_goes_on_until_it_is_a_dead_letter() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c1", acking=False)
        await broker.publish("a")
        for time in range(3):
            await broker.until(lambda: len(client.got) == time + 1, 30_000)  # noqa: B023 - awaited at once
            assert client.got[time].again == time
            await client.nack(client.got[time])
            await new_owner(broker)
        await broker.quiet(20_000)
        assert len(client.got) == 3
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario, lease_ms=LEASE_MS, max_redeliver_count=2)


def test_message_acknowledged_just_before_does_not_return() -> None:
    """The consumer gives everything back while its acknowledgement still waits for a poll."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c1", acking=False)
        await broker.publish("a", "b")
        await broker.until(lambda: len(client.got) == 2)
        client.ack(client.got[0])
        await client.redeliver_all()
        await broker.until(lambda: len(client.got) == 3)
        await broker.quiet(500)
        assert client.came() == ["a", "b", "b"]

    play(scenario)


@pytest.mark.parametrize("leap", [3_600_000, -3_600_000])
def test_a_delay_is_as_long_though_the_clock_is_wrong(leap: int) -> None:
    """The delay begins while the clock is wrong and ends when it is right again: seed 64000215 of world leaps."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c1", acking=False)
        await broker.publish("a")
        await broker.until(lambda: len(client.got) == 1)
        begun = broker.world.loop.now
        broker.world.skews["broker"] = leap
        await client.nack(client.got[0], delay=DELAY)
        await broker.quiet(1_000)
        broker.world.skews["broker"] = 0
        await broker.until(lambda: len(client.got) == 2, 2 * DELAY)
        assert DELAY <= broker.world.loop.now - begun <= DELAY + LOOK_MS

    play(scenario)


@pytest.mark.parametrize("leap", [3_600_000, -3_600_000])
def test_a_clock_that_leaps_meanwhile_ends_no_delay(leap: int) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c1", acking=False)
        await broker.publish("a")
        await broker.until(lambda: len(client.got) == 1)
        begun = broker.world.loop.now
        await client.nack(client.got[0], delay=DELAY)
        await broker.quiet(1_000)
        broker.world.skews["broker"] = leap
        await broker.publish("b")
        await broker.until(lambda: len(client.got) == 2)
        assert client.got[1].key == "b"
        await broker.until(lambda: len(client.got) == 3, 2 * DELAY)
        assert DELAY <= broker.world.loop.now - begun <= DELAY + LOOK_MS

    play(scenario)


@pytest.mark.parametrize("before", [0, 3_600_000])
def test_the_next_owner_waits_no_longer_than_was_left(before: int) -> None:
    """The next owner's clock is behind, or that of the owner before was ahead."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c1", acking=False)
        await broker.publish("a")
        await broker.until(lambda: len(client.got) == 1)
        begun = broker.world.loop.now
        broker.world.skews["broker"] = before
        await client.nack(client.got[0], delay=DELAY)
        broker.world.skews["broker"] = before - 3_600_000
        await new_owner(broker)
        await broker.until(lambda: len(client.got) == 2, 3 * DELAY)
        assert broker.world.loop.now - begun >= DELAY

    play(scenario, lease_ms=LEASE_MS)
