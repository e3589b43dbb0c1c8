"""The messages of a key are forgotten wherever they lie, and all others stay as they are."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from sluice.actors.ledger.record import WITH_HISTORY, LedgerState
from sluice.actors.messages import CloseIdle, Compact, Erase, ListLedgers, Progress, ReadEnds, TopicSettings
from sluice.actors.ports import Ports
from sluice.actors.topic.background import erasing, offloading
from sluice.storage.errors import Invalid, Overloaded, Unavailable
from sluice.storage.format.position import position
from sluice.storage.history.checked_parquet import read_group
from sluice.storage.history.part import decode_footer
from tests.actors.topic.background.test_compaction import View, compacted, publish
from tests.actors.topic.background.test_offloading import named, record_of
from tests.actors.topic.background.test_table_following import with_catalog
from tests.actors.topic.cluster import Cluster, TestProducer, read_all
from tests.actors.topic.partition.test_reads import ask, started, until
from tests.sim.world import World

SETTINGS = TopicSettings(roll_entries=6)
STORED = msgspec.structs.replace(SETTINGS, offload_threshold_bytes=0, offload_deletion_lag_ms=0)


@pytest.fixture(autouse=True)
def forgotten_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the wait for other processes to 0, as only the owner reads here."""
    monkeypatch.setattr(erasing, "FORGOTTEN_MS", 0)


async def filled(world: World, settings: TopicSettings) -> tuple[Cluster, Ports, TestProducer]:
    """Store runs of three messages, every other run with one of ada: in four ledgers and an open one."""
    cluster, client, producer = await started(world, settings)
    for number in range(9):
        who = "ada" if number % 2 else "bob"
        await publish(producer, [(who, f"{who}-{number}"), ("eve", f"eve-{number}"), (None, f"none-{number}")])
    return cluster, client, producer


WANTED = [
    value for number in range(9) for value in ("" if number % 2 else f"bob-{number}", f"eve-{number}", f"none-{number}")
]


async def erased(client: Ports, cluster: Cluster, key: bytes = b"ada") -> Any:
    """Ask, and wait until it is done."""
    await ask(client, cluster.current, Erase(key=key))
    await until(client, lambda: not record_of(cluster).erasures)
    return await ask(client, cluster.current, Erase())


async def values(client: Ports, cluster: Cluster) -> list[str]:
    return [value for _, _, value in await read_all(client, cluster.current)]


def keys_stored(world: World, cluster: Cluster) -> list[bytes | None]:
    """Return the key of every message in every object that the record names."""
    found: list[bytes | None] = []
    for ledger in record_of(cluster).ledgers:
        for part in ledger.offloaded.parts if ledger.offloaded else ():
            data = world.objects.objects[part.name]
            footer = decode_footer(data[part.size - part.footer_bytes :], part.size, part.footer_crc)
            for number, group in enumerate(footer.groups):
                rows = read_group(footer, number, data[group.start : group.start + group.length])
                found += rows.column("key").to_pylist()
    return found


async def ledgers_on_bookies(client: Ports, cluster: Cluster) -> list[int]:
    asked = [await ask(client, cluster.addresses[name], ListLedgers()) for name in sorted(cluster.addresses)]
    return sorted({ledger for reply in asked for ledger in reply.ledgers})


