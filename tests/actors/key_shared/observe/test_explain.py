"""Every gate's explanation gives its reason and its remedy, and the remedy does deliver the message."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sluice.storage.dates import iso_time
from sluice.storage.errors import Invalid, NotFound
from sluice.storage.format.hashing import masked_hash
from tests.actors.key_shared.driver import Driver, at, keys_by_owners

MOVED = keys_by_owners(("c1",), ("c2",))["c1", "c2"]
X, Y = MOVED[:2]


def draining() -> Driver:
    """Let c1 hold 1:0 and 1:1 of X, which c2 owns now, while 1:2 and 1:3 wait."""
    flow = Driver()
    flow.join("c1")
    flow.send(X, X)
    flow.join("c2")
    flow.send(X, X)
    return flow


def test_draining_names_the_consumer_the_messages_and_their_age() -> None:
    flow = draining()
    flow.now += 250
    answer = flow.dispatch.explain(position=int(at("1:2")[0]), now=flow.now)
    assert (answer["state"], answer["verdict"], answer["owner"]) == ("replay", "draining", "c2#2")
    (reason,) = answer["reasons"]
    assert [(held["message_id"], held["consumer"], held["age_ms"]) for held in reason["held"]] == [
        ("1:0", "c1#1", 250),
        ("1:1", "c1#1", 250),
    ]
    assert "acknowledgement of these messages" in reason["unblocks"]
    flow.ack("1:0", "1:1")
    assert flow.route() == {"c2": ["1:2", "1:3"]}


def test_an_earlier_message_waits_and_why_it_does() -> None:
    flow = draining()
    answer = flow.dispatch.explain(position=int(at("1:3")[0]), now=flow.now)
    assert [reason["gate"] for reason in answer["reasons"]] == ["earlier_waits", "draining"]
    assert answer["reasons"][0]["earlier"] == "1:2"
    assert answer["reasons"][0]["because"][0]["gate"] == "draining"


def test_by_key_the_first_waiting_message_is_explained() -> None:
    flow = draining()
    answer = flow.dispatch.explain(key_hash=masked_hash(X.encode()), now=flow.now)
    assert (answer["position"], answer["verdict"], answer["pending"], answer["waiting"]) == ("1:2", "draining", 2, 2)
    assert flow.dispatch.explain(hash=flow.hash_of(X), now=flow.now)["position"] == "1:2"
    assert json.loads(json.dumps(answer)) == answer


def test_another_key_with_the_same_hash() -> None:
    flow = draining()
    wanted = flow.hash_of(X)
    other = masked_hash(X.encode()) % 65535 + 65535 * 7
    assert other % 65535 + 1 == wanted
    answer = flow.dispatch.explain(key_hash=other, now=flow.now)
    assert [reason["gate"] for reason in answer["reasons"]] == ["draining", "same_hash"]
    assert answer["reasons"][1]["messages"] == ["1:0", "1:1"]


def test_no_permits_and_then_the_place_in_the_line() -> None:
    flow = Driver()
    flow.join("c1", permits=1)
    flow.send(X, X, Y)
    assert flow.why(position=int(at("1:2")[0])) == ["no_permits"]
    assert flow.why(position=int(at("1:1")[0])) == ["no_permits"]
    flow.grant("c1", 1)
    assert flow.why(position=int(at("1:1")[0])) == ["deliverable"]
    answer = flow.dispatch.explain(position=int(at("1:2")[0]), now=0)
    assert answer["reasons"][0]["text"] == "1 messages are before it and c1#1 has 1 permits"
    assert flow.dispatch.stalled()
    flow.route()
    assert not flow.dispatch.stalled()


def test_the_limit_of_unacknowledged_messages() -> None:
    flow = Driver(max_unacked_messages_per_consumer=2)
    flow.join("c1", permits=1000)
    flow.send(X, Y, X)
    answer = flow.dispatch.explain(position=int(at("1:2")[0]), now=0)
    assert answer["verdict"] == "unacked_limit"
    assert answer["reasons"][0]["unacked"] == 2


def test_no_owner() -> None:
    flow = Driver()
    flow.publish(X)
    flow.route()
    assert flow.why(position=int(at("1:0")[0])) == ["no_owner"]
    flow.join("c1", permits=0)
    assert flow.why(position=int(at("1:0")[0])) == ["no_permits"]
    (reason,) = flow.dispatch.explain(position=int(at("1:0")[0]), now=0)["reasons"]
    assert "a dispatch rate may hold up" in reason["unblocks"], "an owner does not see that: a gateway keeps it"


def test_recently_joined() -> None:
    flow = Driver(policy="last_sent_position")
    flow.join("c1")
    flow.send(X)
    flow.join("c2")
    flow.send(Y)
    answer = flow.dispatch.explain(position=int(at("1:1")[0]), now=0)
    assert answer["verdict"] == "recently_joined"
    assert answer["reasons"][0]["joined_at"] == "1:0"


def test_a_redelivery_names_whose_joining_holds_it_back() -> None:
    """The reason once named the owner's own joining, behind the message, and an acknowledgement that lifted nothing."""
    owners = keys_by_owners(("c1",), ("c2",), ("c3",))
    kept, moved = owners["c1", "c1", "c1"][0], owners["c1", "c1", "c3"][0]
    flow = Driver(policy="read_position")
    flow.join("c1")
    flow.send(kept)
    flow.join("c2")
    flow.send(kept, moved)
    flow.join("c3")
    flow.nack("c1", "1:2")
    assert flow.route() == {}
    answer = flow.dispatch.explain(position=int(at("1:2")[0]), now=flow.now)
    (reason,) = answer["reasons"]
    assert (answer["verdict"], reason["joined_at"]) == ("recently_joined", "1:0")
    assert reason["text"].startswith("c2#2 joined when 1:0 was the last position")
    assert "what goes out again, to c3#3, waits for that as well" in reason["text"]
    flow.ack("1:0")
    flow.dispatch.mark_deleted(int(at("1:0")[0]))
    assert flow.route() == {"c3": ["1:2"]}


