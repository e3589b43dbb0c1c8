"""A request that waits for its topic while others are carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from sluice.actors.dispatcher.dispatcher import Dispatcher
from sluice.actors.lookup.topic_client import FOREVER_MS, TopicLog
from sluice.actors.messages import Ends
from sluice.actors.runtime.waiting import Signal
from tests.scenarios.key_shared.broker import Broker


def delay_ends(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Delay a topic's answer about its end by `seconds` after the topic has looked."""
    ends = TopicLog.ends

    async def slow(log: TopicLog, *arguments: Any) -> Ends:
        found = await ends(log, *arguments)
        await asyncio.sleep(seconds)
        return found

    monkeypatch.setattr(TopicLog, "ends", slow)


async def begun_and_waiting(broker: Broker, request: Coroutine[object, object, None]) -> Signal:
    """Begin a request that asks the topic for its end, and hold that answer back until the returned signal is set.

    Other requests get the topic's answers at once.
    """
    actor = broker.world.process(broker.world.alive("dispatcher-")[0]).actor
    assert isinstance(actor, Dispatcher)
    log, begun, answered = actor.parts.context.log, Signal(), Signal()
    ends = log.ends

    async def late(patience: int = FOREVER_MS, subscription: str = "") -> Ends:
        begun.set()
        await answered.wait(broker.ports)
        return await ends(patience, subscription)

    log.ends = late  # type: ignore[method-assign]
    broker.ports.spawn(request, "first")
    await begun.wait(broker.ports)
    log.ends = ends  # type: ignore[method-assign]
    return answered