@pytest.mark.parametrize("settings", [SETTINGS, STORED], ids=["on bookies", "in the store"])
def test_a_key_is_forgotten_wherever_it_lies(settings: TopicSettings) -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await filled(world, settings)
        if settings is STORED:
            await until(client, lambda: all(not one.fragments for one in record_of(cluster).ledgers[:4]))
        before = [(first, count) for first, count, _ in await read_all(client, cluster.current)]
        told = await erased(client, cluster)
        assert (told.keys, told.ledgers_left, told.done_messages, told.error) == (0, 0, 4, "")
        assert told.done_at > 0
        found = await read_all(client, cluster.current)
        assert [value for _, _, value in found] == WANTED
        assert [(first, count) for first, count, _ in found] == before
        assert b"ada" not in keys_stored(world, cluster)
        record = record_of(cluster)
        assert record.format == WITH_HISTORY
        assert b"ada" not in msgspec.json.encode(record)
        names = {part.name for one in record.ledgers if one.offloaded for part in one.offloaded.parts}
        assert sorted(world.objects.objects) == sorted(names), "old objects are deleted"
        gone = [one.id for one in record.ledgers if not one.fragments]
        assert len(gone) == 4
        assert not {*gone} & {*await ledgers_on_bookies(client, cluster)}
        # What comes later is another matter, and so it is for an owner that knows no more than the record.
        await cluster.replace_owner()
        producer.to = cluster.current
        await producer.open()
        await publish(producer, [("ada", "ada-later")])
        assert await values(client, cluster) == [*WANTED, "ada-later"]

    World(1).play(scenario)


def test_a_ledger_without_the_key_stays_where_it_is() -> None:
    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, SETTINGS)
        for number in range(6):
            await publish(producer, [("ada" if number == 2 else "bob", f"m-{number}")] * 3)
        told = await erased(client, cluster)
        assert told.done_messages == 3
        places = [(bool(one.fragments), one.offloaded is not None) for one in record_of(cluster).ledgers]
        assert places[:3] == [(True, False), (False, True), (True, False)]
        assert len(world.objects.objects) == 1
        assert (await erased(client, cluster, b"nobody")).done_messages == 0
        assert record_of(cluster).ledgers[2].state is LedgerState.CLOSED

    World(2).play(scenario)


def test_the_compacted_table_forgets_it_too() -> None:
    async def scenario(world: World) -> None:
        cluster, client, _ = await filled(world, SETTINGS)
        table = await compacted(client, cluster)
        view = View()
        await view.read(client, cluster.current)
        assert view.values["ada"] == "ada-7"
        await erased(client, cluster)
        newest = record_of(cluster).compacted
        assert newest is not None
        assert newest.horizon == table.horizon
        view = View()
        await view.read(client, cluster.current)
        assert view.values == {"bob": "bob-8", "eve": "eve-8"}
        assert not (await ask(client, cluster.current, Compact())).error

    World(3).play(scenario)


def test_messages_in_the_compacted_table_alone_are_forgotten() -> None:
    """The log was trimmed, and its owner has ended: no ledger is left whose number could say how far it went."""

    async def scenario(world: World) -> None:
        cluster, client, _ = await filled(world, SETTINGS)
        await compacted(client, cluster)
        last = (await ask(client, cluster.current, ReadEnds())).last
        await ask(client, cluster.current, Progress(subscription="s", mark_delete=last))
        assert (await ask(client, cluster.current, CloseIdle(idle_ms=0))).closed
        await cluster.replace_owner()
        assert record_of(cluster).ledgers == ()
        view = View()
        await view.read(client, cluster.current)
        assert view.values["ada"] == "ada-7"
        await erased(client, cluster)
        view = View()
        await view.read(client, cluster.current)
        assert view.values == {"bob": "bob-8", "eve": "eve-8"}

    World(10).play(scenario)


@pytest.mark.parametrize("replaced", [False, True], ids=["the same owner", "the next owner"])
def test_the_end_waits_for_the_objects_of_an_older_table(replaced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasing, "RETRY_MS", 500)

    async def scenario(world: World) -> None:
        cluster, client, _ = await filled(world, SETTINGS)
        old = await compacted(client, cluster)
        names = [part.name for part in old.parts]
        world.objects.trouble.refused["delete compacted/"] = Unavailable
        await ask(client, cluster.current, Erase(key=b"ada"))
        await until(client, lambda: record_of(cluster).compacted not in (None, old))
        if replaced:
            world.crash(f"owner{cluster.owners}")
            await cluster.replace_owner()
        await until(client, lambda: cluster.job(erasing.Erasing).error.startswith("the compacted log: "))
        assert (await ask(client, cluster.current, Erase())).keys == 1
        del world.objects.trouble.refused["delete compacted/"]
        await until(client, lambda: not record_of(cluster).erasures)
        assert not {*names} & {*world.objects.objects}

    World(11).play(scenario)