def test_with_remembered_keys_their_holder_is_named() -> None:
    flow = Driver(policy="last_sent_position", remember_unacked_keys=True)
    flow.join("c1")
    flow.send(X, Y)
    flow.join("c2")
    flow.send(X)
    answer = flow.dispatch.explain(position=int(at("1:2")[0]), now=flow.now)
    (reason,) = answer["reasons"]
    assert (answer["verdict"], reason["joined_at"]) == ("recently_joined", "1:1")
    assert [(held["message_id"], held["consumer"]) for held in reason["held"]] == [("1:0", "c1#1")]
    assert reason["unblocks"] == "acknowledgement of these, or of everything up to 1:1"
    flow.ack("1:0")
    assert flow.route() == {"c2": ["1:2"]}, "1:1 is not acknowledged, and of another key"


def test_delivered_delayed_dead_and_unknown() -> None:
    flow = Driver(max_redeliver_count=1)
    flow.join("c1")
    flow.send(X)
    position = int(at("1:0")[0])
    assert flow.why(position=position) == ["delivered"]
    flow.nack("c1", "1:0", delay=70)
    answer = flow.dispatch.explain(position=position, now=flow.now)
    assert (answer["verdict"], answer["reasons"][0]["until"]) == ("delayed_until", flow.now + 70)
    assert answer["reasons"][0]["text"].endswith(f"waits until {iso_time(flow.now + 70)}"), "a date, for people"
    assert flow.why(hash=flow.hash_of(X)) == ["delayed_until"]
    flow.now += 70
    flow.route()
    flow.nack("c1", "1:0")
    assert flow.why(position=position) == ["dead_letter"]
    flow.ack("1:0")
    assert flow.why(position=position) == ["nothing_to_deliver"]


@pytest.mark.parametrize(
    ("policy", "by"), [("skip", "the dead letter topic"), ("block", "an operator's decision"), ("park", "an operator")]
)
def test_explain_names_the_way_of_a_failed_message(policy: str, by: str) -> None:
    flow = Driver(max_redeliver_count=1, dead_letter_policy=policy, nack_order="key")
    flow.join("c1")
    flow.send(X)
    for _ in range(2):
        flow.nack("c1", "1:0")
        flow.route()
    (reason,) = flow.dispatch.explain(position=int(at("1:0")[0]), now=flow.now)["reasons"]
    assert (reason["gate"], by in reason["unblocks"]) == ("dead_letter", True)


