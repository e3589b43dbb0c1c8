"""Requests for a partition's messages: where runs lie, and what is in them."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from sluice.actors.messages.common import no_rows
from sluice.actors.ports.wire import Blob, Reply, Request


class RunIndex(msgspec.Struct, kw_only=True):
    """The index columns of one confirmed run, as the dispatcher sees it; the payload only by handle.

    columns: the frame's columns section. blob: the payload (columns and body): by handle, or here if it is small.
    bytes: length of the whole payload. cut: of a compacted log, the rows of the run that are left (uint32, ascending);
    columns and blob hold these alone. Empty: it is whole. appended: ms, when it was confirmed; 0 if that is forgotten.
    """

    ledger: int
    first_entry: int
    count: int
    delayed: bool
    shape: int
    crc: int
    bytes: int
    columns: Blob
    blob: Blob | None = None
    cut: np.ndarray = msgspec.field(default_factory=no_rows)
    appended: int = 0

    @property
    def rows(self) -> int:
        """How many messages of it there are."""
        return len(self.cut) or self.count


class IndexRead(Reply, kw_only=True):
    """Confirmed runs in order. resume: where the next read starts. ended: (ledger, last entry) of closed ledgers
    that lie wholly before `resume`, so that a cursor can step over their ends. last_confirmed: end of the topic.
    lost: (ledger, first entry, count) of runs in between that were given up because nobody can read them. ends: the
    topic was terminated, and there is nothing from `resume` on, for good. table: this is of a compacted log, and what
    is not here between `start` and `resume` does not count any more; -1: it is of the log itself. table, since: to be
    repeated with the next question.
    """

    runs: list[RunIndex]
    resume: int
    ended: list[tuple[int, int]] = []
    last_confirmed: int = -1
    lost: list[tuple[int, int, int]] = []
    ends: bool = False
    table: int = -1
    since: int = -1


class ReadIndex(Request[IndexRead], kw_only=True):
    """Runs from position `start` (inclusive; the first may begin before it) up to about `limit` messages.

    With nothing there yet, waits up to `wait` ms for a publish, or for the topic to be terminated; who knows that it
    was (`ends_known`) is not told again before the wait is over. None, as earlier versions ask: only a change is told
    before that. Nothing above the last confirmed entry is shown.
    compacted: of each key the last message alone, as far as the log was compacted. table, since: as in the last answer,
    from whose `resume` on this goes on; who begins, or was elsewhere, says nothing.
    """

    reply: ClassVar[type[Reply]] = IndexRead
    start: int
    limit: int
    wait: int = 0
    ends_known: bool | None = None
    max_bytes: int = 5 * 1024 * 1024
    compacted: bool = False
    table: int = -1
    since: int = -1


class PayloadRead(Reply, kw_only=True):
    """The payload of one run. ahead: other runs that came along, by first entry; they have no `ahead` themselves.

    cut: the rows that the payload holds (uint32, ascending), whose checksum crc is then; empty: it is the whole run.
    """

    count: int
    delayed: bool
    shape: int
    crc: int
    first_entry: int
    payload: Blob
    ahead: list[PayloadRead] = []
    cut: np.ndarray = msgspec.field(default_factory=no_rows)


class ReadPayload(Request[PayloadRead], kw_only=True):
    """The run that contains an entry, from the tail cache or a bookie. NotFound if trimmed.

    again: an earlier answer could not be used (its handle is gone, its checksum wrong), so read a verified copy again.
    ahead: entries of the ledger (uint32, ascending) that are wanted next. Small runs of them come along, as many as
    one answer may carry; what cannot be read now is left out.
    wanted: of the ledger's entries (uint32, ascending), those for which the run is read. rows_from: of runs of at least
    so many bytes these rows, and those in `ahead`, are enough (PayloadRead.cut); 0: whole runs are wanted.
    """

    reply: ClassVar[type[Reply]] = PayloadRead
    ledger: int
    entry: int
    again: bool = False
    ahead: np.ndarray = msgspec.field(default_factory=no_rows)
    wanted: np.ndarray = msgspec.field(default_factory=no_rows)
    rows_from: int = 0


class RowIndex(Reply, kw_only=True):
    """positions (int64, ascending) that exist, with their masked hashes (uint32)."""

    positions: np.ndarray
    hashes: np.ndarray


class ReadRowIndex(Request[RowIndex], kw_only=True):
    """Index columns of single messages anywhere in the topic; positions that were trimmed are left out."""

    reply: ClassVar[type[Reply]] = RowIndex
    positions: np.ndarray