def test_the_end_waits_for_the_table_of_a_catalog() -> None:
    """The table may have copies of the old objects, a file for each day."""

    async def scenario(world: World) -> None:
        catalog = with_catalog(world)
        cluster, client, _ = await filled(world, STORED)
        await until(client, lambda: all(not one.fragments for one in record_of(cluster).ledgers[:4]))
        await until(client, lambda: catalog.tables.get("t") == sorted(named(cluster)))
        follow = catalog.follow

        async def refuse(machine: str, topic: str) -> None:
            raise Unavailable("planted")

        catalog.follow = refuse  # type: ignore[method-assign]
        await ask(client, cluster.current, Erase(key=b"ada"))
        await until(client, lambda: cluster.job(erasing.Erasing).error == "the table: planted")
        assert b"ada" not in keys_stored(world, cluster)
        assert (await ask(client, cluster.current, Erase())).keys == 1
        catalog.follow = follow  # type: ignore[method-assign]
        await until(client, lambda: not record_of(cluster).erasures)
        assert catalog.tables["t"] == sorted(named(cluster))

    World(12).play(scenario)


def test_a_hanging_catalog_holds_up_no_offload_and_no_erasing() -> None:
    """Only the end of the erasing waits for it."""

    async def scenario(world: World) -> None:
        catalog = with_catalog(world)
        follow, hangs = catalog.follow, world.loop.create_future()
        asked: list[str] = []

        async def hang(machine: str, topic: str) -> None:
            asked.append(topic)
            await asyncio.shield(hangs)
            await follow(machine, topic)

        catalog.follow = hang  # type: ignore[method-assign]
        cluster, client, producer = await filled(world, STORED)
        await until(client, lambda: bool(asked))
        await publish(producer, [("ada", "late"), ("eve", "late"), ("eve", "later")] * 3)
        await until(client, lambda: b"ada" in keys_stored(world, cluster) and len(named(cluster)) == 5)
        await ask(client, cluster.current, Erase(key=b"ada"))
        await until(client, lambda: b"ada" not in keys_stored(world, cluster))
        assert not catalog.tables
        hangs.set_result(None)
        await until(client, lambda: not record_of(cluster).erasures)
        assert catalog.tables["t"] == sorted(named(cluster))

    World(13).play(scenario)


def test_a_record_from_before_the_erasing_loses_no_object() -> None:
    """The objects that the record names are deleted, and the rewritten ones are the only copy of all other messages."""

    async def scenario(world: World) -> None:
        cluster, client, _ = await filled(world, STORED)
        await until(client, lambda: all(not one.fragments for one in record_of(cluster).ledgers[:4]))
        backup = list(world.meta.records["partition/t/0"])
        await erased(client, cluster)
        anew = named(cluster)
        world.crash(f"owner{cluster.owners}")
        world.meta.records["partition/t/0"] = backup
        await cluster.replace_owner()
        objects = cluster.job(offloading.Offloading).objects
        await until(client, lambda: not objects.collection_due())
        assert not {*anew} - {*world.objects.objects}
        await until(client, lambda: named(cluster)[:4] == anew[:4])
        assert await values(client, cluster) == WANTED

    World(13).play(scenario)


def test_a_bookie_that_is_away_is_waited_for() -> None:
    async def scenario(world: World) -> None:
        cluster, client, _ = await filled(world, STORED)
        await until(client, lambda: all(not one.fragments for one in record_of(cluster).ledgers[:4]))
        world.crash("b1")
        await ask(client, cluster.current, Erase(key=b"ada"))
        await until(client, lambda: "bookie b1" in cluster.job(erasing.Erasing).error)
        assert (await ask(client, cluster.current, Erase())).messages == 4
        await cluster.restart_bookie("b1")
        await until(client, lambda: not record_of(cluster).erasures)

    World(4).play(scenario)


