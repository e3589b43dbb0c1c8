"""A topic is compacted: who reads it compacted knows the last message of each key, wherever it began."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from sluice.actors.ledger.history_objects import compacted_prefix
from sluice.actors.ledger.record import WITH_HISTORY, Compacted, Erased, LedgerState, PartitionRecord
from sluice.actors.messages import (
    Compact,
    CompactionStatus,
    DeleteTopic,
    IndexRead,
    Ping,
    Progress,
    ReadEnds,
    ReadIndex,
    ReadPayload,
    TopicSettings,
)
from sluice.actors.ports import Ports
from sluice.actors.topic.background import compaction
from sluice.actors.topic.background.newer_table import fits
from sluice.storage.errors import NotFound, Unavailable
from sluice.storage.format.batch import decode_body, make_batch
from sluice.storage.format.frame import make_run
from sluice.storage.format.position import position
from tests.actors.ledger.fakes import make_ledger
from tests.actors.topic.background.test_offloading import record_of
from tests.actors.topic.cluster import Cluster, TestProducer
from tests.actors.topic.partition.test_reads import ask, started, until
from tests.sim.world import World

SETTINGS = TopicSettings(roll_entries=6)
Row = tuple[str | None, str]


async def publish(producer: TestProducer, rows: Sequence[Row]) -> None:
    keys, payloads = zip(*rows, strict=True)
    table = pa.table({"key": pa.array(keys, pa.string()), "payload": pa.array(payloads, pa.string())})
    now = producer.ports.clock.now()
    run = make_run(make_batch(table, now=now, producer=producer.name, first_sequence=producer.next))
    await producer.send(run, producer.next)
    producer.next += len(rows)


async def compacted(client: Ports, cluster: Cluster) -> Compacted:
    """Compact the topic; returns what is in the record then."""
    await ask(client, cluster.current, Compact(ask=True))
    await until(client, lambda: not cluster.job(compaction.Compaction).status().asked)
    assert cluster.job(compaction.Compaction).state.error == ""
    table = record_of(cluster).compacted
    assert table is not None
    return table


def rows_of(reply: IndexRead) -> list[tuple[int, Row]]:
    """The messages of an answer of the compacted log, with their positions."""
    found: list[tuple[int, Row]] = []
    for run in reply.runs:
        assert run.blob is not None
        data = memoryview(run.blob.data or b"")
        body = decode_body(data[run.rows * (12 if run.delayed else 4) :], run.shape, run.rows)
        rows = run.cut if len(run.cut) else np.arange(run.count)
        places = position(run.ledger, run.first_entry) + rows.astype(np.int64)
        keys = [None if key is None else key.decode() for key in body.column("key").to_pylist()]
        payloads = [payload.decode() for payload in body.column("payload").to_pylist()]
        found += zip(places.tolist(), zip(keys, payloads, strict=True), strict=True)
    return found


class View:
    """A reader of the compacted log from a position on, which knows the last message of each key."""

    def __init__(self, start: int = 0) -> None:
        self.values: dict[str, str] = {}
        self.seen: list[tuple[int, Row]] = []
        self._at, self._table, self._since = start, -1, -1

    async def read(self, client: Ports, to: str, limit: int = 100, questions: int = 1_000) -> View:
        """Read what there is; returns this."""
        for _ in range(questions):
            request = ReadIndex(start=self._at, limit=limit, compacted=True, table=self._table, since=self._since)
            reply = await ask(client, to, request)
            for at, (key, value) in rows_of(reply):
                assert at >= self._at
                self.seen.append((at, (key, value)))
                if key is not None:
                    self.values.pop(key, None)
                    if value:
                        self.values[key] = value
            if reply.resume == self._at:
                break
            self._at, self._table, self._since = reply.resume, reply.table, reply.since
        return self


def test_a_reader_is_given_the_last_message_of_each_key() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, SETTINGS)
        await publish(producer, [("a", "1"), ("b", "1"), (None, "nobody's"), ("c", "1")])
        await publish(producer, [("a", "2"), ("b", ""), ("d", "1")])
        assert record_of(cluster).compacted is None
        table = await compacted(client, cluster)
        assert (table.messages, record_of(cluster).format) == (4, WITH_HISTORY)
        view = await View().read(client, cluster.current)
        assert [row for _, row in view.seen] == [("c", "1"), ("a", "2"), ("d", "1")]
        # It goes on in the log, whose messages are all there.
        await publish(producer, [("a", "3"), ("a", "4"), ("e", "")])
        await view.read(client, cluster.current)
        assert [row for _, row in view.seen[3:]] == [("a", "3"), ("a", "4"), ("e", "")]
        assert view.values == {"a": "4", "c": "1", "d": "1"}
        # Once it is compacted again somebody else is given less.
        await compacted(client, cluster)
        again = await View().read(client, cluster.current, limit=1)
        assert [row for _, row in again.seen] == [("c", "1"), ("d", "1"), ("a", "4")]
        assert await everything(client, cluster.current) == 10, "the log is as it was"
        await until(client, lambda: len(world.objects.objects) == 1)

    World(1).play(scenario)


async def everything(client: Ports, to: str) -> int:
    """How many messages the log has."""
    start = count = 0
    while (reply := await ask(client, to, ReadIndex(start=start, limit=100))).resume > start:
        start, count = reply.resume, count + sum(run.rows for run in reply.runs)
    return count


def test_reader_that_knew_a_key_learns_its_deletion() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, SETTINGS)
        await publish(producer, [("a", "1"), ("b", "1"), ("c", "1")])
        middle = View()
        await compacted(client, cluster)
        await middle.read(client, cluster.current, limit=2, questions=1)
        assert sorted(middle.values) == ["a", "b"]
        await publish(producer, [("a", ""), ("c", "2")])
        await compacted(client, cluster)
        await middle.read(client, cluster.current)
        assert middle.values == {"b": "1", "c": "2"}
        late = await View(position(record_of(cluster).ledgers[0].id, 1)).read(client, cluster.current)
        assert [row for _, row in late.seen] == [("b", "1"), ("a", ""), ("c", "2")]

    World(2).play(scenario)


def test_that_a_key_is_gone_is_forgotten_after_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here after half an hour, since a day of a cluster that does nothing takes long to play."""
    assert compaction.EMPTY_MS == 24 * 3600 * 1000
    monkeypatch.setattr(compaction, "EMPTY_MS", 1800 * 1000)

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, SETTINGS)
        await publish(producer, [("a", "1"), ("b", "1"), ("a", "")])
        assert (await compacted(client, cluster)).messages == 2
        first = position(record_of(cluster).ledgers[0].id, 0)
        await ask(client, cluster.current, Progress(subscription="slow", mark_delete=first))
        await client.clock.sleep(compaction.EMPTY_MS + 1)
        await publish(producer, [("c", "1")])
        assert (await compacted(client, cluster)).messages == 3, "a subscription has not passed it"
        await ask(client, cluster.current, Progress(subscription="slow", mark_delete=first + 2, number=2))
        await publish(producer, [("c", "2")])
        table = await compacted(client, cluster)
        assert (table.messages, table.last) == (2, table.horizon)

    World(3).play(scenario)


