"""Reading: over ledgers, from bookies, by row, by time; trimming, deletion and re-replication through the topic."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import numpy as np
import pytest

from sluice.actors.ledger.fan_out import together
from sluice.actors.ledger.reader import StoredFrame
from sluice.actors.ledger.record import LedgerRecord, record_key, unpack_record
from sluice.actors.messages import (
    DeleteTopic,
    FindTime,
    ListLedgers,
    Progress,
    ReadEnds,
    ReadPayload,
    ReadRowIndex,
    Replicate,
    Stats,
    Terminate,
    TopicSettings,
)
from sluice.actors.ports import Ports, Unknown
from sluice.actors.ports.wire import Blob, Reply, Request
from sluice.actors.topic.partition import reads
from sluice.actors.topic.partition.entry_cache import EntryCache
from sluice.actors.topic.partition.reads import READ_AT_ONCE, LogReads
from sluice.storage.errors import Conflict, NotFound, Unavailable
from sluice.storage.format.frame import Header, encode_head
from sluice.storage.format.hashing import masked_hash
from sluice.storage.format.position import position
from tests.actors.topic.cluster import Cluster, TestProducer, insist, make_test_run, read_all, values_of
from tests.sim.world import World

ROLLING = TopicSettings(roll_entries=6)


R = TypeVar("R", bound=Reply)


async def ask(client: Ports, to: str, request: Request[R]) -> R:
    """A call that is answered."""
    reply = await client.net.call(to, request, 20_000)
    assert not isinstance(reply, Unknown)
    return reply


async def started(world: World, settings: TopicSettings = ROLLING) -> tuple[Cluster, Ports, TestProducer]:
    cluster = Cluster(world, settings=settings)
    to = await cluster.start()
    client = world.client("client")
    producer = await TestProducer.opened(client, to)
    return cluster, client, producer


async def until(client: Ports, condition: Callable[[], bool]) -> None:
    """Wait, for a minute of the world's time at the most."""
    for _ in range(600):
        if condition():
            return
        await client.clock.sleep(100)
    raise AssertionError("it never came about")


def test_reading_steps_over_the_ends_of_ledgers() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        for _ in range(7):
            await producer.publish(3)
        reply = await insist(client, cluster.current, -1)
        assert [ledger.last_entry for ledger in cluster.topic()._log.record.ledgers[:-1]] == [5, 5, 5]
        ids = [ledger.id for ledger in cluster.topic()._log.record.ledgers]
        assert reply.ended == [(ledger, 5) for ledger in ids[:-1]]
        assert reply.resume == position(ids[-1], 3)
        assert sum(run.count for run in reply.runs) == 21
        middle = await insist(client, cluster.current, position(ids[1], 4))
        assert (middle.runs[0].ledger, middle.runs[0].first_entry) == (ids[1], 3)
        some = await insist(client, cluster.current, position(ids[0], 0), limit=4)
        assert [run.count for run in some.runs] == [3, 3]
        behind = await insist(client, cluster.current, position(ids[-1], 3))
        assert (behind.runs, behind.ended, behind.resume) == ([], [], position(ids[-1], 3))

    World(21).play(scenario)


def test_a_new_owner_reads_old_runs_from_the_bookies() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        for _ in range(9):
            await producer.publish(2)
        to = await cluster.replace_owner()
        assert [value for _, _, value in await read_all(client, to)] == [f"p-{n}" for n in range(18)]
        world.crash("b1")
        to = await cluster.replace_owner()
        assert [value for _, _, value in await read_all(client, to)] == [f"p-{n}" for n in range(18)]

    World(22).play(scenario)


