"""Cancelling a message for which later ones of its key wait (`delay_key_policy=block_key`)."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from sluice.actors.messages import request_of
from sluice.storage.errors import SluiceError
from tests.actors.dispatcher.late_topic import begun_and_waiting
from tests.scenarios.key_shared.broker import Broker, play


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_goes_out_behind_what_is_not_durably_cancelled(replaced: bool) -> None:
    """The next owner does not know of it: the message would come behind later ones of its key (promise 3)."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.publish("k", delay=20_000)
        await broker.publish("k")
        await broker.quiet(500)
        address = await broker.address()

        async def cancel() -> None:
            with contextlib.suppress(SluiceError):
                await broker.ports.net.call(address, request_of("cancel_delayed", {"key": "k"}), 60_000)

        broker.world.meta.trouble.cut["broker"] = 1
        broker.ports.spawn(cancel(), "cancel")
        await broker.quiet(1_000)
        assert client.got == [], "it is not durable that the first one need not come"
        if replaced:
            broker.world.crash(broker.world.alive("dispatcher-")[0])
        broker.world.meta.trouble.cut.clear()
        await broker.until(lambda: 1 in [message.number for message in client.got], 60_000)
        assert [message.number for message in client.got] == ([0, 1] if replaced else [1])

    play(scenario, delay_key_policy="block_key", lease_ms=20_000)


def test_message_published_after_a_cancellation_comes() -> None:
    """An earlier try waited for the topic. The next one was answered, and the first one goes on after it."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.publish("k", delay=5_000)
        told = list[Any]()

        async def first() -> None:
            told.append(await broker.admin("cancel_delayed", everything=True))

        answered = await begun_and_waiting(broker, first())
        assert (await broker.admin("cancel_delayed", everything=True))["cancelled"] == 1
        await broker.publish("k", delay=2_000)
        answered.set()
        await broker.until(lambda: bool(told))
        assert told[0]["cancelled"] == 0
        await broker.until(lambda: [message.number for message in client.got] == [1])

    play(scenario)
