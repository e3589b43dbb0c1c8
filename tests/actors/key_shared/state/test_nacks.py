"""Negative acknowledgements: how often and for how long, in one owner and from one owner to the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sluice.actors.key_shared.state import given_back
from sluice.storage.format.redeliveries import decode
from tests.actors.key_shared.driver import Driver, at, keys_by_owners

X, Y = keys_by_owners(("c1",), ("c2",))["c1", "c2"][:2]
"""Keys that go from c1 to c2 when c2 joins."""


def next_owner(flow: Driver, after: int = 0, **settings: Any) -> Driver:
    """Return a new owner that has its predecessor's record and has read nothing."""
    new = Driver(**settings)
    new.now = flow.now + after
    new.dispatch.remember(decode(flow.dispatch.redeliveries()), new.now)
    return new


def counts(flow: Driver) -> dict[int, int]:
    """Route once. Return the redelivery count of each entry that goes out."""
    got: dict[int, int] = {}
    for part in flow.dispatch.route(flow.now):
        again = part.redeliveries if len(part.redeliveries) else np.zeros(len(part.positions), np.uint8)
        got.update(zip((part.positions & 0xFFFFFFFF).tolist(), again.tolist(), strict=True))
    flow.dispatch.check()
    return got


def test_a_delay_and_a_count_outlive_the_owner() -> None:
    flow = Driver()
    flow.join("c1")
    flow.send(X, Y, X)
    flow.nack("c1", "1:0", delay=60_000)
    flow.nack("c1", "1:1")
    new = next_owner(flow, after=10_000)
    new.join("c1")
    new.publish(X, Y, X)
    assert counts(new) == {1: 1, 2: 0}, "1:0 waits"
    assert new.dispatch.wakeup(new.now) == 61_000
    new.now += 49_999
    assert counts(new) == {}
    new.now += 1
    assert counts(new) == {0: 1}
    assert new.dispatch.redeliveries(), "they are not done"
    new.ack("1:0", "1:1", "1:2")
    assert new.dispatch.redeliveries() == b""


def test_nacks_of_unread_messages_are_passed_on_too() -> None:
    flow = Driver()
    flow.join("c1")
    flow.send(X, Y)
    flow.nack("c1", "1:0", delay=60_000)
    flow.nack("c1", "1:1")
    third = next_owner(next_owner(flow, after=100))
    third.join("c1")
    third.publish(X, Y)
    assert counts(third) == {1: 1}
    third.now += 60_000
    assert counts(third) == {0: 1}


def test_held_message_keeps_its_redelivery_count() -> None:
    flow = Driver()
    flow.join("c1")
    flow.send(X)
    flow.nack("c1", "1:0")
    assert counts(flow) == {0: 1}
    new = next_owner(flow)
    new.join("c1", holding=at("1:0"))
    assert new.send(X) == {}
    new.leave("c1")
    new.join("c2")
    assert counts(new) == {0: 1}, "its consumer left, which counts for nothing"


def test_given_back_before_it_is_read_again_counts_and_waits() -> None:
    flow = Driver()
    flow.join("c1", holding=at("1:0", "1:1"))
    assert flow.nack("c1", "1:0", delay=7_000, seen=np.array([4], np.uint8)) == 1
    assert flow.nack("c1") == 1
    flow.publish(X, Y)
    assert counts(flow) == {1: 0}, "nobody said that it saw it"
    flow.now += 7_000
    assert counts(flow) == {0: 5}


@pytest.mark.parametrize("read", [False, True])
def test_said_again_it_counts_once(read: bool) -> None:
    """The owner before may have recorded the nack, or not."""
    flow = Driver()
    flow.join("c1")
    flow.send(X)
    flow.nack("c1", "1:0", delay=60_000, seen=np.zeros(1, np.uint8))
    for known in (flow, Driver()):
        new = next_owner(known)
        if read:
            new.publish(X)
        new.now = flow.now + 1_000
        new.join("c1")
        new.nack("c1", "1:0", delay=59_000, seen=np.zeros(1, np.uint8), again=True)
        if not read:
            new.publish(X)
        assert counts(new) == {}
        new.now += 59_000
        assert counts(new) == {0: 1}


def test_said_again_it_leaves_what_is_elsewhere_or_done() -> None:
    flow = Driver()
    flow.join("c1")
    flow.join("c2")
    sent = flow.send(X, X)
    assert sent == {"c2": ["1:0", "1:1"]}
    flow.ack("1:1")
    flow.nack("c1", "1:0", "1:1", delay=9_000, seen=np.zeros(2, np.uint8), again=True, done=at("1:1"))
    assert flow.pending("c2") == ["1:0"]
    assert flow.dispatch.redeliveries() == b""


def test_an_earlier_delay_does_not_end_a_later_one() -> None:
    """The message is given back for long, brought back by a consumer that holds it, and given back for longer."""
    flow = Driver()
    flow.join("c1")
    flow.send(X)
    flow.nack("c1", "1:0", delay=1_000)
    flow.join("c2", holding=at("1:0"))
    assert flow.pending("c2") == ["1:0"]
    flow.nack("c2", "1:0", delay=5_000)
    flow.now += 1_000
    assert flow.route() == {}
    flow.now += 3_999
    assert flow.route() == {}
    flow.now += 1
    assert flow.route() == {"c2": ["1:0"]}


