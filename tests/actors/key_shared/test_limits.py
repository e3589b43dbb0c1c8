"""Permits, limits of unacknowledged messages, look-ahead, redelivery delay, dead letters."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.actors.key_shared.state.dispatch_state import UNLIMITED, look_ahead_limit
from sluice.actors.messages import SubscriptionSettings
from sluice.storage.errors import Conflict, Invalid
from tests.actors.key_shared.driver import Driver, at

LA_1 = [
    ((5, 100, 5), (0, 0), 25),
    ((5, 100, 100), (0, 0), 100),
    ((5, 0, 100), (0, 0), 500),
    ((0, 6000, 100), (0, 0), 6000),
    ((0, 0, 1), (0, 0), UNLIMITED),
    ((0, 0, 100), (1, 10), 10),
    ((0, 0, 100), (22, 0), 2200),
    ((4000, 40000, 3), (50000, 200000), 12000),
]


@pytest.mark.parametrize(("ahead", "unacked", "limit"), LA_1)
def test_la_1_and_ks_40_look_ahead_limits(ahead: tuple[int, int, int], unacked: tuple[int, int], limit: int) -> None:
    settings = SubscriptionSettings(
        look_ahead_per_consumer=ahead[0],
        look_ahead_per_subscription=ahead[1],
        max_unacked_messages_per_consumer=unacked[0],
        max_unacked_messages_per_subscription=unacked[1],
    )
    assert look_ahead_limit(settings, ahead[2]) == limit


def test_kst_10_reading_stops_at_the_look_ahead_limit() -> None:
    flow = Driver(look_ahead_per_subscription=50)
    flow.join("c1", permits=10)
    flow.send(*[str(number) for number in range(10)])
    flow.join("c2")
    published = 10
    while (room := flow.dispatch.room()) and published < 1000:
        flow.send(*[str((published + number) % 10) for number in range(room)])
        published += room
    assert published == 60, "c1 holds every key, so all that is read ahead waits"
    flow.leave("c1")
    assert len(flow.route()["c2"]) == 60
    assert flow.dispatch.room() == 50


def test_room_counts_permits_and_what_was_read() -> None:
    flow = Driver()
    assert flow.dispatch.room() == 0
    flow.join("c1", permits=7)
    assert flow.dispatch.room() == 7
    flow.publish("a", "b")
    assert flow.dispatch.room() == 5
    flow.route()
    assert flow.dispatch.room() == 5
    flow.leave("c1")
    assert flow.dispatch.room() == 0


def test_room_for_due_messages_is_not_used_up_by_others() -> None:
    flow = Driver(look_ahead_per_consumer=3, look_ahead_per_subscription=3)
    flow.join("c1", permits=2)
    flow.send("a", "b", "c", "d", "e")
    assert (flow.dispatch.room(), flow.dispatch.due_room()) == (0, 0)
    flow.join("c2", permits=5)
    flow.route()
    assert flow.dispatch.due_room() > 0


def test_permits_are_cumulative_and_late_grants_are_void() -> None:
    flow = Driver()
    number = flow.join("c1", permits=0)
    for total in (5, 3, 5):
        flow.dispatch.grant(number, total)
    assert flow.consumer_stats("c1")["availablePermits"] == 5
    flow.send("a", "b")
    assert flow.consumer_stats("c1")["availablePermits"] == 3
    flow.leave("c1")
    flow.dispatch.grant(number, 1000)
    flow.join("c2", permits=1)
    assert len(flow.route()["c2"]) == 1


def test_pm_6_very_large_sums_stay_exact() -> None:
    flow = Driver()
    for name in ("a", "b", "c"):
        flow.join(name, permits=2**63 - 1)
    assert flow.dispatch.room() == 12_000
    assert sum(map(len, flow.send("x", "y", "z").values())) == 3


def test_ks_48_a_consumer_blocks_at_its_limit_until_half() -> None:
    flow = Driver(max_unacked_messages_per_consumer=10)
    flow.join("c1", permits=10)
    names = flow.publish(*[str(number) for number in range(20)])
    assert len(flow.route()["c1"]) == 10
    assert flow.consumer_stats("c1")["blockedConsumerOnUnackedMsgs"]
    flow.grant("c1", 1000)
    assert flow.consumer_stats("c1")["availablePermits"] == 0, "permits that arrive while blocked are held back"
    flow.ack(*names[:4])
    assert flow.route() == {}
    assert flow.consumer_stats("c1")["blockedConsumerOnUnackedMsgs"]
    flow.ack(names[4])
    assert flow.consumer_stats("c1")["availablePermits"] == 1000
    assert len(flow.route()["c1"]) == 5, "up to the limit again"


def test_pm_4_permits_held_back_leave_with_their_consumer() -> None:
    flow = Driver(max_unacked_messages_per_consumer=2)
    flow.join("a", permits=2)
    flow.send("k1", "k2", "k3")
    flow.grant("a", 1000)
    flow.join("b", permits=100)
    flow.leave("a")
    assert len(flow.route()["b"]) == 2
    assert flow.dispatch.room() == 0, "b is at its own limit of two, and the permits of a are gone"


def test_ua_1_counters_never_go_below_zero() -> None:
    flow = Driver()
    number = flow.join("c1")
    flow.send(*"abcdefghij")
    assert flow.dispatch.stats(0)["unackedMessages"] == 10
    for _ in range(2):
        flow.dispatch.leave(number, now=0)
        flow.dispatch.check()
        assert flow.dispatch.stats(0)["unackedMessages"] == 0


def test_ua_6_what_one_group_names_twice_counts_once() -> None:
    """Upstream counts the messages of a batch in one record; here each has its own, so three runs of three are nine."""
    flow = Driver()
    flow.join("c1")
    runs = [flow.publish(f"k{number}", f"k{number}", f"k{number}") for number in range(3)]
    assert len(flow.route()["c1"]) == 9
    assert flow.ack(*runs[1], *runs[2], *runs[1]) == [*runs[1], *runs[2]]
    assert flow.pending("c1") == runs[0]
    assert flow.consumer_stats("c1")["unackedMessages"] == 3
    assert flow.ack(*runs[0]) == runs[0]
    assert flow.consumer_stats("c1")["unackedMessages"] == 0


def test_ua_9_acknowledging_through_another_releases_the_owner() -> None:
    flow = Driver(max_unacked_messages_per_consumer=10)
    flow.join("owner", permits=1000)
    names = flow.publish(*[str(number) for number in range(11)])
    flow.route()
    flow.join("other")
    for _ in range(2):
        flow.ack(*names[:9], by="other")
    assert flow.consumer_stats("owner")["unackedMessages"] == 1
    assert not flow.consumer_stats("owner")["blockedConsumerOnUnackedMsgs"]
    assert sum(map(len, flow.route().values())) == 1


def test_ua_10_one_group_for_two_owners() -> None:
    flow = Driver()
    flow.join("a")
    flow.join("b")
    got = flow.send(*[f"k{number}" for number in range(30)])
    first, second = got["a"][:3], got["b"][:3]
    flow.ack(*got["a"][3:], *got["b"][3:])
    flow.ack(first[0], first[1], second[0], second[1], first[0], by="a")
    assert [flow.consumer_stats(name)["unackedMessages"] for name in "ab"] == [1, 1]
    flow.ack(first[2], second[2])
    assert flow.dispatch.idle()


def test_ks_49_a_blocked_subscription_only_redelivers() -> None:
    flow = Driver(max_unacked_messages_per_subscription=10)
    flow.join("c1", permits=1000)
    flow.send(*[str(number) for number in range(10)])
    assert flow.dispatch.stats(0)["blockedSubscriptionOnUnackedMsgs"]
    assert flow.dispatch.room() == 0
    flow.nack("c1", "1:0")
    assert flow.route() == {"c1": ["1:0"]}
    flow.ack("1:0", "1:1", "1:2", "1:3", "1:4")
    assert flow.dispatch.room() == 0, "half is not below half"
    flow.ack("1:5")
    assert flow.dispatch.room() > 0


def test_ot_1_skipping_when_shared_settles_the_counters() -> None:
    flow = Driver(type="shared")
    flow.join("c1")
    names = flow.publish(*"abcdefghij")
    flow.route()
    flow.dispatch.remove(at(*names[:5]))
    assert flow.consumer_stats("c1")["unackedMessages"] == 5
    assert flow.ack(names[0]) == []
    assert flow.consumer_stats("c1")["unackedMessages"] == 5


def test_redelivery_counts_and_dead_letters() -> None:
    flow = Driver(max_redeliver_count=2)
    flow.join("c1")
    flow.send("a", "b")
    for round_ in (1, 2):
        assert flow.nack("c1", "1:0") == 1
        (part,) = flow.dispatch.route(0)
        assert part.redeliveries.tolist() == [round_]
    flow.nack("c1", "1:0")
    assert flow.route() == {}
    assert flow.dispatch.has_dead_letters()
    assert flow.dispatch.dead_letters().tolist() == at("1:0").tolist()
    assert flow.dispatch.stats(0)["msgDeadLetter"] == 1
    assert flow.ack("1:0", "1:1") == ["1:0", "1:1"]
    assert not flow.dispatch.has_dead_letters()
    assert flow.dispatch.idle()


def test_redelivery_counts_stop_at_the_top_of_their_column() -> None:
    flow = Driver()
    flow.join("c1", permits=10_000)
    flow.send("a")
    for _ in range(300):
        flow.nack("c1", "1:0")
        (part,) = flow.dispatch.route(0)
    assert part.redeliveries.tolist() == [255]


def test_na_several_delays_at_once() -> None:
    flow = Driver()
    flow.join("c1")
    flow.send("a", "b", "c")
    for name, delay in (("1:0", 300), ("1:1", 100), ("1:2", 200)):
        flow.nack("c1", name, delay=delay)
    began = flow.now
    for moment, name in ((100, "1:1"), (200, "1:2"), (300, "1:0")):
        assert flow.dispatch.wakeup(flow.now) == began + moment
        flow.now = began + moment
        assert flow.route() == {"c1": [name]}


def test_delays_that_end_together_after_others_are_over() -> None:
    flow = Driver()
    flow.join("c1")
    flow.send("a", "b", "c")
    flow.nack("c1", "1:0", delay=10)
    flow.nack("c1", "1:1", delay=50)
    flow.now += 10
    assert flow.route() == {"c1": ["1:0"]}
    flow.nack("c1", "1:2", delay=40)
    flow.now += 40
    assert flow.route() == {"c1": ["1:1", "1:2"]}


def test_an_acknowledgement_during_the_delay_counts() -> None:
    flow = Driver()
    flow.join("c1")
    flow.send("a")
    flow.nack("c1", "1:0", delay=100)
    assert flow.ack("1:0") == ["1:0"]
    flow.now += 100
    assert flow.route() == {}
    assert flow.dispatch.idle()


# -- the other types of subscription -----------------------------------------------------------------------------------


def test_shared_deals_evenly_and_by_permits() -> None:
    flow = Driver(type="shared")
    for name, permits in (("a", 3), ("b", 1000), ("c", 1000)):
        flow.join(name, permits=permits)
    got = flow.send(*["one-key"] * 30)
    assert sorted(map(len, got.values())) == [3, 13, 14]
    assert sorted(message for part in got.values() for message in part) == sorted(f"1:{number}" for number in range(30))


def test_shared_serves_the_lower_priority_number_first() -> None:
    flow = Driver(type="shared")
    flow.join("second", permits=100, priority=1)
    flow.join("first", permits=4, priority=0)
    got = flow.send(*["k"] * 6)
    assert (len(got["first"]), len(got["second"])) == (4, 2)


def test_shared_takes_turns_over_single_messages() -> None:
    flow = Driver(type="shared")
    for name in ("a", "b", "c"):
        flow.join(name)
    got = [next(iter(flow.send("k"))) for _ in range(6)]
    assert {got.count(name) for name in ("a", "b", "c")} == {2}


def test_exclusive_refuses_a_second_consumer() -> None:
    flow = Driver(type="exclusive")
    flow.join("a")
    with pytest.raises(Conflict):
        flow.join("b")
    flow.send("x", "y")
    flow.leave("a")
    flow.join("b")
    assert flow.route() == {"b": ["1:0", "1:1"]}


def test_failover_has_one_active_consumer_in_order() -> None:
    flow = Driver(type="failover")
    flow.join("a", permits=2, priority=1)
    flow.join("b", priority=1)
    assert flow.send("x", "y", "x") == {"a": ["1:0", "1:1"]}
    flow.leave("a")
    assert flow.route() == {"b": ["1:0", "1:1", "1:2"]}
    flow.join("c", priority=0)
    assert flow.route() == {"c": ["1:0", "1:1", "1:2"]}, "the new active consumer is sent what the old one held"
    assert flow.pending("b") == []
    assert flow.ack("1:0", by="b") == ["1:0"]


def test_unknown_settings_are_refused() -> None:
    wrongs: list[dict[str, Any]] = [
        {"type": "queue"},
        {"selector": "random"},
        {"policy": "hope"},
        {"replica_points": 0},
        {"delay_key_policy": "sometimes"},
    ]
    for wrong in wrongs:
        with pytest.raises(Invalid):
            Driver(**wrong)
