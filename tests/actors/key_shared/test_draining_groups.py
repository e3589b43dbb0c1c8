"""DH-2, DH-4, DH-6 to DH-8: hash zero, messages of other consumers, and many hashes that come free at once.

The dispatcher gathers reports of done messages and applies them together; upstream calls that a batch. It reports all
hashes that come free in one batch once, and sends their messages in one pass.
"""

from __future__ import annotations

import numpy as np
import pytest

from sluice.actors.key_shared.state.tables import HashTables
from sluice.actors.messages import Event
from tests.actors.key_shared.driver import Driver, at, keys_by_owners
from tests.scenarios.key_shared.broker import Broker, play

MOVED = keys_by_owners(("c1",), ("c2",))["c1", "c2"]
X, Y, Z = MOVED[:3]


def draining(*keys: str) -> Driver:
    """Let c1 hold one message of each key. c2 owns the keys now, and another message of each waits for it."""
    flow = Driver()
    flow.join("c1")
    flow.send(*keys)
    flow.join("c2")
    assert flow.send(*keys) == {}
    flow.dispatch.take_events(flow.numbers["c1"])
    return flow


def news(flow: Driver) -> list[Event]:
    """Take the events that name hashes as drained by c1."""
    return [event for event in flow.dispatch.take_events(flow.numbers["c1"]) if event.kind == "drained"]


def hashes(event: Event) -> list[int]:
    """Return the hashes of the event's ranges, ascending."""
    return [value for low, high in event.ranges for value in range(low, high + 1)]


def test_dh_2_zero_is_no_hash_and_never_drains() -> None:
    """Upstream refuses hash zero. Here no selector ever computes it from a key, and it has no owner."""
    for selector, ranges in (("consistent_hashing", []), ("auto_split", []), ("sticky", [(0, 65_535)])):
        flow = Driver(selector=selector)
        flow.join("c1", ranges=ranges)
        masked = np.array([0, 65_535, 65_536, 131_070, 131_072, 2**31 - 1], np.uint32)
        assert (flow.dispatch.reduce(masked) > 0).all()
        where = (1 << 32) + np.arange(len(masked))
        flow.dispatch.append(where, masked)
        assert [len(part) for part in flow.route().values()] == [len(masked)]
        assert int(flow.dispatch.tables.pending[0]) == 0
        assert not flow.dispatch.tables.draining_mask()[0]


def test_dh_4_one_consumers_words_leave_anothers_drain_alone() -> None:
    flow = draining(X)
    assert flow.nack("c2", "1:0") == 0, "it is not with c2"
    assert flow.nack("c2") == 0
    (entry,) = flow.consumer_stats("c1")["drainingHashes"]
    assert (entry["hash"], entry["unackMsgs"]) == (flow.hash_of(X), 1)
    assert flow.route() == {}
    other = flow.join("c3")
    flow.dispatch.leave(other, now=flow.now)
    flow.numbers.pop("c3")
    assert flow.consumer_stats("c1")["drainingHashesUnackedMessages"] == 1
    assert flow.route() == {}


def test_dh_6_gathered_reports_count_when_brought_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flow = draining(X, Y, Z)
    one = flow.numbers["c1"]
    seen: list[int] = []
    settle = HashTables.released

    def released(tables: HashTables, freed: np.ndarray) -> np.ndarray:
        seen.append(len(freed))
        return settle(tables, freed)

    monkeypatch.setattr(HashTables, "released", released)
    flow.dispatch.acknowledge_soon(at("1:0"), one)
    flow.dispatch.acknowledge_soon(at("1:1"), one)
    assert seen == [], "gathered"
    assert flow.pending("c1") == ["1:2"], "whoever asks sees them brought in, together"
    assert seen == [2]
    flow.dispatch.acknowledge(at("1:2"), one)
    assert seen == [2, 1]
    flow.dispatch.acknowledge_soon(at("1:3"), one)
    assert flow.route() == {"c2": ["1:4", "1:5"]}, "a pass brings them in before it decides"