def test_a_ledger_trimmed_meanwhile_waits_for_bookies_too() -> None:
    """The bookie that is away has its messages, though no record names them any more."""

    async def scenario(world: World) -> None:
        cluster, client, _ = await filled(world, SETTINGS)
        world.objects.trouble.refused["put"] = Unavailable
        world.crash("b1")
        await ask(client, cluster.current, Erase(key=b"ada"))
        await until(client, lambda: cluster.job(erasing.Erasing).error != "")
        last = (await ask(client, cluster.current, ReadEnds())).last
        await ask(client, cluster.current, Progress(subscription="s", mark_delete=last))
        await until(client, lambda: len(record_of(cluster).ledgers) < 2)
        await until(client, lambda: "bookie b1" in cluster.job(erasing.Erasing).error)
        await cluster.restart_bookie("b1")
        await until(client, lambda: not record_of(cluster).erasures)

    World(14).play(scenario)


def test_the_end_waits_until_no_memory_has_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key for itself, so that those who ask again and again keep none from its end."""
    monkeypatch.setattr(erasing, "FORGOTTEN_MS", 40_000)
    monkeypatch.setattr(erasing, "RETRY_MS", 500)

    async def scenario(world: World) -> None:
        cluster, client, _ = await filled(world, SETTINGS)
        await ask(client, cluster.current, Erase(key=b"ada"))
        await until(client, lambda: "have it in memory" in cluster.job(erasing.Erasing).error)
        began = client.clock.monotonic()
        await client.clock.sleep(30_000)
        await ask(client, cluster.current, Erase(key=b"eve"))
        await until(client, lambda: [one.key for one in record_of(cluster).erasures] == [b"eve"])
        assert 38_000 < client.clock.monotonic() - began < 45_000
        await until(client, lambda: not record_of(cluster).erasures)

    World(15).play(scenario)


def test_message_of_an_erased_key_is_late_then_the_wait_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasing, "FORGOTTEN_MS", 40_000)
    monkeypatch.setattr(erasing, "RETRY_MS", 500)

    async def scenario(world: World) -> None:
        cluster, client, producer = await filled(world, SETTINGS)
        for _ in range(2):  # the second time the open ledger is empty, and is meant as well
            await ask(client, cluster.current, Erase(key=b"ada"))
            await until(client, lambda: "have it in memory" in cluster.job(erasing.Erasing).error)
        await client.clock.sleep(30_000)
        await publish(producer, [("ada", "late")])
        came = client.clock.monotonic()
        await ask(client, cluster.current, Erase(key=b"ada"))
        await until(client, lambda: not record_of(cluster).erasures)
        assert client.clock.monotonic() - came > 38_000
        assert "late" not in await values(client, cluster)

    World(16).play(scenario)


@pytest.mark.parametrize("settings", [SETTINGS, STORED], ids=["on bookies", "in the store"])
def test_a_ledger_that_cannot_be_read_holds_up_the_end_alone(settings: TopicSettings) -> None:
    async def scenario(world: World) -> None:
        cluster, client, _ = await filled(world, settings)
        first = record_of(cluster).ledgers[0]
        if settings is STORED:
            await until(client, lambda: all(not one.fragments for one in record_of(cluster).ledgers[:4]))
            stored = record_of(cluster).ledgers[0].offloaded
            assert stored is not None
            del world.objects.objects[stored.parts[0].name]
            cluster.topic()._log.reader.history.clear()
        else:
            cluster.flip(first.id, 0)
        await ask(client, cluster.current, Erase(key=b"ada"))
        await until(client, lambda: cluster.job(erasing.Erasing).error != "")
        told = await ask(client, cluster.current, Erase())
        assert (told.keys, told.messages) == (1, 3)
        assert ("no object" if settings is STORED else f"ledger {first.id} cannot be read") in told.error
        (erasure,) = record_of(cluster).erasures
        assert erasure.ledgers == tuple(one.id for one in record_of(cluster).ledgers[1:4])

    World(5).play(scenario)


def test_a_new_owner_goes_on_with_it() -> None:
    """Killed again and again, whatever it was doing."""

    async def scenario(world: World) -> None:
        cluster, client, _ = await filled(world, SETTINGS)
        await ask(client, cluster.current, Erase(key=b"ada"))
        for _ in range(12):
            await client.clock.sleep(world.rng.randrange(400))
            world.crash(f"owner{cluster.owners}")
            await cluster.replace_owner()
        await until(client, lambda: not record_of(cluster).erasures)
        assert sum(one.messages for one in record_of(cluster).erased) == 4
        assert await values(client, cluster) == WANTED

    for seed in range(5):
        World(seed).play(scenario)


def test_read_during_an_erasure_is_whole_or_erased() -> None:
    async def scenario(world: World) -> None:
        cluster, client, _ = await filled(world, STORED)
        first = position(record_of(cluster).ledgers[0].id, 0)
        await ask(client, cluster.current, Erase(key=b"ada"))
        was = [value if value else f"ada-{number // 3}" for number, value in enumerate(WANTED)]
        while record_of(cluster).erasures:
            cluster.topic()._reads._old.give_way(1 << 40)
            cluster.topic()._log.cache.give_way(1 << 40)
            found = await values(client, cluster)
            assert all(value in (old, new) for value, old, new in zip(found, was, WANTED, strict=True))
        assert await values(client, cluster) == WANTED
        assert not cluster.topic()._reads.unreadable.rows()
        assert first >= 0

    World(6).play(scenario)


def test_every_object_of_a_ledger_is_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those without the key stay."""
    for name in ("GROUP_BYTES", "PART_BYTES"):
        monkeypatch.setattr(offloading, name, 1)

    async def scenario(world: World) -> None:
        cluster, client, _ = await filled(world, msgspec.structs.replace(STORED, roll_entries=12))
        await until(client, lambda: not record_of(cluster).ledgers[0].fragments)
        before = sorted(world.objects.objects)
        await erased(client, cluster)
        assert b"ada" not in keys_stored(world, cluster)
        assert len({*before} & {*world.objects.objects}) == 4

    monkeypatch.setattr("sluice.actors.topic.background.offloading.READ_AT_ONCE", 1)
    World(8).play(scenario)


