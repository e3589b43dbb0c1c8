"""A new owner gets acknowledgements of messages that it has not read yet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any

import numpy as np
import pytest

from sluice.actors.dispatcher.dispatcher import Dispatcher
from sluice.actors.messages import Redrive
from sluice.storage.errors import SluiceError, Unavailable
from tests.scenarios.key_shared.broker import Broker, Client, play

LEASE_MS = 6_000


def dispatcher_of(broker: Broker) -> Dispatcher:
    """Return the dispatcher of the subscription."""
    (name,) = broker.world.alive("dispatcher-")
    actor = broker.world._processes[name].actor
    assert isinstance(actor, Dispatcher)
    return actor


async def quietly(asked: Awaitable[object]) -> None:
    """Wait for a request, and ignore its error."""
    with contextlib.suppress(SluiceError):
        await asked


async def unread(broker: Broker, *refused: str) -> tuple[Client, int]:
    """Let a new owner take over whose requests of these kinds are refused.

    Return its consumer, and the position of a message that the earlier owner sent.
    """
    first = await broker.join("c1", acking=False)
    await broker.publish("a", "b")
    await broker.until(lambda: len(first.got) == 2)
    for name in refused:
        broker.world.network.refusals[name] = (1.0, (Unavailable("not now"),))
    first.crash()
    broker.world.network.faults.gone_hint = 1.0
    broker.world.crash(next(name for name in broker.world.alive("dispatcher-")))
    return await broker.join("c2", acking=False), first.got[0].position


def test_message_sent_by_an_earlier_owner_is_done_unread() -> None:
    """After a confirmed acknowledgement neither its sender nor another consumer gets the message again."""

    async def scenario(broker: Broker) -> None:
        second, position = await unread(broker, "ReadIndex")
        second.parts[0].acknowledge_positions(np.array([position]))
        await second.parts[0].wait_confirmed()
        broker.world.network.refusals.clear()
        await broker.until(lambda: len(second.got) == 1, 2 * LEASE_MS)
        await broker.quiet(500)
        assert second.came() == ["b"]

    play(scenario, lease_ms=LEASE_MS)


def test_ack_of_an_unread_message_waits_for_the_topics_end() -> None:
    async def scenario(broker: Broker) -> None:
        second, position = await unread(broker, "ReadIndex", "ReadEnds")
        second.parts[0].acknowledge_positions(np.array([position]))
        waiting = asyncio.ensure_future(second.parts[0].wait_confirmed())
        await broker.quiet(LEASE_MS)
        assert not waiting.done(), "the owner does not know whether there is such a message"
        broker.world.network.refusals.clear()
        await waiting
        await broker.until(lambda: len(second.got) == 1, 2 * LEASE_MS)
        assert second.came() == ["b"]

    play(scenario, lease_ms=LEASE_MS)


def test_position_never_published_is_not_done() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c1")
        await broker.publish("a")
        await broker.until(lambda: len(client.got) == 1)
        client.parts[0].acknowledge_positions(np.array([client.got[0].position + 1]))
        await client.parts[0].wait_confirmed()
        await broker.publish("b")
        await broker.until(lambda: len(client.got) == 2)

    play(scenario)


def test_message_done_by_another_consumer_is_not_sent() -> None:
    """In a Failover subscription, the message waited for the next poll of the formerly active consumer."""

    async def scenario(broker: Broker) -> None:
        former = await broker.join("b", queue=2)
        await broker.publish("k")
        await broker.until(lambda: len(former.got) == 1)
        await broker.quiet(100)
        heal = broker.world.partition(["broker"], ["b"])
        await broker.publish("on its way")
        await broker.quiet(100)
        await broker.publish("waits")
        await broker.quiet(100)
        active = await broker.join("a")
        await broker.until(lambda: active.came() == ["on its way", "waits"])
        await active.parts[0].wait_confirmed()
        heal()
        await broker.until(lambda: len(former.got) == 2)
        assert former.came() == ["k", "on its way"]
        await active.close()
        await broker.publish("x", "y", "z")
        await broker.until(lambda: former.came()[-1] == "z")
        assert former.came()[2:] == ["x", "y", "z"]
        await broker.quiet(1_100)
        assert (await broker.consumer_stats())["b"]["availablePermits"] == 2, "what was not sent took no room"

    play(scenario, type="failover", lease_ms=60_000)


@pytest.mark.parametrize("runs", [[6], [1, 1, 1, 1, 1, 1]])
def test_nothing_goes_out_behind_what_is_done_and_was_never_sent(runs: list[int]) -> None:
    """The owner may have read the message or not. The next owner does not know that it is done (promise 3)."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", queue=1, acking=False, taking=False)
        for count in runs:
            await broker.publish(*["k"] * count)
        await broker.until(lambda: len(client.got) == 1)
        other = await broker.join("other", queue=1)
        broker.world.meta.trouble.cut["broker"] = 1
        other.parts[0].acknowledge_positions(np.array([client.got[0].position + 4]))
        await broker.quiet(500)
        client.taking = client.acking = True
        client.ack(client.got[0])
        client.parts[0].taken(client.got[0].part)
        await broker.quiet(1_000)
        came = [message.number for message in client.got + other.got]
        assert came == [0], "it is not durable that the one behind need not come"
        for gone in (client, other):
            gone.crash()
        broker.world.crash(broker.world.alive("dispatcher-")[0])
        broker.world.meta.trouble.cut.clear()
        last = await broker.join("d")
        await broker.until(lambda: len(last.got) == 6, 60_000)

    play(scenario, lease_ms=20_000, look_ahead_per_consumer=1)


