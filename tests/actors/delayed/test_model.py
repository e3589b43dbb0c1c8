"""The bucket tracker against a dict of due times, over random histories with restarts (hypothesis)."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.actors.delayed.broker import Broker, Log, bucket_settings
from tests.actors.delayed.world import World
from tests.sim.loop import simulated

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(st.integers(0, 400), min_size=1, max_size=9)),
        st.tuples(st.just("roll"), st.just(0)),
        st.tuples(st.just("pass"), st.integers(1, 150)),
        st.tuples(st.just("ack"), st.integers(1, 6)),
        st.tuples(st.just("skip"), st.integers(1, 6)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("clear"), st.just(0)),
    ),
    max_size=25,
)


class History:
    """A log with a broker, and what must be tracked."""

    def __init__(self, rule: dict[str, int], look_ahead: int) -> None:
        self.world = World()
        self.log = Log()
        self.rule = rule
        self.look_ahead = look_ahead
        self.epoch = 0
        self.ledger = 1
        self.broker = self.new_broker()

    def new_broker(self) -> Broker:
        self.epoch += 1
        return Broker(self.world, self.log, bucket_settings(**self.rule), self.epoch, None, self.look_ahead)

    def waiting(self) -> list[int]:
        gone = {*self.log.acknowledged, *self.broker.delivered}
        return sorted(place for place in self.log.due if place not in gone)

    async def step(self, what: str, argument: object) -> None:
        if what == "publish":
            self.log.publish(self.ledger, [self.world.now + due for due in argument])  # type: ignore[attr-defined]
            self.broker.read()
        elif what == "roll":
            self.ledger += 1
        elif what == "pass":
            await self.broker.run_until(self.world.now + int(argument))  # type: ignore[call-overload]
        elif what == "ack":
            done = [place for place in self.broker.delivered if place not in self.log.acknowledged]
            self.broker.acknowledge(done[: int(argument)])  # type: ignore[call-overload]
        elif what == "skip":
            ahead = [place for place in sorted(self.log.due) if place not in self.log.acknowledged]
            self.broker.acknowledge(ahead[: int(argument)])  # type: ignore[call-overload]
        elif what == "clear":
            self.broker.acknowledge(list(self.log.due))
            await self.broker.tracker.clear()
        else:
            await self.broker.end()
            self.broker = self.new_broker()
            await self.broker.start()
            self.broker.read()
        await self.broker.pump()

    def check(self) -> None:
        waiting = self.waiting()
        assert self.broker.tracker.count() == len(waiting)
        places = np.array(sorted(self.log.due), np.int64)
        assert self.broker.tracker.contains(places).tolist() == [place in waiting for place in places.tolist()]
        due = [self.log.due[place] for place in waiting]
        assert all(at > self.world.now for at in due), "something due was not given out"
        expected = self.broker.tracker.next_due(self.world.now)
        assert (expected is None) == (not due) if expected is None else expected <= min(due, default=expected)
        self.broker.recount()


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from([1, 3, 8]), st.sampled_from([-1, 1, 3]), st.sampled_from([-1, 1, 4]), st.integers(0, 90))
@simulated
async def test_the_tracker_is_a_dict_of_due_times(
    steps: list[tuple[str, object]], min_count: int, cap: int, max_buckets: int, look_ahead: int
) -> None:
    rule = {"min_count": min_count, "cap": cap, "max_buckets": max_buckets}
    history = History(rule, look_ahead)
    await history.broker.start()
    for what, argument in steps:
        await history.step(what, argument)
        history.check()
    await history.broker.run_until(history.world.now + 500, acknowledge=True)
    assert history.waiting() == []
    await history.world.advance(60_000)
    assert history.world.objects == {}
    assert history.broker.tracker.count() == 0
    await history.broker.end()
