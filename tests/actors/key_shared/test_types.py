"""Random schedules for the types and selectors that the reference model does not know: nothing is lost or doubled."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sluice.storage.errors import Conflict
from tests.actors.key_shared.driver import Driver

KINDS: list[dict[str, Any]] = [
    {"type": "shared"},
    {"type": "shared", "max_unacked_messages_per_consumer": 7, "look_ahead_per_subscription": 30},
    {"type": "exclusive"},
    {"type": "failover"},
    {"selector": "sticky"},
    {"selector": "sticky", "max_unacked_messages_per_subscription": 20},
]
RANGES = [[(0, 9999), (30000, 39999)], [(10000, 29999)], [(40000, 65535)], [(5000, 20000)]]


class Story:
    """A random schedule that knows each holder only from the messages that came out and went in."""

    def __init__(self, kind: dict[str, Any], seed: int) -> None:
        self.random = random.Random(seed)
        self.flow = Driver(**kind)
        self.held: dict[str, str] = {}
        self.done: set[str] = set()
        self.published = 0
        self.arrivals: list[str] = []
        self.joined = 0

    def join(self) -> None:
        self.joined += 1
        ranges = RANGES[self.joined % 4] if self.flow.dispatch._core.settings.selector == "sticky" else []
        try:
            self.flow.join(f"c{self.joined}", self.random.choice([1, 20]), ranges=ranges, priority=self.joined % 2)
        except Conflict:
            assert f"c{self.joined}" not in self.flow.numbers

    def leave(self) -> None:
        if self.flow.numbers:
            name = self.random.choice(sorted(self.flow.numbers))
            self.flow.leave(name)
            self.held = {message: holder for message, holder in self.held.items() if holder != name}

    def publish(self) -> None:
        count = self.random.randrange(1, 20)
        self.published += count
        self.flow.publish(*[f"k{self.random.randrange(12)}" for _ in range(count)])

    def route(self) -> None:
        failover = self.flow.dispatch._core.settings.type == "failover"
        for name, messages in self.flow.route().items():
            for message in messages:
                assert message not in self.done
                assert failover or message not in self.held, f"{message} is at {self.held.get(message)} and {name}"
                if message not in self.held:
                    self.arrivals.append(message)
                self.held[message] = name
        assert not self.flow.dispatch.stalled()

    def acknowledge(self) -> None:
        some = [message for message in self.held if self.random.random() < 0.6]
        self.random.shuffle(some)
        assert set(self.flow.ack(*some)) == set(some)
        self.done.update(some)
        for message in some:
            del self.held[message]

    def give_back(self) -> None:
        if self.flow.numbers:
            name = self.random.choice(sorted(self.flow.numbers))
            mine = self.flow.pending(name)[::2]
            assert self.flow.nack(name, *mine) == len(mine) if mine else True
            self.held = {message: holder for message, holder in self.held.items() if message not in mine}

    def grant(self) -> None:
        for name in self.flow.numbers:
            self.flow.grant(name, self.random.randrange(30))

    def finish(self) -> None:
        """Let every consumer have everything. In the end every message was acknowledged once."""
        for name in sorted(self.flow.numbers):
            self.flow.leave(name)
        self.held.clear()
        sticky = self.flow.dispatch._core.settings.selector == "sticky"
        self.flow.join("last", 100_000, ranges=[(0, 65535)] if sticky else [])
        for _ in range(200):
            self.route()
            self.acknowledge()
            if len(self.done) == self.published:
                break
        assert len(self.done) == self.published
        assert self.flow.dispatch.idle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_or_doubled(kind: dict[str, Any], seed: int) -> None:
    story = Story(kind, seed)
    steps = [story.join, story.leave, story.publish, story.publish, story.route, story.route, story.acknowledge]
    steps += [story.acknowledge, story.give_back, story.grant]
    for _ in range(100):
        story.random.choice(steps)()
        story.flow.dispatch.check()
    story.finish()


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
def test_one_active_consumer_gets_everything_in_order(kind: str) -> None:
    story = Story({"type": kind}, 9)
    for _ in range(120):
        story.random.choice([story.join, story.leave, story.publish, story.route, story.acknowledge, story.grant])()
    story.finish()
    first = list(dict.fromkeys(story.arrivals))
    assert first == sorted(first, key=lambda name: int(name.split(":")[1]))


def test_consumer_behind_the_active_one_gets_an_event() -> None:
    flow = Driver(type="failover")
    told = {}
    for name, priority in (("a", 1), ("b", 1), ("c", 0)):
        flow.join(name, 1, priority=priority)
        told[name] = [event.kind for event in flow.dispatch.take_events(flow.numbers[name])]
    assert told == {"a": ["assigned"], "b": ["inactive"], "c": ["assigned"]}
    assert [event.kind for event in flow.dispatch.take_events(flow.numbers["a"])] == ["revoked"]