def test_watchdog_counts_only_what_no_pass_is_due_for() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", queue=1, acking=False, taking=False)
        await broker.publish("a", "b")
        await broker.until(lambda: len(client.got) == 1)
        parts = dispatcher_of(broker).parts
        (session,) = parts.context.sessions.all()
        assert parts.context.core.grant(session.number, 2)
        parts.context.wakeups.route.set()
        parts.deliverer.look_if_stalled()
        assert parts.deliverer.stalls == 0, "the pass that sends it is due"
        parts.context.wakeups.route.clear()
        parts.deliverer.look_if_stalled()
        assert parts.deliverer.stalls == 1
        await broker.until(lambda: len(client.got) == 2)

    play(scenario)


def test_nothing_goes_out_behind_what_is_done_and_was_parked() -> None:
    """The message waited behind a failed one, and was sent to nobody. The next owner sends it (promise 3)."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", queue=1, acking=False, taking=False)
        await broker.publish("k", "k", "k")
        await broker.until(lambda: len(client.got) == 1)
        for _ in range(2):
            await client.nack(client.got[-1])
            client.parts[0].taken(client.got[-1].part)
            await broker.quiet(500)
        broker.world.meta.trouble.cut["broker"] = 1
        client.parts[0].acknowledge_positions(np.array([client.got[0].position + 1]))
        await broker.quiet(100)
        address = await broker.address()
        asked = broker.ports.net.call(address, Redrive(everything=True), 60_000)
        broker.world.background(quietly(asked), "redrive")
        client.taking = client.acking = True
        await broker.quiet(1_000)
        assert 2 not in [message.number for message in client.got], "it is not durable that 1 need not come"
        client.crash()
        broker.world.crash(broker.world.alive("dispatcher-")[0])
        broker.world.meta.trouble.cut.clear()
        last = await broker.join("d")
        await broker.quiet(30_000)
        await broker.admin("redrive", everything=True)
        await broker.until(lambda: [message.number for message in last.got] == [0, 1, 2], 60_000)

    parks: dict[str, Any] = {"dead_letter_policy": "park", "nack_order": "key", "max_redeliver_count": 1}
    play(scenario, lease_ms=20_000, **parks)
