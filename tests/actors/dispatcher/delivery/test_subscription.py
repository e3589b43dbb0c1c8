"""The next owner begins with the contents of its predecessor's record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.dispatcher.delivery.subscription import SubscriptionState
from sluice.actors.messages import SubscriptionSettings
from sluice.storage.errors import InvariantViolation
from sluice.storage.format.cursor import Cursor
from sluice.storage.format.position import position


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
