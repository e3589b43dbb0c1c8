"""An owner of a record that was removed, and made again, is not taken for an owner of the one that there is now.

One proof of ownership serves a whole process, and shows an owner that it was replaced.
"""

from __future__ import annotations

import dataclasses

import pytest

from sluice.actors.ownership.fenced_record import (
    LOOK_FIRST_MS,
    NOTICES,
    SOON_MS,
    FencedRecord,
    OwnershipProof,
    process_of,
)
from sluice.actors.ports import Ports, Version
from sluice.storage.errors import Fenced, Unavailable
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


OWNERS = 5


async def taken(ports: Ports, key: str) -> FencedRecord:
    """A record of this process."""
    record = FencedRecord(ports, key)
    await record.acquire()
    await record.save({})
    return record


class CountingMeta:
    """The store of a process, which counts what it reads."""

    def __init__(self, ports: Ports) -> None:
        self._meta = ports.meta
        self.reads: list[str] = []
        self.ports = dataclasses.replace(ports, meta=self)

    async def read(self, key: str) -> Version | None:
        self.reads.append(key)
        return await self._meta.read(key)

    async def create(self, key: str, number: int, value: bytes) -> bool:
        return await self._meta.create(key, number, value)

    async def keys(self, prefix: str) -> list[str]:
        return await self._meta.keys(prefix)

    async def remove(self, key: str, number: int | None = None) -> bool:
        return await self._meta.remove(key, number)


def test_one_look_proves_all_owners_of_a_process() -> None:
    async def scenario(world: World) -> None:
        meta = CountingMeta(world.client("process"))
        proof = meta.ports.process.of(OwnershipProof)
        await proof.prove(meta.ports)
        records = [await taken(meta.ports, f"r{number}") for number in range(OWNERS)]
        await world.loop.pause(1_000)
        meta.reads.clear()
        asked = meta.ports.clock.monotonic()
        await records[0].prove()
        assert meta.reads == [NOTICES + process_of(meta.ports.me)]
        assert all(record.proven >= asked for record in records)

    World(1).play(scenario)


def test_one_of_those_that_must_look_does_so_for_all() -> None:
    async def scenario(world: World) -> None:
        ports = world.client("process")
        await ports.process.of(OwnershipProof).prove(ports)
        records = [await taken(ports, f"r{number}") for number in range(OWNERS)]
        for _ in range(2):
            assert [record.leaves_proof() for record in records] == [False] + [True] * (OWNERS - 1)
            await records[0].prove()
        assert not records[1].leaves_proof()
        await world.loop.pause(SOON_MS)
        assert not records[2].leaves_proof(), "who was to look has not, so another one must"

    World(1).play(scenario)


def test_a_notice_has_every_owner_look_at_its_record_once() -> None:
    async def scenario(world: World) -> None:
        meta = CountingMeta(world.client("process"))
        records = [await taken(meta.ports, f"r{number}") for number in range(OWNERS)]
        await records[0].prove()
        await taken(world.client("other"), "r0")
        with pytest.raises(Fenced):
            await records[0].prove()
        assert records[0].lost
        found = meta.ports.clock.monotonic()
        meta.reads.clear()
        for record in records[1:] * 2:
            await record.prove()
            assert not record.lost
            assert record.proven >= found
        assert [key for key in meta.reads if not key.startswith(NOTICES)] == [f"r{n}" for n in range(1, OWNERS)]

    World(1).play(scenario)


def test_a_replaced_owner_is_not_proved_by_its_neighbours() -> None:
    async def scenario(world: World) -> None:
        ports = world.client("process")
        mine, other = await taken(ports, "mine"), await taken(ports, "other")
        await mine.prove()
        await world.loop.pause(500)
        before = mine.proven
        await taken(world.client("newer"), "mine")
        at = ports.clock.monotonic()
        await world.loop.pause(500)
        await other.prove()
        assert other.proven > at
        assert before <= mine.proven <= at

    World(1).play(scenario)


def test_the_notice_of_an_owner_that_died_is_given_by_the_next() -> None:
    """The dead owner wrote its version and no notice: the next one knows the owner before both only from the record."""

    async def scenario(world: World) -> None:
        ports = world.client("first")
        first = await taken(ports, "r")
        await first.prove()

        class NoNotice(CountingMeta):
            async def create(self, key: str, number: int, value: bytes) -> bool:
                if key.startswith(NOTICES):
                    await world.loop.pause(1 << 40)
                return await super().create(key, number, value)

        dying = NoNotice(world.client("second"))
        dying.ports.spawn(_take(dying.ports), "take")
        await world.loop.pause(1_000)
        await first.prove()
        assert not first.lost, "the second one has not taken the record yet"
        world.crash("second")
        await taken(world.client("third"), "r")
        with pytest.raises(Fenced):
            await first.prove()

    World(1).play(scenario)


async def _take(ports: Ports) -> None:
    await taken(ports, "r")


def test_look_that_is_given_up_delays_no_other() -> None:
    async def scenario(world: World) -> None:
        ports = world.client("process")
        proof = ports.process.of(OwnershipProof)
        world.meta.trouble.faults.delay_ms = (5_000, 5_000)
        task = world.loop.create_task(proof.prove(ports))
        await world.loop.pause(10)
        waiting = world.loop.create_task(proof.prove(ports))
        await world.loop.pause(10)
        task.cancel()
        with pytest.raises(Unavailable):
            await waiting
        await proof.prove(ports)
        assert proof.notice == 1

    World(1).play(scenario)


def test_looker_that_ends_silently_delays_no_other() -> None:
    async def scenario(world: World) -> None:
        looker, ports = world.client("looker"), world.client("process")
        ports = dataclasses.replace(ports, process=looker.process)
        proof = ports.process.of(OwnershipProof)
        world.meta.trouble.faults.delay_ms = (500, 500)
        looker.spawn(proof.prove(looker), "look")
        await world.loop.pause(10)
        world.crash("looker")
        await proof.prove(ports)
        assert proof.notice == 1

    World(1).play(scenario)


@pytest.mark.parametrize("given", ["before", "since"])
def test_a_damaged_notice_holds_up_no_owner(given: str) -> None:
    """given: whether the damaged notice was known to the process that it was given to."""

    async def scenario(world: World) -> None:
        ports, other = world.client("process"), world.client("other")
        records = [await taken(ports, f"r{number}") for number in range(3)]
        await taken(other, "r0")
        if given == "before":
            await records[1].prove()
        notices = NOTICES + process_of(ports.me)
        world.meta.damaged[notices] = 1
        with pytest.raises(Fenced):
            await records[0].prove()
        await records[1].prove()
        await records[2].prove()
        await taken(other, "r1")
        assert len(world.meta.records[notices]) == 2
        with pytest.raises(Fenced):
            await records[1].prove()
        await records[2].prove()

    World(1).play(scenario)