def test_the_log_is_trimmed_up_to_the_horizon_alone() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, SETTINGS)
        for number in range(4):
            await publish(producer, [("a", str(number)), ("b", str(number)), (f"only {number}", "1")])
        await compacted(client, cluster)
        for number in range(4, 9):
            await publish(producer, [("a", str(number)), ("b", ""), (f"only {number}", "1")])
        last = record_of(cluster).ledgers[-1].id
        await ask(client, cluster.current, Progress(subscription="s", mark_delete=position(last, 0)))
        await until(client, lambda: len(record_of(cluster).ledgers) == 3)
        view = await View().read(client, cluster.current)
        assert view.values == {"a": "8", **{f"only {number}": "1" for number in range(9)}}
        # What the log does not have any more is found in the table, by its id.
        at, (key, _) = view.seen[0]
        assert key == "only 0"
        reply = await ask(client, cluster.current, ReadPayload(ledger=at >> 32, entry=at & 0xFFFFFFFF))
        assert (reply.cut.tolist(), reply.first_entry) == ([0], at & 0xFFFFFFFF)
        with pytest.raises(NotFound):
            await ask(client, cluster.current, ReadPayload(ledger=at >> 32, entry=0))
        # The next compaction needs the table for what was trimmed.
        await compacted(client, cluster)
        assert (await View().read(client, cluster.current)).values == view.values

    World(4).play(scenario)


def test_the_end_is_that_of_the_last_message_that_is_shown() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, SETTINGS)
        await publish(producer, [("a", "1"), ("b", "1"), ("b", "")])
        await compacted(client, cluster)
        first = position(record_of(cluster).ledgers[0].id, 0)
        assert (await ask(client, cluster.current, ReadEnds(compacted=True))).last == first
        assert (await ask(client, cluster.current, ReadEnds())).last == first + 2
        await publish(producer, [("c", "1")])
        assert (await ask(client, cluster.current, ReadEnds(compacted=True))).last == first + 3

    World(5).play(scenario)


