"""The open messages against a slow model: a set of positions. After each request, cursor, runs and core agree."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.delayed.memory import InMemoryTracker
from sluice.actors.dispatcher.delivery.ack_handler import AckHandler
from sluice.actors.dispatcher.delivery.context import Wakeups
from sluice.actors.dispatcher.delivery.unacked_runs import UnackedRuns
from sluice.actors.key_shared.dispatch import KeySharedDispatcher
from sluice.actors.messages import RunIndex, SubscriptionSettings
from sluice.actors.ports.wire import Blob
from sluice.storage.format.cursor import Cursor
from sluice.storage.format.position import Positions, position, run_positions

RUN, RUNS = 4, 6
END = RUN * RUNS
STEPS = st.one_of(
    st.tuples(st.just("acknowledge"), st.sets(st.integers(0, END - 1), min_size=1)),
    st.tuples(st.just("done elsewhere"), st.sets(st.integers(0, END - 1), min_size=1)),
    st.tuples(st.just("give up"), st.sets(st.integers(0, END - 1), min_size=1)),
    st.tuples(st.just("skip"), st.integers(0, END).map(lambda entry: {entry})),
)


class Owner:
    """An acknowledgement handler whose messages were all read: runs of four, in one ledger, held by one consumer."""

    def __init__(self) -> None:
        self.saved = 0
        self.held_back: list[int] = []
        self.cursor, self.core = Cursor(), KeySharedDispatcher(SubscriptionSettings())
        self.runs, self.wakeups = UnackedRuns(lambda: 0), Wakeups()
        self.cursor.chain([(1, None)], complete=True)
        store: Any = SimpleNamespace(dirty=self._dirty, hold_back=self._hold_back)
        tracker = InMemoryTracker(tick_ms=0)
        context: Any = SimpleNamespace(
            cursor=self.cursor, core=self.core, runs=self.runs, tracker=tracker, store=store, wakeups=self.wakeups
        )
        self.backlog = AckHandler(context)
        self.consumer = self.core.join("c", now=0)
        self.core.grant(self.consumer, 1_000)
        self.core.append(run_positions(1, 0, END), np.arange(1, END + 1, dtype=np.uint32))
        self.core.route(0)
        for number in range(RUNS):
            kind: dict[str, Any] = {"delayed": False, "shape": 0, "crc": 0, "bytes": 10, "columns": Blob(b"")}
            run = RunIndex(ledger=1, first_entry=number * RUN, count=RUN, **kind)
            self.runs.add(run)

    def _dirty(self, *, gather: bool) -> None:
        assert gather, "others may be waited for"
        self.saved += 1

    def _hold_back(self) -> None:
        self.held_back.append(self.cursor.mark_delete)


def at(entries: set[int]) -> Positions:
    return np.array(sorted(position(1, entry) for entry in entries), np.int64)


@given(st.lists(STEPS, max_size=12))
def test_whatever_is_done_cursor_runs_and_core_agree(steps: list[tuple[str, set[int]]]) -> None:
    owner, left = Owner(), set(range(END))
    for what, entries in steps:
        saved = owner.saved
        if what == "acknowledge":
            owner.backlog.acknowledge(at(entries), owner.consumer, 0)
        elif what == "done elsewhere":
            owner.wakeups.route.clear()
            owner.backlog.done_elsewhere(at(entries))
            assert owner.wakeups.route.is_set(), "keys may be free now"
        elif what == "give up":
            owner.backlog.give_up(at(entries))
        else:
            (target,) = entries
            owner.backlog.skip_to(position(1, target))
            entries = set(range(target))
            assert owner.held_back.pop() == owner.cursor.mark_delete, "what is sent waits until that is durable"
        left -= entries
        assert owner.saved == saved + 1
        assert not owner.held_back, "what consumers have done holds up nobody"
        assert owner.backlog.count(position(1, END - 1)) == len(left)
        for end in range(0, END, 5):
            assert owner.backlog.count(position(1, end)) == len([entry for entry in left if entry <= end])
        kept = {entry // RUN for entry in left}
        assert len(owner.runs) >= len(kept), "a run is kept as long as one of its messages is open"
        told = {what for what, _ in steps}
        if told <= {"acknowledge", "done elsewhere"}:
            assert len(owner.runs) == len(kept)
            assert len(owner.core.pending(owner.consumer)) == len(left)


def test_starting_over_reopens_everything_from_a_position() -> None:
    owner = Owner()
    owner.backlog.acknowledge(at({0, 1, 2, 7}), owner.consumer, 0)
    owner.backlog.start_over(position(1, 2))
    assert owner.backlog.count(position(1, END - 1)) == END - 2
    assert (len(owner.runs), owner.core.consumers(), owner.core.idle()) == (0, [], True)
    assert owner.cursor.mark_delete == position(1, 1)
    assert owner.held_back == [position(1, 1)], "what is sent waits until that is durable"
