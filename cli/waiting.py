"""The reasons that a waiting person sees: the alarms of the cluster, and the last answer that was no answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sluice.cli.output import say
from sluice.storage.errors import SluiceError

if TYPE_CHECKING:
    from sluice.cluster.client.client import Client

LOOK_SECONDS = 3.0
"""How long nothing may move before the user sees why, and how often the command looks again."""


class Waiting:
    """Prints why a command waits, each reason once."""

    def __init__(self, client: Client, look_seconds: float = LOOK_SECONDS) -> None:
        self._client = client
        self._look_seconds = look_seconds
        self._printed: list[str] = []
        self._moved = self._over = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="waiting", daemon=True)

    def moved(self) -> None:
        """Note that something happened: the wait begins again."""
        self._moved = True

    def _watch(self) -> None:
        while not self._wake.wait(self._look_seconds):
            if not self._moved:
                for line in self.reasons():
                    if line not in self._printed:
                        self._printed.append(line)
                        say(f"still waiting: {line}")
            self._moved = False

    def reasons(self) -> list[str]:
        """Why nothing moves, as far as it is known."""
        try:
            alarms = self._client.alarms()
        except SluiceError as error:
            alarms = [str(error)]
        return [*alarms, *self._client.troubles()]

    @contextmanager
    def watched(self) -> Iterator[Waiting]:
        """Watch for the length of a `with` block."""
        self._thread.start()
        try:
            yield self
        finally:
            self._wake.set()
