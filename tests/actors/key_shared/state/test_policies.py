"""The published flows of PIP-282, PIP-319 and PIP-379, step by step, under every policy."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.actors.key_shared.state.policies import make_policy
from sluice.storage.errors import Invalid
from sluice.storage.format.position import position
from tests.actors.key_shared.driver import Driver, at, keys_by_owners

FLOW = keys_by_owners(("c1", "c2"), ("c3",))
KEY_A = FLOW["c1", "c3"][0]
KEY_B = FLOW["c2", "c2"][0]

ORDERED = ["draining_hashes", "last_sent_position"]


def first_flow(policy: str, **options: Any) -> Driver:
    """Play PIP-282 issue-1, steps 1 to 3: c1 holds 1:6, c2 holds 1:9 to 1:11, and c3 joins and takes over key-a."""
    flow = Driver(ledger=1, entry=6, policy=policy, **options)
    flow.join("c1", permits=1)
    flow.join("c2", permits=1000)
    got = flow.send(KEY_A, KEY_A, KEY_A, KEY_B, KEY_B, KEY_B)
    assert got == {"c1": ["1:6"], "c2": ["1:9", "1:10", "1:11"]}
    flow.join("c3", permits=1000)
    assert flow.owner_of(KEY_A) == "c3"
    return flow


def test_pip_282_issue_1_is_out_of_order_under_read_position() -> None:
    flow = first_flow("read_position")
    assert flow.route() == {"c3": ["1:7", "1:8"]}
    flow.leave("c1")
    assert flow.route() == {"c3": ["1:6"]}, "c3 receives 1:7, 1:8, 1:6"
    sentinel = flow.dispatch.stats(0)["sentinel"]
    assert (sentinel["violationsHolder"], sentinel["violationsOrder"]) == (2, 0)
    assert "promise 2 broken: 1:7" in sentinel["stories"][0]


@pytest.mark.parametrize("policy", ORDERED)
def test_pip_282_issue_1_is_in_order_under_the_others(policy: str) -> None:
    flow = first_flow(policy)
    assert flow.route() == {}
    flow.leave("c1")
    if policy == "draining_hashes":
        assert flow.route() == {"c3": ["1:6", "1:7", "1:8"]}
    else:
        # c3 may have no more than was sent before it came, until that is acknowledged.
        assert flow.route() == {"c3": ["1:6"]}
        flow.ack("1:6", "1:9", "1:10", "1:11")
        flow.dispatch.mark_deleted(position(1, 6))
        assert flow.route() == {"c3": ["1:7", "1:8"]}
    assert flow.dispatch.stats(0)["sentinel"]["violationsHolder"] == 0


def test_pip_282_issue_1_race_messages_unsent_when_c3_joins() -> None:
    """The proposal's first version of the flow adds the consumer between the read and the dispatch."""
    flow = Driver(entry=6, policy="read_position")
    flow.join("c1", permits=1)
    flow.join("c2")
    assert flow.send(KEY_A) == {"c1": ["1:6"]}
    flow.publish(KEY_A, KEY_A)
    flow.join("c3")
    assert flow.route() == {"c3": ["1:7", "1:8"]}
    assert flow.dispatch.stats(0)["sentinel"]["violationsHolder"] == 2


def second_flow(policy: str) -> Driver:
    """Play PIP-282 issue-2, steps 1 to 4: c1 holds 2:1, 2:2 waits for permits, and c3 joins."""
    flow = Driver(ledger=2, entry=1, policy=policy)
    flow.join("c1", permits=1)
    flow.join("c2", permits=1000)
    assert flow.send(KEY_A) == {"c1": ["2:1"]}
    assert flow.send(KEY_A) == {}
    assert flow.dispatch.stats(0)["msgInReplay"] == 1
    flow.join("c3", permits=1000)
    return flow


def test_pip_282_issue_2_is_out_of_order_under_read_position() -> None:
    flow = second_flow("read_position")
    assert flow.route() == {"c3": ["2:2"]}
    flow.leave("c1")
    assert flow.route() == {"c3": ["2:1"]}, "c3 receives 2:2, 2:1"
    assert flow.dispatch.stats(0)["sentinel"]["violationsHolder"] == 1


