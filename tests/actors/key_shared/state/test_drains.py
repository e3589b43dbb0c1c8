"""The statistics of draining, even if nobody asked while it lasted."""

from __future__ import annotations

import numpy as np

from sluice.actors.key_shared.state.drains import CONSUMERS_KEPT, Drains, Spread
from sluice.actors.key_shared.state.members import Members
from sluice.actors.key_shared.state.tables import HashTables
from sluice.storage.format.hashing import HASH_RANGE
from tests.actors.key_shared.driver import Driver, at, keys_by_owners

X, Y = keys_by_owners(("c1",), ("c2",))["c1", "c2"][:2]


def drained() -> Driver:
    """Let c1 drain two hashes that c2 owns: X after 70 ms and two messages that it held back, Y after 30 ms."""
    flow = Driver()
    flow.join("c1")
    flow.send(X, Y)
    flow.join("c2")
    flow.now += 10
    assert flow.send(X) == {}
    flow.now += 20
    assert flow.send(X) == {}
    flow.ack("1:1")
    flow.now += 40
    flow.route()
    flow.ack("1:0")
    return flow


def test_finished_drains_stay_in_the_statistics() -> None:
    stats = drained().dispatch.stats(0)
    assert stats["drainingHashesCount"] == 0
    assert (stats["drainingHashesPeak"], stats["drainingHashesBegunTotal"]) == (2, 2)
    assert stats["drainingHashesBlockedTotal"] == stats["drainingHashesByConsumer"]["c1"]["blockedAttemptsMax"] >= 2
    told = stats["drainingHashesByConsumer"]
    assert list(told) == ["c1"]
    assert (told["c1"]["hashes"], told["c1"]["millisMax"]) == (2, 70)
    assert 30 <= told["c1"]["millisMedian"] <= 33
    assert stats["heldBackByPolicyTotal"] >= 2


def test_a_reset_forgets_nothing_of_what_was() -> None:
    flow = drained()
    before = flow.dispatch.stats(0)
    flow.dispatch.reset()
    after = flow.dispatch.stats(0)
    told = {name for name in before if name.startswith("drainingHashes")} | {"heldBackByPolicyTotal", "sentinel"}
    assert {name: after[name] for name in told} == {name: before[name] for name in told}
    assert before["sentinel"]["checkedOrder"] == 2


def test_a_hash_that_comes_back_to_its_holder_has_no_length() -> None:
    flow = Driver()
    flow.join("c1")
    flow.send(X)
    flow.join("c2")
    flow.leave("c2")
    flow.now += 50
    flow.ack("1:0")
    stats = flow.dispatch.stats(0)
    assert stats["drainingHashesPeak"] == 1
    assert stats["drainingHashesByConsumer"] == {}


HOUR = 3_600_000


def waits_for_an_hour() -> tuple[Driver, int]:
    """Let c1 hold a hash that c2 owns for an hour in which nothing happens. Return also the number of c1."""
    flow = Driver()
    flow.join("c1")
    flow.send(X)
    flow.join("c2")
    flow.route()
    flow.now += HOUR
    return flow, flow.numbers["c1"]


def longest(flow: Driver) -> int:
    """Return the longest drain of c1's hashes, in ms."""
    longest: int = flow.dispatch.stats(0)["drainingHashesByConsumer"]["c1"]["millisMax"]
    return longest


def test_a_hash_drains_until_it_is_reported_not_until_a_look() -> None:
    """No look comes to an idle subscription, and there hashes drain longest."""
    flow, one = waits_for_an_hour()
    flow.dispatch.acknowledge_soon(at("1:0"), one, now=flow.now)
    assert longest(flow) == HOUR
    flow, one = waits_for_an_hour()
    flow.dispatch.leave(one, now=flow.now)
    assert longest(flow) == HOUR
    flow, one = waits_for_an_hour()
    flow.nack("c1", "1:0")
    assert longest(flow) == HOUR
    flow, one = waits_for_an_hour()
    flow.nack("c1")
    assert longest(flow) == HOUR


def test_drain_at_a_returned_consumer_counts_as_begun() -> None:
    """c1 held the messages under an earlier owner of the subscription, and c2 has their hashes now."""
    for read_again in (False, True):
        flow = Driver()
        flow.join("c1", holding=at("1:0", "1:1"))
        flow.join("c2")
        if read_again:
            flow.publish(X, Y)
        else:
            flow.bring("c1", {"1:0": X, "1:1": Y})
        stats = flow.dispatch.stats(0)
        assert (stats["drainingHashesCount"], stats["drainingHashesPeak"]) == (2, 2)
        flow.now += 70
        flow.dispatch.acknowledge_soon(at("1:0", "1:1"), flow.numbers["c1"], now=flow.now)
        stats = flow.dispatch.stats(0)
        assert (stats["drainingHashesBegunTotal"], stats["drainingHashesClearedTotal"]) == (2, 2)
        assert longest(flow) == 70


def test_the_median_is_near_and_the_largest_exact() -> None:
    spread = Spread()
    spread.add(np.array([0, 100, 100, 100, 7_777]))
    assert 100 <= spread.median() <= 110
    assert spread.most == 7_777
    assert Spread().median() == 0


def test_only_so_many_consumers_are_remembered() -> None:
    """A subscription may see a thousand names in its life."""
    drains, tables, members = Drains(), HashTables(), Members(0, 0)
    tables.drains, tables.draining, tables.freed_attempts = np.arange(HASH_RANGE) == 5, 1, np.zeros(1, np.int32)
    for number in range(CONSUMERS_KEPT + 3):
        members.add(number, f"c{number}", 0, number)
        tables.sent(np.array([5]), np.array([number], np.uint16))
        drains.owners_changed(tables, number)
        drains.freed(tables, members, np.array([5]), number)
    assert len(drains.stats()["drainingHashesByConsumer"]) == CONSUMERS_KEPT
