"""Group commit, a full disk, a failed sync."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from sluice.actors import messages
from sluice.actors.bookie import BookieSettings
from sluice.actors.ports import DiskFailed
from sluice.actors.ports.wire import Blob
from sluice.storage.errors import Corrupt, Fenced, Invalid, Overloaded, Unavailable
from sluice.storage.format.frame import NEWEST, Buffer
from tests.actors.bookie.world import SMALL, World, add, payload_of, read, settle
from tests.sim.loop import simulated


@simulated
async def test_adds_during_a_sync_share_one_more_write() -> None:
    world = World()
    bookie = await world.started(BookieSettings(min_free_bytes=0))
    groups, append = 0, world.disk.append

    async def count(name: str, parts: Sequence[Buffer], *, sync: bool, **given: Any) -> int:
        nonlocal groups
        groups += sync and name.startswith("journal-")
        return await append(name, parts, sync=sync, **given)

    world.disk.append = count  # type: ignore[method-assign]
    world.disk.gate.clear()
    first = asyncio.create_task(bookie.handle(add(1, 0)))
    await settle()
    others = [asyncio.create_task(bookie.handle(add(2, run))) for run in range(50)]
    await settle()
    assert not first.done()
    world.disk.gate.set()
    await asyncio.gather(first, *others)
    assert groups == 2


@simulated
async def test_nothing_is_answered_or_shown_before_it_is_durable() -> None:
    world = World()
    bookie = await world.started()
    world.disk.gate.clear()
    waiting = asyncio.create_task(bookie.handle(add(1, 0)))
    reading = asyncio.create_task(read(bookie, 1, 0))
    await settle()
    assert not waiting.done()
    assert not reading.done(), "an answer now would be a lie one way or the other"
    index = await bookie.handle(messages.DescribeLedger(ledger=1))
    assert isinstance(index, messages.LedgerIndex)
    assert index.runs.tolist() == []
    world.disk.gate.set()
    await waiting
    assert await reading is not None


@simulated
async def test_a_caller_that_goes_leaves_its_run_claimed_until_decided() -> None:
    world = World()
    bookie = await world.started()
    world.disk.gate.clear()
    gone = asyncio.create_task(bookie.handle(add(1, 0)))
    await settle()
    gone.cancel()
    await settle()
    other = asyncio.create_task(bookie.handle(add(1, 0, seed=5)))
    await settle()
    assert not other.done()
    world.disk.gate.set()
    with pytest.raises(Exception, match="other contents"):
        await other
    frame = await read(bookie, 1, 0)
    assert frame is not None
    assert bytes(frame.payload) == payload_of(add(1, 0))


@simulated
async def test_a_damaged_or_misdirected_request_stores_nothing() -> None:
    bookie = await World().started()
    good, other = add(1, 0), add(1, 1)
    spoiled = bytes([payload_of(good)[0] ^ 1]) + payload_of(good)[1:]
    bad: list[tuple[messages.AddRun, type[Exception]]] = [
        (messages.AddRun(ledger=1, epoch=1, head=good.head, payload=Blob(spoiled)), Corrupt),
        (messages.AddRun(ledger=1, epoch=1, head=good.head, payload=Blob(payload_of(good)[:-1])), Corrupt),
        (messages.AddRun(ledger=1, epoch=1, head=good.head[:-1] + b"\xff", payload=good.payload), Corrupt),
        (messages.AddRun(ledger=2, epoch=1, head=good.head, payload=good.payload), Invalid),
        (messages.AddRun(ledger=1, epoch=-1, head=good.head, payload=good.payload), Invalid),
        (messages.AddRun(ledger=1, epoch=1 << 63, head=good.head, payload=good.payload), Invalid),
        (messages.AddRun(ledger=1, epoch=1, head=good.head, payload=Blob(handle="gone", size=9)), Unavailable),
    ]
    for request, error in bad:
        with pytest.raises(error):
            await bookie.handle(request)
    for run, ledger in ((-1, 1), (1 << 32, 1), (0, -1), (0, 1 << 31)):
        with pytest.raises(Invalid):
            await read(bookie, ledger, run)
    assert await read(bookie, 1, 0) is None
    await bookie.handle(other)
    await bookie.handle(good)


@simulated
async def test_too_much_in_the_queue_is_overload() -> None:
    world = World()
    bookie = await world.started(BookieSettings(queue_bytes=2000, min_free_bytes=0))
    world.disk.gate.clear()
    tasks = [asyncio.create_task(bookie.handle(add(1, run))) for run in range(20)]
    await settle()
    refused = [task for task in tasks if task.done()]
    assert refused
    assert all(isinstance(task.exception(), Overloaded) for task in refused)
    world.disk.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results.count(messages.Done()) == 20 - len(refused)


@simulated
async def test_a_full_disk_refuses_runs_but_still_fences_and_reads() -> None:
    world = World()
    bookie = await world.started()
    await bookie.handle(add(1, 0, epoch=4))
    world.disk.faults.capacity = world.disk.used() + 40
    with pytest.raises(Unavailable, match="read-only"):
        await bookie.handle(add(1, 1, epoch=4))
    assert await read(bookie, 1, 0) is not None
    assert await read(bookie, 1, 1) is None
    assert await bookie.handle(messages.FenceLedger(ledger=1, epoch=5)) == messages.FenceState(
        last_confirmed=-1, last_run=0
    )
    await bookie.handle(messages.DeleteLedgers(ledgers=[2]))
    with pytest.raises(Unavailable, match="read-only"):
        await bookie.handle(add(1, 1, epoch=5))
    await world.kill()
    world.disk.crash()
    bookie = await world.started()
    with pytest.raises(Fenced):
        await bookie.handle(add(1, 1, epoch=4))
    world.disk.faults.capacity = 1 << 40
    await bookie.maintain()
    assert await bookie.handle(add(1, 1, epoch=5)) == messages.Done()
    assert "reserve" in world.disk.files


@simulated
async def test_too_little_free_space_makes_it_read_only_in_time() -> None:
    world = World()
    settings = BookieSettings(min_free_bytes=50_000, reserve_bytes=1000)
    world.disk.faults.capacity = 60_000
    bookie = await world.started(settings)
    await bookie.handle(add(1, 0))
    world.disk.faults.capacity = 40_000
    await bookie.maintain()
    with pytest.raises(Unavailable, match="free"):
        await bookie.handle(add(1, 1))
    assert await bookie.handle(add(1, 0)) == messages.Done(), "what is stored needs no space"
    alive = await bookie.handle(messages.Ping())
    assert isinstance(alive, messages.Alive)
    assert "bytes are free, 50000 are the minimum" in alive.refuses
    world.disk.faults.capacity = 60_000
    await bookie.maintain()
    assert await bookie.handle(messages.Ping()) == messages.Alive(frames=NEWEST)


@simulated
async def test_a_failed_sync_ends_the_bookie_for_good() -> None:
    world = World()
    bookie = await world.started()
    await bookie.handle(add(1, 0))
    world.disk.gate.clear()
    tasks = [asyncio.create_task(bookie.handle(add(1, run))) for run in range(1, 5)]
    await settle()
    world.disk.fail()
    world.disk.gate.set()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, Unavailable)
    world.disk.failed = False
    for request in (add(1, 9), messages.ReadRun(ledger=1, run=0), messages.Ping()):
        with pytest.raises(Unavailable, match="disk failed"):
            await bookie.handle(request)
    assert bookie.stopped is not None
    assert [event for event, _ in world.events] == ["bookie_started", "bookie_failed"]


@simulated
async def test_the_last_group_has_a_durable_witness_when_quiet() -> None:
    world = World()
    bookie = await world.started(SMALL)
    await bookie.handle(add(1, 0))
    await bookie.maintain()
    await world.kill()
    world.disk.crash()
    journal = world.disk.files["journal-00000001"]
    journal.data[-80] ^= 1
    journal.data[150] ^= 1
    bookie = await world.started(SMALL)
    with pytest.raises(Corrupt):
        await read(bookie, 1, 0)


@pytest.mark.parametrize("before", [0, 3])
@simulated
async def test_bytes_of_a_failed_sync_are_rewritten_before_served(before: int) -> None:
    world = World()
    bookie = await world.started()
    for run in range(before):
        await bookie.handle(add(1, run))
    world.disk.gate.clear()
    tasks = [asyncio.create_task(bookie.handle(add(1, run))) for run in range(before, before + 2)]
    await settle()
    world.disk.fail()
    world.disk.gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    await world.kill()
    world.disk.crash(power=False)  # the process ended, the machine did not: the tail can be read, and is on no disk
    bookie = await world.started()
    served = [run for run in range(before + 2) if await read(bookie, 1, run) is not None]
    assert served[:before] == list(range(before))
    assert len(served) > before
    await world.kill()
    world.disk.crash()
    bookie = await world.started()
    assert [run for run in range(before + 2) if await read(bookie, 1, run) is not None] == served


@simulated
async def test_a_bookie_that_cannot_rewrite_its_tail_does_not_serve() -> None:
    world = World()
    bookie = await world.started()
    await bookie.handle(add(1, 0))
    world.disk.gate.clear()
    task = asyncio.create_task(bookie.handle(add(1, 1)))
    await settle()
    world.disk.fail()
    world.disk.gate.set()
    await asyncio.gather(task, return_exceptions=True)
    await world.kill()
    world.disk.crash(power=False)
    world.disk.faults.fail_sync_chance = 1.0
    with pytest.raises(Unavailable, match="cannot start"):
        await world.started()


@pytest.mark.parametrize("call", ["delete", "append"])
@simulated
async def test_a_full_disk_that_fails_then_answers_and_ends_the_bookie(call: str) -> None:
    world = World()
    bookie = await world.started()
    await bookie.handle(add(1, 0))
    world.disk.faults.capacity = world.disk.used()
    seen, act = list[str](), getattr(world.disk, call)

    async def fail(name: str, *given: Any, **named: Any) -> Any:
        seen.append(name)
        if call == "delete" or len(seen) > 1:
            raise DiskFailed("an I/O error")
        return await act(name, *given, **named)

    setattr(world.disk, call, fail)
    fence = asyncio.create_task(bookie.handle(messages.FenceLedger(ledger=1, epoch=7)))
    stored = asyncio.create_task(bookie.handle(add(2, 0)))
    await settle()
    assert (fence.done(), stored.done()) == (True, True)
    assert "the disk failed" in str(fence.exception())
    assert isinstance(stored.exception(), Unavailable)
    assert "the disk failed" in (bookie.stopped or "")
