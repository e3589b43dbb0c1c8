"""The end of a consumer's lease is told when it comes, whatever the consumer waits for then."""

from __future__ import annotations

import asyncio

from sluice.actors.consumer.session import Lease
from tests.scenarios.key_shared.broker import Broker, play
from tests.sim.net import LinkFaults
from tests.sim.world import Process, World

LEASE_MS = 6_000


def test_the_end_is_told_while_the_owner_is_looked_for() -> None:
    """The owner is gone and the controller does not answer: another consumer may have the messages by then."""

    async def scenario(broker: Broker) -> None:
        broker.world.network.faults.gone_hint = 1.0
        client = await broker.join("c", acking=False)
        await broker.publish("a")
        await broker.until(lambda: len(client.got) == 1)
        heal = broker.world.partition(["c"], ["controller"])
        broker.world.crash(next(name for name in broker.world.alive("dispatcher-")))
        await broker.until(lambda: client.got[0].part.revoked, LEASE_MS)
        assert [event.kind for event in client.events][-1] == "lost"
        heal()
        await broker.until(lambda: len(client.got) == 2, 10 * LEASE_MS)
        client.ack()
        await client.parts[0].wait_confirmed()
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario, lease_ms=LEASE_MS)


def test_a_session_of_a_life_that_ended_is_given_up() -> None:
    """The attach is answered after the consumer's lease has ended, and would keep hashes that no consumer uses."""

    async def scenario(broker: Broker) -> None:
        broker.world.network.faults.gone_hint = 1.0
        client = await broker.join("c", acking=False)
        await broker.publish("a")
        await broker.until(lambda: len(client.got) == 1)

        attached: list[int] = []

        def hear(process: Process, event: str, fields: dict[str, object]) -> None:
            if event == "attached":
                attached.append(broker.world.loop.now)
                broker.world.network.pairs["broker", "c"] = LinkFaults(delay_ms=(5_500, 5_500))

        broker.world.ears.append(hear)
        broker.world.crash(next(name for name in broker.world.alive("dispatcher-")))
        await broker.until(lambda: client.got[0].part.revoked, 2 * LEASE_MS)
        broker.world.ears.clear()
        broker.world.network.pairs.clear()
        # The answer is on its way still. Were the session kept, nothing would come before its lease is over.
        await broker.until(lambda: len(client.got) == 2, LEASE_MS)
        assert broker.world.loop.now < attached[0] + LEASE_MS
        assert len((await broker.stats())["consumers"]) == 1

    play(scenario, lease_ms=LEASE_MS)


def test_a_lease_is_renewed_from_when_its_request_was_sent() -> None:
    async def scenario(world: World) -> None:
        ports, ends = world.client("c"), []
        lease = Lease(ports)

        def on_over() -> None:
            ends.append(ports.clock.monotonic() - began)
            lease.end()

        watching = asyncio.ensure_future(lease.watch(on_over))
        await world.loop.pause(50)
        began = ports.clock.monotonic()
        lease.start(began, 100)
        await world.loop.pause(90)
        lease.renew(began + 60)
        lease.renew(began + 20)  # its answer came later
        await world.loop.pause(65)
        assert not lease.over()
        assert ends == []
        await world.loop.pause(20)
        assert ends == [161]
        assert not lease.over()
        lease.start(ports.clock.monotonic(), 100)
        lease.close()
        await watching
        assert ends == [161]

    World(1).play(scenario)