def test_not_read_yet_and_what_stops_the_reading() -> None:
    flow = Driver(look_ahead_per_subscription=1, max_unacked_messages_per_subscription=1)
    ahead = int(at("9:0")[0])
    assert flow.why(position=ahead) == ["no_owner"]
    flow.join("c1", permits=0)
    assert flow.why(position=ahead) == ["no_permits"]
    flow.grant("c1", 5)
    assert flow.why(position=ahead) == ["not_read"]
    assert flow.why(hash=5) == ["nothing_to_deliver", "not_read"]
    flow.send(X)
    flow.join("c2")
    flow.send(X)
    assert flow.why(position=ahead) == ["unacked_limit", "look_ahead_limit"]


def test_fresh_message_waits_behind_a_redelivery() -> None:
    flow = Driver(entry=5)
    flow.join("c1")
    flow.due(X)
    flow.route()
    flow.leave("c1")
    flow.join("c2", permits=0)
    flow.entry = 0
    flow.publish(X)
    answer = flow.dispatch.explain(position=int(at("1:0")[0]), now=0)
    assert [reason["gate"] for reason in answer["reasons"]] == ["earlier_waits", "no_permits"]
    assert answer["reasons"][0]["earlier"] == "1:5"


def test_shared_subscriptions_are_explained_too() -> None:
    flow = Driver(type="shared")
    flow.publish(X)
    assert flow.why(position=int(at("1:0")[0])) == ["no_owner"]
    flow.join("c1", permits=0)
    flow.route()
    assert flow.why(position=int(at("1:0")[0])) == ["no_permits"]
    flow.grant("c1", 1)
    assert flow.why(position=int(at("1:0")[0])) == ["deliverable"]


@pytest.mark.parametrize("kind", ["shared", "key_shared"])
def test_consumer_at_its_unacked_limit_is_not_out_of_permits(kind: str) -> None:
    flow = Driver(type=kind, max_unacked_messages_per_consumer=2)
    flow.join("c1")
    flow.join("c2", permits=0)
    flow.send(*[X if kind == "shared" else flow.key_of("c1")] * 3)
    assert flow.why(position=int(at("9:0")[0])) == ["unacked_limit", "no_permits"]
    if kind == "shared":
        assert flow.why(position=int(at("1:2")[0])) == ["unacked_limit", "no_permits"]
    flow.ack("1:0")
    assert flow.why(position=int(at("9:0")[0])) == ["not_read"]


@pytest.mark.parametrize(
    "about", [{}, {"hash": 1, "position": 2}, {"hash": 65536}, {"hash": -1}, {"position": 1 << 63}, {"key_hash": -1}]
)
def test_a_question_that_cannot_be_answered(about: dict[str, int]) -> None:
    with pytest.raises(Invalid):
        Driver().dispatch.explain(now=0, **about)


def test_a_due_message_waits_since_it_was_due() -> None:
    """Nothing happened for an hour before that."""
    flow = Driver()
    flow.join("c1")
    flow.send(X)
    flow.join("c2")
    flow.route()
    flow.now += 3_600_000
    flow.dispatch.due(at("1:1"), np.array([masked_hash(X.encode())], np.uint32), now=flow.now)
    flow.now += 30
    assert flow.route() == {}
    (blocked,) = flow.dispatch.blocked_keys(10, flow.now)
    assert (blocked["age_ms"], blocked["reasons"][0]["gate"]) == (30, "draining")


def test_blocked_keys_by_age() -> None:
    flow = Driver()
    flow.join("c1")
    flow.send(X, Y)
    flow.join("c2")
    flow.send(Y)
    flow.now += 100
    flow.send(X, X)
    flow.now += 10
    first, second = flow.dispatch.blocked_keys(10, flow.now)
    assert (first["hash"], first["messages"], first["age_ms"], first["first"]) == (flow.hash_of(Y), 1, 110, "1:2")
    assert (second["hash"], second["messages"], second["age_ms"]) == (flow.hash_of(X), 2, 10)
    assert second["reasons"][0]["gate"] == "draining"
    assert flow.dispatch.blocked_keys(1, flow.now) == [first]


