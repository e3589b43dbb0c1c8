"""An owner of a record that was removed, and made again, is not taken for an owner of the one that there is now."""

from __future__ import annotations

import pytest

from sluice.actors.ownership.fenced_record import LOOK_FIRST_MS, FencedRecord
from sluice.actors.ports import Ports
from sluice.storage.errors import Fenced
from tests.sim.world import World

KEY = "subscription/t/0/s"


async def begun(ports: Ports) -> FencedRecord:
    """An owner that has written nothing yet."""
    record = FencedRecord(ports, KEY, removable=True)
    await record.acquire()
    return record


async def owned(ports: Ports, versions: int = 1) -> FencedRecord:
    """An owner that has written so many versions."""
    record = await begun(ports)
    for number in range(versions):
        await record.save({"at": number})
    return record


async def made_again(world: World, versions: int) -> None:
    """Let the owner remove the record, and another one make it again."""
    await (await owned(world.client("deleting"))).remove()
    await owned(world.client("new"), versions)


@pytest.mark.parametrize("versions", [1, 2, 3, 4])
@pytest.mark.parametrize("acts", ["writes", "looks", "removes"])
def test_owner_frozen_meanwhile_has_lost_a_remade_record(versions: int, acts: str) -> None:
    """Also where the new record has as many versions as the one before had, and its first owner the same epoch."""

    async def run(world: World) -> None:
        old = await owned(world.client("old"), 3)
        await made_again(world, versions)
        newest = await world.client("anybody").meta.read(KEY)
        await world.loop.pause(LOOK_FIRST_MS + 1)
        with pytest.raises(Fenced):
            await {"writes": lambda: old.save({}), "looks": old.verify, "removes": old.remove}[acts]()
        assert await world.client("somebody").meta.read(KEY) == newest

    World(1).play(run)


@pytest.mark.parametrize("versions", [1, 2, 3, 4])
def test_owner_frozen_while_taking_over_is_fenced(versions: int) -> None:
    async def run(world: World) -> None:
        await owned(world.client("old"), 3)
        late = await begun(world.client("late"))
        await made_again(world, versions)
        await world.loop.pause(LOOK_FIRST_MS + 1)
        with pytest.raises(Fenced):
            await late.save({})

    World(1).play(run)


@pytest.mark.parametrize("versions", [0, 3])
def test_owner_goes_on_after_a_long_rest(versions: int) -> None:
    async def run(world: World) -> None:
        record = await owned(world.client("owner"), versions)
        for _ in range(2):
            await world.loop.pause(LOOK_FIRST_MS + 1)
            await record.save({})
            await world.loop.pause(LOOK_FIRST_MS + 1)
            await record.verify()

    World(1).play(run)


def test_an_owner_whose_last_version_is_damaged_writes_another() -> None:
    async def run(world: World) -> None:
        record = await owned(world.client("owner"), 3)
        world.meta.damaged[KEY] = 3
        await world.loop.pause(LOOK_FIRST_MS + 1)
        await record.verify()
        await record.save({"at": 3})
        newest = await world.client("anybody").meta.read(KEY)
        assert newest is not None
        assert newest.number == 4

    World(1).play(run)


def test_an_owner_is_fenced_by_a_damaged_version_of_another() -> None:
    async def run(world: World) -> None:
        record = await owned(world.client("owner"), 3)
        await owned(world.client("newer"))
        world.meta.damaged[KEY] = 4
        await world.loop.pause(LOOK_FIRST_MS + 1)
        with pytest.raises(Fenced):
            await record.verify()

    World(1).play(run)
