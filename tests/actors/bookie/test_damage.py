"""Damage to the journal: each single flipped byte and each truncation is served right or reported, never denied."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

from sluice.actors import messages
from sluice.actors.bookie import Bookie, BookieSettings
from sluice.actors.ports import DiskFailed
from sluice.storage.errors import Corrupt, Fenced, Invalid, NotFound, Unavailable
from sluice.storage.format import frame as frames
from sluice.storage.format.frame import Buffer
from sluice.storage.format.journal import ENVELOPE_BYTES, FOOT
from tests.actors.bookie.world import HARSH, World, add, payload_of, read, settle
from tests.sim.disk import SimDisk
from tests.sim.loop import simulated
from tests.sim.meta import MetaStore

SETTINGS = BookieSettings(segment_bytes=1400, checkpoint_runs=10_000, min_free_bytes=0, reserve_bytes=0)
STORED = [(1, 0), (1, 1), (2, 0), (1, 2), (2, 1), (3, 0), (1, 3)]
FENCED = {2: 7}
DELETED = 4


async def written(settings: BookieSettings = SETTINGS) -> tuple[SimDisk, MetaStore]:
    """A disk as it is after the process ended, with runs, a fence and a deletion in its journal."""
    world = World()
    bookie = await world.started(settings)
    await bookie.handle(add(DELETED, 0))
    for ledger, run in STORED[:4]:
        await bookie.handle(add(ledger, run, epoch=3))
    await bookie.handle(messages.DeleteLedgers(ledgers=[DELETED]))
    for ledger, run in STORED[4:]:
        await bookie.handle(add(ledger, run, epoch=3))
    await bookie.handle(messages.FenceLedger(ledger=2, epoch=FENCED[2]))
    await bookie.handle(add(1, 4, epoch=3))
    await world.kill()
    return world.disk, world.meta


async def judge(disk: SimDisk, meta: MetaStore, stored: list[tuple[int, int]]) -> str:
    """Start on a damaged disk and check every promise; say how the damage showed: served, damaged or limbo."""
    world = World(disk, meta)
    bookie = await world.started(SETTINGS)
    seen = "served"
    try:
        for ledger, run in stored:
            try:
                frame = await read(bookie, ledger, run)
            except (Corrupt, Unavailable) as error:
                seen = "limbo" if isinstance(error, Unavailable) or seen == "limbo" else "damaged"
                continue
            assert frame is not None, f"run {run} of ledger {ledger} was acknowledged and is denied"
            assert bytes(frame.payload) == payload_of(add(ledger, run))
        await judge_fence(bookie)
        await judge_deletion(bookie)
    finally:
        await world.kill()
    return seen


async def judge_fence(bookie: Bookie) -> None:
    for ledger, epoch in FENCED.items():
        with pytest.raises((Fenced, Unavailable)):
            await bookie.handle(add(ledger, 9, epoch=epoch - 1))
        try:
            state = await bookie.handle(messages.FenceLedger(ledger=ledger, epoch=epoch))
        except Unavailable:
            continue
        assert isinstance(state, messages.FenceState)
        assert state.last_run == 1


async def judge_deletion(bookie: Bookie) -> None:
    with contextlib.suppress(NotFound, Corrupt, Unavailable):
        assert await read(bookie, DELETED, 0) is not None


def segments_of(disk: SimDisk) -> list[str]:
    return [name for name in sorted(disk.files) if name.startswith("journal-")]


async def flip_each(step: int) -> dict[str, int]:
    """Flip one bit of every `step`-th byte of the journal, one at a time; how often each outcome was seen."""
    disk, meta = await written()
    names = segments_of(disk)
    assert len(names) >= 3
    rng = random.Random(5)
    outcomes = {"served": 0, "damaged": 0, "limbo": 0}
    places = [(name, at) for name in names for at in range(len(disk.files[name].data))]
    for name, at in places[::step]:
        copy = disk.copy()
        copy.files[name].data[at] ^= 1 << rng.randrange(8)
        outcomes[await judge(copy, meta, [*STORED, (1, 4)])] += 1
    return outcomes


async def cut_each(step: int) -> dict[str, int]:
    """Cut each segment within its last 4096 bytes, at every `step`-th place."""
    disk, meta = await written()
    outcomes = {"served": 0, "damaged": 0, "limbo": 0}
    for name in segments_of(disk):
        size = len(disk.files[name].data)
        for cut in range(size - 1, max(0, size - 4096), -step):
            copy = disk.copy()
            del copy.files[name].data[cut:]
            outcomes[await judge(copy, meta, [*STORED, (1, 4)])] += 1
    return outcomes


@simulated
async def test_runs_of_a_newer_format_are_refused_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier version neither takes them for damage nor cuts them off; the newer one finds them afterwards."""
    with monkeypatch.context() as newer:
        newer.setattr(frames, "MAGIC", b"SLC9")
        disk, meta = await written()
        before = {name: bytes(disk.files[name].data) for name in segments_of(disk)}
        newer.undo()
        with pytest.raises(Invalid, match="SLC9"):
            await World(disk, meta).started(SETTINGS)
        assert {name: bytes(disk.files[name].data) for name in segments_of(disk)} == before
        newer.setattr(frames, "MAGIC", b"SLC9")
        assert await judge(disk, meta, STORED) == "served"


