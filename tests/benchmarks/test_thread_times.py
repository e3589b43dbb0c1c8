"""The table of threads shows which thread took the time of a message."""

from __future__ import annotations

import threading
import time

import psutil

from benchmarks._thread_times import MOST, ThreadTime, table, thread_times


def test_a_thread_that_worked_has_its_time() -> None:
    me, own = threading.get_native_id(), [psutil.Process()]
    before = thread_times(own)[me]
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    after = thread_times(own)[me]
    assert after.seconds - before.seconds >= 0.04
    # Another test's cluster may have been left in this process.
    assert after.process in (psutil.Process().name(), "all in one")


def test_the_busiest_come_first_and_the_others_together() -> None:
    """A thread's earlier time does not count. All time of a new thread counts."""
    before = {1: ThreadTime("bookie", False, 5.0, 100)}
    after = {1: ThreadTime("bookie", False, 5.001, 130), 2: ThreadTime("raylet", True, 0.002, 10)}
    after |= {number: ThreadTime("small", False, 0.0001, 0) for number in range(3, 3 + MOST)}
    lines = [line.split() for line in table(before, after, 10)]
    assert lines[1:3] == [["raylet", "main", "200", "1.0"], ["bookie", "other", "100", "3.0"]]
    assert len(lines) == 1 + MOST + 1
    assert lines[-1] == ["the", "others", "20"]
