"""Group commit: records that arrive during one sync are written and synced together by the next one.

    submit -> queue -> one append with fdatasync, and a mark if nothing waits -> applied in order -> answered

There is one writer and one append in flight. Records get their place in the journal in the order in which they
were submitted. A record is applied (made visible to reads) and answered only after it is durable; everything before
it in the journal has been applied by then.

If the disk is full nothing of a group was written: its runs are refused, and its small control records (fences,
deletions) are tried once more by themselves after the reserve was given up. If a write or sync fails, what is on
the disk is not known any more: all waiting requests end in Unavailable, and the bookie stops for good.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sluice.actors.bookie.settings import BookieSettings
from sluice.actors.ports import Disk, DiskFailed, DiskFull
from sluice.actors.runtime.waiting import SharedFuture
from sluice.storage.errors import InvariantViolation, Overloaded, Unavailable
from sluice.storage.format.frame import Buffer
from sluice.storage.format.journal import OVERHEAD, Envelope, Kind, encode_envelope, encode_mark

RESERVE = "reserve"


def segment_name(segment: int) -> str:
    """The file of a journal segment."""
    return f"journal-{segment:08x}"


def marks_name(segment: int) -> str:
    """The file of its marks (see storage.format.journal)."""
    return f"marks-{segment:08x}"


def segment_of(name: str, prefix: str = "journal-") -> int | None:
    """The number of a segment from its file's name; None for other files."""
    digits = name.removeprefix(prefix)
    return int(digits, 16) if name.startswith(prefix) and len(digits) == 8 else None


@dataclass(slots=True)
class _Waiting:
    record: Envelope
    body: list[Buffer]
    done: SharedFuture[Envelope]


