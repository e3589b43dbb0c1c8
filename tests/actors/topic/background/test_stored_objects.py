"""Objects of a partition in the store: which are deleted, and which a record that may be older than they are keeps."""

from __future__ import annotations

import msgspec
import pytest

from sluice.actors.ledger.history_objects import ledger_of_object, writing_of
from sluice.actors.messages import Offload
from sluice.actors.topic.background import offloading
from sluice.storage.errors import Corrupt
from tests.actors.topic.background.test_offloading import LEAVING, PREFIX, leaving, named, record_of
from tests.actors.topic.cluster import read_all
from tests.actors.topic.partition.test_reads import ask, started, until
from tests.sim.world import World


def test_deletion_asked_for_during_one_is_done_too() -> None:
    async def scenario(world: World) -> None:
        cluster, client, _ = await leaving(world)
        objects = cluster.job(offloading.Offloading).objects
        first, second = (objects.new_name(one.id) for one in record_of(cluster).ledgers[:2])
        world.objects.objects |= {first: b"of a ledger that was trimmed", second: b"of one that is trimmed just now"}
        erase = world.objects.erase

        def erase_and_trim(name: str) -> None:
            if name == first and second in world.objects.objects:
                objects.unwanted([second])
            erase(name)

        world.objects.erase = erase_and_trim  # type: ignore[method-assign]
        objects.unwanted([first])
        cluster.topic()._maintenance.wake()
        await until(client, lambda: not objects.any_unwanted)
        assert sorted(world.objects.objects) == sorted(named(cluster))

    World(19).play(scenario)


def test_a_record_from_a_backup_has_no_object_deleted() -> None:
    """Ledgers that left after the backup was made are in the store alone."""

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, msgspec.structs.replace(LEAVING, offload_threshold_bytes=-1))
        for _ in range(5):
            await producer.publish(3)
        backup = list(world.meta.records["partition/t/0"])
        chain = [one.id for one in record_of(cluster).ledgers]
        await ask(client, cluster.current, Offload(before=chain[2]))
        await until(client, lambda: [bool(one.fragments) for one in record_of(cluster).ledgers] == [False, False, True])
        await until(client, lambda: not cluster.topic()._maintenance._leftovers)
        later = f"{PREFIX}{chain[2] + 1:012d}-{1:012d}-{7:06d}.parquet"
        world.objects.objects[later] = b"of a ledger that the backup does not know"
        stored = sorted(world.objects.objects)
        assert [ledger_of_object(name) for name in stored] == [*chain[:2], chain[2] + 1]
        world.crash(f"owner{cluster.owners}")
        world.meta.records["partition/t/0"] = backup
        cluster.settings = LEAVING
        await cluster.replace_owner()
        objects = cluster.job(offloading.Offloading).objects
        await until(client, lambda: not objects.collection_due())
        assert [name for name in stored if name not in world.objects.objects] == []
        # What the record takes for being on bookies is found where it is.
        await until(client, lambda: all(one.offloaded for one in record_of(cluster).ledgers[:2]))
        wanted = [f"p-{number}" for number in range(15)]
        assert [value for _, _, value in await read_all(client, cluster.current)] == wanted

    World(18).play(scenario)


@pytest.mark.parametrize("how", ["gone", "damaged"])
@pytest.mark.parametrize("part", [0, 1])
def test_a_newer_copy_that_is_not_whole_is_not_named(how: str, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GROUP_BYTES", "PART_BYTES", "READ_AT_ONCE"):
        monkeypatch.setattr(offloading, name, 1)

    async def scenario(world: World) -> None:
        cluster, client, producer = await started(world, msgspec.structs.replace(LEAVING, offload_threshold_bytes=-1))
        for _ in range(5):
            await producer.publish(3)
        backup = list(world.meta.records["partition/t/0"])
        first, second, third = (one.id for one in record_of(cluster).ledgers)
        await ask(client, cluster.current, Offload(before=third))
        await until(client, lambda: [bool(one.fragments) for one in record_of(cluster).ledgers] == [False, False, True])
        await until(client, lambda: not cluster.topic()._maintenance._leftovers)
        world.crash(f"owner{cluster.owners}")
        world.meta.records["partition/t/0"] = backup
        name = [name for name in sorted(world.objects.objects) if ledger_of_object(name) == first][part]
        data = world.objects.objects.pop(name)
        if how == "damaged":
            world.objects.objects[name] = data[:50] + b"!" + data[51:]
        cluster.settings = LEAVING
        await cluster.replace_owner()
        await until(client, lambda: any(one.offloaded for one in record_of(cluster).ledgers))
        stored = [one.id for one in record_of(cluster).ledgers if one.offloaded]
        assert second in stored
        assert first not in stored
        assert [name for name in world.objects.objects if ledger_of_object(name) == first], "what there is stays"

    World(23).play(scenario)


def test_a_name_that_is_taken_is_not_deleted() -> None:
    """After a backup was restored an owner may have the epoch of an earlier one, whose object may be the only copy."""

    async def scenario(world: World) -> None:
        cluster, *_ = await leaving(world)
        objects = cluster.job(offloading.Offloading).objects
        first = record_of(cluster).ledgers[0].id
        taken = objects.new_name(first)
        world.objects.objects[taken] = b"of another owner of this epoch"
        with pytest.raises(Corrupt, match="there is an object"):
            await objects.put(taken, b"mine")
        objects.unwanted([taken])
        assert not objects.any_unwanted
        await objects.clean_up()
        assert world.objects.objects[taken] == b"of another owner of this epoch"
        # A collection tells which numbers are taken.
        later = f"{PREFIX}{first:012d}-{record_of(cluster).epoch:012d}-{70:06d}.parquet"
        world.objects.objects[later] = b"of another one"
        objects._collect_at = 0
        await objects.clean_up()
        assert writing_of(objects.new_name(first))[1] == 71

    World(20).play(scenario)
