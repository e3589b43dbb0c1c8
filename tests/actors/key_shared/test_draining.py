"""Draining hashes, pending messages and redelivery: the rules of PIP-379 one by one, on the dispatcher itself.

The data structures of upstream (tracker, pending acks, redelivery controller) have no counterpart here, because what
they remember is derived. Their scenarios are asked of the whole, by their ids.
"""

from __future__ import annotations

import numpy as np
import pytest

from sluice.actors.key_shared import KeySharedDispatcher
from sluice.actors.messages import SubscriptionSettings
from sluice.storage.errors import Conflict, Invalid, InvariantViolation
from sluice.storage.format.hashing import masked_hash
from tests.actors.key_shared.driver import Driver, at, ints, keys_by_owners

MOVED = keys_by_owners(("c1",), ("c2",))["c1", "c2"]
STAYED = keys_by_owners(("c1",), ("c2",))["c1", "c1"]
X, Y, Z = MOVED[:3]


def draining(count: int = 1, permits: int = 1000) -> Driver:
    """c1 holds `count` messages of X; c2 has joined and owns X now."""
    flow = Driver()
    flow.join("c1", permits)
    flow.send(*[X] * count)
    flow.join("c2")
    return flow


def entries(flow: Driver, name: str) -> list[tuple[int, int, int]]:
    """(hash, unackMsgs, blockedAttempts) of a consumer's draining hashes."""
    found = flow.consumer_stats(name)["drainingHashes"]
    return [(entry["hash"], entry["unackMsgs"], entry["blockedAttempts"]) for entry in found]


def test_dh_1_a_hash_that_moved_drains_at_its_holder() -> None:
    flow = draining()
    assert entries(flow, "c1") == [(flow.hash_of(X), 1, 0)]
    assert entries(flow, "c2") == []


def test_dh_3_and_dh_9_the_last_acknowledgement_frees_it() -> None:
    flow = draining()
    assert flow.send(X) == {}
    flow.ack("1:0")
    assert entries(flow, "c1") == []
    assert flow.route() == {"c2": ["1:1"]}
    assert flow.consumer_stats("c1")["drainingHashesClearedTotal"] == 1


def test_dh_5_the_same_consumer_is_not_blocked() -> None:
    flow = draining()
    assert flow.send(X, Y) == {"c2": ["1:2"]}, "another consumer is, and a hash of which nothing drains is not"
    flow.leave("c2")
    assert entries(flow, "c1") == []
    assert flow.route() == {"c1": ["1:1", "1:2"]}
    assert flow.consumer_stats("c1")["drainingHashesClearedTotal"] == 1
    assert flow.dispatch.stats(0)["drainingHashesClearedTotal"] == 1


def test_dh_10_a_hash_that_blocked_nothing_is_freed_quietly() -> None:
    flow = draining()
    assert flow.ack("1:0") == ["1:0"]
    assert flow.route() == {}
    assert flow.send(X) == {"c2": ["1:1"]}


def test_dh_11_a_leaving_holder_hands_over_in_order() -> None:
    flow = draining(3)
    assert flow.send(X, X) == {}
    flow.leave("c1")
    assert flow.route() == {"c2": ["1:0", "1:1", "1:2", "1:3", "1:4"]}


def test_dh_13_and_ks_25_three_pending_need_three_acks() -> None:
    flow = draining(3)
    assert flow.send(X) == {}
    for name, left in (("1:1", 2), ("1:0", 1)):
        flow.ack(name)
        assert entries(flow, "c1")[0][1] == left
        assert flow.route() == {}
    flow.ack("1:2")
    assert flow.route() == {"c2": ["1:3"]}


def test_ks_27_one_blocked_attempt_a_pass() -> None:
    flow = draining()
    flow.send(X, X, X)
    assert entries(flow, "c1") == [(flow.hash_of(X), 1, 1)]
    flow.route()
    assert entries(flow, "c1") == [(flow.hash_of(X), 1, 1)], "nothing changed, so nothing was tried again"
    flow.join("c3")
    flow.route()
    assert entries(flow, "c1")[0][2] == 2


def test_ks_30_a_late_acknowledgement_leaves_the_new_holder() -> None:
    flow = draining()
    flow.leave("c1")
    assert flow.route() == {"c2": ["1:0"]}
    flow.join("c1")
    assert flow.ack("1:0") == ["1:0"]
    assert flow.ack("1:0") == []
    assert flow.dispatch.idle()


def test_ks_31_a_hash_that_came_back_leaves_no_entry_behind() -> None:
    """#24736: the entry stayed, and blocked the key for everybody once the consumer had gone."""
    flow = draining()
    flow.leave("c2")
    flow.ack("1:0")
    flow.join("c2")
    flow.leave("c1")
    assert flow.send(X, Y) == {"c2": ["1:1", "1:2"]}