@pytest.mark.parametrize("selector", ["consistent_hashing", "auto_split"])
def test_predicted_moves_agree_with_the_real_ones(selector: str) -> None:
    flow = Driver(selector=selector)
    for name in ("c0", "c1", "c2", "c3"):
        flow.join(name)
    flow.leave("c0")
    flow.send(*[f"key-{number}" for number in range(500)])
    before = flow.dispatch.tables.owner.copy()
    told = flow.dispatch.what_if(add=1, remove=["c2"])
    assert (flow.dispatch.tables.owner == before).all(), "asking changes nothing"
    flow.join("new-1")
    flow.leave("c2")
    after = flow.dispatch.tables.owner
    assert told["consumers"] == 3
    assert told["hashes_moved"] == int((before[1:] != after[1:]).sum()), "hash 0 does not occur"
    assert told["hashes_moved"] >= told["hashes_moved_at_least"] > 0
    assert told["hashes_draining"] == flow.dispatch.stats(0)["drainingHashesCount"]
    assert sum(told["pending_by_holder"].values()) == flow.dispatch.stats(0)["drainingHashesUnackedMessages"]
    with pytest.raises(NotFound):
        flow.dispatch.what_if(remove=["c2"])


def test_sticky_selector_refuses_predictions() -> None:
    with pytest.raises(Invalid):
        Driver(selector="sticky").dispatch.what_if(add=1)


def test_history_and_events_tell_the_same_story() -> None:
    flow = Driver()
    flow.join("c1")
    flow.now = 2_000
    flow.join("c2")
    flow.now = 3_000
    flow.leave("c1")
    owned = flow.hash_of(X)
    assert flow.dispatch.owner(owned, at=500)["owner"] == ""
    assert flow.dispatch.owner(owned, at=1_500)["owner"] == "c1#1"
    assert flow.dispatch.owner(owned, at=2_500)["owner"] == "c2#2"
    assert flow.dispatch.owner(owned)["owner"] == "c2#2"
    changes = flow.dispatch.assignments()
    assert [(change["epoch"], change["at"], change["cause"]) for change in changes] == [
        (1, 1_000, "c1 joined"),
        (2, 2_000, "c2 joined"),
        (3, 3_000, "c1 left"),
    ]
    assert [change["consumers"] for change in changes] == [1, 2, 1]
    events = flow.dispatch.take_events(flow.numbers["c2"])
    assert [(event.kind, event.epoch) for event in events] == [("assigned", 2), ("assigned", 3)]
    total = sum(high - low + 1 for event in events for low, high in event.ranges)
    assert total == 65535, "in the end c2 was told of every hash, once"
    assert flow.dispatch.take_events(flow.numbers["c2"]) == []


def test_a_consumer_is_told_what_it_lost_and_when_it_drained() -> None:
    flow = Driver()
    flow.join("c1")
    flow.send(X, Y)
    flow.dispatch.take_events(flow.numbers["c1"])
    flow.join("c2")
    (revoked,) = flow.dispatch.take_events(flow.numbers["c1"])
    assert revoked.kind == "revoked"
    assert any(low <= flow.hash_of(X) <= high for low, high in revoked.ranges)
    flow.ack("1:0")
    (drained,) = flow.dispatch.take_events(flow.numbers["c1"])
    assert (drained.kind, drained.ranges) == ("drained", [(flow.hash_of(X), flow.hash_of(X))])


def test_st_1_statistics_have_pulsars_names_and_add_up() -> None:
    flow = draining()
    stats = flow.dispatch.stats(flow.now)
    consumers = stats["consumers"]
    for name in ("drainingHashesCount", "drainingHashesUnackedMessages", "unackedMessages"):
        assert stats[name] == sum(consumer[name] for consumer in consumers)
    assert (stats["drainingHashesCount"], stats["drainingHashesUnackedMessages"]) == (1, 2)
    assert stats["type"] == "Key_Shared"
    assert stats["keySharedMode"] == "AUTO_SPLIT"
    assert stats["msgInReplay"] == 2
    covered = sum(high - low + 1 for consumer in consumers for low, high in consumer["keyHashRangeArrays"])
    assert covered == 65535
    assert json.loads(json.dumps(stats)) == stats
    flow.ack("1:0", "1:1")
    assert flow.consumer_stats("c1")["drainingHashesClearedTotal"] == 1
    assert flow.dispatch.stats(0)["drainingHashesClearedTotal"] == 1


def test_message_expired_while_held_is_explained() -> None:
    """The key stays blocked, by decision, and the explanation says why."""
    flow = Driver()
    flow.join("c1")
    flow.send(X)
    flow.dispatch.remove()
    (reason,) = flow.dispatch.explain(position=int(at("1:0")[0]), now=flow.now)["reasons"]
    assert reason["gate"] == "delivered"
    assert "expired" in reason["text"]
    assert reason["held"][0]["removed"]
