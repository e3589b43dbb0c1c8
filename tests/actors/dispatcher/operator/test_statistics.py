"""Statistics of a subscription: their counts, and the moments at which they may have changed."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.actors.dispatcher import Dispatcher
from sluice.actors.messages import Explain, IndexRead, shown
from sluice.actors.runtime.waiting import Signal
from tests.scenarios.key_shared.broker import KEYS, Broker, play

GRACE_MS, LEASE_MS = 60_000, 3_000


def dispatcher(broker: Broker) -> Dispatcher:
    """Return the subscription's owner."""
    actor = broker.world.process(broker.world.alive("dispatcher-")[0]).actor
    assert isinstance(actor, Dispatcher)
    return actor


def test_ledgers_that_no_read_has_told_of_count_as_well() -> None:
    """A read names the topic's end and the ledgers that it has passed. The next read is still under way."""

    async def scenario(broker: Broker) -> None:
        for key in "abcdefghij":
            await broker.publish(key)
        log, reads, answers = dispatcher(broker).parts.context.log, [], Signal()
        read = log.read

        async def slow(start: int, *given: Any, **how: Any) -> IndexRead:
            reads.append(start)
            if len(reads) > 1:
                await answers.wait(broker.ports)
            return await read(start, *given, **how)

        log.read = slow  # type: ignore[method-assign]
        await broker.join("c", queue=4)
        await broker.until(lambda: len(reads) == 2)
        stats = await broker.stats()
        assert stats["pendingRead"]
        assert stats["msgBacklog"] == 10 - broker.seen() + stats["unackedMessages"]
        told = await broker.ask(Explain(position=reads[1]))
        assert "the read that is under way" in shown(told)["reasons"][-1]["unblocks"], "why nothing more comes"
        answers.set()
        await broker.until(lambda: broker.seen() == 10)

    play(scenario, topic={"roll_entries": 2})


def test_the_end_of_a_grace_is_news_for_who_shows_metrics() -> None:
    """Nothing else happens. An idle subscription's old figures are shown until they differ."""

    async def scenario(broker: Broker) -> None:
        await broker.join("a")
        b = await broker.join("b")
        await broker.publish(*KEYS)
        await broker.until(lambda: broker.seen() == len(KEYS))
        await b.close()
        await broker.quiet(LEASE_MS)
        actor = dispatcher(broker)
        assert (await broker.stats())["keptHashes"] > 0
        kept = actor.figures
        assert kept is not None
        await broker.quiet(LEASE_MS)
        assert actor.figures == kept
        await broker.quiet(GRACE_MS)
        assert (await broker.stats())["keptHashes"] == 0
        assert actor.figures not in (kept, None)

    play(scenario, grace_ms=GRACE_MS, lease_ms=LEASE_MS)


@pytest.mark.parametrize("kind", ["shared", "key_shared", "exclusive"])
def test_messages_held_from_an_earlier_owner_are_counted(kind: str) -> None:
    """The consumer has no permits, so nothing is read. It still holds its earlier messages."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", queue=4, acking=False, taking=False)
        await broker.publish(*"abcdef")
        await broker.until(lambda: len(client.got) == 4)
        before = dispatcher(broker)
        broker.world.crash(broker.world.alive("dispatcher-")[0])
        await broker.quiet(2 * LEASE_MS)
        assert dispatcher(broker) is not before
        stats = await broker.stats()
        assert (stats["unackedMessages"], stats["consumers"][0]["unackedMessages"]) == (4, 4)
        told = await broker.ask(Explain(position=client.got[0].position))
        assert shown(told)["verdict"] == "delivered"
        (listed,) = await broker.admin("pending")
        assert listed["unackedMessages"] == len(listed["messageIds"]) == 4
        client.ack()
        await broker.quiet(500)
        stats = await broker.stats()
        assert (stats["unackedMessages"], stats["consumers"][0]["unackedMessages"]) == (0, 0)

    play(scenario, type=kind, lease_ms=LEASE_MS)
