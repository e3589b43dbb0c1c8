"""A record with one owner at a time, also where it is removed and made again."""

from __future__ import annotations

import pytest

from actors.fenced_record import DOUBT_MS, FencedRecord
from storage.errors import Fenced
from tests.sim.world import World

KEY = "subscription/t/0/s"


async def owner(world: World, name: str) -> FencedRecord:
    """Whoever takes it over."""
    record = FencedRecord(world.client(name), KEY)
    await record.take()
    await record.save({"by": name})
    return record


@pytest.mark.parametrize("deed", ["writes", "looks"])
def test_who_slept_does_not_take_the_next_record_of_the_name(deed: str) -> None:
    """It was removed by a later owner and made again, and its versions have come to the same number."""

    async def scenario(world: World) -> None:
        asleep = await owner(world, "asleep")
        await world.loop.pause(DOUBT_MS)
        later = await owner(world, "later")
        await later.remove()
        now = await owner(world, "now")
        with pytest.raises(Fenced):
            await (asleep.save({"by": "asleep"}) if deed == "writes" else asleep.verify())
        assert asleep.lost
        await now.save({"by": "now"})

    World(1).play(scenario)


def test_who_comes_back_to_his_own_record_goes_on() -> None:
    async def scenario(world: World) -> None:
        record = await owner(world, "only")
        await world.loop.pause(10 * DOUBT_MS)
        await record.save({"by": "only"})
        await record.verify()

    World(1).play(scenario)
