"""A disk that gives back no bytes, or has no room, delays the rest of a bookie's work as little as possible."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from msgspec.structs import replace

from sluice.actors import messages
from sluice.actors.bookie import Bookie
from sluice.actors.bookie.journal import segment_name
from sluice.actors.bookie.store import FAN
from sluice.actors.ports import DiskFull
from sluice.storage.errors import Unavailable
from sluice.storage.format.frame import Buffer
from sluice.storage.format.journal import ENVELOPE_BYTES, OVERHEAD
from tests.actors.bookie.test_store import SETTINGS, check, fill
from tests.actors.bookie.world import World, add, read
from tests.sim.disk import SimDisk
from tests.sim.loop import simulated


def sparse(bookie: Bookie) -> int | None:
    """The segment that is emptied next, were none damaged."""
    return bookie.store.segments.sparse(bookie.store.journal.segment - 1, SETTINGS.compact_below)


def unreadable(disk: SimDisk, names: tuple[str, ...], *, whole: bool = False) -> None:
    """Let reads of these files fail, as an I/O error does. whole: only those from the beginning of a file."""
    read = disk.read

    async def fail(name: str, offset: int, length: int) -> bytes:
        if name in names and (offset == 0 or not whole):
            raise Unavailable(f"the disk did not read: {name}")
        return await read(name, offset, length)

    disk.read = fail  # type: ignore[method-assign]


@pytest.mark.parametrize("trouble", ["a flipped byte", "an I/O error"])
@simulated
async def test_a_damaged_segment_keeps_no_other_from_being_emptied(trouble: str) -> None:
    world = World()
    bookie = await world.started(SETTINGS)
    await fill(bookie, (1, 2, 3, 4, 5), range(24))
    await bookie.handle(messages.DeleteLedgers(ledgers=[1, 2, 4, 5]))
    damaged = sparse(bookie)
    assert damaged is not None
    if trouble == "a flipped byte":
        # In the run behind BEGIN, below its head.
        world.disk.files[segment_name(damaged)].data[OVERHEAD + ENVELOPE_BYTES + 20] ^= 1
    else:
        unreadable(world.disk, (segment_name(damaged),), whole=True)
    full = world.disk.used()
    for _ in range(80):
        await bookie.maintain()
    assert damaged in bookie.store.segments.sizes
    others = bookie.store.segments.sparse(bookie.store.journal.segment, SETTINGS.compact_below, (damaged,))
    assert others is None
    assert world.disk.used() < full / 2
    await check(bookie, (3,), range(24))


@simulated
async def test_an_index_that_is_not_read_holds_up_no_checkpoint() -> None:
    world = World()
    bookie = await world.started(SETTINGS)
    for first in range(0, 8 * FAN, 8):
        await fill(bookie, (1,), range(first, first + 8), tend_every=8)
    unreadable(world.disk, tuple(name for name in world.disk.files if name.startswith("index-")))
    for first in range(8 * FAN, 8 * FAN + 32, 8):
        await fill(bookie, (1,), range(first, first + 8), tend_every=8)
    assert bookie.stopped is None
    assert bookie.store.index.tail_rows < 8
    assert len(bookie.store.index.tables) >= FAN
    await world.kill()
    del world.disk.read
    bookie = await world.started(SETTINGS)
    assert bookie.store.replayed.records < 16
    await check(bookie, (1,), range(8 * FAN + 32))


@pytest.mark.parametrize("reserve", [True, False], ids=["with its reserve", "without"])
@simulated
async def test_a_bookie_starts_on_a_full_disk_and_is_read(reserve: bool) -> None:
    world = World()
    bookie = await world.started()
    for run in range(6):
        await bookie.handle(add(1, run, epoch=4))
    await world.kill()
    if not reserve:
        await world.disk.delete("reserve")
    for _ in range(3):  # each start needs room for the beginning of a segment, and for nothing else
        world.disk.faults.capacity = world.disk.used() + OVERHEAD
        bookie = await world.started()
        assert [await read(bookie, 1, run) is not None for run in range(7)] == [True] * 6 + [False]
        with pytest.raises(Unavailable, match="read-only"):
            await bookie.handle(add(1, 6, epoch=4))
        await world.kill()
        world.disk.crash()
    world.disk.faults.capacity = 1 << 40
    bookie = await world.started()
    assert await bookie.handle(add(1, 6, epoch=4)) == messages.Done()
    await world.kill()
    bookie = await world.started()
    assert [await read(bookie, 1, run) is not None for run in range(8)] == [True] * 7 + [False]


@pytest.mark.parametrize("call", ["free", "size", "names"])
@simulated
async def test_a_disk_that_does_not_answer_ends_no_bookie(call: str) -> None:
    world = World()
    bookie = await world.started()
    await bookie.handle(add(1, 0))

    async def fails(*_: object) -> None:
        raise Unavailable("the disk did not read")

    setattr(world.disk, call, fails)
    await bookie.maintain()
    delattr(world.disk, call)
    assert bookie.stopped is None
    assert await bookie.handle(add(1, 1)) == messages.Done()
    assert await read(bookie, 1, 1) is not None


@simulated
async def test_a_mark_without_room_holds_up_nothing() -> None:
    world = World()
    bookie = await world.started()
    append, refused = world.disk.append, list[str]()

    async def no_marks(name: str, parts: Sequence[Buffer], *, sync: bool, witness: tuple[str, Buffer] | None) -> int:
        if name.startswith("marks-"):
            refused.append(name)
            raise DiskFull(f"no space for the file {name}")
        return await append(name, parts, sync=sync)

    world.disk.append = partial(no_marks, witness=None)  # type: ignore[method-assign]
    await bookie.handle(add(1, 0))
    await bookie.maintain()
    assert len(refused) == 1
    assert bookie.refuses == ""
    assert await bookie.handle(add(1, 1)) == messages.Done()


@pytest.mark.parametrize("gone", [(1, 2, 3, 4), (1, 2, 3)], ids=["deleted", "moved elsewhere"])
@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5])
@simulated
async def test_a_rebuilt_index_takes_no_garbage_for_a_loss(gone: tuple[int, ...], rounds: int) -> None:
    world = World()
    bookie = await world.started(SETTINGS)
    await fill(bookie, (1, 2, 3, 4), range(20), tend_every=20)
    for run in (20, 21):
        await bookie.store.checkpoint()
        await bookie.handle(add(4, run))
    await bookie.handle(messages.DeleteLedgers(ledgers=list(gone)))
    for _ in range(rounds):
        await bookie.maintain()
    await world.kill()
    world.disk.crash()
    for name in [name for name in world.disk.files if name.startswith("index-")]:
        world.disk.files[name].data[-3] ^= 1
    bookie = await world.started(SETTINGS)
    assert not bookie.lost_records
    if 4 not in gone:
        await check(bookie, (4,), range(22))


@simulated
async def test_work_without_room_keeps_no_garbage_on_a_full_disk() -> None:
    world = World()
    bookie = await world.started(replace(SETTINGS, checkpoint_bytes=1))
    await fill(bookie, (1, 2), range(20), tend_every=20)
    for run in (20, 21):
        await bookie.store.checkpoint()
        await bookie.handle(add(2, run))
    await bookie.handle(messages.DeleteLedgers(ledgers=[1, 2]))
    await fill(bookie, (3,), range(8), tend_every=9)
    full = world.disk.faults.capacity = world.disk.used()
    for _ in range(2):
        await bookie.maintain()
    assert bookie.stopped is None
    assert world.disk.used() < full / 2
    world.disk.faults.capacity = 1 << 40
    await bookie.maintain()
    await check(bookie, (3,), range(8))
