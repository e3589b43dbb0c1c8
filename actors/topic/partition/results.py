"""Deduplication of results: the output of workers is stored once for each message of a subscription.

A *source* is a subscription on one partition of its topic. Its messages are handled by many workers at once, and a key
moves from one to another. So results come out of order, from several writers, and again from others: no sequence rises
there, and none of the writers may be fenced. What identifies a result is the position of its message. All rows that a
message has in this partition come in one run. A message whose rows are stored stores none again; one
whose rows are under way waits for their outcome.

What is stored is remembered as a subscription remembers what is done, in a cursor: positions above a mark, in bitmaps.
The mark is what the subscription has durably finished, as the writers tell: none of these messages comes to a worker
again. If one does, after a seek back or after the topic was deleted and made again, it cannot be known whether its
results are here. That is refused, since storing them could repeat results, and passing over them could lose some.

The positions of a run stand in the header of its frame, so a new owner learns them as it learns producers' sequences,
without a look at payloads. Between the two the record of the partition has the cursors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.actors.ledger.record import ResultsRecord, source_of
from sluice.actors.messages import Published, PublishResults
from sluice.actors.runtime.waiting import SharedFuture
from sluice.actors.runtime.wall_clock import heard_at
from sluice.storage.errors import Conflict, Corrupt, Invalid, Overloaded, SluiceError
from sluice.storage.format.cursor import Cursor
from sluice.storage.format.position import EARLIEST, Positions, show

MAX_SOURCES = 1_000
MAX_CURSOR_BYTES = 4 * 1024 * 1024
"""The most bytes that all cursors of a partition take in its record."""
MAX_SOURCE_BYTES = 512
MAX_POSITIONS_BYTES = 2_048
"""The most bytes that the positions of one run take in its frame's header."""
FORGET_MS = 30 * 24 * 3600 * 1000
"""A source that was silent for so long is forgotten."""


def check_results(request: PublishResults, topic: str, *, deduplicates: bool) -> None:
    """Refuse what can never be stored. Raises Invalid."""
    if not deduplicates:
        raise Invalid(f"topic {topic!r} does not deduplicate; make it with deduplication_enabled=True")
    if not 0 < len(request.positions) == request.count or int(request.positions.min()) < 0:
        raise Invalid(f"{request.count} results need as many positions")


def packed(positions: Positions) -> bytes:
    """Return ascending positions for the header of a frame. Raises Invalid if they do not fit into it."""
    cursor = Cursor()
    cursor.acknowledge(positions)
    encoded = cursor.encode()
    if len(encoded) > MAX_POSITIONS_BYTES:
        raise Invalid(f"a run of results of {len(positions)} scattered messages is too much; send fewer at once")
    return encoded


def unpacked(data: bytes) -> Positions:
    """Return the positions back, ascending. Raises Corrupt."""
    return _together(Cursor.decode(data).beyond())


def _together(columns: Iterable[Positions]) -> Positions:
    return np.concatenate([np.empty(0, np.int64), *columns])


@dataclass(slots=True)
class PendingResults:
    """A run that has a place and is not confirmed. positions: of the messages, ascending."""

    positions: Positions
    outcome: SharedFuture[Published]


@dataclass(slots=True)
class ResultSource:
    """The stored results of one source. finished: up to here its subscription has durably finished everything."""

    cursor: Cursor = field(default_factory=Cursor)
    finished: int = EARLIEST
    seen: int = 0
    size: int = 0
    """Bytes of the cursor when it was last written down."""
    pending: dict[int, PendingResults] = field(default_factory=dict)
    """By the lowest position, which no two of them share."""

    def finish(self, finished: int) -> None:
        """Forget what cannot come again."""
        if finished > self.finished:
            self.finished = finished
            self.cursor.skip_to(finished + 1)