class BookieJournal:
    """The writing end of the journal.

    on_durable: called with each durable record in journal order. on_segment_closed: called with number and final size
    of a segment that is complete. on_failed: called once, with the reason, when the disk failed. on_full: called
    whenever the disk was full.
    """

    def __init__(
        self,
        disk: Disk,
        settings: BookieSettings,
        salt: bytes,
        *,
        on_durable: Callable[[Envelope], None],
        on_segment_closed: Callable[[int, int], None],
        on_failed: Callable[[str], None],
        on_full: Callable[[], None],
    ) -> None:
        self.segment = 0
        self.size = 0
        self.groups = 0
        self.written = 0
        self.queued_bytes = 0
        self.applied = (0, 0)
        """Segment and offset up to which everything was applied."""
        self.unsynced_mark: int | None = None
        """The segment whose newest mark is not durable yet."""
        self._disk = disk
        self._settings = settings
        self._salt = salt
        self._on_durable = on_durable
        self._on_segment_closed = on_segment_closed
        self._on_failed = on_failed
        self._on_full = on_full
        self._queue: deque[_Waiting] = deque()
        self._group: list[_Waiting] = []
        self._wake = asyncio.Event()
        self._closed: str | None = None

    async def open(self, segment: int, previous: int, previous_size: int) -> None:
        """Begin a new segment, durably, so that the end of the one before is on record."""
        self.segment, self.size = segment, 0
        parts = self._begin(previous, previous_size)
        await self._disk.append(segment_name(segment), parts, sync=True)
        self.size = OVERHEAD
        self.applied = (segment, OVERHEAD)

    def submit(self, record: Envelope, body: list[Buffer]) -> SharedFuture[Envelope]:
        """Queue a record; the outcome brings it with its place when it is durable and applied.

        Raises Overloaded when too much waits, Unavailable when the journal is closed. Nothing else happens before the
        next `await` of the caller.
        """
        if self._closed is not None:
            raise Unavailable(self._closed)
        if record.kind is Kind.RUN and self.queued_bytes > self._settings.queue_bytes:
            raise Overloaded(f"{self.queued_bytes} bytes wait for the disk")
        done: SharedFuture[Envelope] = SharedFuture()
        self._queue.append(_Waiting(record, body, done))
        self.queued_bytes += record.size
        self._wake.set()
        return done

    async def run(self) -> None:
        """Write groups until the journal is closed."""
        while self._closed is None:
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()
                continue
            self._group = self._take()
            try:
                await self._write_or_refuse(self._group)
            except DiskFailed as error:
                self.close(f"the disk failed: {error}")
                self._on_failed(f"the disk failed: {error}")
            self._group = []

    def close(self, reason: str) -> None:
        """Answer everything that waits with Unavailable, and whatever comes later. Idempotent."""
        self._closed = self._closed or reason
        for waiting in [*self._group, *self._queue]:
            self._refuse(waiting, self._closed)
        self._queue.clear()
        self._wake.set()

    async def sync_mark(self) -> None:
        """Make the newest mark durable, so that even a loss of power leaves the last group its witness.

        A full disk had no room for a mark.
        """
        segment, self.unsynced_mark = self.unsynced_mark, None
        if segment is not None:
            with contextlib.suppress(DiskFull):
                await self._disk.append(marks_name(segment), [], sync=True)

    def _take(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._queue and (not group or size + self._queue[0].record.size <= self._settings.group_bytes):
            waiting = self._queue.popleft()
            size += waiting.record.size + OVERHEAD
            group.append(waiting)
        self.queued_bytes -= sum(waiting.record.size for waiting in group)
        return group

    async def _write(self, group: list[_Waiting]) -> None:
        segment, at, parts = self.segment, self.size, list[Buffer]()
        if at >= self._settings.segment_bytes:
            segment, at = segment + 1, OVERHEAD
            parts += self._begin(self.segment, self.size, segment)
        start = at - OVERHEAD if parts else at
        placed = []
        for waiting in group:
            record = waiting.record.placed(segment, at, start)
            head, foot = encode_envelope(record, self._salt)
            parts += [head, *waiting.body, foot]
            placed.append(record)
            at = record.end
        # If something waits already, the next group follows at once and is itself the witness of this one.
        witness = None if self._queue else (marks_name(segment), encode_mark(segment, at, self._salt))
        offset = await self._disk.append(segment_name(segment), parts, sync=True, witness=witness)
        if offset != start:
            raise InvariantViolation(f"{segment_name(segment)} was written at {offset} instead of {start}")
        if segment != self.segment:
            self._on_segment_closed(self.segment, self.size)
        self.segment, self.size = segment, at
        if witness is not None:
            self.unsynced_mark = segment
        self.groups += 1
        self.written += at - start
        for record in placed:
            self._on_durable(record)
        self.applied = (segment, at)
        for waiting, record in zip(group, placed, strict=True):
            waiting.done.set_result(record)

    async def _write_or_refuse(self, group: list[_Waiting]) -> None:
        """Write a group; on a full disk its control records alone. Raises DiskFailed."""
        try:
            await self._write(group)
        except DiskFull as error:
            await self._survive_full(group, str(error))

    async def _survive_full(self, group: list[_Waiting], reason: str) -> None:
        """Refuse the runs of a group that found no space, and write its control records in place of the reserve."""
        self._on_full()
        with contextlib.suppress(DiskFull):  # this group was to be the witness of the one before
            mark = encode_mark(self.segment, self.size, self._salt)
            await self._disk.append(marks_name(self.segment), [mark], sync=False)
            self.unsynced_mark = self.segment
        for waiting in group:
            if waiting.record.kind is Kind.RUN:
                self._refuse(waiting, f"the bookie is read-only: {reason}")
        controls = [waiting for waiting in group if not waiting.done.done()]
        if not controls:
            return
        try:
            await self._disk.delete(RESERVE)
            await self._write(controls)
        except DiskFull:
            for waiting in controls:
                self._refuse(waiting, f"the bookie is read-only: {reason}")

    def _begin(self, previous: int, previous_size: int, segment: int | None = None) -> list[Buffer]:
        number = self.segment if segment is None else segment
        record = Envelope(Kind.BEGIN, number, 0, run=previous, epoch=previous_size)
        return list(encode_envelope(record, self._salt))

    @staticmethod
    def _refuse(waiting: _Waiting, reason: str) -> None:
        waiting.done.set_exception(Unavailable(reason))