@pytest.mark.parametrize("policy", ORDERED)
def test_pip_282_issue_2_is_in_order_under_the_others(policy: str) -> None:
    flow = second_flow(policy)
    assert flow.route() == {}
    flow.leave("c1")
    got = flow.route()
    if policy == "draining_hashes":
        assert got == {"c3": ["2:1", "2:2"]}
    else:
        assert got == {"c3": ["2:1"]}
        assert flow.route() == {}
        flow.ack("2:1")
        flow.dispatch.mark_deleted(position(2, 1))
        assert flow.route() == {"c3": ["2:2"]}
    assert flow.dispatch.stats(0)["sentinel"]["violationsHolder"] == 0


OLDER: list[dict[str, Any]] = [
    {"policy": "last_sent_position"},
    {"policy": "last_sent_position", "remember_unacked_keys": True},
    {"policy": "read_position"},
]


@pytest.mark.parametrize("order", [("c1", "c2", "c3"), ("c3", "c2", "c1")])
@pytest.mark.parametrize("options", OLDER)
def test_pip_282_issue_1_over_a_change_of_owner(options: dict[str, Any], order: tuple[str, ...]) -> None:
    """The new owner does not know who joined recently, nor where. c1's messages keep their key all the same."""
    flow = Driver(ledger=1, entry=6, **options)
    holding = {"c1": at("1:6"), "c2": at("1:9", "1:10", "1:11"), "c3": at()}
    for name in order:
        flow.join(name, holding=holding[name])
    key_a = next(key for key in FLOW["c1", "c3"] if flow.owner_of(key) == "c3")
    key_b = next(key for key in FLOW["c2", "c2"] if flow.owner_of(key) == "c2")
    flow.bring("c1", {"1:6": key_a})
    flow.bring("c2", dict.fromkeys(("1:9", "1:10", "1:11"), key_b))
    flow.dispatch.mark_deleted(position(1, 5))
    assert flow.send(key_a, key_a, key_a, key_b, key_b, key_b, key_b) == {"c2": ["1:12"]}
    assert flow.why(position=position(1, 7)) == ["recently_joined"]
    assert "c1#" in flow.dispatch.explain(position=position(1, 7), now=0)["reasons"][0]["unblocks"]
    flow.leave("c1")
    assert flow.route() == {"c3": ["1:6", "1:7", "1:8"]}
    assert flow.dispatch.stats(0)["sentinel"]["violationsHolder"] == 0


@pytest.mark.parametrize("options", OLDER)
def test_pip_282_issue_2_over_a_change_of_owner(options: dict[str, Any]) -> None:
    flow = Driver(ledger=2, entry=1, **options)
    flow.join("c1", permits=1, holding=at("2:1"))
    flow.join("c2")
    flow.join("c3")
    flow.bring("c1", {"2:1": KEY_A})
    flow.dispatch.mark_deleted(position(2, 0))
    assert flow.send(KEY_A, KEY_A, KEY_B) == {"c2": ["2:3"]}
    flow.ack("2:1")
    assert flow.route() == {"c3": ["2:2"]}, "an acknowledgement alone is enough"


def test_pip_379_gain_other_keys_are_not_held_back() -> None:
    moved = FLOW["c1", "c3"]
    for policy, expected in (("draining_hashes", ["1:8"]), ("last_sent_position", []), ("read_position", [])):
        flow = Driver(entry=6, policy=policy)
        flow.join("c1")
        flow.join("c2")
        flow.send(moved[0])
        flow.join("c3")
        got = flow.send(moved[0], moved[1])
        assert got.get("c3", []) == expected, policy


def test_kst_27_new_keys_of_a_newcomer_arrive_at_once() -> None:
    flow = Driver()
    flow.join("c1")
    moved = keys_by_owners(("c1",), ("c2",))["c1", "c2"]
    assert flow.send(moved[0]) == {"c1": ["1:0"]}
    flow.join("c2")
    assert flow.send(moved[1], moved[2]) == {"c2": ["1:1", "1:2"]}
    assert flow.send(moved[0]) == {}
    flow.ack("1:0")
    assert flow.route() == {"c2": ["1:3"]}


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "draining_hashes"},
        {"policy": "last_sent_position", "remember_unacked_keys": True},
        {"policy": "read_position", "remember_unacked_keys": True},
    ],
)
def test_kst_28_one_unacknowledged_message_stops_nobody_else(options: dict[str, Any]) -> None:
    """PIP-319 and #21199: fourteen consumers restart one by one. All keys but the stuck one go on."""
    flow = Driver(**options)
    for number in range(3):
        flow.join(f"c{number}")
    assert len(flow.send("stuck")) == 1
    keys = [f"free-{number}" for number in range(40)]
    for restart in range(14):
        flow.leave(sorted(flow.numbers)[0])
        flow.join(f"c{restart + 3}")
        free = flow.publish(*keys)
        got = flow.route()
        flow.dispatch.mark_deleted(position(1, 0) - 1)
        delivered = [message for messages in got.values() for message in messages]
        assert set(free) <= set(delivered), f"restart {restart}"
        flow.ack(*free)
    assert flow.dispatch.stats(0)["unackedMessages"] + flow.dispatch.stats(0)["msgInReplay"] == 1
    assert flow.dispatch.stats(0)["sentinel"]["violationsHolder"] == 0