@simulated
async def test_a_single_flipped_byte_is_named_or_repaired() -> None:
    outcomes = await flip_each(step=23)
    assert outcomes["limbo"] == 0, "a single flipped byte always leaves a name"
    assert outcomes["damaged"] > outcomes["served"] > 0


@simulated
async def test_a_cut_segment_is_noticed() -> None:
    outcomes = await cut_each(step=37)
    assert outcomes["limbo"] > outcomes["served"]


@pytest.mark.release
@simulated
async def test_every_single_flipped_byte_is_named_or_repaired() -> None:
    outcomes = await flip_each(step=1)
    assert outcomes["limbo"] == 0
    assert outcomes["damaged"] > outcomes["served"] > 0


@pytest.mark.release
@simulated
async def test_every_truncation_of_the_last_4_kb_is_noticed() -> None:
    outcomes = await cut_each(step=1)
    assert outcomes["limbo"] > outcomes["served"]


@simulated
async def test_after_unnamed_loss_nothing_old_is_denied() -> None:
    disk, meta = await written()
    last = segments_of(disk)[-1]
    del disk.files[last].data[200:]
    world = World(disk, meta)
    bookie = await world.started(SETTINGS)
    for ledger, run in [(1, 50), (3, 1), (900, 0)]:
        with pytest.raises(Unavailable, match="may have lost"):
            await read(bookie, ledger, run)
    with pytest.raises(Unavailable):
        await bookie.handle(messages.FenceLedger(ledger=900, epoch=9))
    with pytest.raises(Unavailable, match="another bookie"):
        await bookie.handle(add(3, 1, epoch=9))
    assert await bookie.handle(add(3, 1, epoch=9, recovery=True)) == messages.Done()
    assert await read(bookie, 3, 1) is not None
    fresh = 5000
    assert await read(bookie, fresh, 0) is None, "the watermark says that this ledger was never here"
    assert await bookie.handle(add(fresh, 0)) == messages.Done()
    await world.kill()
    bookie = await World(disk, meta).started(SETTINGS)
    with pytest.raises(Unavailable, match="may have lost"):
        await read(bookie, 1, 50)
    assert await read(bookie, fresh, 1) is None


@simulated
async def test_a_segment_that_is_gone_is_a_loss_once() -> None:
    """Records after the loss are in no doubt when the bookie starts again."""
    disk, meta = await written()
    del disk.files[segments_of(disk)[-1]]
    world = World(disk, meta)
    bookie = await world.started(SETTINGS)
    assert bookie.lost_records
    assert await bookie.handle(add(5000, 0)) == messages.Done()
    await world.kill()
    bookie = await World(disk, meta).started(SETTINGS)
    assert not bookie.lost_records
    assert await read(bookie, 5000, 1) is None
    with pytest.raises(Unavailable, match="may have lost"):
        await read(bookie, 1, 50)


