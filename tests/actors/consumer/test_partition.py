"""A consumer whose place is taken when it comes back."""

from __future__ import annotations

import pytest

from storage.errors import Conflict
from tests.scenarios.key_shared.broker import Broker, play

LEASE_MS = 3_000


def test_who_comes_back_to_an_exclusive_subscription_waits_for_its_place() -> None:
    async def scenario(broker: Broker) -> None:
        frozen = await broker.join("frozen")
        with pytest.raises(Conflict, match="exclusive"):
            await broker.join("refused")
        broker.world.pause("frozen")
        await broker.quiet(2 * LEASE_MS)
        other = await broker.join("other")
        broker.world.resume("frozen")
        await broker.quiet(2 * LEASE_MS)
        assert "lost" in [event.kind for event in frozen.events]
        await broker.publish("0", "1")
        await broker.until(lambda: len(other.got) == 2)
        await other.close()
        await broker.publish("2", "3")
        await broker.until(lambda: len(frozen.got) == 2)
        assert frozen.came() == ["2", "3"]
        assert frozen.parts[0].failed is None

    play(scenario, type="exclusive", lease_ms=LEASE_MS)
