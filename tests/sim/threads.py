"""Several threads of one program, one step at a time, in an order that is drawn from a seed.

The simulator has one event loop, so a race between threads of a program that uses the client never happens there. Here
each thread is a real one, but only one of them runs at any moment: before each bytecode of the watched modules it may
have to wait for its turn. Locks, conditions and the clock of those modules are replaced by ones that know of the turns,
so a wait takes no real time and a time-out happens only when nobody else can go on. The same seed gives the same run.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

import pytest

SWITCHES = 0.2
"""How likely another thread goes on at a bytecode."""
NEVER = float("inf")


class _Thread:
    """One thread. ready: whether it could go on; until: the virtual second at which it goes on in any case."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.turn = threading.Semaphore(0)
        self.ready: Callable[[], bool] = lambda: True
        self.until = NEVER
        self.ended = False
        self.error: BaseException | None = None


class Threads:
    """Runs threads in turns. watched: the modules whose bytecodes are steps, and whose waiting is virtual."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch, *watched: ModuleType) -> None:
        self.rng = random.Random(f"threads/{seed}")
        self.now = 0.0
        self._files = {str(module.__file__) for module in watched}
        self._threads: list[_Thread] = []
        self._current: _Thread | None = None
        self._back = threading.Semaphore(0)
        for module in watched:
            if hasattr(module, "threading"):
                patch.setattr(module, "threading", SimpleNamespace(RLock=self._lock, Condition=self._condition))
            if hasattr(module, "time"):
                patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))

    def _lock(self) -> TurnLock:
        return TurnLock(self)

    def _condition(self, lock: TurnLock | None = None) -> TurnCondition:
        return TurnCondition(self, lock or TurnLock(self))

    def start(self, call: Callable[[], object]) -> None:
        """Let a thread run this, once `run` is called."""
        self._threads.append(_Thread(call))

    def run(self) -> None:
        """Run all of them to their ends. Raises what one of them raised; AssertionError if nobody can go on."""
        workers = [threading.Thread(target=self._work, args=(one,), daemon=True) for one in self._threads]
        for worker in workers:
            worker.start()
        while waiting := [one for one in self._threads if not one.ended]:
            able = [one for one in waiting if one.ready()]
            if not able:
                soonest = min(one.until for one in waiting)
                assert soonest < NEVER, "every thread waits for another"
                self.now = max(self.now, soonest)
                able = [one for one in waiting if one.until <= self.now]
            chosen = self.rng.choice(able)
            self._current = chosen
            chosen.turn.release()
            self._back.acquire()
            if chosen.error is not None:
                raise chosen.error
        for worker in workers:
            worker.join()

    def _work(self, mine: _Thread) -> None:
        mine.turn.acquire()
        sys.settrace(self._trace)
        try:
            mine.call()
        except BaseException as error:
            mine.error = error
        finally:
            sys.settrace(None)
            mine.ended = True
            self._back.release()

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and self.rng.random() < SWITCHES:
            self.wait(lambda: True)
        return self._trace

    @property
    def current(self) -> _Thread:
        """The thread whose turn it is."""
        assert self._current is not None
        return self._current

    def sleep(self, seconds: float) -> None:
        """Let so much virtual time go by."""
        self.wait(lambda: False, seconds)

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> None:
        """Give up the turn until `ready` or, in virtual seconds, the time-out."""
        mine = self.current
        mine.ready, mine.until = ready, NEVER if timeout is None else self.now + timeout
        self._back.release()
        mine.turn.acquire()


class TurnLock:
    """A reentrant lock of a program whose threads take turns."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self.owner: _Thread | None = None
        self.depth = 0

    def __enter__(self) -> None:
        mine = self._threads.current
        while self.owner not in (None, mine):
            self._threads.wait(lambda: self.owner is None)
        self.owner = mine
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        assert self.owner is self._threads.current, "somebody else's lock"
        self.depth -= 1
        if not self.depth:
            self.owner = None


class TurnCondition:
    """A condition of a program whose threads take turns."""

    def __init__(self, threads: Threads, lock: TurnLock) -> None:
        self._threads, self._lock = threads, lock
        self._told: list[list[bool]] = []

    def __enter__(self) -> None:
        self._lock.__enter__()

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock until another thread notifies, or until the time-out."""
        told = [False]
        self._told.append(told)
        depth, self._lock.depth = self._lock.depth, 1
        self._lock.__exit__()
        self._threads.wait(lambda: told[0], timeout)
        if not told[0]:
            self._told.remove(told)
        self._lock.__enter__()
        self._lock.depth = depth
        return told[0]

    def notify(self, count: int = 1) -> None:
        """Wake `count` of the threads that wait."""
        for told in self._told[:count]:
            told[0] = True
        del self._told[:count]

    def notify_all(self) -> None:
        """Wake everybody who waits."""
        self.notify(len(self._told))
