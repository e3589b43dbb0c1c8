"""The positions at which readers of one connection continue after a seek.

A reader that seeks is sent away and subscribes again, and what it then says of its start may be wrong: a client that
sought a time names the beginning of the topic. So the seek is remembered until that reader, by the number that its
client gave it, is there again. Another reader of the same name has no part in it, and neither has a later one. After
another connection a reader begins where it says, as with Pulsar.
"""

from __future__ import annotations

MOST_SEEKS = 2_000
"""The most readers of one connection whose seek is remembered; the earliest one is forgotten first."""

ReaderKey = tuple[str, int, str]
"""Topic, partition and subscription."""


class Seeks:
    """The seeks of one connection. They end with it."""

    def __init__(self) -> None:
        self._targets: dict[int, tuple[ReaderKey, int]] = {}

    def remember(self, number: int, reader: ReaderKey, target: int) -> None:
        """This consumer, a reader, was moved."""
        self._targets.pop(number, None)
        self._targets[number] = reader, target
        if len(self._targets) > MOST_SEEKS:
            del self._targets[next(iter(self._targets))]

    def start(self, number: int, reader: ReaderKey) -> int | None:
        """Return the position that the reader has sought; None if it sought none."""
        known, target = self._targets.get(number, (None, None))
        return target if known == reader else None

    def arrived(self, number: int, start: int | None) -> None:
        """The reader is back and goes on at `start`. A later seek to another place is kept."""
        if (known := self._targets.get(number)) is not None and known[1] == start:
            del self._targets[number]

    def discard(self, number: int) -> None:
        """Forget the seek of a reader that does not come back."""
        self._targets.pop(number, None)