def test_ks_31_moving_twice_counts_nothing_twice() -> None:
    flow = draining(2)
    for name in ("c3", "c4", "c5"):
        flow.join(name)
    assert flow.consumer_stats("c1")["drainingHashesUnackedMessages"] == 2
    flow.ack("1:0", "1:1")
    assert flow.dispatch.stats(0)["drainingHashesCount"] == 0
    assert flow.dispatch.stats(0)["drainingHashesClearedTotal"] == 1


def test_ks_35_removing_a_consumer_twice_changes_nothing() -> None:
    flow = draining()
    number = flow.numbers["c1"]
    flow.leave("c1")
    flow.dispatch.leave(number, now=5)
    assert flow.dispatch.stats(0)["unackedMessages"] == 0
    assert flow.route() == {"c2": ["1:0"]}


def test_ks_37_a_forward_message_stays_behind_a_waiting_one() -> None:
    flow = Driver()
    flow.join("c1", permits=1)
    assert flow.send(X, X) == {"c1": ["1:0"]}
    flow.publish(X, X)
    flow.grant("c1", 2)
    assert flow.route() == {"c1": ["1:1", "1:2"]}
    flow.grant("c1", 5)
    assert flow.route() == {"c1": ["1:3"]}


def test_ks_41_a_hash_that_comes_free_lets_nothing_overtake() -> None:
    """#23870: a hash freed while the waiting messages were gone through let a later one go first."""
    flow = draining()
    flow.send(X, X, X)
    flow.ack("1:0")
    flow.publish(X)
    assert flow.route() == {"c2": ["1:1", "1:2", "1:3", "1:4"]}


def test_ks_45_skipped_messages_stay_and_keep_the_hash() -> None:
    flow = draining(2)
    flow.publish(X, Y)
    flow.dispatch.remove(at("1:0", "1:2"))
    assert flow.pending("c1") == ["1:0", "1:1"]
    assert flow.route() == {"c2": ["1:3"]}, "1:2 was skipped, 1:3 is another key"
    flow.publish(X)
    assert flow.route() == {}
    flow.leave("c1")
    assert flow.route() == {"c2": ["1:1", "1:4"]}, "the skipped message is not sent again"


def test_ks_45_clear_and_expire() -> None:
    flow = Driver()
    flow.join("c1", permits=2)
    flow.send(X, X, X, X)
    flow.dispatch.remove(up_to=int(at("1:2")[0]))
    flow.grant("c1", 10)
    assert flow.route() == {"c1": ["1:3"]}
    flow.dispatch.remove()
    assert flow.pending("c1") == ["1:0", "1:1", "1:3"]
    flow.leave("c1")
    assert flow.dispatch.idle()


def test_ks_57_acknowledging_what_was_not_sent_yet() -> None:
    flow = draining()
    flow.send(X, X)
    assert flow.ack("1:1") == ["1:1"], "it waits behind the draining hash"
    flow.ack("1:0")
    assert flow.route() == {"c2": ["1:2"]}


def test_ks_59_only_the_owner_gives_back_and_the_count_rises() -> None:
    flow = Driver()
    flow.join("c1")
    flow.join("c2")
    flow.send(X, STAYED[0])
    assert flow.nack("c1", "1:0", "1:1") == 1
    assert flow.pending("c1") == []
    (part,) = flow.dispatch.route(0)
    assert (part.consumer, part.redeliveries.tolist()) == (flow.numbers["c1"], [1])


def test_ks_36_a_lost_consumer_raises_no_redelivery_count() -> None:
    flow = Driver()
    flow.join("c1")
    flow.send(X)
    flow.nack("c1", "1:0")
    flow.route()
    flow.leave("c1")
    flow.join("c2")
    (part,) = flow.dispatch.route(0)
    assert part.redeliveries.tolist() == [1]


def test_ks_60_a_negative_acknowledgement_does_not_hold_its_key() -> None:
    flow = Driver()
    flow.join("c1", permits=2)
    flow.send(X, X)
    flow.nack("c1", "1:0", delay=50)
    flow.grant("c1", 1)
    assert flow.send(X) == {"c1": ["1:2"]}
    flow.grant("c1", 5)
    assert flow.route() == {}
    assert flow.dispatch.wakeup(flow.now) == flow.now + 50
    flow.now += 50
    assert flow.route() == {"c1": ["1:0"]}
    assert flow.dispatch.wakeup(flow.now) is None


def test_ks_60_but_one_consumer_at_a_time_still_holds() -> None:
    flow = draining(2)
    flow.nack("c1", "1:0")
    assert flow.route() == {}, "c1 still holds 1:1 of the same key"
    flow.ack("1:1")
    assert flow.route() == {"c2": ["1:0"]}