@pytest.mark.parametrize("step", range(8))
@simulated
async def test_a_loss_is_known_after_a_start_that_was_ended(step: int) -> None:
    """The start that finds a loss ends behind the first, second, ... of its writes; the next one is to find it."""
    disk, meta = await written()
    del disk.files[segments_of(disk)[-1]].data[200:]
    world, written_so_far = World(disk, meta), list[str]()
    append, replace = disk.append, disk.replace

    def count(name: str) -> None:
        written_so_far.append(name)
        if len(written_so_far) > step:
            raise DiskFailed("the process ended here")

    async def counted_append(name: str, *args: Any, **more: Any) -> int:
        count(name)
        return await append(name, *args, **more)

    async def counted_replace(name: str, data: Buffer) -> None:
        count(name)
        await replace(name, data)

    disk.append, disk.replace = counted_append, counted_replace  # type: ignore[method-assign]
    with contextlib.suppress(Unavailable):
        await world.started(SETTINGS)
    await world.kill()
    disk.append, disk.replace = append, replace  # type: ignore[method-assign]
    bookie = await World(disk, meta).started(SETTINGS)
    with pytest.raises(Unavailable, match="may have lost"):
        await read(bookie, 1, 50)


@pytest.mark.parametrize("by_fence", [False, True])
@simulated
async def test_a_ledger_of_which_everything_was_lost_is_in_limbo(by_fence: bool) -> None:
    """The only record of a ledger with a high id goes without a name: the watermark alone tells of the ledger."""
    world = World()
    bookie = await world.started(SETTINGS)
    if by_fence:
        await bookie.handle(messages.FenceLedger(ledger=70_000, epoch=3))
    else:
        await bookie.handle(add(70_000, 0))
    await world.kill()
    del world.disk.files[segments_of(world.disk)[-1]].data[128:]
    bookie = await world.started(SETTINGS)
    assert bookie.lost_records
    with pytest.raises(Unavailable, match="may have lost"):
        await read(bookie, 70_000, 0)
    with pytest.raises(Unavailable, match="may have lost"):
        await bookie.handle(add(70_000, 0))
    assert await read(bookie, 90_000, 0) is None


@simulated
async def test_a_cut_in_a_closed_segment_is_told_by_its_successor() -> None:
    """The marks of a closed segment are deleted; the last group in it has no other witness than the next segment."""
    world = World()
    bookie = await world.started(SETTINGS)
    for run in range(6):
        await bookie.handle(add(1, run))
    await bookie.maintain()
    first, second = segments_of(world.disk)[:2]
    assert first.replace("journal", "marks") not in world.disk.files
    await world.kill()
    assert second in world.disk.files
    data = world.disk.files[first].data
    start = data.rindex(b"SLJh")
    for cut in (start, start + 10, start + 200, len(data) - 1):
        disk = world.disk.copy()
        del disk.files[first].data[cut:]
        bookie = await World(disk, world.meta).started(SETTINGS)
        lost = [run for run in range(6) if await is_refused(bookie, 1, run)]
        assert len(lost) == 1
        assert bookie.lost_records


@simulated
async def test_a_group_is_witnessed_by_the_one_behind_it() -> None:
    """Power goes and takes the marks along; damage in front of a later group is still no torn tail."""
    world = World()
    bookie = await world.started(BookieSettings(min_free_bytes=0, reserve_bytes=0))
    world.disk.gate.clear()
    tasks = [asyncio.create_task(bookie.handle(add(1, 0)))]
    for run in (1, 2):
        await settle()
        tasks.append(asyncio.create_task(bookie.handle(add(1, run))))
    world.disk.gate.set()
    await asyncio.gather(*tasks)
    await world.kill()
    world.disk.crash()
    data = world.disk.files["journal-00000001"].data
    at = data.index(payload_of(add(1, 0)))
    data[at : at + 20] = bytes(20)
    bookie = await world.started(SETTINGS)
    assert [await is_refused(bookie, 1, run) for run in range(3)] == [True, False, False]


async def is_refused(bookie: Bookie, ledger: int, run: int) -> bool:
    """Whether the run is reported damaged or unknown; it must not be denied."""
    try:
        assert await read(bookie, ledger, run) is not None
    except (Corrupt, Unavailable):
        return True
    return False


