"""`delay_key_policy`: whether later messages of a key wait for a delayed one. In Pulsar they do not (KS-64)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sluice.storage.errors import InvariantViolation
from sluice.storage.format.hashing import masked_hash
from tests.actors.key_shared.driver import Driver, at


def append(flow: Driver, messages: dict[str, tuple[str, bool]]) -> None:
    """Read messages forward, given as name -> (key, delayed and not due)."""
    flow.dispatch.append(
        at(*messages),
        np.array([masked_hash(key.encode()) for key, _ in messages.values()], np.uint32),
        delayed=np.array([late for _, late in messages.values()]),
    )


def due(flow: Driver, name: str, key: str) -> None:
    """Make one message due, as the delayed index does."""
    flow.dispatch.due(at(name), np.array([masked_hash(key.encode())], np.uint32))


def blocking() -> Driver:
    """Return a driver in which 1:1 and 1:3 of key a are delayed."""
    flow = Driver(delay_key_policy="block_key")
    flow.join("c1")
    late = {"1:0": ("a", False), "1:1": ("a", True), "1:2": ("a", False), "1:3": ("a", True), "1:4": ("b", False)}
    append(flow, late)
    return flow


def test_later_messages_of_the_key_wait_and_others_do_not() -> None:
    flow = blocking()
    assert flow.dispatch.holds_keys
    assert flow.route() == {"c1": ["1:0", "1:4"]}
    due(flow, "1:1", "a")
    assert flow.route() == {"c1": ["1:1", "1:2"]}
    append(flow, {"1:5": ("a", False)})
    assert flow.route() == {}
    due(flow, "1:3", "a")
    assert flow.route() == {"c1": ["1:3", "1:5"]}
    flow.dispatch.check()


def test_due_messages_are_not_exempt_from_the_order_then() -> None:
    flow = blocking()
    due(flow, "1:3", "a")
    assert flow.route() == {"c1": ["1:0", "1:4"]}
    assert flow.dispatch.stats(0)["msgDelayedHoldingKeys"] == 1
    due(flow, "1:1", "a")
    assert flow.route() == {"c1": ["1:1", "1:2", "1:3"]}
    assert flow.dispatch.stats(0)["sentinel"]["checkedOrder"] == 5


def test_an_acknowledged_delayed_message_lets_its_key_go() -> None:
    flow = blocking()
    flow.route()
    flow.dispatch.remove(at("1:1"))
    assert flow.route() == {"c1": ["1:2"]}
    append(flow, {"1:5": ("a", False)})
    assert flow.route() == {}
    assert flow.ack("1:3") == ["1:3"]
    assert flow.route() == {"c1": ["1:5"]}


def test_blocked_key_is_explained() -> None:
    flow = blocking()
    flow.route()
    assert flow.why(position=int(at("1:1")[0])) == ["delayed"]
    answer = flow.dispatch.explain(position=int(at("1:2")[0]), now=0)
    assert (answer["verdict"], answer["reasons"][0]["earlier"]) == ("key_delayed", "1:1")
    assert flow.dispatch.blocked_keys(1, 0)[0]["reasons"][0]["gate"] == "key_delayed"


def test_a_new_owner_claims_what_its_consumer_already_got() -> None:
    flow = Driver(delay_key_policy="block_key")
    flow.join("c1", holding=at("1:1"))
    append(flow, {"1:1": ("a", True), "1:2": ("a", False)})
    assert flow.pending("c1") == ["1:1"]
    assert flow.route() == {"c1": ["1:2"]}


@pytest.mark.parametrize(
    "settings", [{}, {"delay_key_policy": "reject"}, {"delay_key_policy": "block_key", "type": "shared"}]
)
def test_elsewhere_delayed_messages_are_not_read(settings: dict[str, Any]) -> None:
    flow = Driver(**settings)
    assert not flow.dispatch.holds_keys
    append(flow, {"1:0": ("a", False)})
    with pytest.raises(InvariantViolation, match="hold no keys"):
        append(flow, {"1:1": ("a", True)})


def test_message_rescheduled_after_its_read_is_due_once() -> None:
    """Without the policy, the message was due by a fast clock, and is rescheduled before it was sent."""
    flow = Driver()
    append(flow, {"1:0": ("a", False), "1:1": ("a", False), "1:2": ("b", False)})
    flow.dispatch.remove(at("1:1"))
    due(flow, "1:1", "a")
    flow.dispatch.check()
    flow.join("c1")
    assert sorted(flow.route()["c1"]) == ["1:0", "1:1", "1:2"]
    flow.ack("1:0", "1:1", "1:2")
    assert flow.dispatch.idle()
