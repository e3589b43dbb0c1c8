"""A seek ends every session: nothing is sent before each of those consumers knows it, or must have stopped."""

from __future__ import annotations

from tests.scenarios.key_shared.broker import KEYS, Broker, play

LEASE_MS = 6_000


def test_nothing_is_sent_while_a_frozen_consumer_may_still_work() -> None:
    async def scenario(broker: Broker) -> None:
        frozen = await broker.join("frozen", acking=False)
        other = await broker.join("other")
        await broker.publish(*KEYS[:40])
        await broker.until(lambda: len(frozen.got) + len(other.got) == 40)
        before = len(other.got)
        broker.world.pause("frozen")
        await broker.admin("seek", message_id="earliest")
        await broker.quiet(LEASE_MS // 2)
        assert len(other.got) == before
        await broker.until(lambda: len(other.got) == before + 40, 2 * LEASE_MS)

    play(scenario, lease_ms=LEASE_MS)