def test_rows_come_with_hashes_and_without_the_trimmed() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        for _ in range(4):
            await producer.publish(3)
        for to in (cluster.current, await cluster.replace_owner()):
            found = {value: position(ledger, entry) for ledger, entry, value in await read_all(client, to)}
            wanted = ["p-1", "p-5", "p-7", "p-11"]
            asked = np.array([position(1, 800), *(found[value] for value in wanted)], np.int64)
            rows = await ask(client, to, ReadRowIndex(positions=asked))
            assert rows.positions.tolist() == [found[value] for value in wanted]
            assert rows.hashes.tolist() == [masked_hash(value.encode()) for value in wanted]
            ends = await ask(client, to, ReadEnds())
            behind = [ends.last + 1] if ends.ledgers[-1][1] is None else []
            for unknown in (position(900, 1), *behind):  # perhaps a newer owner has it: nobody may take it for gone
                with pytest.raises(Unavailable):
                    await ask(client, to, ReadRowIndex(positions=np.array([asked[1], unknown], np.int64)))
                with pytest.raises(Unavailable):
                    await ask(client, to, ReadPayload(ledger=unknown >> 32, entry=unknown & 0xFFFFFFFF))

    World(23).play(scenario)


def test_a_time_is_found_in_whatever_ledger_it_is() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        for n in range(12):
            await producer.send(make_test_run([str(2 * n), str(2 * n + 1)], first=2 * n, now=1000 * (n + 1)), 2 * n)
        places = {value: position(ledger, entry) for ledger, entry, value in await read_all(client, cluster.current)}
        for time, value in ((0, "0"), (1000, "0"), (1001, "2"), (7000, "12"), (12_000, "22")):
            assert (await ask(client, cluster.current, FindTime(time=time))).position == places[value]
        after = await ask(client, cluster.current, FindTime(time=12_001))
        assert after.position == (await ask(client, cluster.current, ReadEnds())).next

    World(24).play(scenario)


