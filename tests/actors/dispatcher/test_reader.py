"""What the reader leaves behind when the log tells it nothing new."""

from __future__ import annotations

from tests.scenarios.key_shared.broker import Broker, play


def test_a_run_that_was_finished_before_it_was_read_again_is_not_kept() -> None:
    """A new owner is told by a returning consumer that everything is done; the read that was under way comes later."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", acking=False)
        await broker.publish("a", "b")
        await broker.until(lambda: len(client.got) == 2)
        first = client.parts[0].epoch
        (topic,) = broker.world.alive("topic-")
        broker.world.pause(topic)
        broker.world.crash(next(name for name in broker.world.alive("dispatcher-")))
        await broker.until(lambda: client.parts[0].epoch > first)
        client.ack(*client.got)
        await broker.until(lambda: client.parts[0]._heard == client.parts[0]._said)
        broker.world.resume(topic)
        await broker.quiet(10_000)  # virtual: the read is answered long before
        stats = await broker.stats()
        assert (stats["msgBacklog"], stats["runsHeld"]) == (0, 0)

    play(scenario)