def test_dh_7_hashes_freed_before_a_pass_are_sent_in_one() -> None:
    flow = draining(X, Y, Z)
    for name in ("1:0", "1:1"):
        flow.dispatch.acknowledge_soon(at(name), flow.numbers["c1"])
    flow.dispatch.acknowledge(at("1:2"), flow.numbers["c1"])
    (event,) = news(flow)
    assert hashes(event) == sorted(flow.hash_of(key) for key in (X, Y, Z))
    (part,) = flow.dispatch.route(flow.now)
    assert part.consumer == flow.numbers["c2"]
    assert part.positions.tolist() == at("1:3", "1:4", "1:5").tolist()
    assert news(flow) == []


def test_dh_7_a_consumer_hears_once_of_all_that_was_freed() -> None:
    async def scenario(broker: Broker) -> None:
        first = await broker.join("c1", acking=False)
        await broker.publish(*MOVED[:40])
        await broker.until(lambda: len(first.got) == 40)
        second = await broker.join("c2")
        await broker.publish(*MOVED[:40])
        await broker.quiet(200)
        assert second.got == []
        assert [event.kind for event in first.events].count("drained") == 0
        first.ack()
        await broker.until(lambda: len(second.got) == 40)
        await broker.quiet(200)
        (event,) = [event for event in first.events if event.kind == "drained"]
        assert len(hashes(event)) == len({Driver().hash_of(key) for key in MOVED[:40]})

    play(scenario)


def test_three_in_a_chain_each_finish_before_the_next() -> None:
    """A hash that moves on while it drains goes to its last owner.

    The statistics say which consumer has to finish which messages.
    """
    chain = keys_by_owners(("c1",), ("c2",), ("c3",), ("c4",))
    twice, again = chain["c1", "c2", "c3", "c4"][0], chain["c1", "c2", "c2", "c4"][0]
    flow = Driver()
    flow.join("c1")
    assert flow.send(twice, again) == {"c1": ["1:0", "1:1"]}
    flow.join("c2")
    assert flow.send(twice, again) == {}
    flow.ack("1:1")
    assert flow.route() == {"c2": ["1:3"]}
    flow.join("c3")
    assert flow.send(twice, again) == {"c2": ["1:5"]}
    flow.join("c4")
    assert flow.send(twice, again) == {}
    told = {name: flow.consumer_stats(name)["drainingHashes"] for name in ("c1", "c2", "c3", "c4")}
    of = {name: [(each["hash"], each["unackMsgs"]) for each in rows] for name, rows in told.items()}
    assert of == {"c1": [(flow.hash_of(twice), 1)], "c2": [(flow.hash_of(again), 2)], "c3": [], "c4": []}
    sums = [flow.consumer_stats(name)["drainingHashesUnackedMessages"] for name in told]
    assert (sums, flow.dispatch.stats(0)["drainingHashesUnackedMessages"]) == ([1, 2, 0, 0], 3)
    flow.leave("c2")
    assert flow.route() == {"c4": ["1:3", "1:5", "1:7"]}, "in order, and nothing of the other hash"
    flow.ack("1:0")
    assert flow.route() == {"c4": ["1:2", "1:4", "1:6"]}
    assert flow.dispatch.stats(0)["drainingHashesCount"] == 0


def test_dh_8_without_consumers_nothing_drains_any_more() -> None:
    flow = draining(X, Y)
    assert flow.dispatch.stats(0)["drainingHashesCount"] == 2
    flow.leave("c2")
    flow.leave("c1")
    stats = flow.dispatch.stats(0)
    assert (stats["drainingHashesCount"], stats["drainingHashesUnackedMessages"]) == (0, 0)
    assert not flow.dispatch.tables.pending.any()
    assert not flow.dispatch.tables.attempts.any()
    flow.join("c3")
    assert flow.route() == {"c3": ["1:0", "1:1", "1:2", "1:3"]}
