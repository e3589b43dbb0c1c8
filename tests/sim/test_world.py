"""The world replays exactly, and every fault really happens."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sluice.actors.messages import LedgerList, ListLedgers, Stats
from sluice.actors.ports import DiskFailed, DiskFull, Unknown
from sluice.actors.ports.wire import Blob
from sluice.storage.errors import NotFound, Unavailable
from tests.sim.disk import DiskFaults
from tests.sim.helpers import Counter, ask, ping
from tests.sim.loop import SimFailure
from tests.sim.world import World


class Silent(Counter):
    """Takes a minute for each answer."""

    async def on_list_ledgers(self, request: ListLedgers) -> LedgerList:
        await self.ports.clock.sleep(60_000)
        return await super().on_list_ledgers(request)


def busy_digest(seed: int) -> str:
    """A run with every kind of trouble; its digest. Also called in a second process."""
    world = World(seed)
    world.network.faults.loss = 0.1
    world.network.faults.repeat = 0.1
    world.network.faults.late = 0.1
    world.meta.trouble.faults.fail_after = 0.2

    async def scenario(world: World) -> None:
        await world.start("one", Counter, disk="one")
        client = world.client("client")
        for turn in range(40):
            answer = await ask(client, world.process("one").address)
            client.log("answer", turn=turn, answer=answer, at=client.clock.now())
            try:
                client.log("created", done=await client.meta.create("record", turn + 1, b"v"))
            except Unavailable as error:
                client.log("meta", error=str(error))
            if turn % 10 == 9:
                world.crash("one")
                await world.restart("one")

    world.play(scenario)
    return world.digest()


def test_the_same_seed_twice_gives_the_same_digest() -> None:
    assert busy_digest(5) == busy_digest(5)
    assert busy_digest(5) != busy_digest(6)


def test_the_digest_does_not_depend_on_process_or_hash_seed() -> None:
    code = "from tests.sim.test_world import busy_digest; print(busy_digest(5))"
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": salt},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for salt in ("1", "2")
    }
    assert told == {busy_digest(5)}


def test_a_call_is_answered_and_an_error_travels_by_its_class() -> None:
    async def scenario(world: World) -> None:
        address = await world.start("one", Counter)
        client = world.client("client")
        assert await ask(client, address) == 1
        assert not isinstance(await ping(client, address), Unknown)
        with pytest.raises(NotFound, match="no stats here"):
            await client.net.call(address, Stats(), 100)

    World(1).play(scenario)


def test_a_late_copy_runs_after_the_caller_got_unknown() -> None:
    async def scenario(world: World) -> None:
        address = await world.start("one", Counter)
        client = world.client("client")
        world.network.faults.late = 1.0
        world.network.faults.late_ms = (1000, 1000)
        unknown = 0
        for _ in range(20):
            unknown += await ask(client, address) is None
        executed = world.process("one").actor.executed  # type: ignore[union-attr]
        await client.clock.sleep(5000)
        assert unknown > 0
        assert world.process("one").actor.executed > executed  # type: ignore[union-attr]
        assert world.network.counters["late"] > 0

    World(2).play(scenario)


def test_messages_are_lost_and_repeated() -> None:
    async def scenario(world: World) -> None:
        address = await world.start("one", Counter)
        client = world.client("client")
        world.network.faults.loss = 0.3
        assert None in [await ask(client, address) for _ in range(20)]
        world.network.heal()
        world.network.faults.repeat = 1.0
        before = world.process("one").actor.executed  # type: ignore[union-attr]
        await ask(client, address)
        await client.clock.sleep(100)
        assert world.process("one").actor.executed == before + 2  # type: ignore[union-attr]

    World(3).play(scenario)


@pytest.mark.parametrize("ends", ["before", "meanwhile", "not"])
def test_a_call_within_a_machine_is_answered(ends: str) -> None:
    """The actors of a machine are one process: it lives on when one of them ends, and nothing is lost within it."""

    async def scenario(world: World) -> None:
        address = await world.start("one", Silent if ends == "meanwhile" else Counter, machine="m")
        near, far = world.client("near", machine="m"), world.client("far")
        world.network.faults.gone_hint, world.network.faults.loss = 0.0, 1.0
        if ends == "before":
            world.stop(address)
        elif ends == "meanwhile":
            world.loop.after(1_000, world.stop, address)
        assert isinstance(await far.net.call(address, ListLedgers(), 500), Unknown)
        asked = world.loop.now
        answer = await near.net.call(address, ListLedgers(), 60_000)
        assert isinstance(answer, Unknown) == (ends != "not")
        assert world.loop.now - asked < 1_000

    World(5).play(scenario)


def test_a_partition_can_be_one_way() -> None:
    async def scenario(world: World) -> None:
        address = await world.start("one", Counter)
        client = world.client("client")
        heal = world.partition(["one"], ["client"], both=False)
        assert await ask(client, address) is None
        assert world.process("one").actor.executed == 1  # type: ignore[union-attr]
        heal()
        assert await ask(client, address) == 2
        heal = world.partition(["one"], ["client"])
        assert await ask(client, address) is None
        assert world.process("one").actor.executed == 2  # type: ignore[union-attr]
        heal()

    World(4).play(scenario)


@pytest.mark.parametrize(("cut", "asks", "felt"), [("m1", True, True), ("one", True, False), ("m1", False, False)])
def test_a_cut_that_loses_nothing_fails_the_run(cut: str, asks: bool, felt: bool) -> None:
    """A process named where a machine is meant, or nobody who speaks meanwhile: such a test shows nothing."""

    async def scenario(world: World) -> None:
        address = await world.start("one", Counter, machine="m1")
        client = world.client("client")
        heal = world.partition(["client"], [cut])
        if asks:
            await ask(client, address)
        heal()

    if felt:
        World(5).play(scenario)
        return
    with pytest.raises(SimFailure, match="lost no message; the machines are"):
        World(5).play(scenario)


def test_a_paused_process_is_a_zombie_that_comes_back() -> None:
    async def scenario(world: World) -> None:
        address = await world.start("one", Counter)
        client = world.client("client")
        world.pause("one")
        assert await ask(client, address) is None
        newer = await world.restart("one")
        assert newer != address
        assert await ask(client, newer) == 1
        world.resume("one")
        await client.clock.sleep(10)
        assert await ask(client, address) == 2

    World(5).play(scenario)


def test_a_crashed_process_comes_back_at_another_address() -> None:
    async def scenario(world: World) -> None:
        address = await world.start("one", Counter, disk="one")
        client = world.client("client")
        assert await ask(client, address) == 1
        world.crash("one")
        hints = [await ping(client, address) for _ in range(20)]
        assert {hint.gone for hint in hints if isinstance(hint, Unknown)} == {True, False}
        assert await ask(client, await world.restart("one")) == 2

    World(6).play(scenario)


def test_synced_bytes_stay_and_the_rest_may_be_lost() -> None:
    kept: dict[str, int] = {}
    for seed in range(60):

        async def scenario(world: World) -> None:
            disk = world.disk("one")
            await disk.append("journal", [b"durable"], sync=True)
            for _ in range(3):
                await disk.append("journal", [b"abcd"], sync=False)
            disk.crash()
            data = await disk.read("journal", 0, 100)
            assert data[:7] == b"durable"
            rest = data[7:]
            assert (b"abcd" * 3).startswith(rest.rstrip(b"\0"))
            for name in disk.counters:
                kept[name] = kept.get(name, 0) + 1
            kept[f"{len(rest)} bytes"] = 1

        World(seed).play(scenario)
    assert kept["lost tail"] > 10
    assert kept["torn write"] > 5
    assert kept["zeroed tail"] > 0
    assert {"0 bytes", "4 bytes", "8 bytes", "12 bytes"} <= set(kept)


def test_a_failed_sync_is_final_until_the_node_starts_anew() -> None:
    async def scenario(world: World) -> None:
        disk = world.disk("one")
        await disk.append("journal", [b"good"], sync=True)
        world.disk_faults.fail_sync_chance = 1.0
        with pytest.raises(DiskFailed):
            await disk.append("journal", [b"bad"], sync=True)
        world.disk_faults.fail_sync_chance = 0.0
        with pytest.raises(DiskFailed):
            await disk.read("journal", 0, 4)
        disk.crash()
        assert (await disk.read("journal", 0, 10))[:4] == b"good"

    World(7).play(scenario)


def test_bytes_of_a_failed_sync_are_lost_with_the_power() -> None:
    async def scenario(world: World) -> None:
        disk = world.disk("one")
        await disk.append("journal", [b"good"], sync=True)
        world.disk_faults.fail_sync_chance = 1.0
        with pytest.raises(DiskFailed):
            await disk.append("journal", [b"bad"], sync=True)
        world.disk_faults = disk.faults = DiskFaults(keep_chance=0.0)
        disk.crash(power=False)
        assert await disk.read("journal", 0, 10) == b"goodbad"
        await disk.append("journal", [b"new"], sync=True)
        disk.crash()
        assert await disk.read("journal", 0, 10) == b"good\0\0\0new"

    World(7).play(scenario)


def test_a_full_disk_writes_nothing() -> None:
    async def scenario(world: World) -> None:
        disk = world.disk("one")
        world.disk_faults.capacity = 10
        await disk.append("journal", [b"12345678"], sync=True)
        with pytest.raises(DiskFull):
            await disk.append("journal", [b"123"], sync=True)
        assert await disk.size("journal") == 8
        assert await disk.free() == 2

    World(8).play(scenario)


def test_a_slow_disk_and_a_bit_flip() -> None:
    async def scenario(world: World) -> None:
        disk = world.disk("one")
        world.disk_faults.slow_chance = 1.0
        before = world.loop.now
        await disk.append("journal", [bytes(100)], sync=True)
        assert world.loop.now - before >= 50
        assert disk.flip() is not None
        assert sum(map(int.bit_count, await disk.read("journal", 0, 100))) == 1

    World(9).play(scenario)


def test_the_metadata_store_loses_answers_and_writes_late() -> None:
    outcomes: set[str] = set()

    async def scenario(world: World) -> None:
        meta = world.client("client").meta
        faults = world.meta.trouble.faults
        for name in ("fail_before", "fail_after", "late"):
            setattr(faults, name, 1.0)
            with pytest.raises(Unavailable):
                await meta.create(name, 1, b"value")
            setattr(faults, name, 0.0)
            if await meta.read(name) is not None:
                outcomes.add(f"{name} at once")
            await world.loop.pause(20_000)
            if await meta.read(name) is not None:
                outcomes.add(f"{name} in the end")
        assert not await meta.create("late", 1, b"other")
        assert await meta.create("late", 2, b"other")
        assert not await meta.create("late", 4, b"gap")
        assert await meta.keys("fail") == ["fail_after"]

    World(10).play(scenario)
    assert outcomes == {"fail_after at once", "fail_after in the end", "late in the end"}


def test_the_object_store_refuses_a_taken_name_and_loses_objects() -> None:
    async def scenario(world: World) -> None:
        objects = world.client("client").objects
        assert await objects.put("a/1", b"first")
        assert not await objects.put("a/1", b"second")
        assert await objects.get("a/1", 1, 3) == b"irs"
        world.objects.trouble.faults.fail_after = 1.0
        with pytest.raises(Unavailable):
            await objects.put("a/2", b"there")
        world.objects.trouble.faults.fail_after = 0.0
        assert await objects.names("a/") == ["a/1", "a/2"]
        assert world.objects.flip("a/1") == "a/1"
        assert await objects.get("a/1") != b"first"
        assert world.objects.lose("a/2") == "a/2"
        with pytest.raises(NotFound):
            await objects.get("a/2")

    World(11).play(scenario)


def test_a_shared_payload_is_gone_when_its_sharer_crashed() -> None:
    async def scenario(world: World) -> None:
        await world.start("one", Counter)
        sharer, reader = world.process("one").ports, world.client("client")
        big = await sharer.net.share(bytes(5000))
        away = Blob(handle=big.handle, size=big.size)
        assert bytes(await reader.net.fetch(away) or b"") == bytes(5000)
        small = await sharer.net.share(b"small")
        world.crash("one")
        assert await reader.net.fetch(away) is None
        assert bytes(await reader.net.fetch(small) or b"") == b"small"

    World(12).play(scenario)


def test_clocks_are_skewed_per_machine_and_never_jump() -> None:
    async def scenario(world: World) -> None:
        one, two = world.client("one").clock, world.client("two").clock
        world.skews["one"] = 5000
        assert one.now() - two.now() == 5000
        before = one.monotonic()
        world.skews["one"] = -5000
        assert one.monotonic() == before

    World(13).play(scenario)


def test_a_defect_in_a_handler_fails_the_run_with_the_story() -> None:
    class Broken(Counter):
        async def on_list_ledgers(self, request: object) -> object:  # type: ignore[override]
            raise RuntimeError("a defect")

    async def scenario(world: World) -> None:
        address = await world.start("one", Broken)
        await ask(world.client("client"), address)

    with pytest.raises(SimFailure, match=r"(?s)a defect.*ListLedgers -> one"):
        World(14).play(scenario)