class Results:
    """All sources of one partition. No I/O."""

    def __init__(self) -> None:
        self._sources: dict[str, ResultSource] = {}
        self._size = 0
        """Bytes of all cursors, as they were written down last."""

    def find(self, name: str, finished: int, now: int) -> ResultSource:
        """Return the source of this name, and note how far it has finished. Raises Invalid, Overloaded."""
        if not 0 < len(name.encode()) <= MAX_SOURCE_BYTES:
            raise Invalid(f"the name of a source of results has 1 to {MAX_SOURCE_BYTES} bytes")
        source = self._sources.get(name)
        if source is None:
            if len(self._sources) >= MAX_SOURCES:
                raise Overloaded(f"the partition remembers results of {MAX_SOURCES} sources already")
            source = self._sources[name] = ResultSource()
        source.seen = now
        source.finish(finished)
        if self._size > MAX_CURSOR_BYTES:
            self._measure(source, source.cursor.encode())
            if self._size > MAX_CURSOR_BYTES:
                worst = max(self._sources, key=lambda other: self._sources[other].size)
                raise Overloaded(
                    f"too many results are remembered, most of them of {worst}: a message that it does not finish, "
                    "perhaps of a parked key, holds its mark-delete position back"
                )
        return source

    @staticmethod
    def under_way(source: ResultSource, positions: Positions) -> SharedFuture[Published] | None:
        """Return the outcome of an unconfirmed run with results of some of these messages; None without such a run.

        positions: ascending.
        """
        for pending in source.pending.values():
            if np.isin(positions, pending.positions, assume_unique=True).any():
                return pending.outcome
        return None

    @staticmethod
    def are_stored(source: ResultSource, positions: Positions) -> npt.NDArray[np.bool_]:
        """Return a mask of the messages (ascending) whose results are stored. Raises Conflict for one that was
        finished.
        """
        if positions[0] <= source.finished:
            raise Conflict(
                f"message {show(int(positions[0]))} comes again after its subscription had finished everything up to "
                f"{show(source.finished)}: whether its results are stored is not known any more. Use a subscription of "
                "another name to handle such messages again"
            )
        return source.cursor.is_acknowledged(positions)

    @staticmethod
    def push(source: ResultSource, positions: Positions, outcome: SharedFuture[Published]) -> None:
        """Note that a run with results of these messages was given a place."""
        source.pending[int(positions[0])] = PendingResults(positions, outcome)

    def confirm(self, producer: str, first: int) -> SharedFuture[Published] | None:
        """Confirm the run whose lowest position this is; returns the future of its outcome, if it has one."""
        source = self._sources.get(source_of(producer))
        pending = None if source is None else source.pending.pop(first, None)
        if source is None or pending is None:
            return None
        source.cursor.acknowledge(pending.positions)
        return pending.outcome

    def replay(self, producer: str, positions: bytes, now: int) -> None:
        """Note a confirmed run that was found in the log while taking over. Raises Corrupt."""
        source = self._sources.setdefault(source_of(producer), ResultSource(seen=now))
        try:
            source.cursor.acknowledge(unpacked(positions))
        except Invalid as error:
            raise Corrupt(f"the positions of a run of results cannot be read: {error}") from error

    def restore(self, saved: dict[str, ResultsRecord], now: int) -> None:
        """Take over what the record says. Raises Corrupt."""
        for name, record in saved.items():
            cursor = Cursor.decode(record.cursor)
            seen = heard_at(record.seen, now, FORGET_MS)
            source = self._sources[name] = ResultSource(cursor, record.finished, seen)
            self._measure(source, record.cursor)

    def snapshot(self, now: int) -> dict[str, ResultsRecord]:
        """Return the confirmed results, for the record; sources that were silent for long are forgotten."""
        for name in [name for name, one in self._sources.items() if not one.pending and now - one.seen > FORGET_MS]:
            self._measure(self._sources.pop(name), b"")
        saved = {}
        for name, source in sorted(self._sources.items()):
            cursor = source.cursor.encode()
            self._measure(source, cursor)
            saved[name] = ResultsRecord(source.finished, cursor, source.seen)
        return saved

    def fail(self, error: SluiceError) -> None:
        """Tell all that wait for an outcome that it is not known here: the owner stops."""
        for source in self._sources.values():
            for pending in source.pending.values():
                pending.outcome.set_exception(error)

    def rows(self) -> list[dict[str, Any]]:
        """Return each source, the position up to which it has finished, and how many later messages have results."""
        return [
            {
                "source": name,
                "finished": show(source.finished),
                "remembered": source.cursor.acknowledged_count,
                "bytes": source.size,
            }
            for name, source in sorted(self._sources.items())
        ]

    def _measure(self, source: ResultSource, cursor: bytes) -> None:
        self._size += len(cursor) - source.size
        source.size = len(cursor)
