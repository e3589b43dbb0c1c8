"""Scenarios of upstream's broker tests that have an equivalent in the pure dispatcher, by their ids."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sluice.actors.messages import Publish, SubscriptionSettings
from sluice.actors.ports.wire import Request
from sluice.storage.format.hashing import masked_hash
from sluice.storage.format.position import position
from tests.actors.key_shared.driver import Driver, at, keys_by_owners
from tests.scenarios.key_shared.broker import Broker, play
from tests.sim.world import Process

MOVED = keys_by_owners(("slow", "fast"), ("third",))
SLOW = MOVED["slow", "slow"][0]
FAST = MOVED["fast", "fast"][0]


def test_sd_4_a_consumer_without_permits_is_passed_over() -> None:
    flow = Driver(entry=1)
    flow.join("fast", permits=10)
    flow.join("slow", permits=0)
    assert flow.send(SLOW) == {}
    assert flow.send(SLOW, FAST) == {"fast": ["1:3"]}
    flow.grant("slow", 2)
    assert flow.route() == {"slow": ["1:1", "1:2"]}


def test_cl_1_the_look_ahead_limit_stops_the_fast_consumer_too() -> None:
    for policy in ("read_position", "draining_hashes"):
        flow = Driver(policy=policy, look_ahead_per_consumer=2, look_ahead_per_subscription=2)
        flow.join("slow", permits=1)
        flow.join("fast", permits=100)
        flow.send(SLOW, SLOW, SLOW)
        assert flow.dispatch.stats(0)["msgInReplay"] == 2
        assert flow.dispatch.room() == 0, "the message for the fast consumer is not read"
        flow.ack("1:0")
        flow.grant("slow", 1)
        assert flow.route() == {"slow": ["1:1"]}
        assert flow.dispatch.room() == 1
        assert flow.send(FAST) == {"fast": ["1:3"]}


def test_kst_2_sticky_ranges_get_their_keys_and_again_in_order() -> None:
    flow = Driver(selector="sticky")
    ranges = {"a": (0, 20000), "b": (20001, 40000), "c": (40001, 65535)}
    for name, pair in ranges.items():
        flow.join(name, ranges=[pair])
    keys = [str(number % 300) for number in range(1000)]
    got = flow.send(*keys)
    for name, messages in got.items():
        low, high = ranges[name]
        assert all(low <= flow.hash_of(keys[int(message.split(":")[1])]) <= high for message in messages)
        flow.ack(*messages[::2])
    left = {name: messages[1::2] for name, messages in got.items()}
    for name in ranges:
        assert flow.nack(name) == len(left[name])
    assert flow.route() == left, "the same to the same, in order, and no more"


def test_kst_13_compressed_messages_arrive_in_order() -> None:
    keys = [f"{number % 3}" * 500 for number in range(10)]
    sizes: list[int] = []

    async def scenario(broker: Broker) -> None:
        carry = broker.world.witness
        assert carry is not None

        def seen(caller: Process, to: str, request: Request[Any], outcome: Any) -> None:
            if isinstance(request, Publish):
                sizes.append(len(request.payload.data or b""))
            carry(caller, to, request, outcome)

        broker.world.witness = seen
        for producer in broker._producers:
            producer._config = replace(producer._config, compression="lz4")
        clients = [await broker.join(name) for name in ("a", "b")]
        await broker.publish(*keys)
        await broker.until(lambda: broker.seen() == 10)
        assert sorted(key for client in clients for key in client.came()) == sorted(keys)

    play(scenario)
    assert sum(sizes) < sum(map(len, keys)), "they were compressed"


def test_kst_16_keys_rise_with_nothing_acknowledged() -> None:
    flow = Driver()
    for name in ("a", "b", "c"):
        flow.join(name)
    keys = ["k1", "k2", "k3"]
    received: dict[str, list[int]] = {key: [] for key in keys}
    generator = random.Random(3)
    for _ in range(100):
        for messages in flow.send(*[generator.choice(keys) for _ in range(10)]).values():
            for message in messages:
                received[flow.keys[int(at(message)[0])]].append(int(at(message)[0]))
    assert sum(map(len, received.values())) == 1000
    assert all(order == sorted(order) for order in received.values())


def test_kst_20_sticky_consumers_restart_in_the_middle() -> None:
    flow = Driver(selector="sticky")
    halves = [(0, 32767), (32768, 65535)]
    acked: set[str] = set()
    for generation in range(2):
        for side, pair in enumerate(halves):
            flow.join(f"c{generation}{side}", permits=20 if generation == 0 else 1000, ranges=[pair])
        for number in range(50):
            got = flow.send(str(50 * generation + number))
            if generation:
                for messages in got.values():
                    acked.update(flow.ack(*messages))
        if generation == 0:
            for side in range(2):
                flow.leave(f"c{generation}{side}")
    assert len(acked) == 100
    assert flow.dispatch.idle()


def test_kst_22_what_waits_is_not_gone_through_again_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream read and discarded the same messages over and over while a consumer held them back."""
    flow = Driver()
    flow.join("c1", permits=10)
    flow.send(*[str(number) for number in range(100)])
    flow.join("c2", permits=1000)
    flow.route()

    def looked(*states: int) -> None:
        raise AssertionError("the waiting messages were gone through, and nothing had changed")

    monkeypatch.setattr(flow.dispatch._core.window, "rows_in", looked)
    for _ in range(1000):
        assert not flow.dispatch.route(flow.now)
    flow.grant("c1", 1)
    with pytest.raises(AssertionError, match="gone through"):
        flow.dispatch.route(flow.now)