def test_ks_59_redeliver_everything_keeps_the_order() -> None:
    flow = draining(3)
    assert flow.nack("c1") == 3
    assert flow.route() == {"c2": ["1:0", "1:1", "1:2"]}


def test_a_hand_back_at_close_is_in_order_and_not_counted() -> None:
    flow = draining(3)
    flow.send(X)
    assert flow.nack("c1", "1:1", "1:0", "1:2", counted=False) == 3
    (part,) = flow.dispatch.route(0)
    assert part.positions.tolist() == at("1:0", "1:1", "1:2", "1:3").tolist()
    assert part.redeliveries.tolist() == []


def test_ks_64_a_due_message_may_come_late_but_to_one_consumer() -> None:
    flow = Driver()
    flow.join("c1")
    flow.entry = 1
    flow.send(X)
    flow.join("c2")
    flow.dispatch.due(at("1:0"), np.array([flow_hash(X)], np.uint32))
    assert flow.route() == {}, "c1 holds 1:1 of the key"
    flow.ack("1:1")
    assert flow.route() == {"c2": ["1:0"]}
    flow.dispatch.due(at("1:0"), np.array([flow_hash(X)], np.uint32))
    assert flow.route() == {}, "the same message due twice is one message"


def flow_hash(key: str) -> int:
    """Masked hash of a key."""
    return masked_hash(key.encode())


def test_positions_that_do_not_follow_are_refused() -> None:
    flow = Driver()
    flow.publish("a", "b")
    with pytest.raises(InvariantViolation, match="was read after"):
        flow.dispatch.append(at("1:1"), np.zeros(1, np.uint32))
    with pytest.raises(InvariantViolation, match="not ascending"):
        flow.dispatch.append(at("1:5", "1:4"), np.zeros(2, np.uint32))


# -- membership --------------------------------------------------------------------------------------------------------


def test_ks_34_a_refused_consumer_leaves_no_trace() -> None:
    dispatch = KeySharedDispatcher(SubscriptionSettings(selector="sticky"))
    dispatch.join("a", now=0, ranges=[(0, 99), (400, 65535)])
    with pytest.raises(Conflict):
        dispatch.join("b", now=0, ranges=[(0, 65535)])
    with pytest.raises(Conflict):
        dispatch.join("b", now=0, ranges=[(1, 1)])
    with pytest.raises(Invalid):
        dispatch.join("b", now=0)
    assert [consumer["consumerName"] for consumer in dispatch.stats(0)["consumers"]] == ["a"]


def test_kst_12_ranges_conflict_until_their_owner_closes() -> None:
    dispatch = KeySharedDispatcher(SubscriptionSettings(selector="sticky"))
    one = dispatch.join("a", now=0, ranges=[(0, 99), (400, 65535)])
    two = dispatch.join("b", now=0, ranges=[(100, 399)])
    dispatch.leave(one, now=0)
    for ranges in ([(0, 65535)], [(50, 100)], [(399, 500)]):
        with pytest.raises(Conflict):
            dispatch.join("c", now=0, ranges=ranges)
    three = dispatch.join("c", now=0, ranges=[(400, 600)])
    four = dispatch.join("d", now=0, ranges=[(50, 99)])
    assert len(dispatch.consumers()) == 3
    for number in (two, three, four):
        dispatch.leave(number, now=0)
    assert dispatch.consumers() == []


def test_sd_3_keys_outside_of_every_range_wait_and_stop_nobody() -> None:
    flow = Driver(selector="sticky")
    inside = [key for key in MOVED + STAYED if flow.hash_of(key) <= 30000][:2]
    outside = next(key for key in MOVED + STAYED if flow.hash_of(key) > 30000)
    flow.join("c1", ranges=[(0, 30000)])
    assert flow.send(outside, inside[0], outside, inside[1]) == {"c1": ["1:1", "1:3"]}
    assert flow.dispatch.stats(0)["msgInReplay"] == 2
    flow.join("c2", ranges=[(30001, 65535)])
    assert flow.route() == {"c2": ["1:0", "1:2"]}


def test_kst_9_a_newcomer_gets_all_in_order_after_the_first() -> None:
    flow = Driver()
    flow.join("c1", permits=10)
    keys = [str(number) for number in range(10)]
    assert len(flow.send(*keys)["c1"]) == 10
    flow.join("c2")
    assert flow.send(*keys) == {}, "of every key c1 holds a message, or has no permits"
    flow.leave("c1")
    assert flow.route() == {"c2": [f"1:{number}" for number in range(20)]}


