"""Closed ledgers leave for the object store, are read from there as before, and go with what their topic forgets."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from sluice.actors.ledger.garbage_collection import collect_garbage
from sluice.actors.ledger.history_objects import epoch_of, history_prefix, ledger_of_object
from sluice.actors.ledger.history_reader import HistoryReader
from sluice.actors.ledger.record import FORMAT, WITH_HISTORY, HistoryPart, LedgerState, PartitionRecord
from sluice.actors.messages import (
    AcceptLoss,
    DeleteTopic,
    FindTime,
    ListLedgers,
    Offload,
    Ping,
    Progress,
    ReadEnds,
    ReadPayload,
    Stats,
    TopicSettings,
)
from sluice.actors.ports import Ports
from sluice.actors.topic.background.leaving import NEVER, forgettable, offloadable
from sluice.actors.topic.background.offloading import Offloading
from sluice.actors.topic.partition.unreadable import ALARM_MS
from sluice.storage.errors import Invalid, NotFound, Unavailable
from sluice.storage.format.batch import StoredBatch, decode_body
from sluice.storage.format.frame import make_run
from sluice.storage.format.position import position
from sluice.storage.history.part import PartFooter
from tests.actors.ledger.fakes import make_ledger
from tests.actors.topic.cluster import Cluster, TestProducer, make_test_run, read_all
from tests.actors.topic.partition.test_reads import ask, started, until
from tests.sim.world import World

LEAVING = TopicSettings(roll_entries=6, offload_threshold_bytes=0, offload_deletion_lag_ms=0)
PREFIX = history_prefix("t", 0)


def chain(count: int = 4, **settings: Any) -> PartitionRecord:
    """Closed ledgers 1, 2, ... of 10 entries and 100 bytes, all covered, closed at 1,000, 2,000, ...; one is open."""
    ledgers = [
        msgspec.structs.replace(
            make_ledger(ledger_id=number, state=LedgerState.CLOSED if number < count else LedgerState.OPEN),
            last_run=4, last_entry=9, bytes=100, closed_at=1_000 * number,
        )
        for number in range(1, count + 1)
    ]  # fmt: skip
    return PartitionRecord(
        topic="t", partition=0, ledgers=tuple(ledgers), settings=TopicSettings(**settings), covered_ledger=count
    )


@pytest.mark.parametrize(
    ("settings", "keep", "now", "leave"),
    [
        ({}, NEVER, 10**9, []),
        ({}, 0, 0, [1, 2, 3]),
        ({}, 100, 0, [1, 2]),
        ({"offload_threshold_bytes": 250}, NEVER, 0, [1]),
        ({"offload_threshold_bytes": 250}, 150, 0, [1, 2]),
        ({"offload_threshold_seconds": 5}, NEVER, 7_000, [1, 2]),
        ({"offload_threshold_seconds": 0}, NEVER, 2_999, [1, 2]),
    ],
)
def test_the_oldest_ledgers_leave_first(settings: dict[str, int], keep: int, now: int, leave: list[int]) -> None:
    record = chain(**settings)
    assert offloadable(record, record.settings, now, keep_bytes=keep) == leave


def test_uncovered_ledger_stays() -> None:
    record = msgspec.structs.replace(chain(), covered_ledger=2, covered_run=4)
    assert offloadable(record, record.settings, 0, keep_bytes=0) == [1, 2]
    assert offloadable(msgspec.structs.replace(record, covered_run=3), record.settings, 0, keep_bytes=0) == [1]


def test_an_operator_may_name_the_first_ledger_that_stays() -> None:
    record = chain()
    assert offloadable(record, record.settings, 0, before=3) == [1, 2]
    assert offloadable(record, record.settings, 0, before=3, keep_bytes=0) == [1, 2, 3]


async def leaving(world: World, settings: TopicSettings = LEAVING) -> tuple[Cluster, Ports, TestProducer]:
    """Return a topic of 27 messages whose closed ledgers have all left."""
    cluster, client, producer = await started(world, settings)
    for _ in range(9):
        await producer.publish(3)
    await until(client, lambda: [bool(one.fragments) for one in record_of(cluster).ledgers] == [False] * 4 + [True])
    return cluster, client, producer


def record_of(cluster: Cluster) -> PartitionRecord:
    return cluster.topic()._log.record


def named(cluster: Cluster) -> list[str]:
    """The objects that the record names."""
    return [part.name for one in record_of(cluster).ledgers if one.offloaded for part in one.offloaded.parts]


async def held(cluster: Cluster, client: Ports) -> list[list[int]]:
    return [(await ask(client, cluster.addresses[name], ListLedgers())).ledgers for name in sorted(cluster.addresses)]


def test_a_topic_reads_the_same_when_its_ledgers_have_left() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await leaving(world)
        last = record_of(cluster).ledgers[-1].id
        await until(client, lambda: not cluster.topic()._maintenance._leftovers)
        assert all(ledgers in ([], [last]) for ledgers in await held(cluster, client))
        cluster.topic()._reads._old.give_way(1 << 40)
        cluster.topic()._log.cache.give_way(1 << 40)
        wanted = [f"p-{number}" for number in range(27)]
        assert [value for _, _, value in await read_all(client, cluster.current)] == wanted
        # And so it does for an owner that knows no more than the record.
        await cluster.replace_owner()
        producer.to = cluster.current
        await producer.open()
        await producer.publish(3)
        found = await read_all(client, cluster.current)
        assert [value for _, _, value in found] == [*wanted, "p-27", "p-28", "p-29"]
        at = (await ask(client, cluster.current, FindTime(time=0))).position
        assert at == position(found[0][0], 0)
        assert record_of(cluster).format == WITH_HISTORY

    World(1).play(scenario)


def test_nothing_leaves_unless_it_is_wanted() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        for _ in range(9):
            await producer.publish(3)
        await client.clock.sleep(10_000)
        assert all(one.offloaded is None for one in record_of(cluster).ledgers)
        assert record_of(cluster).format == FORMAT
        told = await ask(client, cluster.current, Offload(keep_bytes=0))
        assert told.asked
        await until(client, lambda: [one.offloaded is not None for one in record_of(cluster).ledgers][:4] == [True] * 4)
        told = await ask(client, cluster.current, Offload())
        assert (told.asked, told.offloaded_ledgers, told.error) == (False, 4, "")
        assert told.first_left == position(record_of(cluster).ledgers[-1].id, 0)
        assert all(one.fragments for one in record_of(cluster).ledgers), "the lag keeps them on bookies"
        stats = json.loads((await ask(client, cluster.current, Stats())).json)
        assert [ledger["offloaded"] for ledger in stats["ledgers"]] == [True] * 4 + [False]
        assert stats["offload"]["offloaded_bytes"] > 0

    World(2).play(scenario)


def test_requested_offload_outlives_the_owner() -> None:
    """Otherwise a new owner without the request would report it as done to the waiting operator."""

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        for _ in range(9):
            await producer.publish(3)
        third = record_of(cluster).ledgers[2].id
        write = world.objects.write
        world.objects.write = lambda name, data: write(name, data[:60])  # type: ignore[method-assign]
        await ask(client, cluster.current, Offload(before=third))
        await ask(client, cluster.current, Offload(keep_bytes=1 << 30))
        await until(client, lambda: bool(cluster.job(Offloading).state.error))
        assert cluster.topic().at_work, "an owner that has not done it does not close"
        await cluster.replace_owner()
        assert (await ask(client, cluster.current, Offload())).asked
        world.objects.write = write  # type: ignore[method-assign]
        await until(client, lambda: not record_of(cluster).asked.offload)
        assert [one.offloaded is not None for one in record_of(cluster).ledgers] == [True] * 2 + [False] * 3
        await cluster.replace_owner()
        assert not (await ask(client, cluster.current, Offload())).asked

    World(12).play(scenario)


def test_offload_asked_for_during_one_is_done_as_well() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        for _ in range(9):
            await producer.publish(3)
        first, *_ = record_of(cluster).ledgers
        write = world.objects.write

        async def more() -> None:
            await ask(client, cluster.current, Offload(keep_bytes=0))

        def write_and_ask(name: str, data: bytes) -> bool:
            world.objects.write = write  # type: ignore[method-assign]
            client.spawn(more(), "ask")
            return write(name, data)

        world.objects.write = write_and_ask  # type: ignore[method-assign]
        await ask(client, cluster.current, Offload(before=first.id + 1))
        await until(client, lambda: not record_of(cluster).asked.offload)
        assert [one.offloaded is not None for one in record_of(cluster).ledgers][:4] == [True] * 4

    World(13).play(scenario)


def test_a_ledger_stays_on_its_bookies_for_the_lag() -> None:
    async def scenario(world: World) -> None:
        settings = msgspec.structs.replace(LEAVING, offload_deletion_lag_ms=20_000)
        cluster, client, producer = await started(world, settings)
        for _ in range(5):
            await producer.publish(3)
        await until(client, lambda: all(one.offloaded for one in record_of(cluster).ledgers[:2]))
        assert all(one.fragments for one in record_of(cluster).ledgers)
        await client.clock.sleep(25_000)
        assert [bool(one.fragments) for one in record_of(cluster).ledgers[:2]] == [False, False]

    World(3).play(scenario)
    assert forgettable(chain(), 0, 10**9) == []


def test_offloaded_ledger_is_read_while_its_bookies_are_away() -> None:
    """They keep a copy for the lag, and are asked first; the store has all of it, the places of its runs as well."""

    async def scenario(world: World) -> None:
        settings = msgspec.structs.replace(LEAVING, offload_deletion_lag_ms=10**9)
        cluster, client, producer = await started(world, settings)
        for _ in range(9):
            await producer.publish(3)
        await until(client, lambda: all(one.offloaded and one.fragments for one in record_of(cluster).ledgers[:4]))
        cluster.topic()._reads._old.give_way(1 << 40)
        cluster.topic()._log.cache.give_way(1 << 40)
        cluster.topic()._log.tables.clear()  # an owner knows none of ledgers that it finds closed
        for name in sorted(cluster.addresses):
            world.crash(name)
        first = record_of(cluster).ledgers[0]
        reply = await ask(client, cluster.current, ReadPayload(ledger=first.id, entry=4))
        assert (reply.first_entry, reply.count) == (3, 3)

    World(17).play(scenario)


def test_data_that_an_absent_store_may_have_is_not_given_up() -> None:
    """The bookies keep a copy for the lag, and one run of it is damaged."""

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(
            world, msgspec.structs.replace(LEAVING, offload_deletion_lag_ms=10**9)
        )
        for _ in range(5):
            await producer.publish(3)
        await until(client, lambda: all(one.offloaded and one.fragments for one in record_of(cluster).ledgers[:2]))
        cluster.topic()._log.reader.history.clear()
        first = record_of(cluster).ledgers[0]
        cluster.flip(first.id, 0)
        world.objects.trouble.refused["get"] = Unavailable
        with pytest.raises(Unavailable, match="the store refuses"):
            await ask(client, cluster.current, AcceptLoss(ledger=first.id, entry=0))
        assert record_of(cluster).given_up == ()
        del world.objects.trouble.refused["get"]
        with pytest.raises(Invalid, match="it is in the object store"):
            await ask(client, cluster.current, AcceptLoss(ledger=first.id, entry=0))

    World(21).play(scenario)


def test_trimming_during_a_read_is_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        cluster, client, _ = await leaving(world)
        await cluster.replace_owner()
        await ask(client, cluster.current, ReadEnds())
        first = record_of(cluster).ledgers[0]
        footer = HistoryReader.footer

        async def trimmed(self: HistoryReader, part: HistoryPart) -> PartFooter:
            if ledger_of_object(part.name) == first.id and record_of(cluster).ledger(first.id) is not None:
                await ask(client, cluster.current, Progress(subscription="s", mark_delete=position(first.id, 5)))
                await until(client, lambda: part.name not in world.objects.objects)
            return await footer(self, part)

        monkeypatch.setattr(HistoryReader, "footer", trimmed)
        with pytest.raises(Unavailable):
            await ask(client, cluster.current, ReadPayload(ledger=first.id, entry=0))
        await client.clock.sleep(ALARM_MS)
        assert (await ask(client, cluster.current, Ping())).problem == ""
        with pytest.raises(NotFound, match="was trimmed"):
            await ask(client, cluster.current, ReadPayload(ledger=first.id, entry=0))

    World(22).play(scenario)


def test_objects_go_with_the_ledgers_that_are_trimmed() -> None:
    async def scenario(world: World) -> None:
        cluster, client, _ = await leaving(world)
        assert len(world.objects.objects) == 4
        second = record_of(cluster).ledgers[1]
        await ask(client, cluster.current, Progress(subscription="s", mark_delete=position(second.id, 5)))
        await until(client, lambda: len(world.objects.objects) == 2)
        assert sorted(world.objects.objects) == sorted(named(cluster))

    World(4).play(scenario)


def test_a_deleted_topic_leaves_no_object() -> None:
    async def scenario(world: World) -> None:
        cluster, client, _ = await leaving(world)
        await ask(client, cluster.current, DeleteTopic(force=True))
        assert not world.objects.objects

    World(5).play(scenario)


@pytest.mark.parametrize("made_again", [False, True])
def test_objects_left_by_a_deletion_are_collected(made_again: bool) -> None:
    """Also where another topic of the name, which stays on its bookies, was there first."""

    async def scenario(world: World) -> None:
        cluster, client, _ = await leaving(world)
        kept = dict(world.objects.objects)
        epoch = record_of(cluster).epoch
        await ask(client, cluster.current, DeleteTopic(force=True))
        if made_again:
            cluster.settings = TopicSettings()
            for _ in range(2):
                await cluster.start_owner()
                await ask(client, cluster.current, Ping())
        world.objects.objects.update(kept)
        later = f"{PREFIX}{1:012d}-{epoch + 1:012d}-{1:06d}.parquet"
        world.objects.objects[later] = b"of a topic that was made again"
        ports = world.client("collector")
        collected = await collect_garbage(ports, await cluster.list_bookies())
        assert sorted(collected.objects) == sorted(kept)
        assert list(world.objects.objects) == [later]

    World(6).play(scenario)


def test_a_new_owner_deletes_what_no_record_names() -> None:
    async def scenario(world: World) -> None:
        cluster, client, _ = await leaving(world)
        first = record_of(cluster).ledgers[0].id
        left, foreign = f"{PREFIX}{first:012d}-{1:012d}-{7:06d}.parquet", f"{PREFIX}notes.txt"
        newer = f"{PREFIX}{first:012d}-{99:012d}-{1:06d}.parquet"
        world.objects.objects |= {left: b"half of a ledger", foreign: b"not ours", newer: b"of an owner to come"}
        await cluster.replace_owner()
        await until(client, lambda: left not in world.objects.objects and len(named(cluster)) == 5)
        assert all(one.offloaded for one in record_of(cluster).ledgers), "this owner found them closed"
        assert sorted(world.objects.objects) == sorted([*named(cluster), foreign, newer])
        assert epoch_of(foreign) > 1 << 60

    World(7).play(scenario)


@pytest.mark.parametrize("how", ["damaged", "gone", "cut"])
def test_damaged_object_is_named(how: str) -> None:
    async def scenario(world: World) -> None:
        cluster, client, _ = await leaving(world)
        first = record_of(cluster).ledgers[0]
        assert first.offloaded is not None
        name = first.offloaded.parts[0].name
        data = world.objects.objects[name]
        if how == "gone":
            del world.objects.objects[name]
        else:
            world.objects.objects[name] = data[:100] if how == "cut" else data[:50] + b"!" + data[51:]
        await cluster.replace_owner()
        for _ in range(3):
            with pytest.raises(Unavailable, match="object history/t/0/"):
                await ask(client, cluster.current, ReadPayload(ledger=first.id, entry=0))
            await client.clock.sleep(2_000)
        assert name in (await ask(client, cluster.current, Ping())).problem
        if how == "damaged":  # else not even the place of its runs is known
            lost = json.loads((await ask(client, cluster.current, AcceptLoss(ledger=first.id, entry=0))).json)
            assert lost["messages"] == 3
        second = record_of(cluster).ledgers[1]
        reply = await ask(client, cluster.current, ReadPayload(ledger=second.id, entry=0))
        assert reply.count == 3, "other ledgers are read"
        with pytest.raises(Invalid, match="it is in the object store"):
            await ask(client, cluster.current, AcceptLoss(ledger=second.id, entry=0))

    World(8).play(scenario)


def test_a_store_that_stores_something_else_is_found_out() -> None:
    """An object is read back before the record names it, and the bookies keep their copies."""

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, LEAVING)
        write = world.objects.write
        world.objects.write = lambda name, data: write(name, data[:60] + b"!" + data[61:])  # type: ignore[method-assign]
        for _ in range(5):
            await producer.publish(3)
        await until(client, lambda: bool(cluster.job(Offloading).state.error))
        assert "does not fit its checksum" in (await ask(client, cluster.current, Offload())).error
        assert all(one.offloaded is None and one.fragments for one in record_of(cluster).ledgers)
        world.objects.write = write  # type: ignore[method-assign]
        await until(client, lambda: all(one.offloaded for one in record_of(cluster).ledgers[:2]))
        assert len(world.objects.objects) == 2, "what was refused is deleted"
        assert (await ask(client, cluster.current, Offload())).error == ""

    World(9).play(scenario)


def test_a_ledger_that_cannot_be_read_keeps_no_other() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world)
        for _ in range(9):
            await producer.publish(3)
        ledgers = [one.id for one in record_of(cluster).ledgers]
        cluster.flip(ledgers[1], 0)
        await ask(client, cluster.current, Offload(keep_bytes=0))
        offloading = cluster.job(Offloading)
        await until(client, lambda: offloading.state.error != "")
        gone = [one.id for one in record_of(cluster).ledgers if one.offloaded is not None]
        assert gone == [ledgers[0], *ledgers[2:4]]
        told = await ask(client, cluster.current, Offload())
        assert told.asked
        assert f"run 0 of ledger {ledgers[1]} cannot be read" in told.error

    World(11).play(scenario)


def test_a_run_whose_bytes_change_is_compared_by_its_rows() -> None:
    """A producer that compresses: other bytes come out of the table, and the same rows."""

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, LEAVING)
        values = [f"p-{number}" for number in range(3)]
        plain = make_test_run(values)
        rows = decode_body(plain.payload[12:], plain.shape, 3)
        hashes = np.frombuffer(plain.payload[:12], np.uint32)
        await producer.send(make_run(StoredBatch(rows, None, hashes), "zstd"), 0)
        producer.next = 3
        for _ in range(3):
            await producer.publish(3)
        await until(client, lambda: not record_of(cluster).ledgers[0].fragments)
        cluster.topic()._log.cache.give_way(1 << 40)
        assert [value for _, _, value in await read_all(client, cluster.current)][:3] == values

    World(10).play(scenario)
