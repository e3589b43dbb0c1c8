"""Cancelled and rescheduled messages outlive their owner, in the record or in a table that the record names."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest

from sluice.actors.dispatcher.delivery import changed_delays
from sluice.actors.dispatcher.delivery.changed_delays import ChangedDelays
from sluice.actors.dispatcher.delivery.subscription import PartitionSubscription
from sluice.storage.delayed.entries import Entries
from sluice.storage.errors import AccessDenied, Corrupt, Invalid, SluiceError
from sluice.storage.format.cursor import Cursor
from tests.sim.world import World

OF = PartitionSubscription("orders", 0, "billing")
FOLD_AT = 10


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_delays, "FOLD_AT", FOLD_AT)


def play(scenario: Any) -> None:
    World(1).play(scenario)


def owner(world: World, epoch: int, cursor: Cursor | None = None) -> ChangedDelays:
    return ChangedDelays(world.client(f"owner-{epoch}"), OF, epoch, cursor or Cursor())


async def successor(world: World, epoch: int, before: ChangedDelays, cursor: Cursor | None = None) -> ChangedDelays:
    """Return the next owner, which begins with the record that the last one would write now."""
    stored = msgpack.unpackb(msgpack.packb(before.to_record()))
    after = owner(world, epoch, cursor)
    await after.load(stored)
    return after


def moved(*places: int) -> Entries:
    positions = np.array(places, np.int64)
    return Entries(positions + 1_000, positions, positions.astype(np.uint32))


def cancelled(changes: ChangedDelays) -> list[int]:
    return np.flatnonzero(changes.now.cancelled.contains(np.arange(100))).tolist()


def test_a_few_changes_stand_in_the_record() -> None:
    async def scenario(world: World) -> None:
        one = owner(world, 1)
        assert one.to_record() is None
        one.cancel(np.array([3, 5]))
        one.move(moved(7))
        await one.fold(0)
        assert not one.take_stale()
        two = await successor(world, 2, one)
        assert cancelled(two) == [3, 5]
        assert two.now.moved.positions.tolist() == [7]

    play(scenario)


def test_many_changes_move_to_a_table_and_the_old_one_goes() -> None:
    async def scenario(world: World) -> None:
        meta = world.client("looks").meta
        one = owner(world, 1)
        one.move(moved(*range(20)))
        await one.fold(0)
        assert one.take_stale() == []
        assert len(one.to_record()["recent"]) == 0
        one.cancel(np.arange(20, 40))
        await one.fold(0)
        stale = one.take_stale()
        assert len(stale) == 1
        assert len(await meta.keys("delayed-changes/")) == 2
        await one.remove(stale)
        assert len(await meta.keys("delayed-changes/")) == 1
        one.cancel(np.array([1]))
        two = await successor(world, 2, one)
        assert cancelled(two) == [1, *range(20, 40)]
        assert two.now.moved.positions.tolist() == [0, *range(2, 20)]

    play(scenario)


def test_done_messages_are_not_carried_along() -> None:
    async def scenario(world: World) -> None:
        cursor = Cursor()
        cursor.chain([(0, None)])
        cursor.acknowledge(np.arange(5, dtype=np.int64))
        one = owner(world, 1, cursor)
        one.move(moved(*range(20)))
        one.cancel(np.array([1 << 32, 2 << 32]))
        await one.fold(2 << 32)
        assert one.now.moved.positions.tolist() == list(range(5, 20))
        two = await successor(world, 2, one, cursor)
        assert two.now.moved.positions.tolist() == list(range(5, 20))
        assert two.now.cancelled.contains(np.array([1 << 32, 2 << 32])).tolist() == [False, True]

    play(scenario)


def test_a_change_while_the_table_is_written_is_kept() -> None:
    async def scenario(world: World) -> None:
        one = owner(world, 1)
        one.cancel(np.arange(20))
        folding = world.loop.create_task(one.fold(0))
        await world.loop.pause(0)
        one.cancel(np.array([50]))
        one.reopen(60)
        await folding
        two = await successor(world, 2, one)
        assert cancelled(two) == [*range(20), 50]

    play(scenario)


@pytest.mark.parametrize("folds", [1, 2])
def test_reopened_messages_outlive_their_owner(folds: int) -> None:
    """The table still calls the messages cancelled, and the owner does not write it again for that."""

    async def scenario(world: World) -> None:
        one = owner(world, 1)
        one.cancel(np.arange(20))
        await one.fold(0)
        one.reopen(15)
        one.reopen(17)
        one.cancel(np.array([18]))
        two = await successor(world, 2, one)
        assert cancelled(two) == [*range(15), 18]
        three = await successor(world, 3, two)
        assert cancelled(three) == [*range(15), 18]
        for _ in range(folds):
            three.cancel(np.arange(60, 70))
            await three.fold(0)
            three.cancel(np.array([16]))
        assert cancelled(await successor(world, 4, three)) == [*range(15), 16, 18, *range(60, 70)]

    play(scenario)


def test_messages_reopened_during_a_table_write_stay_open() -> None:
    """The table in the making calls the messages cancelled, and is the one that counts."""

    async def scenario(world: World) -> None:
        one = owner(world, 1)
        one.cancel(np.arange(20))
        folding = world.loop.create_task(one.fold(0))
        await world.loop.pause(0)
        one.reopen(10)
        await folding
        assert cancelled(await successor(world, 2, one)) == list(range(10))

    play(scenario)


def test_leftovers_of_earlier_owners_go_and_nobody_elses() -> None:
    async def scenario(world: World) -> None:
        meta = world.client("looks").meta
        one = owner(world, 1)
        one.cancel(np.arange(20))
        await one.fold(0)
        two = await successor(world, 2, one)
        orphan, newer = (
            "delayed-changes/orders/0/billing/000000000001-000009",
            "delayed-changes/orders/0/billing/000000000003-000001",
        )
        for key in (orphan, newer):
            await meta.create(key, 1, b"x")
        await two.remove_leftovers()
        keys = await meta.keys("delayed-changes/")
        assert orphan not in keys
        assert newer in keys
        assert len(keys) == 2
        await two.delete()
        assert await meta.keys("delayed-changes/") == [newer], "it may be in use"

    play(scenario)


def test_a_name_that_an_earlier_life_used_is_not_taken_for_ours() -> None:
    async def scenario(world: World) -> None:
        await world.client("looks").meta.create("delayed-changes/orders/0/billing/000000000001-000001", 1, b"before")
        one = owner(world, 1)
        one.cancel(np.arange(20))
        await one.fold(0)
        assert cancelled(await successor(world, 2, one)) == list(range(20))

    play(scenario)


def test_a_table_that_is_gone_is_told() -> None:
    async def scenario(world: World) -> None:
        one = owner(world, 1)
        with pytest.raises(Corrupt, match="is gone"):
            await one.load({"table": "delayed-changes/x", "recent": b""})

    play(scenario)


def test_a_table_that_is_written_and_damaged_is_written_again() -> None:
    """The answer to the first write was lost, and what it wrote cannot be read."""

    async def scenario(world: World) -> None:
        one = owner(world, 1)
        one.cancel(np.arange(2 * FOLD_AT))
        key = f"delayed-changes/orders/0/billing/{1:012d}-{1:06d}"
        world.meta.write("owner-1", key, 1, b"?")
        world.meta.damaged[key] = 1
        await one.fold(0)
        assert cancelled(await successor(world, 2, one)) == list(range(2 * FOLD_AT))
        one.cancel(np.arange(50, 50 + FOLD_AT))
        await one.fold(0)
        assert len(one.take_stale()) == 1, "the next ones move as well"

    play(scenario)


@pytest.mark.parametrize("refusal", [Invalid, AccessDenied, Corrupt])
def test_a_table_that_the_store_refuses_stays_in_the_record(refusal: type[SluiceError]) -> None:
    """All that was asked for is done and durable all the same, and the next changes try again."""

    async def scenario(world: World) -> None:
        one = owner(world, 1)
        one.cancel(np.arange(2 * FOLD_AT))
        world.meta.trouble.refused["create delayed-changes/"] = refusal
        await one.fold(0)
        assert cancelled(await successor(world, 2, one)) == list(range(2 * FOLD_AT))
        world.meta.trouble.refused.clear()
        one.cancel(np.array([50]))
        await one.fold(0)
        assert len(one.to_record()["recent"]) == 0
        assert cancelled(await successor(world, 2, one)) == [*range(2 * FOLD_AT), 50]

    play(scenario)
