"""Requests of operators to an owner are carried out, even if everything was killed then and no client comes back."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from sluice.actors.controller.closed_owners import LOOK_MS, PAUSE_MS
from sluice.actors.ledger.record import Asked, PartitionRecord, record_key, unpack_record
from sluice.actors.messages import Compact, Erase, Offload
from sluice.actors.ports import Unknown
from sluice.actors.ports.wire import Request
from sluice.actors.topic.background import erasing
from tests.scenarios.key_shared.broker import TOPIC, Broker, play

WITHIN_MS = LOOK_MS + PAUSE_MS + 20_000
closing = partial(play, close_idle_after_ms=5_000, topic={"roll_entries": 2, "retention_ms": -1, "retention_bytes": -1})


async def record(broker: Broker) -> PartitionRecord:
    newest = await broker.ports.meta.read(record_key(TOPIC, 0))
    assert newest is not None
    return unpack_record(newest.value)


@pytest.mark.parametrize("request_", [Compact(ask=True), Offload(keep_bytes=0), Erase(key=b"a")], ids=str)
def test_asked_work_is_done_after_a_stop_of_everything(request_: Request[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasing, "FORGOTTEN_MS", 0)

    async def scenario(broker: Broker) -> None:
        for key in "abca":
            await broker.publish(key)
        owner = await broker.directory.topic(TOPIC, 0)
        assert not isinstance(await broker.ports.net.call(owner, request_, 10_000), Unknown)
        asked = await record(broker)
        assert asked.erasures or asked.asked != Asked()
        broker.world.crash("controller")
        for name in broker.world.alive("topic"):
            broker.world.crash(name)
        await broker.world.restart("controller")
        seen = [asked]

        async def look() -> None:
            while seen[-1].erasures or seen[-1].asked != Asked():
                await broker.quiet(1_000)
                seen.append(await record(broker))

        broker.ports.spawn(look(), "look")
        await broker.until(lambda: not (seen[-1].erasures or seen[-1].asked != Asked()), WITHIN_MS)
        done = seen[-1]
        assert done.compacted is not None or done.erased or all(one.offloaded for one in done.ledgers)

    closing(scenario)
