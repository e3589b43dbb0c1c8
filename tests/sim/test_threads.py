"""The threads that take turns: a seed is a run, a lost update is found, and a deadlock ends it."""

from __future__ import annotations

import sys

import pytest

from tests.sim.threads import Threads, TurnLock

HERE = sys.modules[__name__]


class Counter:
    """Counts without a lock, or with one."""

    def __init__(self, lock: TurnLock | None) -> None:
        self.count, self.lock, self.order = 0, lock, list[str]()

    def add(self, name: str) -> None:
        if self.lock is None:
            self.once(name)
            return
        with self.lock:
            self.once(name)

    def once(self, name: str) -> None:
        before = self.count
        self.order.append(name)
        self.count = before + 1


def counted(seed: int, patch: pytest.MonkeyPatch, *, locked: bool) -> Counter:
    """Two threads add one each, five times."""
    threads = Threads(seed, patch, HERE)
    counter = Counter(TurnLock(threads) if locked else None)

    def count(name: str) -> None:
        for _ in range(5):
            counter.add(name)

    threads.start(lambda: count("a"))
    threads.start(lambda: count("b"))
    threads.run()
    return counter


def test_a_lost_update_is_found_and_a_lock_prevents_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert min(counted(seed, monkeypatch, locked=False).count for seed in range(10)) < 10
    assert [counted(seed, monkeypatch, locked=True).count for seed in range(10)] == [10] * 10


def test_a_seed_is_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = [counted(seed, monkeypatch, locked=False).order for seed in range(10)]
    assert orders == [counted(seed, monkeypatch, locked=False).order for seed in range(10)]
    assert len({tuple(order) for order in orders}) > 1


def test_threads_that_wait_for_each_other_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(0, monkeypatch, HERE)
    first, second = TurnLock(threads), TurnLock(threads)

    def take(one: TurnLock, other: TurnLock) -> None:
        with one:
            threads.sleep(1)
            with other:
                pass

    threads.start(lambda: take(first, second))
    threads.start(lambda: take(second, first))
    with pytest.raises(AssertionError, match="every thread waits for another"):
        threads.run()
