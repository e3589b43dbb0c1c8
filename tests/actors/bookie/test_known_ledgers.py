"""Fences against adds in flight, with syncs that are held back."""

from __future__ import annotations

import asyncio
import random

import pytest

from sluice.actors import messages
from sluice.actors.runtime.host import REQUESTS
from sluice.storage.errors import Fenced, NotFound, Unavailable
from tests.actors.bookie.world import HARSH, SMALL, World, add, read, settle
from tests.sim.loop import simulated


@simulated
async def test_an_add_in_flight_at_a_fence_is_seen_by_the_reader() -> None:
    world = World()
    bookie = await world.started()
    await bookie.handle(add(1, 0, epoch=4))
    world.disk.gate.clear()
    early = asyncio.create_task(bookie.handle(add(1, 1, epoch=4)))
    await settle()
    fence = asyncio.create_task(bookie.handle(messages.FenceLedger(ledger=1, epoch=5)))
    reader = asyncio.create_task(read(bookie, 1, 1, fence_epoch=5))
    await settle()
    with pytest.raises(Fenced):
        await bookie.handle(add(1, 2, epoch=4))
    assert not early.done()
    assert not fence.done()
    assert not reader.done()
    world.disk.gate.set()
    assert await early == messages.Done()
    assert await fence == messages.FenceState(last_confirmed=-1, last_run=1)
    assert await reader is not None


@simulated
async def test_a_fence_is_durable_before_it_is_answered() -> None:
    """Each way to fence, answered or not when power goes: an answered fence holds after the restart."""
    for request in (messages.FenceLedger(ledger=1, epoch=5), messages.ReadRun(ledger=1, run=9, fence_epoch=5)):
        world = World()
        bookie = await world.started()
        await bookie.handle(add(1, 0, epoch=4))
        world.disk.gate.clear()
        fence = asyncio.create_task(bookie.handle(request))
        again = asyncio.create_task(bookie.handle(request))
        await settle()
        assert not fence.done()
        assert not again.done(), "the repetition rests on the same record"
        world.disk.gate.set()
        await fence
        await again
        await world.kill()
        world.disk.crash()
        bookie = await world.started()
        with pytest.raises(Fenced):
            await bookie.handle(add(1, 1, epoch=4))


@simulated
async def test_an_epoch_only_in_memory_is_not_kept_by_a_checkpoint() -> None:
    world = World()
    bookie = await world.started()
    await bookie.handle(add(1, 0, epoch=4))
    world.disk.gate.clear()
    fence = asyncio.create_task(bookie.handle(messages.FenceLedger(ledger=1, epoch=9)))
    await settle()
    assert not fence.done()
    world.disk.gate.set()
    await fence
    await bookie.maintain()
    await world.kill()
    bookie = await world.started()
    with pytest.raises(Fenced):
        await bookie.handle(messages.FenceLedger(ledger=1, epoch=8))


@simulated
async def test_an_add_for_a_deleted_ledger_is_refused_for_good() -> None:
    world = World()
    bookie = await world.started()
    await bookie.handle(add(1, 0))
    await bookie.handle(messages.DeleteLedgers(ledgers=[1]))
    await bookie.handle(messages.DeleteLedgers(ledgers=[1]))
    for _ in range(2):
        for request in (
            add(1, 1),
            messages.ReadRun(ledger=1, run=0),
            messages.FenceLedger(ledger=1, epoch=9),
            messages.DescribeLedger(ledger=1),
        ):
            with pytest.raises(NotFound):
                await bookie.handle(request)
        await world.kill()
        world.disk.crash()
        bookie = await world.started()


@pytest.mark.parametrize("seed", range(60))
@simulated
async def test_a_negative_fencing_read_never_turns_positive(seed: int) -> None:
    """BK1 on one bookie: writers of epoch 1 and a recovery of epoch 2 race; syncs are held at random; power goes."""
    rng = random.Random(seed)
    world = World(seed=seed, faults=HARSH)
    bookie = await world.started(SMALL)
    acknowledged: list[int] = []
    denied: list[int] = []

    async def write(run: int) -> None:
        await bookie.handle(add(1, run))
        acknowledged.append(run)

    async def recover(run: int) -> None:
        if await read(bookie, 1, run, fence_epoch=2) is None:
            denied.append(run)

    tasks = []
    for run in range(12):
        world.disk.gate.clear()
        if rng.random() < 0.5:
            world.disk.gate.set()
        kind = recover if rng.random() < 0.15 else write
        tasks.append(asyncio.create_task(kind(run)))
        await settle(rng.randrange(8))
        if rng.random() < 0.6:
            world.disk.gate.set()
        if rng.random() < 0.3:
            await settle()
    if rng.random() < 0.5:
        world.disk.gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await world.kill()
    world.disk.crash()
    bookie = await world.started(SMALL)
    assert not set(denied) & set(acknowledged)
    for run in range(12):
        frame = await read(bookie, 1, run)
        assert frame is not None or run not in acknowledged
        assert frame is None or run not in denied
    if denied:
        with pytest.raises(Fenced):
            await bookie.handle(add(1, 99, epoch=1))


@simulated
async def test_a_stopped_bookie_answers_nothing() -> None:
    world = World()
    bookie = await world.started()
    await bookie.handle(add(1, 0))
    world.disk.gate.clear()
    waiting = asyncio.create_task(bookie.handle(add(1, 1)))
    await settle()
    await bookie.stop("replaced")
    with pytest.raises(Unavailable, match="replaced"):
        await waiting
    for request in (add(1, 2), messages.ReadRun(ledger=1, run=0), messages.Stats()):
        with pytest.raises(Unavailable, match="replaced"):
            await bookie.handle(request)
    world.disk.gate.set()


@simulated
async def test_a_bookie_that_has_not_started_answers_nothing() -> None:
    with pytest.raises(Unavailable, match="not started"):
        await World().bookie().handle(add(1, 0))


def test_every_request_of_the_bookie_has_its_handler() -> None:
    from sluice.actors.bookie import Bookie

    named = ("AddRun", "FenceLedger", "ReadRun", "ReadHeads", "DescribeLedger", "DeleteLedgers", "ListLedgers", "Stats")
    assert all(name in REQUESTS for name in named)
    handlers = sorted(name for name in vars(Bookie) if name.startswith("on_"))
    assert len(handlers) == len(named)