def test_many_different_delays_end_each_in_its_time() -> None:
    flow = Driver()
    flow.join("c1", permits=10_000)
    flow.publish(*[X] * 3_000)
    flow.route()
    rng = np.random.default_rng(2)
    for entry, delay in enumerate(rng.integers(1, 500, 3_000).tolist()):
        flow.nack("c1", f"1:{entry}", delay=delay)
    new = next_owner(flow)
    new.join("c1", permits=10_000)
    new.publish(*[X] * 3_000)
    new.route()
    rng = np.random.default_rng(2)
    due = 1_000 + rng.integers(1, 500, 3_000)
    while new.now < 1_500:
        new.now += 7
        came = sorted(counts(new))
        assert came == np.flatnonzero((due <= new.now) & (due > new.now - 7)).tolist()


@pytest.mark.parametrize("by", [3_600_000, -3_600_000])
def test_remaining_delay_stays_when_the_clock_is_set(by: int) -> None:
    """The rest of the delay stays both for messages that are here and for those not read yet."""
    flow = Driver()
    flow.now = 7_200_000
    flow.join("c1")
    flow.send(X, Y, X)
    flow.nack("c1", "1:0", delay=60_000)
    flow.nack("c1", "1:1", delay=20_000)
    new = next_owner(flow)
    new.join("c1")
    new.publish(X)
    assert counts(new) == {}
    new.now += 10_000
    new.dispatch.clock_was_set(by)
    new.now += by
    assert new.dispatch.delays_redeliveries()
    new.publish(Y, X)
    assert counts(new) == {2: 0}
    new.now += 9_999
    assert counts(new) == {}
    new.now += 1
    assert counts(new) == {1: 1}
    new.now += 39_999
    assert counts(new) == {}
    new.now += 1
    assert counts(new) == {0: 1}
    assert not new.dispatch.delays_redeliveries()


def test_dead_letter_stays_dead_under_the_next_owner() -> None:
    flow = Driver(max_redeliver_count=1)
    flow.join("c1")
    flow.send(X)
    for _ in range(2):
        flow.nack("c1", "1:0")
        flow.route()
    assert flow.dispatch.dead_letters().tolist() == at("1:0").tolist()
    new = next_owner(flow, max_redeliver_count=1)
    new.join("c1")
    assert new.send(X) == {}
    assert new.dispatch.dead_letters().tolist() == at("1:0").tolist()


def test_nacks_of_done_or_cleared_messages_are_dropped() -> None:
    flow = Driver()
    flow.join("c1")
    flow.send(X, X, X, X)
    flow.nack("c1", "1:0", "1:1", "1:2", "1:3", delay=1_000)
    new = next_owner(flow)
    new.join("c1")
    new.ack("1:2")
    new.dispatch.mark_deleted(int(at("1:0")[0]))
    assert decode(new.dispatch.redeliveries()).positions.tolist() == at("1:1", "1:3").tolist()
    new.dispatch.remove()
    assert new.dispatch.redeliveries() == b""


def test_beyond_the_bound_the_longest_delays_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_back, "MOST", 3)
    flow = Driver()
    flow.join("c1")
    flow.send(*[X] * 6)
    for entry in range(6):
        flow.nack("c1", f"1:{entry}", delay=1_000 + 100 * (entry % 5))
    kept = decode(flow.dispatch.redeliveries())
    assert kept.positions.tolist() == at("1:2", "1:3", "1:4").tolist()
    assert flow.dispatch.stats(flow.now)["redeliveriesNotDurable"] == 3
    flow.now += 2_000
    assert flow.route() == {"c1": [f"1:{entry}" for entry in range(6)]}, "in memory all of them wait"
    flow.ack(*[f"1:{entry}" for entry in range(4)])
    assert len(decode(flow.dispatch.redeliveries()).positions) == 2
    assert flow.dispatch.stats(flow.now)["redeliveriesNotDurable"] == 0


def test_repeated_nack_proves_an_earlier_delivery() -> None:
    """The message then comes out of order, which is no breach: later ones of its key may go first while it waits."""
    flow = Driver()
    flow.join("c1", permits=0)
    flow.publish(X, X)
    flow.nack("c1", "1:0", delay=500, seen=np.zeros(1, np.uint8), again=True)
    flow.grant("c1", 10)
    assert flow.route() == {"c1": ["1:1"]}
    flow.now += 500
    assert counts(flow) == {0: 1}


@pytest.mark.parametrize("by", [-50_000, 3_600_000])
def test_a_clock_that_is_set_makes_no_wait_longer_or_negative(by: int) -> None:
    flow = Driver()
    flow.join("c1", permits=0)
    flow.publish(X)
    assert counts(flow) == {}
    flow.now += 5_000
    flow.dispatch.clock_was_set(by)
    flow.now += by
    flow.grant("c1", 10)
    assert counts(flow) == {0: 0}
    waits = flow.dispatch.stats(flow.now)["waits"]
    assert waits["no_permits"]["sum"] == 5_000