def test_kst_11_the_next_takes_over_as_its_queue_allows() -> None:
    flow = Driver()
    flow.join("c1", permits=10)
    keys = [str(number) for number in range(10)]
    first = flow.send(*keys)["c1"]
    flow.join("c2", permits=10)
    more = flow.publish(*keys)
    for _ in range(100):
        flow.now += 10
        assert flow.route() == {}, "for a whole second nothing moves"
    flow.leave("c1")
    assert flow.route() == {"c2": first}
    assert flow.route() == {}, "its queue is full"
    flow.ack(*first)
    flow.grant("c2", 10)
    assert flow.route() == {"c2": more}


def test_kst_19_equal_names() -> None:
    flow = Driver()
    for name in ("a", "b", "c"):
        flow.join(name, permits=5 if name == "a" else 1000, called="same")
    keys = [f"key-{number}" for number in range(100)]
    got = flow.send(*keys)
    assert len(got["a"]) == 5
    flow.leave("a")
    more = flow.route()
    assert sum(map(len, got.values())) - 5 + sum(map(len, more.values())) == 100


def test_kst_1_and_3_shares_are_even_and_a_crash_moves_them() -> None:
    flow = Driver()
    for name in ("a", "b", "c"):
        flow.join(name)
    keys = [str(number % 300) for number in range(1000)]
    got = flow.send(*keys)
    assert sum(map(len, got.values())) == 1000
    assert all(abs(len(part) - 333) < 0.4 * 333 for part in got.values())
    holder = {message: name for name, part in got.items() for message in part}
    homes = {key: {holder[f"1:{n}"] for n in range(1000) if keys[n] == key} for key in set(keys)}
    assert all(len(home) == 1 for home in homes.values()), "each key is at one consumer"
    flow.leave("a")
    moved = flow.route()
    assert sorted(message for part in moved.values() for message in part) == sorted(got["a"])


def test_kst_8_a_slow_consumer_holds_back_only_its_own_keys() -> None:
    flow = Driver()
    for number in range(10):
        flow.join(f"c{number}", permits=1 if number == 0 else 1000)
    keys = [f"key-{number}" for number in range(1000)]
    slow = [key for key in keys if flow.owner_of(key) == "c0"]
    got = flow.send(*keys)
    assert len(got["c0"]) == 1
    assert sum(map(len, got.values())) == 1000 - len(slow) + 1


def test_the_last_consumer_leaves_and_the_next_gets_all_in_order() -> None:
    flow = Driver()
    flow.join("c1", permits=3)
    flow.send(X, Y, X, Y, X)
    flow.leave("c1")
    assert flow.dispatch.room() == 0
    flow.join("c2")
    assert flow.route() == {"c2": ["1:0", "1:1", "1:2", "1:3", "1:4"]}


def test_gathered_reports_count_once_for_the_first_reporter() -> None:
    flow = Driver()
    flow.join("a")
    flow.join("b")
    sent = flow.send(*(f"k{number}" for number in range(20)))
    a, b = (at(*sent[name]) for name in "ab")
    flow.dispatch.acknowledge_soon(a[::-1], flow.numbers["a"])
    flow.dispatch.acknowledge_soon(np.concatenate([a[:2], b[:3], b[:3], ints([7 << 32])]), flow.numbers["b"])
    flow.dispatch.acknowledge_soon(b[3:4], None)
    assert flow.consumer_stats("a")["msgAckCounter"] == len(a)
    assert flow.consumer_stats("b")["msgAckCounter"] == 3
    assert flow.pending("a") == []
    assert flow.pending("b") == sent["b"][4:]
    flow.dispatch.check()


def test_a_report_frees_a_consumer_before_or_after_permits() -> None:
    for permits_first in (True, False):
        flow = Driver(max_unacked_messages_per_consumer=4)
        flow.join("a", permits=4)
        sent = flow.send(*"abcdefgh")["a"]
        assert len(sent) == 4
        if permits_first:
            flow.grant("a", 100)
        flow.dispatch.acknowledge_soon(at(*sent), flow.numbers["a"])
        if not permits_first:
            flow.grant("a", 100)
        assert len(flow.route()["a"]) == 4


@pytest.mark.parametrize("selector", ["consistent_hashing", "auto_split"])
def test_many_leave_at_once_then_all_they_held_waits_in_order(selector: str) -> None:
    """One change of owners moves everything, and each message goes once to who is left."""
    flow = Driver(selector=selector)
    for number in range(20):
        flow.join(f"c{number}")
    published = flow.publish(*(f"k{number % 50}" for number in range(200)))
    assert sorted(one for got in flow.route().values() for one in got) == sorted(published)
    before = flow.dispatch.history.number
    stays = flow.pending("c0")
    flow.dispatch.leave_all({flow.numbers.pop(f"c{number}"): False for number in range(1, 20)}, now=flow.now)
    assert flow.dispatch.history.number == before + 1
    assert flow.route() == {"c0": [one for one in published if one not in stays]}
