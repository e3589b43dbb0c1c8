"""The sentinel finds each kind of breach, even if the routing itself is broken."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.actors.key_shared.dispatch import KeySharedDispatcher
from sluice.actors.key_shared.state.sentinel import Sentinel
from sluice.actors.messages import SubscriptionSettings
from sluice.storage.errors import InvariantViolation
from sluice.storage.format.position import run_positions
from tests.actors.key_shared.driver import Driver, at, ints, keys_by_owners

X, Y = keys_by_owners(("c1",), ("c2",))["c1", "c2"][:2]


def column(*values: int) -> np.ndarray:
    """Return a column of slots or hashes."""
    return np.array(values, np.uint16)


def strict() -> Sentinel:
    """Return a sentinel that raises."""
    return Sentinel(strict=True, name=lambda slot: f"slot {slot}")


def test_a_hash_at_two_consumers() -> None:
    sentinel = strict()
    sentinel.sent(column(1), column(7), ints([10]), None)
    with pytest.raises(InvariantViolation, match=r"promise 2 broken.*hash 7.*slot 2 while slot 1 holds"):
        sentinel.sent(column(2), column(7), ints([11]), None)


def test_a_hash_at_two_consumers_within_one_delivery() -> None:
    with pytest.raises(InvariantViolation, match="promise 2"):
        strict().sent(column(1, 2), column(7, 7), ints([10, 11]), None)


def test_a_hash_may_move_once_all_came_back() -> None:
    sentinel = strict()
    sentinel.sent(column(1, 1), column(7, 7), ints([10, 11]), None)
    sentinel.given_back(column(7, 7))
    sentinel.sent(column(2), column(7), ints([12]), None)
    assert (sentinel.checked_holder, sentinel.checked_order, sentinel.held) == (3, 3, 1)


def test_a_first_delivery_behind_a_later_one() -> None:
    sentinel = strict()
    sentinel.sent(column(1), column(7), ints([10]), None)
    with pytest.raises(InvariantViolation, match="promise 3 broken"):
        sentinel.sent(column(1), column(7), ints([9]), None)


def test_redelivery_and_due_messages_are_exempt_from_the_order() -> None:
    sentinel = strict()
    sentinel.sent(column(1), column(7), ints([10]), None)
    sentinel.sent(column(1), column(7), ints([9]), np.array([False]))
    sentinel.sent(column(1), column(7), ints([11]), None)
    assert sentinel.checked_order == 2


def test_messages_of_one_consumer_out_of_order() -> None:
    with pytest.raises(InvariantViolation, match="promise 3"):
        strict().sent(column(1, 1), column(7, 8), ints([11, 10]), None)


def test_more_came_back_than_was_sent() -> None:
    with pytest.raises(InvariantViolation, match="more messages"):
        strict().given_back(column(7))


def test_counting_only_tells_stories_and_goes_on() -> None:
    sentinel = Sentinel(strict=False, name=str)
    for number in range(40):
        sentinel.sent(column(number % 2), column(7), ints([100 - number]), None)
    stats = sentinel.stats()
    assert (stats["violationsHolder"], stats["violationsOrder"], stats["checkedOrder"]) == (39, 39, 40)
    assert len(sentinel.stories) == 16


def test_a_broken_gate_cannot_hide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.actors.key_shared.state.policies.DrainingHashes.gate", lambda *_: None)
    flow = Driver()
    flow.join("c1")
    flow.send(X)
    flow.join("c2")
    flow.publish(X)
    with pytest.raises(InvariantViolation, match=r"promise 2 broken: 1:1 .* consumer 'c2' #2 while consumer 'c1' #1"):
        flow.dispatch.route(0)


def test_a_wake_up_that_was_missed_costs_time_and_never_order() -> None:
    flow = Driver()
    flow.join("c1", permits=1)
    flow.send(X, X)
    # As if a grant had forgotten to recheck up what waits: 1:1 is not looked at, and 1:2 must not overtake it.
    flow.dispatch._core.members.credited[0] = 3
    flow.dispatch._core.members.touch()
    flow.publish(X)
    assert flow.route() == {}
    assert flow.dispatch.stalled(), "and the watchdog sees it"
    flow.dispatch._core.recheck = True
    assert flow.route() == {"c1": ["1:1", "1:2"]}


def test_a_broken_order_gate_cannot_hide() -> None:
    flow = Driver()
    flow.join("c1", permits=1)
    flow.send(X, X)
    # As if the routing had forgotten that 1:1 waits.
    flow.dispatch.tables.unqueued(np.array([flow.hash_of(X)]))
    flow.publish(X)
    flow.permits["c1"] = 2
    flow.dispatch._core.members.credited[0] = 2
    flow.dispatch._core.members.touch()
    flow.dispatch.route(0)
    assert flow.pending("c1") == ["1:0", "1:2"]
    flow.dispatch._core.recheck = True
    flow.dispatch._core.members.credited[0] = 3
    flow.dispatch._core.members.touch()
    with pytest.raises(InvariantViolation, match="promise 3 broken: 1:1"):
        flow.dispatch.route(0)


@pytest.mark.parametrize("what", ["pending", "replayed", "unacked", "draining", "drains", "owner", "count"])
def test_check_finds_every_count_that_is_off(what: str) -> None:
    flow = Driver()
    flow.join("c1")
    flow.send(X, Y)
    flow.join("c2")
    flow.send(X)
    core = flow.dispatch._core
    flow.dispatch.check()
    if what == "unacked":
        core.members.unacked[0] += 1
    elif what == "count":
        core.window.count[1] += 1
    elif what == "draining":
        core.tables.draining += 1
    elif what == "drains":
        core.tables.drains[flow.hash_of(X)] = False
    elif what == "owner":
        core.tables.owner = core.tables.owner.copy()  # the table itself is that of every subscription with these owners
        core.tables.owner[flow.hash_of(X)] += 1
    elif what == "replayed":
        core.tables.queued(np.array([flow.hash_of(X)]))
    else:
        one = np.array([flow.hash_of(X)])
        core.tables.sent(one, core.tables.holders(one))
    with pytest.raises(InvariantViolation):
        flow.dispatch.check()


def test_checks_are_counted_beside_violations() -> None:
    dispatch = KeySharedDispatcher(SubscriptionSettings())
    consumer = dispatch.join("c", now=0)
    dispatch.grant(consumer, 10_000)
    dispatch.append(run_positions(1, 0, 5000), np.arange(5000, dtype=np.uint32))
    dispatch.route(0)
    dispatch.negative_acknowledge(consumer, at("1:0"), now=0)
    dispatch.route(0)
    stats = dispatch.stats(0)["sentinel"]
    assert (stats["checkedHolder"], stats["checkedOrder"]) == (5001, 5000)
    assert (stats["violationsHolder"], stats["violationsOrder"], stats["stories"]) == (0, 0, [])
