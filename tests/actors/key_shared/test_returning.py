"""Consumers return with messages from before a change of owner, claim them, and keep their keys from others."""

from __future__ import annotations

import pytest

from tests.actors.key_shared.driver import Driver, at, keys_by_owners

X, Y = keys_by_owners(("c1",), ("c2",))["c1", "c2"][:2]
"""Keys that go from c1 to c2 when c2 joins."""


def test_held_messages_are_claimed_when_they_are_read() -> None:
    flow = Driver()
    flow.join("c1", holding=at("1:0", "1:2"))
    flow.join("c2")
    assert flow.pending("c1") == []
    assert flow.send(X, Y, X) == {"c2": ["1:1"]}
    assert flow.pending("c1") == ["1:0", "1:2"]
    assert flow.consumer_stats("c1")["availablePermits"] == 1000, "claims cost no permits"
    assert flow.dispatch.stats(0)["drainingHashesCount"] == 1


def test_held_messages_that_were_read_are_claimed_at_once() -> None:
    flow = Driver()
    flow.publish(X, Y)
    flow.join("c1", holding=at("1:0"))
    assert flow.pending("c1") == ["1:0"]
    assert flow.route() == {"c1": ["1:1"]}


def test_a_key_that_is_with_somebody_else_by_now_is_not_claimed() -> None:
    flow = Driver()
    flow.join("c2")
    assert flow.send(X, Y) == {"c2": ["1:0", "1:1"]}
    flow.publish(X)
    flow.join("c1", holding=at("1:0", "1:2"))
    assert flow.pending("c1") == []
    assert flow.ack("1:0", by="c1") == ["1:0"], "its acknowledgement is valid all the same"


def test_an_acknowledged_claim_is_forgotten() -> None:
    flow = Driver()
    flow.join("c1", holding=at("1:0", "1:1"))
    assert flow.ack("1:0") == []
    flow.publish(X, X)
    assert flow.pending("c1") == ["1:1"]


def test_an_unread_claims_key_goes_to_nobody_else() -> None:
    """A message before the claimed one was given back to the earlier owner. Another consumer owns the hash by now."""
    flow = Driver()
    flow.join("c1", holding=at("1:2", "1:3"))
    flow.join("c2")
    flow.bring("c1", {"1:2": X, "1:3": Y, "1:9": X})
    assert flow.pending("c1") == ["1:2", "1:3"]
    assert flow.send(X, Y) == {}, "c1 still has later messages of both"
    assert flow.send(X, Y) == {}, "they are read now, and are with c1 already"
    assert flow.ack("1:2", by="c1") == ["1:2"]
    assert list(flow.route().values()) == [["1:0"]]
    assert flow.ack("1:3", by="c1") == ["1:3"]
    assert list(flow.route().values()) == [["1:1"]]


def test_a_claim_whose_key_is_elsewhere_by_now_is_not_brought() -> None:
    flow = Driver()
    flow.join("c2")
    assert flow.send(X) == {"c2": ["1:0"]}
    flow.join("c1", holding=at("1:1"))
    flow.bring("c1", {"1:1": X})
    assert flow.pending("c1") == []
    flow.publish(X)
    assert flow.ack("1:1", by="c1") == ["1:1"], "its acknowledgement is valid all the same"


@pytest.mark.parametrize("given_back", [("1:0", "1:1"), ()])
def test_a_claim_given_back_unread_goes_out_when_it_is_read(given_back: tuple[str, ...]) -> None:
    """The consumer gave the message back. If it still counted as held, no consumer would ever acknowledge it."""
    flow = Driver()
    flow.join("c1", holding=at("1:0", "1:1", "1:2") if given_back else at("1:0", "1:1"))
    assert flow.nack("c1", *given_back, delay=500) == 2
    assert flow.nack("c1", *given_back) == 0
    if given_back:
        assert flow.send(X, Y) == {}, "the delay counts from when they were given back"
        flow.now += 500
        assert flow.route() == {"c1": ["1:0", "1:1"]}
    else:
        assert flow.send(X, Y) == {"c1": ["1:0", "1:1"]}
    flow.publish(X)
    assert flow.route() == ({} if given_back else {"c1": ["1:2"]})


def test_done_message_keeps_its_key_and_is_not_sent() -> None:
    """The message was cleared before the owner changed. Its holder may still work on it.

    No other consumer gets the message (KS-45).
    """
    flow = Driver()
    flow.join("c1", holding=at("1:0", "1:1"), finished=at("1:0", "1:1"))
    flow.join("c2")
    flow.bring("c1", {"1:0": X, "1:1": Y})
    assert flow.pending("c1") == ["1:0", "1:1"]
    flow.entry = 2
    assert flow.send(X) == {}, "c1 still has an earlier message of it"
    flow.nack("c1", "1:0")
    assert flow.route() == {"c2": ["1:2"]}
    flow.leave("c1")
    assert flow.route() == {}


def test_done_message_that_is_not_brought_loses_its_claim() -> None:
    flow = Driver()
    flow.join("c1", holding=at("1:0", "1:1"), finished=at("1:0"))
    flow.bring("c1", {"1:1": Y})
    assert flow.pending("c1") == ["1:1"]
    assert flow.dispatch.claims_of(flow.numbers["c1"]).tolist() == []


def test_message_cleared_before_it_is_brought_is_never_sent() -> None:
    flow = Driver()
    flow.join("c1", holding=at("1:0", "1:1"))
    flow.dispatch.remove(up_to=at("1:1")[0])
    flow.bring("c1", {"1:0": X, "1:1": Y})
    flow.join("c2")
    flow.leave("c1")
    assert flow.route() == {}


def test_done_message_that_is_brought_later_has_its_row() -> None:
    """Another consumer acknowledged the message after its read, before its holder came back."""
    flow = Driver()
    flow.join("c2", permits=0)
    flow.publish(X, Y, X)
    flow.ack("1:1")
    flow.join("c1", holding=at("1:1"), finished=at("1:1"))
    flow.bring("c1", {"1:1": Y})
    assert flow.pending("c1") == ["1:1"]
    assert flow.ack("1:1", by="c1") == ["1:1"]
    assert flow.pending("c1") == []


def test_without_order_what_is_done_is_simply_forgotten() -> None:
    flow = Driver(type="shared")
    flow.join("c1", holding=at("1:0", "1:1"), finished=at("1:0"))
    assert flow.dispatch.claims_of(flow.numbers["c1"]).tolist() == at("1:1").tolist()
