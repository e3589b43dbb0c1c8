"""The next owner begins with the contents of its predecessor's record.

An owner with nothing to write still learns in time that it was replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.dispatcher.delivery.sessions import Session
from sluice.actors.dispatcher.delivery.subscription import GROUP_MS, LINGER_MS, CursorStore, SubscriptionState
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.ownership.fenced_record import FencedRecord
from sluice.actors.ports import Ports
from sluice.storage.errors import Fenced, InvariantViolation
from sluice.storage.format.cursor import Cursor
from sluice.storage.format.position import position
from tests.sim.world import World


def nothing_told(event: str, **fields: object) -> None:
    raise AssertionError(f"{event}: {fields}")


def record_of(state: SubscriptionState) -> dict[str, Any]:
    value: dict[str, Any] = msgpack.unpackb(msgspec.msgpack.encode(state.to_record()))
    return value


@given(
    st.sets(st.integers(0, 50)),
    st.booleans(),
    st.booleans(),
    st.sampled_from([2_000, 10_000, 30_000]),
    st.lists(st.sampled_from(["a.0", "a.1", "b.0"]), unique=True),
)
def test_the_next_owner_begins_with_what_the_record_says(
    done: set[int], paused: bool, known: bool, lease: int, members: list[str]
) -> None:
    cursor = Cursor()
    cursor.chain([(1, None)], complete=True)
    cursor.acknowledge(np.array([position(1, entry) for entry in sorted(done)], np.int64))
    state = SubscriptionState.begun(SubscriptionSettings(lease_ms=lease), cursor)
    state.pause(paused)
    if known:
        state.introduced()
    for number, who in enumerate(members):
        state.membership.admit(who, who.partition(".")[0], "p")
        state.membership.attach(who, number + 1, 0)
    value = record_of(state)
    again = SubscriptionState.stored(value, nothing_told)
    assert (again.settings, again.paused, again.known) == (state.settings, paused, known)
    assert again.cursor.encode() == cursor.encode()
    assert [row["incarnation"] for row in msgpack.unpackb(again.membership.rows())] == members
    assert again.membership.trust_ms == state.membership.trust_ms


def _lose_a_row(state: SubscriptionState) -> None:
    state.membership._rows.clear()


def _scatter_below_the_prefix(state: SubscriptionState) -> None:
    state.cursor.mark_delete = position(1, 5)


def _forget_an_end(state: SubscriptionState) -> None:
    state.cursor._lasts.pop()


@pytest.mark.parametrize("damage", [_lose_a_row, _scatter_below_the_prefix, _forget_an_end])
def test_a_state_that_broke_an_invariant_is_not_recorded(damage: Callable[[SubscriptionState], None]) -> None:
    cursor = Cursor()
    cursor.chain([(1, None)], complete=True)
    cursor.acknowledge(np.array([position(1, 3)], np.int64))
    state = SubscriptionState.begun(SubscriptionSettings(), cursor)
    state.membership.admit("a.0", "a", "p")
    assert record_of(state)
    damage(state)
    with pytest.raises(InvariantViolation):
        state.to_record()


def test_settings_that_an_owner_may_not_take_up_wait() -> None:
    state = SubscriptionState.begun(SubscriptionSettings(lease_ms=10_000), Cursor())
    state.begin_next_with(SubscriptionSettings(lease_ms=2_000))
    assert (state.settings.lease_ms, state.membership.lease_ms) == (10_000, 10_000)
    again = SubscriptionState.stored(record_of(state), nothing_told)
    assert (again.settings.lease_ms, again.membership.lease_ms) == (2_000, 2_000)


def test_field_missing_in_an_older_record_has_its_default() -> None:
    told: list[tuple[str, Any]] = []
    value = record_of(SubscriptionState.begun(SubscriptionSettings(), Cursor()))
    del value["paused"], value["known"]
    value["settings"] = b'{"lease_ms": 1}'
    state = SubscriptionState.stored(value, lambda event, **fields: told.append((event, fields)))
    assert (state.paused, state.known, state.settings.lease_ms) == (False, True, 2_000)
    assert told == [("settings_repaired", {"change": "lease_ms = 1 is used as 2000"})]


TRUST_MS = 800


class Owner:
    """A store of the record `s` in a process of its own. The test decides when there is something to save."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.ports: Ports = world.client(name)
        self.record = FencedRecord(self.ports, "s")
        self.fenced: list[str] = []
        self.sessions: list[Session] = []
        self.mark_delete = 0
        self.store = CursorStore(
            self.ports, self.record, dict, lambda: self.mark_delete, lambda: self.sessions, self.fenced.append, TRUST_MS
        )

    async def begin(self) -> None:
        """Acquire the record and start the store."""
        await self.record.acquire()
        await self.record.save({})
        self.store.start()
        self.ports.spawn(self._watch(), "watch")

    async def _watch(self) -> None:
        while True:
            await self.ports.clock.sleep(TRUST_MS // 2)
            self.store.look_if_idle()


async def versions(owner: Owner) -> int:
    newest = await owner.ports.meta.read("s")
    assert newest is not None
    return newest.number


@pytest.mark.parametrize("seed", range(5))
def test_an_idle_replaced_owner_lengthens_no_lease_too_late(seed: int) -> None:
    async def scenario(world: World) -> None:
        old, new = Owner(world, "old"), Owner(world, "new")
        await old.begin()
        await world.loop.pause(10 * TRUST_MS)
        assert old.store.certain()
        await new.begin()
        taken = world.loop.now
        while old.store.certain():
            assert world.loop.now <= taken + TRUST_MS
            await world.loop.pause(1)
        with pytest.raises(Fenced):
            await old.store.be_certain()
        assert len(old.fenced) == 1
        await world.loop.pause(10 * TRUST_MS)
        assert new.store.certain()
        assert new.fenced == []

    World(seed).play(scenario)


def test_without_the_store_an_owner_is_not_certain() -> None:
    async def scenario(world: World) -> None:
        owner = Owner(world, "owner")
        await owner.begin()
        world.meta.trouble.cut["owner"] = 1
        await world.loop.pause(TRUST_MS + 1)
        assert not owner.store.certain()
        world.loop.after(5 * TRUST_MS, world.meta.trouble.cut.clear)
        cut = world.loop.now
        await owner.store.be_certain()
        assert world.loop.now >= cut + 5 * TRUST_MS
        assert owner.fenced == []

    World(1).play(scenario)


def test_a_record_that_was_removed_has_no_owner() -> None:
    async def scenario(world: World) -> None:
        owner = Owner(world, "owner")
        await owner.begin()
        await owner.ports.meta.remove("s")
        with pytest.raises(Fenced):
            await owner.record.verify()

    World(1).play(scenario)


def test_a_mark_is_not_durable_before_a_version_has_it() -> None:
    async def scenario(world: World) -> None:
        owner = Owner(world, "owner")
        await owner.begin()
        told: list[int] = []
        owner.store.on_saved(lambda: told.append(owner.store.mark_delete))
        owner.mark_delete = 5
        owner.store.dirty()
        await world.loop.pause(0)
        owner.mark_delete = 6  # while the version with the other one is written
        assert owner.store.mark_delete == 0
        await world.loop.pause(TRUST_MS)
        assert (told, owner.store.mark_delete) == ([5], 5)
        await owner.store.barrier()
        assert (told, owner.store.mark_delete) == ([5, 6], 6)

    World(1).play(scenario)


def test_sending_waits_for_changes_that_must_be_durable() -> None:
    """Sending waits for nothing else, and not for ever: a replaced owner sends nothing more."""

    async def scenario(world: World) -> None:
        owner = Owner(world, "owner")
        await owner.begin()
        written = await versions(owner)
        world.meta.trouble.cut["owner"] = 1
        owner.store.dirty()
        await owner.store.until_may_send()
        owner.store.hold_back()
        await world.loop.pause(TRUST_MS)
        assert owner.store.holds_back
        world.loop.after(TRUST_MS, world.meta.trouble.cut.clear)
        await owner.store.until_may_send()
        assert await versions(owner) > written
        await Owner(world, "new").begin()
        owner.store.hold_back()
        with pytest.raises(Fenced):
            await owner.store.until_may_send()

    World(1).play(scenario)


def test_barrier_does_not_wait_for_more_acknowledgements() -> None:
    async def scenario(world: World) -> None:
        owner = Owner(world, "owner")
        await owner.begin()
        await world.loop.pause(TRUST_MS)
        written = await versions(owner)
        for _ in range(LINGER_MS):
            owner.store.dirty(gather=True)
            await world.loop.pause(1)
        await world.loop.pause(GROUP_MS)
        assert await versions(owner) == written + 1
        owner.store.dirty(gather=True)
        began = world.loop.now
        await owner.store.barrier()
        assert world.loop.now - began < LINGER_MS
        assert await versions(owner) == written + 2

    World(1).play(scenario)


def test_acks_during_a_write_go_with_the_next_one() -> None:
    async def scenario(world: World) -> None:
        owner = Owner(world, "owner")
        session = Session(number=1, name="c1", incarnation="c1")
        owner.sessions.append(session)
        await owner.begin()
        await world.loop.pause(TRUST_MS + 50)  # when it does not look just now whether it is the owner
        world.meta.trouble.faults.delay_ms = (50, 50)
        assert session.arrived(1)
        session.settle(1)
        owner.store.dirty()
        await world.loop.pause(40)  # the write is on its way
        assert session.arrived(2)
        session.settle(2)
        owner.store.dirty()
        while not session.durable:
            await world.loop.pause(1)
        assert session.durable == 1
        await owner.store.barrier()
        assert session.durable == 2

    World(1).play(scenario)


def test_pause_after_a_slow_write_delays_no_barrier() -> None:
    """An attach waits for the version that is being written and for its own, but for no pause between them."""

    async def scenario(world: World) -> None:
        owner = Owner(world, "owner")
        await owner.begin()
        await world.loop.pause(TRUST_MS + 50)  # when it does not look just now whether it is the owner
        world.meta.trouble.faults.delay_ms = (200, 200)
        for during in (10, 250, 500):
            owner.store.dirty()
            await world.loop.pause(during)
            began = world.loop.now
            await owner.store.barrier()
            written = 2 if during < 400 else 1  # there and back
            assert world.loop.now - began <= written * 400 - min(during, 400) * (written - 1) + GROUP_MS + 5
            await world.loop.pause(2 * TRUST_MS)

    World(1).play(scenario)
