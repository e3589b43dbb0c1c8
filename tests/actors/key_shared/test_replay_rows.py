"""MR, SD-8, SD-11: messages that wait to be sent again, with and without a place in the order.

Upstream keeps positions, their hashes and counts by hash in a structure of its own. Here they are rows of the window
in the states REPLAY (a place in the order, counted by hash) and UNORDERED (none). `tables.replayed` has the counts.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.actors.key_shared.driver import Driver, at, keys_by_owners

KEYS = keys_by_owners(("c1",))[("c1",)]
MOVED = keys_by_owners(("c1",), ("c2",))["c1", "c2"][0]


def waiting(**settings: Any) -> Driver:
    """Return a driver with a consumer without permits, so that all messages wait; ledger 1 from entry 1 on."""
    flow = Driver(entry=1, **settings)
    flow.join("c1", permits=0)
    return flow


def publish(flow: Driver, messages: dict[str, str]) -> None:
    """Publish messages, given as name -> key, in this order, and let them wait."""
    for name, key in messages.items():
        flow.ledger, flow.entry = (int(part) for part in name.split(":"))
        flow.send(key)


def counted(flow: Driver, key: str) -> int:
    """Return how many messages of a key's hash wait with a place in the order."""
    return int(flow.dispatch.tables.replayed[flow.hash_of(key)])


def in_replay(flow: Driver) -> int:
    """Return msgInReplay."""
    return int(flow.dispatch.stats(0)["msgInReplay"])


def held_back(flow: Driver, *keys: str) -> list[str]:
    """Publish messages of these keys, which are read and not offered, and drop them again.

    Return the keys of those that wait behind earlier messages.
    """
    names = flow.publish(*keys)
    found = [
        key for name, key in zip(names, keys, strict=True) if "earlier_waits" in flow.why(position=int(at(name)[0]))
    ]
    flow.dispatch.remove(at(*names))
    return found


def test_mr_1_unordered_messages_are_counted_by_no_hash() -> None:
    flow = waiting()
    flow.due(KEYS[0], KEYS[1])
    assert in_replay(flow) == 2
    assert not flow.dispatch.tables.replayed.any()
    assert held_back(flow, KEYS[0], KEYS[1]) == [], "they hold nothing back"
    flow.dispatch.remove(at("1:1", "1:2"))
    assert in_replay(flow) == 0
    assert flow.dispatch.idle()


def test_mr_2_a_hash_is_known_while_any_message_of_it_waits() -> None:
    flow = waiting()
    a, b = KEYS[:2]
    publish(flow, {"2:1": a, "2:2": b, "2:3": b})
    assert (counted(flow, a), counted(flow, b)) == (1, 2)
    assert held_back(flow, a, b) == [a, b]
    flow.dispatch.remove(at("2:1", "2:2"))
    assert (counted(flow, a), counted(flow, b)) == (0, 1)
    assert held_back(flow, a, b) == [b]
    flow.dispatch.remove()
    assert held_back(flow, a, b) == []
    assert not flow.dispatch.tables.replayed.any()
    assert in_replay(flow) == 0


@pytest.mark.parametrize("last", ["1:3", "3:1", "5:10"])
def test_mr_3_they_are_removed_up_to_a_position(last: str) -> None:
    left = {"1:3": ["2:1", "2:2", "3:1", "3:2"], "3:1": ["3:2"], "5:10": []}[last]
    names = ("1:1", "1:2", "1:3", "2:1", "2:2", "3:1", "3:2")
    flow = waiting()
    publish(flow, {name: f"key-{name}" for name in names})
    flow.dispatch.remove(up_to=int(at(last)[0]))
    assert in_replay(flow) == len(left)
    assert [name for name in names if counted(flow, f"key-{name}")] == left
    flow.grant("c1", 100)
    assert flow.route().get("c1", []) == left


