"""The manifest record: fencing, and versions whose outcome was unclear."""

from dataclasses import replace

import pytest

from sluice.actors.delayed.manifest import ManifestStore, last_epoch
from sluice.storage.delayed.manifest import BucketRecord, Manifest, decode_manifest, encode_manifest
from sluice.storage.errors import Corrupt, Fenced, InvariantViolation, Unavailable
from tests.actors.delayed.broker import KEY
from tests.actors.delayed.world import LATE_MS, Fault, Life, World
from tests.sim.loop import simulated


def record(number: int) -> BucketRecord:
    return BucketRecord(1, number, number, number, 1, 1, 1, 1, 1, 1)


def settled(store: ManifestStore) -> bool:
    return store.settled


def newest(world: World) -> Manifest:
    return decode_manifest(world.records[KEY][-1], KEY)


@simulated
async def test_opening_takes_possession() -> None:
    world = World()
    first = ManifestStore(Life(world).ports, KEY, 1)
    await first.open()
    await first.commit(Manifest(1, (record(1),)))
    second = ManifestStore(Life(world).ports, KEY, 2)
    assert (await second.open()).buckets == (record(1),)
    assert newest(world).epoch == 2
    with pytest.raises(Fenced, match="belongs to epoch 2"):
        await first.commit(Manifest(1, ()))
    with pytest.raises(Fenced, match="belongs to epoch 2"):
        await first.current()
    with pytest.raises(Fenced, match="belongs to epoch 2"):
        await ManifestStore(Life(world).ports, KEY, 1).open()
    assert newest(world).buckets == (record(1),)


@simulated
async def test_an_own_outdated_version_that_lands_late_is_overruled() -> None:
    world = World()
    faults: list[Fault] = []

    def script(n: int, what: str, name: str) -> Fault:
        return faults.pop(0) if what == "create" and faults else "ok"

    life = Life(world, script)
    store = ManifestStore(life.ports, KEY, 1)
    await store.open()
    await store.commit(Manifest(1))
    faults += ["late", "lost_before"]
    outcomes: list[str] = []

    async def commit(buckets: tuple[BucketRecord, ...]) -> None:
        try:
            await store.commit(Manifest(1, buckets))
            outcomes.append("written")
        except Unavailable:
            outcomes.append("unclear")

    # The late effect lands before the third attempt, which finds it.
    life.spawn(commit((record(1),)), "first")
    await world.advance(LATE_MS - 1)
    assert len(world.records[KEY]) == 1
    assert settled(store) is False
    await world.advance(10_000)
    assert outcomes == ["written"], "the late version is the wanted one"
    assert settled(store) is True

    faults += ["late"]
    world_before = len(world.records[KEY])
    task = life.spawn(commit((record(1), record(2))), "second")
    await world.settle()
    task.cancel()
    await world.advance(LATE_MS)
    assert len(world.records[KEY]) == world_before + 1
    await commit((record(3),))
    assert newest(world).buckets == (record(3),)
    assert settled(store) is True


@simulated
async def test_a_damaged_record_is_named_and_a_readable_one_follows() -> None:
    world = World()
    world.records[KEY] = [b"rubbish"]
    life = Life(world)
    store = ManifestStore(life.ports, KEY, 3)
    assert await store.open() == Manifest(3)
    assert store.rebuilt
    assert [name for name, fields in life.events if fields.get("key") == KEY] == ["delayed_manifest_damaged"]
    assert newest(world) == Manifest(3)
    world.records[KEY].append(b"more rubbish")
    with pytest.raises(Corrupt, match=KEY):
        await store.current()
    await store.commit(Manifest(3, (record(1),)))
    assert newest(world) == Manifest(3, (record(1),))
    assert await last_epoch(life.ports, KEY) == 3
    world.records[KEY].append(b"rubbish")
    assert await last_epoch(life.ports, KEY) == 0


@simulated
async def test_a_record_that_its_store_finds_damaged_is_waited_for() -> None:
    world = World()
    life = Life(world)
    store = ManifestStore(life.ports, KEY, 3)
    await store.open()
    await store.commit(Manifest(3, (record(1),)))
    world.meta_store.trouble.refused[f"read {KEY}"] = Corrupt
    with pytest.raises(Unavailable, match=KEY):
        await ManifestStore(life.ports, KEY, 4).open()
    assert await last_epoch(life.ports, KEY) == 0
    with pytest.raises(Corrupt):
        await store.current()
    await store.commit(Manifest(3, (record(2),)))
    assert newest(world).buckets == (record(2),), "its owner knows the number that follows"


@simulated
async def test_an_older_owner_that_overwrote_a_record_is_overruled() -> None:
    world = World()
    newer, older = (ManifestStore(Life(world).ports, KEY, epoch) for epoch in (5, 4))
    await newer.open()
    await newer.commit(Manifest(5))
    world.records[KEY].append(b"rubbish")
    await older.open()
    assert await newer.commit(Manifest(5, (record(1),))) == newest(world)
    with pytest.raises(Fenced):
        await older.commit(Manifest(4))


@simulated
async def test_there_is_no_record_before_it_is_needed() -> None:
    world = World()
    life = Life(world)
    older, newer = (ManifestStore(life.ports, KEY, epoch) for epoch in (1, 2))
    assert (await older.open(), await newer.open()) == (Manifest(1), Manifest(2))
    assert KEY not in world.records
    assert await last_epoch(life.ports, KEY) is None
    await older.commit(Manifest(1, (record(1),)))
    assert older.begun is False
    with pytest.raises(Corrupt, match="overwritten by epoch 1"):
        await newer.current()
    await newer.commit(Manifest(2))
    assert newest(world) == Manifest(2)
    with pytest.raises(Fenced):
        await older.commit(Manifest(1))


@simulated
async def test_a_record_of_a_higher_epoch_that_came_meanwhile_fences() -> None:
    world = World()
    store = ManifestStore(Life(world).ports, KEY, 1)
    assert store.create() == Manifest(1)
    world.records[KEY] = [encode_manifest(Manifest(3))]
    with pytest.raises(Fenced):
        await store.commit(Manifest(1))
    assert newest(world) == Manifest(3)


@pytest.mark.parametrize(
    "buckets",
    [
        (record(2), record(1)),
        (record(1), record(1)),
        (record(1), replace(record(1), start=2, end=2)),
        (replace(record(1), end=0),),
        (replace(record(1), count=0),),
    ],
)
@simulated
async def test_a_manifest_that_breaks_its_invariant_is_not_written(buckets: tuple[BucketRecord, ...]) -> None:
    world = World()
    store = ManifestStore(Life(world).ports, KEY, 1)
    await store.commit(Manifest(1))
    with pytest.raises(InvariantViolation):
        await store.commit(Manifest(1, buckets))
    assert newest(world) == Manifest(1)