def test_issue_21199_without_remembering_a_newcomer_gets_nothing() -> None:
    flow = Driver(policy="last_sent_position")
    flow.join("c1")
    flow.join("c2")
    flow.send(KEY_A)
    flow.join("c3")
    keys = FLOW["c1", "c3"][1:20]
    assert flow.send(*keys) == {}
    assert flow.dispatch.stats(0)["consumersAfterMarkDeletePosition"] == {"consumer 'c3' #3": "1:0"}
    flow.ack("1:0")
    flow.dispatch.mark_deleted(position(1, 0))
    assert len(flow.route()["c3"]) == 19
    assert flow.dispatch.stats(0)["consumersAfterMarkDeletePosition"] == {}


def test_rk_3_earlier_waiting_messages_are_not_overtaken() -> None:
    flow = Driver(policy="last_sent_position", remember_unacked_keys=True)
    flow.join("c1", permits=1)
    flow.join("c2")
    other, moved = FLOW["c1", "c3"][:2]
    flow.send(other, moved)
    assert flow.pending("c1") == ["1:0"]
    flow.join("c3")
    # Nobody holds `moved`, so what waits of it may go, and the rest of it behind it.
    assert flow.send(moved, other) == {"c3": ["1:1", "1:2"]}
    flow.ack("1:0")
    assert flow.route() == {"c3": ["1:3"]}


def test_rk_4_remembering_has_no_effect_under_draining_hashes() -> None:
    assert type(make_policy("draining_hashes", remember_unacked_keys=True)) is type(make_policy("draining_hashes"))


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(Invalid, match="draining_hashes, last_sent_position or read_position"):
        make_policy("none")


@pytest.mark.parametrize("policy", ["read_position", "last_sent_position"])
def test_ls_6_what_waits_for_one_newcomer_skips_the_next(policy: str) -> None:
    """c1 must wait for 1:1 and 1:2. c2 joins later, further on, and takes c1's hashes over, so it must wait as well."""
    key = keys_by_owners(("c0",), ("c1",), ("c2",))["c0", "c1", "c2"]
    flow = Driver(policy=policy)
    flow.join("c0")
    flow.send("anything")
    flow.join("c1")
    assert flow.send(key[0], key[1]) == {}
    stays = keys_by_owners(("c0",), ("c1",), ("c2",))["c0", "c0", "c0"][0]
    assert flow.send(stays) == {"c0": ["1:3"]}
    flow.join("c2")
    assert flow.route() == {}, "under the old policy the position of c2 is above them, that of c1 is not"


def test_ls_5_one_consumer_alone_waits_for_nobody() -> None:
    flow = Driver(policy="last_sent_position")
    flow.join("c1")
    flow.send("x", "y", "z")
    flow.join("c2")
    flow.leave("c1")
    assert flow.dispatch.stats(0)["consumersAfterMarkDeletePosition"] == {}
    assert len(flow.route()["c2"]) == 3


@pytest.mark.parametrize("policy", ["read_position", "last_sent_position"])
def test_a_newcomer_does_not_wait_for_what_is_acknowledged(policy: str) -> None:
    flow = Driver(policy=policy)
    flow.join("c1", permits=1)
    flow.send(KEY_A)
    flow.ack("1:0")
    flow.dispatch.mark_deleted(position(1, 0))
    flow.join("c2")
    flow.publish(KEY_A)
    flow.route()
    flow.join("c3")
    if policy == "last_sent_position":
        assert flow.dispatch.stats(0)["consumersAfterMarkDeletePosition"] == {}
    assert flow.route() == {"c3": ["1:1"]}, "nobody holds anything, and c1 has no permits: it must go out"


def test_allow_out_of_order_delivery_holds_nothing_back() -> None:
    flow = Driver(allow_out_of_order_delivery=True)
    flow.join("c1", permits=1)
    flow.join("c2")
    flow.send(KEY_A)
    flow.join("c3")
    assert flow.send(KEY_A) == {"c3": ["1:1"]}
    assert flow.dispatch.stats(0)["sentinel"]["violationsHolder"] == 1