def test_a_store_that_stores_something_else_is_found_out() -> None:
    """A rewritten object is read back before the record names it."""

    async def scenario(world: World) -> None:
        cluster, client, _ = await filled(world, STORED)
        await until(client, lambda: all(not one.fragments for one in record_of(cluster).ledgers[:4]))
        before = record_of(cluster).ledgers[:4]
        write = world.objects.write
        world.objects.write = lambda name, data: write(name, data[:60] + b"!" + data[61:])  # type: ignore[method-assign]
        await ask(client, cluster.current, Erase(key=b"ada"))
        await until(client, lambda: "does not fit its checksum" in cluster.job(erasing.Erasing).error)
        assert record_of(cluster).ledgers[:4] == before
        world.objects.write = write  # type: ignore[method-assign]
        await until(client, lambda: not record_of(cluster).erasures)
        assert await values(client, cluster) == WANTED

    World(9).play(scenario)


def test_invalid_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasing, "MOST_KEYS", 2)

    async def scenario(world: World) -> None:
        cluster, client, _ = await filled(world, SETTINGS)
        for key in (b"", bytes(5_000)):
            with pytest.raises(Invalid, match="a key has 1 to"):
                await ask(client, cluster.current, Erase(key=key))

        world.objects.trouble.refused["put"] = Unavailable
        for key in (b"ada", b"eve", b"ada"):
            await ask(client, cluster.current, Erase(key=key))
        with pytest.raises(Overloaded, match="2 keys are being erased"):
            await ask(client, cluster.current, Erase(key=b"bob"))
        await until(client, lambda: cluster.job(erasing.Erasing).error.startswith("the store refuses"))

    World(7).play(scenario)