def test_rolling_restart_keeps_every_key_in_order() -> None:
    """#23307: under the older policies a rolling restart of the consumers misordered keys."""
    flow = Driver()
    generator = random.Random(17)
    alive = [f"c0-{number}" for number in range(4)]
    for name in alive:
        flow.join(name, permits=15)
    first: dict[str, list[int]] = {}
    seen: set[int] = set()
    for step in range(60):
        for messages in flow.send(*[f"key-{generator.randrange(20)}" for _ in range(12)]).values():
            for message in messages:
                where = int(at(message)[0])
                if where not in seen:
                    seen.add(where)
                    first.setdefault(flow.keys[where], []).append(where)
        for name in list(flow.numbers):
            flow.ack(*[message for message in flow.pending(name) if generator.random() < 0.5])
            flow.grant(name, generator.randrange(8))
        if step % 5 == 4:
            gone = alive.pop(0)
            flow.leave(gone)
            alive.append(f"c{step}")
            flow.join(alive[-1], permits=15)
    assert len(seen) > 300
    assert all(order == sorted(order) for order in first.values())
    assert flow.dispatch.stats(0)["sentinel"]["violationsHolder"] == 0


def test_defaults_are_those_of_the_newest_pulsar() -> None:
    settings = SubscriptionSettings()
    assert (settings.look_ahead_per_consumer, settings.look_ahead_per_subscription) == (4_000, 40_000)
    assert (settings.max_unacked_messages_per_consumer, settings.max_unacked_messages_per_subscription) == (
        50_000,
        200_000,
    )
    assert (settings.policy, settings.selector, settings.replica_points) == (
        "draining_hashes",
        "consistent_hashing",
        100,
    )


def test_a_million_messages_pass_through_and_leave_nothing() -> None:
    flow = Driver(
        max_unacked_messages_per_consumer=0, max_unacked_messages_per_subscription=0, look_ahead_per_consumer=0
    )
    for number in range(4):
        flow.join(f"c{number}", permits=2_000_000)
    hashes = np.array([masked_hash(f"{number}".encode()) for number in range(5000)], np.uint32)
    generator = np.random.default_rng(1)
    for start in range(0, 1_000_000, 10_000):
        where = np.arange(position(1, start), position(1, start + 10_000))
        flow.dispatch.append(where, hashes[generator.integers(0, 5000, 10_000)])
        for part in flow.dispatch.route(0):
            flow.dispatch.acknowledge(part.positions, part.consumer)
    flow.dispatch.check()
    assert flow.dispatch.idle()
    assert flow.dispatch.stats(0)["sentinel"]["checkedOrder"] == 1_000_000
    assert flow.dispatch.stats(0)["memory"]["windowBytes"] < 4_000_000


def test_one_stuck_message_while_the_window_is_squeezed() -> None:
    flow = Driver(max_unacked_messages_per_subscription=0)
    flow.join("c1", permits=1_000_000)
    flow.join("c2", permits=1_000_000)
    stuck = flow.publish("stuck")
    flow.route()
    for batch in range(200):
        names = flow.publish(*[f"key-{(batch * 7 + number) % 50}" for number in range(101)])
        got = flow.route()
        assert sorted(message for part in got.values() for message in part) == sorted(names)
        flow.ack(*names)
    assert flow.dispatch._core.window.capacity <= 4096
    assert flow.ack(*stuck) == stuck
    assert flow.dispatch.idle()