def test_a_threshold_compacts_by_itself() -> None:
    async def scenario(world: World) -> None:
        settings = TopicSettings(roll_entries=6, compaction_threshold_bytes=600)
        cluster, client, producer = await started(world, settings)
        await publish(producer, [("a", "1")])
        await client.clock.sleep(5_000)
        assert record_of(cluster).compacted is None
        for number in range(10):
            await publish(producer, [("a", str(number))])
        await until(client, lambda: record_of(cluster).compacted is not None)
        assert (await View().read(client, cluster.current)).values == {"a": "9"}

    World(6).play(scenario)


def test_an_empty_topic_is_compacted_at_once() -> None:
    async def scenario(world: World) -> None:
        cluster, client, _ = await started(world, SETTINGS)
        await ask(client, cluster.current, Compact(ask=True))
        await until(client, lambda: not cluster.job(compaction.Compaction).status().asked)
        status = await ask(client, cluster.current, Compact())
        assert (status.horizon, status.error, status.running) == (-1, "", False)

    World(7).play(scenario)


@pytest.mark.parametrize("how", ["damaged", "gone"])
def test_a_table_that_is_damaged_is_named(how: str) -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, SETTINGS)
        await publish(producer, [("a", "1"), ("b", "1"), ("b", "")])
        table = await compacted(client, cluster)
        name = table.parts[0].name
        data = world.objects.objects.pop(name)
        if how == "damaged":
            world.objects.objects[name] = data[:50] + b"!" + data[51:]
        cluster.job(compaction.Compaction).reader.clear()
        with pytest.raises(Unavailable, match=f"object {name}"):
            await View().read(client, cluster.current)
        assert name in (await ask(client, cluster.current, Ping())).problem
        world.objects.objects[name] = data
        assert (await View().read(client, cluster.current)).values == {"a": "1"}
        assert (await ask(client, cluster.current, Ping())).problem == ""

    World(8).play(scenario)


def test_a_store_that_stores_something_else_is_found_out() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, SETTINGS)
        await publish(producer, [("a", "1"), ("b", "1"), ("b", "")])
        write = world.objects.write
        world.objects.write = lambda name, data: write(name, data[:60] + b"!" + data[61:])  # type: ignore[method-assign]
        await ask(client, cluster.current, Compact(ask=True))
        await until(client, lambda: bool(cluster.job(compaction.Compaction).state.error))
        status: CompactionStatus = await ask(client, cluster.current, Compact())
        assert status.asked
        assert "does not fit its checksum" in status.error
        assert record_of(cluster).compacted is None
        world.objects.write = write  # type: ignore[method-assign]
        await until(client, lambda: record_of(cluster).compacted is not None)
        await until(client, lambda: len(world.objects.objects) == 1)

    World(9).play(scenario)


def test_requested_compaction_outlives_the_owner() -> None:
    """Otherwise a new owner without the request would report it as done to the waiting operator."""

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, SETTINGS)
        await publish(producer, [("a", "1"), ("a", "2")])
        write = world.objects.write
        world.objects.write = lambda name, data: write(name, data[:60])  # type: ignore[method-assign]
        assert (await ask(client, cluster.current, Compact(ask=True))).asked
        await until(client, lambda: bool(cluster.job(compaction.Compaction).state.error))
        assert cluster.topic().at_work, "an owner that has not done it does not close"
        await cluster.replace_owner()
        assert (await ask(client, cluster.current, Compact())).asked
        world.objects.write = write  # type: ignore[method-assign]
        await until(client, lambda: not record_of(cluster).asked.compact)
        table = record_of(cluster).compacted
        assert table is not None
        assert table.messages == 1
        await cluster.replace_owner()
        assert not (await ask(client, cluster.current, Compact())).asked
        await client.clock.sleep(60_000)
        assert record_of(cluster).compacted == table, "it is done once"

    World(11).play(scenario)


def test_compaction_asked_for_during_one_is_done_again() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, SETTINGS)
        await publish(producer, [("a", "1")])
        write = world.objects.write

        async def more() -> None:
            await publish(producer, [("b", "1")])
            await ask(client, cluster.current, Compact(ask=True))

        def write_and_ask(name: str, data: bytes) -> bool:
            world.objects.write = write  # type: ignore[method-assign]
            client.spawn(more(), "ask")
            return write(name, data)

        world.objects.write = write_and_ask  # type: ignore[method-assign]
        await ask(client, cluster.current, Compact(ask=True))
        await until(client, lambda: record_of(cluster).compacted is not None)
        await until(client, lambda: not record_of(cluster).asked.compact)
        table = record_of(cluster).compacted
        assert table is not None
        assert table.messages == 2
        await publish(producer, [("c", "1")])
        await compacted(client, cluster)
        assert not record_of(cluster).asked.compact

    World(12).play(scenario)


