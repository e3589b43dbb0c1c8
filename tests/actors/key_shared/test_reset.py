"""A reset after a move of the cursor forgets messages and consumers, but no number and no total."""

from __future__ import annotations

from tests.actors.key_shared.driver import Driver, at


def test_a_reset_forgets_messages_and_consumers_but_no_number() -> None:
    flow = Driver()
    first = flow.join("c1")
    flow.publish("k", "k", "k")
    (before,) = flow.dispatch.route(flow.now)
    flow.dispatch.acknowledge_soon(at("1:0"), first)
    flow.dispatch.reset()
    assert (flow.dispatch.consumers(), flow.dispatch.idle(), flow.dispatch.resets) == ([], True, 1)
    second = flow.join("c1")
    assert second > first, "a late request of before finds nobody"
    flow.publish("k")
    (after,) = flow.dispatch.route(flow.now)
    assert after.dispatch == before.dispatch + 3, "what is sent is numbered on"
    assert flow.dispatch.stats(flow.now)["msgOutCounter"] == 4
    assert [change["cause"] for change in flow.dispatch.assignments()] == ["c1 joined", "c1 joined"]


def test_counts_of_consumers_that_left_stay_in_the_total() -> None:
    flow = Driver()
    flow.join("c1")
    flow.publish("a", "b")
    assert len(flow.dispatch.route(flow.now))
    flow.nack("c1", "1:0")
    assert flow.dispatch.stats(flow.now)["msgRedeliverCounter"] == 1
    flow.ack("1:1", by="c1")
    flow.leave("c1")
    flow.join("c2")
    assert len(flow.dispatch.route(flow.now))
    assert flow.dispatch.stats(flow.now)["msgOutCounter"] == 3
    assert flow.consumer_stats("c2")["msgOutCounter"] == 1
    assert flow.dispatch.stats(flow.now)["msgRedeliverCounter"] == 1
    assert flow.consumer_stats("c2")["msgRedeliverCounter"] == 0
    flow.ack("1:0", by="c2")
    counts = [flow.dispatch.stats(flow.now)[name] for name in ("msgAckCounter", "msgRedeliverCounter")]
    assert (counts, flow.consumer_stats("c2")["msgAckCounter"]) == ([2, 1], 1)
    flow.dispatch.reset()
    assert [flow.dispatch.stats(flow.now)[name] for name in ("msgAckCounter", "msgRedeliverCounter")] == counts


def test_message_that_never_arrived_counts_as_sent() -> None:
    """The permits are free again, but the total does not fall: a fall would look like the start of a new count."""
    flow = Driver()
    number = flow.join("c1", permits=5)
    flow.send("a", "b", "c")
    flow.dispatch.redeliver_all(number, at("1:0"), unseen=2, now=flow.now)
    row = flow.consumer_stats("c1")
    assert (row["msgOutCounter"], row["availablePermits"], row["unackedMessages"]) == (3, 4, 0)
    flow.leave("c1")
    assert flow.dispatch.stats(flow.now)["msgOutCounter"] == 3