@pytest.mark.parametrize(
    ("asked", "found"), [([0], [0]), ([1, 2, 3], [1, 2, 3]), ([4, 5], [4]), ([], []), ([9], []), ([5, 6], [])]
)
def test_mr_4_a_waiting_hash_holds_back_its_own_messages_only(asked: list[int], found: list[int]) -> None:
    keys = KEYS[:10]
    flow = waiting()
    publish(flow, {f"2:{number}": keys[number] for number in range(5)})
    assert held_back(flow, *(keys[number] for number in asked)) == [keys[number] for number in found]
    unordered = waiting(allow_out_of_order_delivery=True)
    publish(unordered, {f"2:{number}": keys[number] for number in range(5)})
    assert in_replay(unordered) == 5
    assert held_back(unordered, *(keys[number] for number in asked)) == [], "without order nobody stays behind"


def test_mr_5_they_go_out_in_full_order_across_ledgers() -> None:
    flow = waiting()
    publish(flow, {name: f"key-{name}" for name in ("1:1", "1:2", "1:3", "2:1", "2:2", "3:1", "3:2")})
    flow.grant("c1", 6)
    assert flow.route() == {"c1": ["1:1", "1:2", "1:3", "2:1", "2:2", "3:1"]}
    assert in_replay(flow) == 1
    shared = waiting(type="shared")
    publish(shared, dict.fromkeys(("1:1", "1:2", "1:3", "2:1", "2:2"), "any"))
    shared.grant("c1", 3)
    assert sorted(shared.route()["c1"]) == ["1:1", "1:2", "1:3"]


@pytest.mark.parametrize("settings", [{"type": "shared"}, {"allow_out_of_order_delivery": True}])
def test_mr_6_without_order_a_waiting_message_holds_nothing(settings: dict[str, Any]) -> None:
    flow = Driver(**settings)
    flow.join("c1")
    flow.send(KEYS[0])
    flow.nack("c1", "1:0", delay=50)
    assert flow.send(KEYS[0]) == {"c1": ["1:1"]}
    flow.now += 50
    assert flow.route() == {"c1": ["1:0"]}
    assert not flow.dispatch.tables.replayed.any()
    flow.nack("c1", "1:0")
    assert in_replay(flow) == 1
    assert not flow.dispatch.tables.replayed.any(), "given back without a place in the order"
    assert flow.send(KEYS[0]) == {"c1": ["1:0", "1:2"]}


def test_ks_62_adding_twice_keeps_one() -> None:
    flow = waiting()
    flow.due(KEYS[0])
    flow.entry = 1
    flow.due(KEYS[0])
    assert in_replay(flow) == 1
    flow.grant("c1", 5)
    assert flow.route() == {"c1": ["1:1"]}
    assert flow.nack("c1", "1:1", "1:1") == 1
    assert flow.ack("1:1") == ["1:1"]
    assert flow.nack("c1", "1:1") == 0
    assert in_replay(flow) == 0


def test_sd_8_without_order_what_is_due_is_taken() -> None:
    flow = Driver(type="shared")
    flow.join("c1", permits=1)
    flow.send(KEYS[0])
    flow.due(KEYS[0])
    assert in_replay(flow) == 1
    assert flow.route() == {}, "no permits"
    flow.grant("c1", 1)
    assert flow.route() == {"c1": ["1:1"]}
    ordered = Driver()
    ordered.join("c1")
    ordered.send(MOVED)
    ordered.join("c2")
    ordered.due(MOVED)
    assert ordered.route() == {}, "with order it is asked at sending whether its hash drains"


def test_sd_11_and_ks_22_a_hash_draining_before_sending_waits() -> None:
    flow = Driver()
    flow.join("c1", permits=10)
    flow.send(MOVED)
    (name,) = flow.publish(MOVED)
    flow.join("c2", permits=10)
    before = {each: flow.consumer_stats(each) for each in ("c1", "c2")}
    assert flow.route() == {}
    assert in_replay(flow) == counted(flow, MOVED) == 1
    for each, row in before.items():
        after = flow.consumer_stats(each)
        for counter in ("availablePermits", "unackedMessages", "msgOutCounter"):
            assert after[counter] == row[counter], f"{counter} of {each}"
    assert flow.dispatch.stats(0)["unackedMessages"] == 1
    flow.ack("1:0")
    assert flow.route() == {"c2": [name]}
    assert counted(flow, MOVED) == 0