@pytest.mark.parametrize("first", [False, True], ids=["after a table", "before the first table"])
def test_a_record_from_a_backup_finds_the_newer_table(first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newer table has what was trimmed since, which the record believes to be in the log."""
    for name in ("GROUP_BYTES", "PART_BYTES"):
        monkeypatch.setattr(compaction, name, 1)

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, SETTINGS)
        for number in range(3):
            await publish(producer, [("a", str(number)), ("b", str(number)), (f"only {number}", "1")])
        if not first:
            await compacted(client, cluster)
        backup = list(world.meta.records["partition/t/0"])
        for number in range(3, 6):
            await publish(producer, [("a", str(number)), ("b", str(number)), (f"only {number}", "1")])
        table = await compacted(client, cluster)
        await ask(client, cluster.current, Progress(subscription="s", mark_delete=table.horizon))
        await until(client, lambda: len(record_of(cluster).ledgers) <= 1)
        parts = [part.name for part in table.parts]
        assert len(parts) > 2
        await until(client, lambda: sorted(world.objects.objects) == parts)
        await until(client, lambda: not cluster.topic()._maintenance._leftovers)
        known = await View().read(client, cluster.current)
        world.crash(f"owner{cluster.owners}")
        world.meta.records["partition/t/0"] = backup
        await cluster.replace_owner()
        assert await compacted(client, cluster) == table
        assert sorted(world.objects.objects) == parts
        assert (await View().read(client, cluster.current)).seen == known.seen
        other = await TestProducer.opened(client, cluster.current, "q")
        await publish(other, [("a", "later")])
        assert record_of(cluster).ledgers[-1].id > table.horizon >> 32
        await compacted(client, cluster)
        view = await View().read(client, cluster.current)
        assert view.values == {**known.values, "a": "later"}

    World(13).play(scenario)


@pytest.mark.parametrize("gone", [0, -1], ids=["the first file", "the last file"])
def test_a_newer_table_that_is_not_whole_is_not_taken(gone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GROUP_BYTES", "PART_BYTES"):
        monkeypatch.setattr(compaction, name, 1)

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, SETTINGS)
        await publish(producer, [("a", "1"), ("b", "1")])
        old = await compacted(client, cluster)
        backup = list(world.meta.records["partition/t/0"])
        await publish(producer, [("a", "2"), ("c", "1"), ("d", "1")])
        newer = await compacted(client, cluster)
        await until(client, lambda: sorted(world.objects.objects) == [part.name for part in newer.parts])
        world.crash(f"owner{cluster.owners}")
        world.meta.records["partition/t/0"] = backup
        del world.objects.objects[newer.parts[gone].name]
        await cluster.replace_owner()
        objects = cluster.job(compaction.Compaction).objects
        await until(client, lambda: not objects.collection_due() and not objects._kept)
        await ask(client, cluster.current, Compact(ask=True))
        await until(client, lambda: "no object" in cluster.job(compaction.Compaction).state.error)
        assert record_of(cluster).compacted == old
        assert len(world.objects.objects) == len(newer.parts) - 1, "what is left of it stays"

    World(14).play(scenario)


def test_a_newer_table_must_fit_the_record() -> None:
    table = Compacted(0, position(3, 5), 1_000, position(3, 5), ())
    record = PartitionRecord(topic="t", partition=0, settings=TopicSettings())
    assert fits(table, record)
    for known, fitting in ((position(3, 4), True), (position(3, 5), False)):
        assert fits(table, msgspec.structs.replace(record, compacted=Compacted(0, known, 1, known, ()))) is fitting
    for done, fitting in ((999, True), (1_000, False)):
        assert fits(table, msgspec.structs.replace(record, erased=(Erased(1, done, 7),))) is fitting
    for number, state, fitting in (
        (3, LedgerState.CLOSED, True),
        (3, LedgerState.OPEN, False),
        (4, LedgerState.OPEN, True),
    ):
        ledger = make_ledger(ledger_id=number, state=state)
        assert fits(table, msgspec.structs.replace(record, ledgers=(ledger,))) is fitting


def test_objects_go_with_the_topic_and_what_was_left_too() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, SETTINGS)
        await publish(producer, [("a", "1")])
        table = await compacted(client, cluster)
        left = f"{compacted_prefix('t', 0)}{1:012d}-{1:012d}-{7:06d}.parquet"
        world.objects.objects[left] = b"half of a table"
        await cluster.replace_owner()
        await until(client, lambda: sorted(world.objects.objects) == [part.name for part in table.parts])
        assert (await View().read(client, cluster.current)).values == {"a": "1"}
        await ask(client, cluster.current, DeleteTopic(force=True))
        assert not world.objects.objects

    World(10).play(scenario)
