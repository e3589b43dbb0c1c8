"""PA: the messages that a consumer holds, as they become more and fewer.

A consumer has no record of its own here. A sent message is a row of the window in the state PENDING, with its consumer
beside it. The whole keeps the promises of upstream's record: the size is the number of unacknowledged messages, and a
removal reports what it sets free.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.actors.key_shared.driver import Driver, at, keys_by_owners

OWNERS = keys_by_owners(("c1",), ("c2",))
MOVED, STAYED = OWNERS["c1", "c2"], OWNERS["c1", "c1"]
X, Y, Z = MOVED[:3]


def alone(*keys: str, **settings: Any) -> Driver:
    """Let c1 hold one message a key, from 1:0 on."""
    flow = Driver(**settings)
    flow.join("c1")
    flow.send(*keys)
    return flow


def unacked(flow: Driver) -> dict[str, int]:
    """Return how many messages each consumer holds, by the counter beside the rows."""
    return {name: flow.consumer_stats(name)["unackedMessages"] for name in flow.numbers}


def in_order(flow: Driver) -> int:
    """Return how many messages wait with a place in the order, and keep later ones of their hashes behind them."""
    return int(flow.dispatch.tables.replayed.sum())


def drained(flow: Driver, name: str) -> list[int]:
    """Take the hashes that the consumer is reported to have finished."""
    told = [event for event in flow.dispatch.take_events(flow.numbers[name]) if event.kind == "drained"]
    return [value for event in told for low, high in event.ranges for value in range(low, high + 1)]


def test_pa_1_only_what_may_go_is_recorded() -> None:
    flow = alone(X)
    assert (flow.pending("c1"), unacked(flow)) == (["1:0"], {"c1": 1})
    flow.join("c2")
    assert flow.send(X) == {}, "refused: the hash drains at c1"
    assert (flow.pending("c2"), unacked(flow)) == ([], {"c1": 1, "c2": 0})
    gone = flow.numbers["c1"]
    flow.leave("c1")
    flow.dispatch.grant(gone, 1_000_000)
    assert flow.send(STAYED[0]) == {"c2": ["1:0", "1:1", "1:2"]}, "nothing goes to a consumer that is closed"
    assert flow.dispatch.pending(gone).tolist() == []


def test_pa_2_what_is_held_is_told_with_its_hash() -> None:
    flow = alone(X)
    flow.ledger, flow.entry = 3, 4
    flow.send(Y, X)
    flow.ledger, flow.entry = 2, 9
    flow.due(Z)
    flow.route()
    flow.ledger, flow.entry = 3, 1
    flow.due(X)
    flow.route()
    assert flow.pending("c1") == ["1:0", "2:9", "3:1", "3:4", "3:5"]
    flow.join("c2")
    told = {row["hash"]: row["unackMsgs"] for row in flow.consumer_stats("c1")["drainingHashes"]}
    assert told == {flow.hash_of(X): 3, flow.hash_of(Y): 1, flow.hash_of(Z): 1}


def test_pa_3_at_closing_everything_waits_in_order() -> None:
    flow = alone(X, Y, X)
    flow.join("c2")
    assert flow.send(Y) == {}
    flow.dispatch.take_events(flow.numbers["c2"])
    gone = flow.numbers["c1"]
    flow.leave("c1")
    assert unacked(flow) == {"c2": 0}
    assert flow.dispatch.pending(gone).tolist() == []
    assert flow.dispatch.stats(0)["msgInReplay"] == in_order(flow) == 4
    assert drained(flow, "c2") == []
    assert flow.route() == {"c2": ["1:0", "1:1", "1:2", "1:3"]}
    assert flow.dispatch.negative_acknowledge(gone, at("1:0"), now=flow.now) == 0, "it has nothing to give back"


def test_pa_4_after_giving_everything_back_the_consumer_goes_on() -> None:
    flow = alone(X, Y, X)
    assert flow.nack("c1") == 3
    assert (flow.pending("c1"), unacked(flow), in_order(flow)) == ([], {"c1": 0}, 3)
    assert flow.send(Z) == {"c1": ["1:0", "1:1", "1:2", "1:3"]}
    assert unacked(flow) == {"c1": 4}


def test_pa_5_a_removal_happens_once() -> None:
    flow = alone(X, Y, STAYED[0])
    flow.join("c2")
    assert flow.send(X) == {}
    assert flow.ack("9:9", "1:1", "1:1", by="c2") == ["1:1"], "whoever says so, and however often"
    assert (unacked(flow), drained(flow, "c1")) == ({"c1": 2, "c2": 0}, [flow.hash_of(Y)])
    assert flow.ack("1:1", by="c1") == []
    assert (unacked(flow), drained(flow, "c1")) == ({"c1": 2, "c2": 0}, [])
    assert flow.dispatch.acknowledge(at()).tolist() == []


def test_pa_6_only_its_own_consumer_gives_it_back() -> None:
    """Upstream compares count and hash with the expected ones. Here an entry is one message, and its holder counts."""
    flow = alone(X, Y)
    flow.leave("c1")
    flow.join("c1")
    flow.join("c2")
    assert flow.route() == {"c2": ["1:0", "1:1"]}
    assert flow.nack("c1", "1:0", "1:1") == 0, "its former holder is late"
    assert flow.pending("c2") == ["1:0", "1:1"]
    assert flow.nack("c2", "1:0") == 1
    assert flow.pending("c2") == ["1:1"]


def over_two_ledgers(**settings: Any) -> Driver:
    """Let c1 hold 1:1, 1:2 and 2:1."""
    flow = Driver(entry=1, **settings)
    flow.join("c1")
    flow.publish(X, Y)
    flow.ledger, flow.entry = 2, 1
    flow.publish(Z)
    assert flow.route() == {"c1": ["1:1", "1:2", "2:1"]}
    return flow


def test_pa_7_removing_up_to_a_position_leaves_what_follows() -> None:
    flow = over_two_ledgers(type="shared")
    flow.dispatch.remove(up_to=int(at("1:2")[0]))
    assert (flow.pending("c1"), unacked(flow)) == (["2:1"], {"c1": 1})
    ordered = over_two_ledgers()
    ordered.dispatch.remove(up_to=int(at("1:2")[0]))
    assert ordered.pending("c1") == ["1:1", "1:2", "2:1"], "its consumer may still be working on them (KS-45)"
    assert ordered.nack("c1") == 3
    assert ordered.route() == {"c1": ["2:1"]}


def test_pa_8_removing_up_to_the_last_position_leaves_none() -> None:
    flow = over_two_ledgers(type="shared")
    flow.dispatch.remove(up_to=int(at("2:1")[0]))
    assert (flow.pending("c1"), unacked(flow)) == ([], {"c1": 0})
    assert flow.dispatch.idle()


def test_pa_9_each_consumer_is_let_off_what_was_removed_of_it() -> None:
    flow = Driver(type="shared")
    flow.join("a", permits=3)
    flow.join("b", permits=5)
    flow.send(*[X] * 8)
    assert unacked(flow) == {"a": 3, "b": 5}
    flow.grant("a", 2)
    assert flow.send(X, X) == {"a": ["1:8", "1:9"]}
    flow.dispatch.remove(up_to=int(at("1:7")[0]))
    assert unacked(flow) == {"a": 2, "b": 0}
    assert flow.pending("a") == ["1:8", "1:9"]


def test_pa_10_a_message_sent_again_is_one_record() -> None:
    flow = alone(X)
    flow.dispatch.due(at("1:0"), np.array([1], np.uint32))
    assert flow.route() == {}, "it is here already"
    flow.join("c2")
    assert flow.nack("c1", "1:0") == 1
    assert flow.route() == {"c2": ["1:0"]}
    assert (flow.pending("c1"), flow.pending("c2"), unacked(flow)) == ([], ["1:0"], {"c1": 0, "c2": 1})
    assert flow.dispatch.stats(0)["unackedMessages"] == 1


def test_pa_11_what_was_found_and_held_back_goes_out() -> None:
    flow = alone(X, X)
    flow.join("c2")
    assert flow.send(X) == {}
    assert flow.ack("1:0", "5:5") == ["1:0"]
    assert (flow.ack("5:5"), flow.route()) == ([], {})
    assert flow.ack("1:1") == ["1:1"]
    assert drained(flow, "c1") == [flow.hash_of(X)]
    assert flow.route() == {"c2": ["1:2"]}
    assert (flow.ack("1:1"), drained(flow, "c1")) == ([], [])
