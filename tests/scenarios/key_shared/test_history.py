"""The owner of a key at a past time, asked for after the dispatcher was replaced."""

from __future__ import annotations

from tests.scenarios.key_shared.broker import Broker, play


def test_a_keys_owner_at_a_time_is_known_over_a_new_dispatcher() -> None:
    async def scenario(broker: Broker) -> None:
        moments = {}
        for name in ("a", "b"):
            client = await broker.join(name)
            await broker.quiet(1_000)
            moments[name] = broker.ports.clock.now()
        owners = {str(key): (await broker.admin("owner", key=str(key)))["owner"] for key in range(20)}
        key = next(key for key, owner in owners.items() if owner.startswith("b"))
        numbers = [change["epoch"] for change in await broker.admin("assignments")]
        address = await broker.address()
        broker.world.crash(address.partition("/")[2].rpartition(".")[0])
        await broker.directory.suspect(address)
        await broker.until(lambda: client.parts[0].epoch == 2, 60_000)
        await broker.quiet(1_000)
        for name, moment in moments.items():
            assert (await broker.admin("owner", key=key, at=moment))["owner"].partition("#")[0] == name
        after = [change["epoch"] for change in await broker.admin("assignments")]
        assert after[: len(numbers)] == numbers
        assert after == sorted(after)
        await broker.publish(key)
        await broker.until(lambda: broker.seen() == 1)

    play(scenario)
