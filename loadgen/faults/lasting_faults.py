"""A fault that lasts for a while, and is taken back by a thread of its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Episode(ABC):
    """A fault that lasts until `end`, or for a number of seconds. pids: processes that are not to be broken
    meanwhile.
    """

    pids: list[int]

    def __init__(self, seconds: float) -> None:
        """Begin at once."""
        self._quiet = threading.Event()
        """Set when it is to end."""
        self._thread = threading.Thread(target=self._run, args=(seconds,), name="episode", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> None:
        """Take it back now. Safe to repeat."""
        self._quiet.set()
        self._thread.join()

    @abstractmethod
    def _run(self, seconds: float) -> None:
        """Last so long, or until `_quiet` is set, and take it back."""