def test_message_coming_while_a_time_is_sought_is_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old messages count as done up to what was found: what came meanwhile would be, and nobody has seen it."""

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        await producer.publish(3, now=1_000)
        producer.to = await cluster.replace_owner()
        await producer.open()
        end = (await ask(client, cluster.current, ReadEnds())).next
        times = LogReads._times

        async def meanwhile(self: LogReads, ledger: LedgerRecord, run: int) -> Any:
            found = await times(self, ledger, run)
            await producer.publish(2, now=9_000)
            return found

        monkeypatch.setattr(LogReads, "_times", meanwhile)
        found = await ask(client, cluster.current, FindTime(time=5_000))
        assert found.position == end
        behind = await insist(client, cluster.current, found.position)
        assert sum(run.count for run in behind.runs) == 2

    World(34).play(scenario)


def test_s13_trimming_follows_the_slowest_over_a_change_of_owner() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        for name in ("slow", "fast"):
            await ask(client, cluster.current, Progress(subscription=name, mark_delete=-1))
        for _ in range(8):
            await producer.publish(3)
        ids = [ledger.id for ledger in cluster.topic()._log.record.ledgers]
        await ask(client, cluster.current, Progress(subscription="fast", mark_delete=position(ids[3], 2)))
        to = await cluster.replace_owner()
        await ask(client, to, Progress(subscription="fast", mark_delete=position(ids[3], 2)))
        await client.clock.sleep(3000)
        assert len(cluster.topic()._log.record.ledgers) == 4
        await ask(client, to, Progress(subscription="slow", mark_delete=position(ids[2], 4)))
        await until(client, lambda: [ledger.id for ledger in cluster.topic()._log.record.ledgers] == ids[2:])
        assert (await ask(client, to, ReadEnds())).first == position(ids[2], 0)
        with pytest.raises(NotFound):
            await ask(client, to, ReadPayload(ledger=ids[0], entry=0))
        assert (await insist(client, to, -1)).runs[0].ledger == ids[2]
        await ask(client, to, Progress(subscription="slow", mark_delete=-1, gone=True))
        await until(client, lambda: [ledger.id for ledger in cluster.topic()._log.record.ledgers] == ids[3:])
        await until(client, lambda: not ((jobs := cluster.topic()._maintenance)._leftovers or jobs._replicating))
        held = [await ask(client, cluster.addresses[name], ListLedgers()) for name in sorted(cluster.addresses)]
        assert {ledger for reply in held for ledger in reply.ledgers} <= set(ids[3:])

    World(25).play(scenario)


def test_a_restored_record_with_a_trimmed_open_ledger_serves() -> None:
    """The bookies have forgotten the ledger that was open at the backup, and no bookie will ever report its end."""

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        await producer.publish(3)
        backup = list(world.meta.records[record_key("t", 0)])
        for _ in range(3):
            await producer.publish(3)
        ends = await ask(client, cluster.current, ReadEnds())
        await ask(client, cluster.current, Progress(subscription="s", mark_delete=ends.last))
        topic = cluster.topic()
        await until(client, lambda: len(topic._log.record.ledgers) == 1 and not topic._maintenance._leftovers)
        world.crash(f"owner{cluster.owners}")
        world.meta.records[record_key("t", 0)] = backup
        other = await TestProducer.opened(client, await cluster.replace_owner(), "q")
        published = await other.publish(3)
        assert published.ledger > ends.last >> 32
        assert [ledger.id for ledger in cluster.topic()._log.record.ledgers] == [published.ledger]

    World(35).play(scenario)


def test_reader_of_trimmed_positions_is_told_where_to_go_on() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        await ask(client, cluster.current, Progress(subscription="s", mark_delete=-1))
        await producer.publish(3)
        to = await cluster.replace_owner()
        ends = await ask(client, to, ReadEnds())
        await ask(client, to, Progress(subscription="s", mark_delete=ends.last))
        await until(client, lambda: not cluster.topic()._log.record.ledgers)
        behind = (await ask(client, to, ReadEnds())).first
        assert behind > ends.last
        assert (await insist(client, to, ends.first)).resume == behind

    World(25).play(scenario)


def test_the_last_message_stays_the_last_when_all_are_trimmed() -> None:
    """Also for a new owner, who then says where the topic ends."""

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        await ask(client, cluster.current, Progress(subscription="s", mark_delete=-1))
        await producer.publish(3)
        to = await cluster.replace_owner()
        last = (await ask(client, to, ReadEnds())).last
        await ask(client, to, Progress(subscription="s", mark_delete=last))
        await until(client, lambda: not cluster.topic()._log.record.ledgers)
        to = await cluster.replace_owner()
        assert (await ask(client, to, ReadEnds())).last == last
        assert (await ask(client, to, Terminate())).last == last

    World(25).play(scenario)


def test_a_late_statement_of_progress_is_ignored() -> None:
    async def scenario(world: World) -> None:
        cluster, client, _ = await started(world)
        await ask(client, cluster.current, Progress(subscription="s", mark_delete=5, number=1))
        await ask(client, cluster.current, Progress(subscription="s", mark_delete=2, number=3))
        await ask(client, cluster.current, Progress(subscription="s", mark_delete=9, number=2))
        assert cluster.topic()._maintenance.marks == {"s": 2}

    World(26).play(scenario)


def test_a_deleted_topic_leaves_no_bytes_and_can_be_made_again() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        await producer.publish(4)
        await ask(client, cluster.current, Progress(subscription="s", mark_delete=-1))
        with pytest.raises(Conflict, match="subscriptions: s"):
            await ask(client, cluster.current, DeleteTopic())
        await ask(client, cluster.current, DeleteTopic(force=True))
        held = [await ask(client, cluster.addresses[name], ListLedgers()) for name in sorted(cluster.addresses)]
        assert [reply.ledgers for reply in held] == [[], [], []]
        to = await cluster.replace_owner()
        fresh = TestProducer(client, to)
        assert (await fresh.open()).last_sequence == -1
        await fresh.publish(1)
        assert [value for _, _, value in await read_all(client, to)] == ["p-0"]

    World(27).play(scenario)


def test_l8_what_a_lost_bookie_held_is_restored() -> None:
    async def scenario(world: World) -> None:
        cluster = Cluster(world, bookies=4, settings=TopicSettings(roll_entries=6))
        producer = await TestProducer.opened(client := world.client("client"), await cluster.start())
        for _ in range(9):
            await producer.publish(2)
        lost = cluster.topic()._log.record.ledgers[0].fragments[0].bookies[0]
        world.crash(lost)
        assert (await ask(client, cluster.current, Replicate(lost=[lost]))).remaining > 0
        for _ in range(100):
            if (await ask(client, cluster.current, Replicate(lost=[lost]))).remaining == 0:
                break
            await client.clock.sleep(500)
        version = await client.meta.read(record_key("t", 0))
        assert version is not None
        record = unpack_record(version.value)
        assert not any(lost in ledger.bookies() for ledger in record.ledgers)
        stats = json.loads((await ask(client, cluster.current, Stats())).json)
        assert stats["underReplicated"] == 0
        # Any other bookie may go now: with two copies of each run nothing is lost.
        other = next(name for name in sorted(cluster.addresses) if name != lost)
        world.crash(other)
        to = await cluster.replace_owner()
        assert [value for _, _, value in await read_all(client, to)] == [f"p-{n}" for n in range(18)]

    World(28).play(scenario)


def test_a_frozen_owner_that_comes_back_idle_stops_serving() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        await producer.publish(1)
        old = cluster.topic()
        world.pause("owner1")
        await cluster.replace_owner()
        world.resume("owner1")
        await until(client, lambda: old.stopped is not None)

    World(29).play(scenario)


def test_a_payload_whose_handle_is_gone_comes_from_a_bookie() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        many = [f"{number:0100}" for number in range(1000)]
        await producer.send(make_test_run(many), 0)
        ledger = cluster.topic()._log.record.ledgers[0].id
        first = await ask(client, cluster.current, ReadPayload(ledger=ledger, entry=0))
        assert first.payload.data is None
        world.network.faults.blob_loss = 1.0
        assert await client.net.fetch(first.payload) is None
        world.network.faults.blob_loss = 0.0
        calls = world.network.calls.get("ReadRun", 0)
        again = await ask(client, cluster.current, ReadPayload(ledger=ledger, entry=0, again=True))
        assert world.network.calls["ReadRun"] == calls + 1
        data = again.payload.data or await client.net.fetch(again.payload)
        assert data is not None
        assert values_of(data, again.delayed, again.shape, again.count) == many

    World(30).play(scenario)


def test_kept_part_of_an_answer_is_a_copy() -> None:
    """Answers may come in memory that all processes share, where others need the room."""
    run = make_test_run("abc")
    shared = bytearray(run.payload)
    header = Header(1, 0, 0, 3, 1, -1, "p", 0, False, run.shape, run.crc)

    async def read(*_: object) -> StoredFrame:
        return StoredFrame(header, encode_head(header, len(shared)), Blob(shared), "bookie-0")

    async def share(payload: memoryview) -> Blob:
        return Blob(payload)

    ledger = cast(Any, SimpleNamespace(id=1, offloaded=None))
    record = SimpleNamespace(ledger=lambda _: ledger)
    log = SimpleNamespace(cache=EntryCache(0), reader=SimpleNamespace(run=read), record=record)
    reads = LogReads(cast(Any, SimpleNamespace(net=SimpleNamespace(share=share))), cast(Any, log))
    kept = asyncio.run(reads._load(ledger, 0))
    shared.clear()  # raises BufferError if somebody still looks into it
    assert kept.blob is not None
    assert kept.blob.data == run.payload
    assert reads._cached(1, 0, whole=True) is kept


async def with_old_runs(world: World) -> tuple[Cluster, Ports, list[int]]:
    """A new owner, which has nothing in memory, and the positions of 30 runs that the old one wrote."""
    cluster, client, producer = await started(world, TopicSettings())
    positions = []
    for _ in range(30):
        stored = await producer.publish(1)
        positions.append(position(stored.ledger, stored.first_entry))
    world.crash("owner1")
    await TestProducer(client, await cluster.replace_owner(), incarnation="2").open()
    return cluster, client, positions


def test_a_frozen_bookie_keeps_nobody_waiting_for_long() -> None:
    """The others have the same runs; it is asked last from then on (speculative reads)."""

    async def scenario(world: World) -> None:
        cluster, client, positions = await with_old_runs(world)
        world.pause("b1")
        began = client.clock.monotonic()
        rows = await ask(client, cluster.current, ReadRowIndex(positions=np.array(positions)))
        assert rows.positions.tolist() == positions
        assert client.clock.monotonic() - began < 1_000

    World(31).play(scenario)


def test_run_asked_for_by_several_at_once_is_read_once() -> None:
    """All consumers of a dead owner come back at the same moment, with messages of the same runs."""

    async def scenario(world: World) -> None:
        cluster, client, positions = await with_old_runs(world)
        world.network.calls.clear()
        wanted = [ReadRowIndex(positions=np.array(positions[first:])) for first in range(5)]
        answers = await together(client, "ask", [partial(ask, client, cluster.current, request) for request in wanted])
        assert [len(rows.positions) for rows in answers] == [30, 29, 28, 27, 26]
        # Some are read again, from a second bookie where the first one is slow.
        assert len(positions) <= world.network.calls["ReadRun"] < 2 * len(positions)

    World(32).play(scenario)


def test_an_old_run_is_read_once_for_many_consumers() -> None:
    """A large one is shared again: by the index that the dispatcher reads, and for who asks."""

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, TopicSettings())
        many = [f"{number:0100}" for number in range(1000)]
        stored = await producer.send(make_test_run(many), 0)
        world.crash("owner1")
        shown = await insist(client, await cluster.replace_owner(), -1)
        calls = world.network.calls["ReadRun"]
        (run,) = shown.runs
        asked = await ask(client, cluster.current, ReadPayload(ledger=stored.ledger, entry=7))
        for blob in (run.blob, asked.payload):
            assert blob is not None
            assert blob.data is None
            data = await client.net.fetch(blob)
            assert data is not None
            assert values_of(data, run.delayed, run.shape, run.count) == many
        assert world.network.calls["ReadRun"] == calls

    World(33).play(scenario)


def test_small_runs_that_are_wanted_next_come_along() -> None:
    """From memory and from bookies; what is large, not there yet or out of reach is left out, and nobody waits."""

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, TopicSettings())
        for _ in range(12):
            await producer.publish(2)
        stored = await producer.send(make_test_run([f"{number:0100}" for number in range(1000)]), 24)
        ledger = stored.ledger
        wanted = np.array([3, 8, 9, 17, stored.first_entry, stored.first_entry + 5_000], np.uint32)
        for to in (cluster.current, await cluster.replace_owner()):
            reply = await ask(client, to, ReadPayload(ledger=ledger, entry=1, ahead=wanted))
            assert reply.first_entry == 0
            assert [(run.first_entry, run.count, run.ahead) for run in reply.ahead] == [
                (2, 2, []),
                (8, 2, []),
                (16, 2, []),
            ]
            for run in reply.ahead:
                assert run.payload.data is not None
                values = values_of(run.payload.data, run.delayed, run.shape, run.count)
                assert values == [f"p-{run.first_entry}", f"p-{run.first_entry + 1}"]
        to = await cluster.replace_owner()
        first = await ask(client, to, ReadPayload(ledger=ledger, entry=1))
        world.network.refusals["ReadRun"] = (1.0, (Unavailable("not now"),))
        again = await ask(client, to, ReadPayload(ledger=ledger, entry=1, ahead=wanted))
        assert (again.crc, again.ahead) == (first.crc, [])

    World(34).play(scenario)


def test_runs_that_come_along_are_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bookies that are slow delay no answer by more than the first reads."""
    monkeypatch.setattr("sluice.actors.topic.partition.reads.AHEAD_MS", 0)

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, TopicSettings())
        for _ in range(3 * READ_AT_ONCE):
            await producer.publish(1)
        wanted = np.arange(1, 3 * READ_AT_ONCE, dtype=np.uint32)
        ledger = cluster.topic()._log.record.ledgers[0].id
        to = await cluster.replace_owner()
        reply = await ask(client, to, ReadPayload(ledger=ledger, entry=0, ahead=wanted))
        assert [run.first_entry for run in reply.ahead] == list(range(1, READ_AT_ONCE + 1))

    World(35).play(scenario)


def test_shared_payloads_count_towards_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads that cannot be shared further travel as bytes: an answer ends in time, and the next goes on."""
    monkeypatch.setattr(reads, "MAX_ANSWER_BYTES", 300_000)

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, TopicSettings())
        many = [f"{number:0100}" for number in range(1000)]
        for number in range(6):
            await producer.send(make_test_run(many, first=1000 * number), 1000 * number)
        reply = await insist(client, cluster.current, -1, 10_000)
        assert all(run.blob is not None and run.blob.data is None for run in reply.runs)
        assert len(reply.runs) == 2
        assert len(await read_all(client, cluster.current)) == 6000

    World(34).play(scenario)
