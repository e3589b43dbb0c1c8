"""Checkpoints, the index on disk, garbage, compaction, the cookie, and looking in from outside."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.actors import messages
from sluice.actors.bookie import Bookie, BookieSettings, inspect_journal
from sluice.actors.bookie.index_table import BLOCK_ROWS, ROW, TableWriter, merge, open_table
from sluice.actors.bookie.store import FAN, Index, Row
from sluice.storage.errors import Corrupt, Fenced, NotFound, Unavailable
from sluice.storage.format.frame import Buffer
from tests.actors.bookie.world import HARSH, SMALL, World, add, payload_of, read, settle
from tests.sim.disk import SimDisk
from tests.sim.loop import current_loop, simulated

SETTINGS = BookieSettings(
    segment_bytes=3000, checkpoint_runs=8, checkpoint_bytes=1 << 30, min_free_bytes=0, reserve_bytes=0, compact_below=40
)


async def fill(bookie: Bookie, ledgers: Sequence[int], runs: Sequence[int], tend_every: int = 5) -> None:
    for run in runs:
        await asyncio.gather(*(bookie.handle(add(ledger, run)) for ledger in ledgers))
        if run % tend_every == tend_every - 1:
            await bookie.maintain()


async def check(bookie: Bookie, ledgers: Sequence[int], runs: Sequence[int]) -> None:
    for ledger in ledgers:
        for run in runs:
            frame = await read(bookie, ledger, run)
            assert frame is not None
            assert bytes(frame.payload) == payload_of(add(ledger, run))
        index = await bookie.handle(messages.DescribeLedger(ledger=ledger))
        assert isinstance(index, messages.LedgerIndex)
        assert index.runs.tolist() == sorted(runs)
        assert index.damaged.tolist() == []
        assert await read(bookie, ledger, max(runs) + 1) is None


def journals(disk: SimDisk) -> list[str]:
    return [name for name in sorted(disk.files) if name.startswith("journal-")]


@simulated
async def test_a_start_replays_only_what_is_behind_the_checkpoint() -> None:
    world = World()
    bookie = await world.started(SETTINGS)
    await fill(bookie, (1, 2, 3), range(40))
    assert len(bookie.store.index.tables) > 1
    await world.kill()
    world.disk.crash()
    bookie = await world.started(SETTINGS)
    assert bookie.store.replayed.records < 40
    await check(bookie, (1, 2, 3), range(40))


@simulated
async def test_a_checkpoint_between_sync_and_answer_misses_nothing() -> None:
    world = World()
    bookie = await world.started(SETTINGS)
    await fill(bookie, (1,), range(3))
    held, append = asyncio.Event(), world.disk.append

    async def hold_marks(
        name: str, parts: Sequence[Buffer], *, sync: bool, witness: tuple[str, Buffer] | None = None
    ) -> int:
        if name.startswith("marks-") and not sync:
            await held.wait()
        return await append(name, parts, sync=sync, witness=witness)

    world.disk.append = hold_marks  # type: ignore[method-assign]
    late = asyncio.create_task(bookie.handle(add(1, 3)))
    await settle()
    assert not late.done()
    await bookie.store.checkpoint()
    held.set()
    await late
    await world.kill()
    world.disk.crash()
    bookie = await world.started(SETTINGS)
    await check(bookie, (1,), range(4))


@simulated
async def test_run_only_in_memory_is_durable_before_served() -> None:
    world = World()
    bookie = await world.started(SETTINGS)
    await bookie.handle(add(1, 0))
    world.disk.gate.clear()
    task = asyncio.create_task(bookie.handle(add(1, 1)))
    await settle()
    task.cancel()
    await world.kill()
    world.disk.gate.set()
    bookie = await world.started(SETTINGS)
    assert await read(bookie, 1, 1, fence_epoch=2) is not None
    await world.kill()
    world.disk.crash()
    bookie = await world.started(SETTINGS)
    assert await read(bookie, 1, 1) is not None


@pytest.mark.parametrize("broken", ["checkpoint-0", "checkpoint-1", "tables", "both"])
@simulated
async def test_a_damaged_checkpoint_or_index_costs_time_but_no_data(broken: str) -> None:
    world = World()
    bookie = await world.started(SETTINGS)
    await fill(bookie, (1, 2), range(30))
    await bookie.handle(messages.FenceLedger(ledger=2, epoch=7))
    await bookie.handle(messages.DeleteLedgers(ledgers=[5]))
    await fill(bookie, (1,), range(30, 40))
    await world.kill()
    names = [name for name in world.disk.files if name.startswith("index-")]
    spoil = {"tables": names, "both": ["checkpoint-0", "checkpoint-1"]}.get(broken, [broken])
    for name in spoil:
        world.disk.files[name].data[-3] ^= 1
    for _ in range(2):
        bookie = await world.started(SETTINGS)
        for run in range(40):
            assert await read(bookie, 1, run) is not None
        with pytest.raises((Fenced, Unavailable) if broken == "both" else Fenced):
            await bookie.handle(add(2, 30, epoch=6))
        if broken == "both":
            with pytest.raises(Unavailable, match="may have lost"):
                await read(bookie, 1, 99)
        else:
            assert await read(bookie, 1, 99) is None
        await world.kill()
        world.disk.crash()


@simulated
async def test_damage_in_an_index_block_ends_the_bookie_until_rebuilt() -> None:
    world = World()
    bookie = await world.started(SETTINGS)
    await fill(bookie, (1,), range(20))
    await world.kill()
    bookie = await world.started(SETTINGS)
    for table in bookie.store.index.tables:
        world.disk.files[table.name].data[5] ^= 1
    with pytest.raises(Unavailable, match="built anew"):
        await read(bookie, 1, 0)
    await bookie.maintain()
    assert bookie.stopped is not None
    await world.kill()
    bookie = await world.started(SETTINGS)
    await check(bookie, (1,), range(20))
    assert "rebuild" not in world.disk.files


@simulated
async def test_damage_in_an_index_block_at_a_start_is_repaired_next() -> None:
    world = World()
    bookie = await world.started(SETTINGS)
    await fill(bookie, (1, 2), range(8))
    await bookie.store.checkpoint()
    await bookie.handle(add(1, 8))  # between the keys of the table, so that the start must look into it
    await bookie.handle(add(2, 8))
    at = await bookie.store.index.find(1, 8)
    assert at is not None
    await world.kill()
    for table in bookie.store.index.tables:
        world.disk.files[table.name].data[5] ^= 1
    world.disk.files[f"journal-{at.segment:08x}"].data[at.offset + at.size - 1] ^= 1
    with pytest.raises(Unavailable, match="built anew"):
        await world.started(SETTINGS)
    await world.kill()
    bookie = await world.started(SETTINGS)
    for run in range(8):
        assert await read(bookie, 1, run) is not None
    with pytest.raises(Corrupt):
        await read(bookie, 1, 8)


@simulated
async def test_damage_that_a_merge_meets_is_repaired_by_the_next_start() -> None:
    world = World()
    bookie = await world.started(SETTINGS)
    for first in range(0, 8 * (FAN - 1), 8):
        await fill(bookie, (1,), range(first, first + 8), tend_every=8)
    tables = bookie.store.index.tables
    assert len(tables) == FAN - 1
    world.disk.files[tables[3].name].data[9] ^= 1
    await fill(bookie, (1,), range(56, 64), tend_every=8)
    await bookie.maintain()
    await bookie.maintain()
    assert bookie.stopped is not None
    assert "rebuild" in world.disk.files
    await world.kill()
    bookie = await world.started(SETTINGS)
    await check(bookie, (1,), range(64))


@simulated
async def test_the_space_of_deleted_ledgers_comes_back() -> None:
    world = World()
    bookie = await world.started(SETTINGS)
    for ledger in range(1, 7):
        await fill(bookie, (ledger,), range(20))
    full = world.disk.used()
    await bookie.handle(messages.DeleteLedgers(ledgers=[1, 2, 3, 5, 6]))
    for _ in range(60):
        await bookie.maintain()
    assert world.disk.used() < full / 2
    assert len(journals(world.disk)) <= 6
    await check(bookie, (4,), range(20))
    await world.kill()
    world.disk.crash()
    bookie = await world.started(SETTINGS)
    await check(bookie, (4,), range(20))
    assert await bookie.handle(messages.ListLedgers()) == messages.LedgerList(ledgers=[4])
    with pytest.raises(NotFound):
        await bookie.handle(add(2, 50))


@simulated
async def test_sparse_segments_are_emptied_while_runs_are_read() -> None:
    world = World()
    bookie = await world.started(SETTINGS)
    await fill(bookie, (1, 2, 3, 4, 5), range(24))
    await bookie.handle(messages.DeleteLedgers(ledgers=[1, 2, 4, 5]))
    stop = False

    async def read_on() -> int:
        count = 0
        while not stop:
            frame = await read(bookie, 3, count % 24)
            assert frame is not None
            count += 1
        return count

    readers = [asyncio.create_task(read_on()) for _ in range(3)]
    for _ in range(80):
        await bookie.maintain()
    stop = True
    assert min(await asyncio.gather(*readers)) > 50
    assert bookie.store.segments.sparse(bookie.store.journal.segment, SETTINGS.compact_below) is None
    await check(bookie, (3,), range(24))


@simulated
async def test_a_read_whose_segment_is_emptied_meanwhile_looks_again() -> None:
    world = World()
    bookie = await world.started(SETTINGS)
    await fill(bookie, (1, 2, 3, 4, 5), range(12))
    held, read_bytes, slow = asyncio.Event(), world.disk.read, list[str]()

    async def hold_first(name: str, offset: int, length: int) -> bytes:
        if name.startswith("journal-") and not slow:
            slow.append(name)
            await held.wait()
        return await read_bytes(name, offset, length)

    world.disk.read = hold_first  # type: ignore[method-assign]
    reading = asyncio.create_task(read(bookie, 3, 0))
    await settle()
    await bookie.handle(messages.DeleteLedgers(ledgers=[1, 2, 4, 5]))
    for _ in range(20):
        await bookie.maintain()
    assert slow[0] not in world.disk.files
    held.set()
    frame = await reading
    assert frame is not None
    assert bytes(frame.payload) == payload_of(add(3, 0))


@pytest.mark.parametrize("seed", range(12))
@simulated
async def test_housekeeping_may_be_killed_anywhere(seed: int) -> None:
    rng = random.Random(seed)
    world = World(seed=seed, faults=HARSH)
    kept: dict[int, int] = {}
    deleted: list[int] = []
    ledger = 0
    for _ in range(6):
        bookie = await world.started(SETTINGS)
        assert not bookie.lost_records
        for known, runs in sorted(kept.items()):
            await check(bookie, (known,), range(runs))
        for _ in range(2):
            ledger += 1
            runs = rng.randrange(1, 25)
            await fill(bookie, (ledger,), range(runs), tend_every=rng.randrange(1, 9))
            kept[ledger] = runs
        if rng.random() < 0.7:
            victim = rng.choice(sorted(kept))
            await bookie.handle(messages.DeleteLedgers(ledgers=[victim]))
            kept.pop(victim)
            deleted.append(victim)
        work = asyncio.create_task(bookie.maintain())
        await settle(rng.randrange(60))
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await world.kill()
        world.disk.crash()
    bookie = await world.started(SETTINGS)
    for victim in deleted:
        with pytest.raises(NotFound):
            await read(bookie, victim, 0)


@simulated
async def test_a_foreign_or_emptied_disk_is_refused() -> None:
    world = World()
    bookie = await world.started()
    await bookie.handle(add(1, 0))
    await world.kill()
    with pytest.raises(Corrupt, match="emptied"):
        await World(SimDisk(current_loop(), 1), world.meta).started()
    with pytest.raises(Corrupt, match="disk of bookie b1"):
        await World(world.disk, world.meta).bookie(bookie_id="b2").start()
    stranger = World()
    await stranger.started()
    await stranger.kill()
    stranger.disk.files["cookie"].data[:] = bytes(len(stranger.disk.files["cookie"].data))
    with pytest.raises(Corrupt, match="damaged"):
        await World(stranger.disk, stranger.meta).started()
    other = World(seed=2)
    await other.started()
    await other.kill()
    with pytest.raises(Corrupt, match="elsewhere"):
        await World(other.disk, world.meta).started()
    del world.disk.files["cookie"]
    world.meta.records.clear()
    with pytest.raises(Corrupt, match="no cookie"):
        await World(world.disk, world.meta).started()


@simulated
async def test_a_format_that_was_cut_short_is_completed() -> None:
    world = World()
    await world.started()
    await world.kill()
    world.meta.records.clear()
    cookie = bytes(world.disk.files["cookie"].data)
    world.disk.files = {"cookie": world.disk.files["cookie"]}
    bookie = await World(world.disk, world.meta).started()
    assert await read(bookie, 1, 0) is None
    assert world.meta.records["bookies/b1/cookie"] == [cookie]


@simulated
async def test_the_journal_can_be_looked_at_from_outside() -> None:
    world = World()
    bookie = await world.started(SETTINGS)
    await fill(bookie, (1, 2), range(6))
    await bookie.handle(messages.FenceLedger(ledger=1, epoch=9))
    rows = [row async for row in inspect_journal(world.disk)]
    assert {row.verdict for row in rows} == {"ok"}
    assert sorted((row.ledger, row.run) for row in rows if row.kind == "run") == [
        (n, run) for n in (1, 2) for run in range(6)
    ]
    assert [(row.ledger, row.epoch) for row in rows if row.kind == "fence"] == [(1, 9)]
    await world.kill()
    before = {name: bytes(file.data) for name, file in world.disk.files.items()}
    first, last = journals(world.disk)[0], journals(world.disk)[-1]
    world.disk.files[first].data[300] ^= 1
    world.disk.files[last].data += b"half a record"
    del world.disk.files[journals(world.disk)[1]].data[-1000:]
    rows = [row async for row in inspect_journal(world.disk)]
    verdicts = {row.verdict for row in rows}
    assert {"ok", "damaged", "torn", "missing"} <= verdicts
    assert sorted(before) == sorted(world.disk.files), "looking changes nothing"


rows_strategy = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 600)), min_size=1, max_size=40)


@given(st.lists(rows_strategy, min_size=1, max_size=FAN + 2), st.sets(st.integers(0, 3), max_size=2))
@settings(max_examples=40, deadline=None)
def test_a_merged_table_holds_the_newest_row_of_each_run(
    batches: list[list[tuple[int, int]]], dropped: set[int]
) -> None:
    async def go() -> None:
        disk, tables, wanted = SimDisk(current_loop(), 1), [], dict[tuple[int, int], int]()
        for number, batch in enumerate(batches):
            spread = sorted({(ledger, run + k) for ledger, run in batch for k in range(30)})
            writer = TableWriter(disk, f"index-{number}")
            await writer.add(np.array([(ledger, run, 0, 1, number + 1, 0, 0) for ledger, run in spread], ROW))
            tables.append(await writer.finish())
            wanted.update(dict.fromkeys(spread, number + 1))
        merged = await merge(disk, tables, "index-merged", np.array(sorted(dropped), np.uint32))
        opened = await open_table(disk, "index-merged")
        assert (opened.rows, opened.last) == (merged.rows, merged.last)
        found = [row async for piece in opened.pieces(disk) for row in piece.tolist()]
        assert {(row[0], row[1]): row[4] for row in found} == {k: v for k, v in wanted.items() if k[0] not in dropped}
        assert [row[:2] for row in found] == sorted(row[:2] for row in found)

    simulated(go)()


@simulated
async def test_the_index_finds_runs_in_tail_frozen_tail_and_tables() -> None:
    disk = SimDisk(current_loop(), 1)
    index = Index(disk)
    rng = random.Random(4)
    known: dict[tuple[int, int], int] = {}
    for generation in range(1, 30):
        for _ in range(200):
            key = (rng.randrange(3), rng.randrange(4000))
            index.insert(Row(*key, 0, 1, generation, 0, 0))
            known[key] = generation
        rows = index.freeze()
        assert index.tail_rows == 0
        probe = next(iter(known))
        found = await index.find(*probe)
        assert found is not None
        assert found.segment == known[probe]
        index.thaw([*index.tables, await index.write_table(rows, index.table_name())])
        await index.merge_some(np.empty(0, np.uint32))
    assert len(index.tables) < 2 * FAN
    for ledger in range(3):
        got = {(ledger, row["run"]): row["segment"] for row in await index.rows(ledger)}
        assert got == {key: generation for key, generation in known.items() if key[0] == ledger}
    for key in [(0, 4001), (3, 0), (9, 9)]:
        assert await index.find(*key) is None


@simulated
async def test_the_index_keeps_a_fraction_of_a_byte_an_entry_in_memory() -> None:
    """One run an entry: of a table only the first key and the checksum of each block are in memory."""
    disk = SimDisk(current_loop(), 1)
    rows = np.zeros(100_000, ROW)
    rows["run"] = np.arange(len(rows))
    writer = TableWriter(disk, "index-1")
    await writer.add(rows)
    table = await writer.finish()
    assert (table.firsts.nbytes + table.sums.nbytes) / len(rows) < 4
    assert len(table.firsts) == -(-len(rows) // BLOCK_ROWS)


@simulated
async def test_a_bookies_memory_does_not_grow_with_its_runs() -> None:
    world = World()
    bookie = await world.started(SMALL)

    async def held(upto: int, start: int) -> tuple[int, int, int]:
        for run in range(start, upto):
            await bookie.handle(add(1, run, seed=7))
            if run % 16 == 15:
                await bookie.maintain()
        store = bookie.store
        return store.index.tail_rows, len(store.ledgers.states), len(bookie._busy)

    first, second = await held(64, 0), await held(256, 64)
    assert first[0] <= 16
    assert second[0] <= 16
    assert first[1:] == second[1:] == (1, 0)
