"""Of what the statistics of a subscription follow that nobody uses just now: whoever shows metrics asks only then."""

from __future__ import annotations

from tests.scenarios.key_shared.broker import KEYS, Broker, play

GRACE_MS, LEASE_MS = 60_000, 3_000


def test_the_end_of_a_grace_is_news_for_who_shows_metrics() -> None:
    """Nothing else happens, and what was shown of an idle subscription is shown again until its figures differ."""

    async def scenario(broker: Broker) -> None:
        await broker.join("a")
        b = await broker.join("b")
        await broker.publish(*KEYS)
        await broker.until(lambda: broker.seen() == len(KEYS))
        await b.close()
        await broker.quiet(LEASE_MS)
        actor = broker.world.process(broker.world.alive("dispatcher-")[0]).actor
        assert actor is not None
        assert (await broker.stats())["keptHashes"] > 0
        kept = actor.figures
        assert kept is not None
        await broker.quiet(LEASE_MS)
        assert actor.figures == kept
        await broker.quiet(GRACE_MS)
        assert (await broker.stats())["keptHashes"] == 0
        assert actor.figures not in (kept, None)

    play(scenario, grace_ms=GRACE_MS, lease_ms=LEASE_MS)
