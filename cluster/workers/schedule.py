"""Which messages a worker may handle now: different keys at once, one key never twice, each key in order.

A key that is being handled keeps its later messages waiting until `done`. What was taken back meanwhile, because an
earlier message of the key failed, is left out when its turn comes: it comes again behind that message.

A key whose handler has `returned` may still wait for something else, such as its results to be stored. It takes no
place from others then, but stays the one of its kind until `done`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_RETURNED = 1_000
"""Keys that may wait for their end at a time, beyond which nothing more is begun."""


class KeySchedule(Generic[T]):
    """No I/O and no clock. concurrency: so many keys are handled at once. is_stale: the item is no longer ours."""

    def __init__(self, concurrency: int, is_stale: Callable[[T], bool]) -> None:
        self._concurrency, self._is_stale = concurrency, is_stale
        self._waiting: dict[bytes, deque[T]] = {}
        """Of each key that has any, in order; of keys that are being handled too."""
        self._ready: deque[bytes] = deque()
        """Keys that wait for their turn and are not being handled, the longest first."""
        self.running: dict[bytes, T] = {}
        """What is being handled, or has returned and is not done."""
        self._returned: dict[bytes, None] = {}
        self.waiting = 0

    def add(self, key: bytes, item: T) -> None:
        """An item came, behind all of its key that came before."""
        items = self._waiting.get(key)
        if items is None:
            items = self._waiting[key] = deque()
            if key not in self.running:
                self._ready.append(key)
        items.append(item)
        self.waiting += 1

    def start(self, most: int | None = None) -> list[tuple[bytes, T]]:
        """Start items of ready keys, as many as there is room for, and at most `most`."""
        started: list[tuple[bytes, T]] = []
        while self._ready and self._has_place() and (most is None or len(started) < most):
            key = self._ready.popleft()
            item = self._next(key)
            if item is not None:
                self.running[key] = item
                started.append((key, item))
        return started

    def returned(self, key: bytes) -> None:
        """The handler of the key has returned, and what it was called for is not done yet."""
        self._returned[key] = None

    def done(self, key: bytes) -> None:
        """Mark a key's item as ended, well or not; an item that failed was given back before."""
        del self.running[key]
        self._returned.pop(key, None)
        if key in self._waiting:
            self._ready.append(key)

    def first_waiting(self) -> list[tuple[bytes, T]]:
        """The first item that waits, of each key."""
        return [(key, items[0]) for key, items in self._waiting.items()]

    def clear(self) -> None:
        """Forget all that waits; what is being handled goes on."""
        self._waiting.clear()
        self._ready.clear()
        self.waiting = 0

    def _has_place(self) -> bool:
        handled = len(self.running) - len(self._returned)
        return handled < self._concurrency and len(self._returned) < MOST_RETURNED

    def _next(self, key: bytes) -> T | None:
        items = self._waiting[key]
        found: T | None = None
        while items and found is None:
            item = items.popleft()
            self.waiting -= 1
            if not self._is_stale(item):
                found = item
        if not items:
            del self._waiting[key]
        return found