@simulated
async def test_a_damaged_run_is_listed_and_can_be_stored_again() -> None:
    disk, meta = await written()
    name = segments_of(disk)[0]
    at = disk.files[name].data.index(payload_of(add(1, 0)))
    disk.files[name].data[at + 20] ^= 1
    world = World(disk, meta)
    bookie = await world.started(SETTINGS)
    index = await bookie.handle(messages.DescribeLedger(ledger=1))
    assert isinstance(index, messages.LedgerIndex)
    assert index.damaged.tolist() == [0]
    assert index.runs.tolist() == [1, 2, 3, 4]
    assert await bookie.handle(add(1, 0, epoch=3, recovery=True)) == messages.Done()
    assert await read(bookie, 1, 0) is not None
    await world.kill()
    bookie = await World(disk, meta).started(SETTINGS)
    index = await bookie.handle(messages.DescribeLedger(ledger=1))
    assert isinstance(index, messages.LedgerIndex)
    assert index.damaged.tolist() == []
    assert index.runs.tolist() == [0, 1, 2, 3, 4]


@simulated
async def test_damage_that_appears_while_the_bookie_runs_is_reported() -> None:
    world = World()
    bookie = await world.started(SETTINGS)
    await bookie.handle(add(1, 0))
    name = segments_of(world.disk)[-1]
    at = world.disk.files[name].data.index(payload_of(add(1, 0)))
    world.disk.files[name].data[at] ^= 255
    with pytest.raises(Corrupt):
        await read(bookie, 1, 0)
    index = await bookie.handle(messages.DescribeLedger(ledger=1))
    assert isinstance(index, messages.LedgerIndex)
    assert index.damaged.tolist() == [0]
    await bookie.handle(add(1, 0))
    assert await read(bookie, 1, 0) is not None


@pytest.mark.parametrize("seed", range(40))
@simulated
async def test_a_loss_of_power_never_loses_what_was_answered(seed: int) -> None:
    """Runs are sent by several callers; power goes at any time, with torn writes; answered runs are there."""
    rng = random.Random(seed)
    world = World(seed=seed, faults=HARSH)
    answered: set[tuple[int, int]] = set()
    sent = 0
    for _ in range(3):
        bookie = await world.started(SETTINGS)
        for ledger, run in sorted(answered):
            frame = await read(bookie, ledger, run)
            assert frame is not None
            assert bytes(frame.payload) == payload_of(add(ledger, run))
        assert not bookie.lost_records

        async def send(ledger: int, run: int, to: Bookie = bookie) -> None:
            await to.handle(add(ledger, run))
            answered.add((ledger, run))

        tasks = []
        for _ in range(rng.randrange(8)):
            tasks.append(asyncio.create_task(send(1 + sent % 3, sent)))
            sent += 1
            await settle(rng.randrange(6))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await world.kill()
        world.disk.crash()


@simulated
async def test_a_group_before_a_full_disk_keeps_a_witness() -> None:
    world = World()
    bookie = await world.started(BookieSettings(group_bytes=100, min_free_bytes=0, reserve_bytes=0))
    world.disk.gate.clear()
    tasks = []
    for run, size in enumerate((10, 10, 1_000)):
        tasks.append(asyncio.create_task(bookie.handle(add(1, run, payload_bytes=size))))
        await settle()
    world.disk.faults.capacity = world.disk.used() + 1_000
    world.disk.gate.set()
    stored, answered, refused = await asyncio.gather(*tasks, return_exceptions=True)
    assert stored == answered == messages.Done()
    assert isinstance(refused, Unavailable)
    await world.kill()  # the process ends, and the system keeps what was written
    world.disk.faults.capacity = 1 << 40
    data = world.disk.files["journal-00000001"].data
    begin = data.index(FOOT, data.index(payload_of(add(1, 0)))) + ENVELOPE_BYTES
    data[begin:] = bytes(len(data) - begin)
    bookie = await world.started(SETTINGS)
    assert await read(bookie, 1, 0) is not None
    assert await is_refused(bookie, 1, 1)
