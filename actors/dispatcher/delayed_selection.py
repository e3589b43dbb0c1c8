"""Finding delayed messages in the log: by place, by key, by due time, by their sender's own id.

The log's index columns say where a delayed message lies, when it is due and what its key's hash is; so that is all
that is read for most questions, in columns. Whether a key, or a sender's id, is the one that is meant only the message
itself says: the few whose hash fits are read whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from actors.dispatcher.context import SubscriptionContext
from actors.dispatcher.log_index import READ_MOST, read_index
from actors.messages import DELAY_ID, Part, RunIndex, SelectDelayed
from storage.delayed.entries import EMPTY, Entries, Mask, concat
from storage.frame import index_columns
from storage.hashing import Hashes, hash_column
from storage.position import Positions, entries_of, ledgers_of, parse, position

_NO_NAMES: list[str] = []


@dataclass(frozen=True, slots=True)
class SelectedDelays:
    """Delayed messages, positions ascending. names: what their sender called each, if that was asked; else empty."""

    entries: Entries
    names: list[str]


class DelayedSelection:
    """Reads the log of one partition for whoever asks which delayed messages there are."""

    def __init__(self, context: SubscriptionContext) -> None:
        self._ports, self._topic, self._payloads = context.ports, context.topic, context.payloads()
        self._changes = context.changed_delays.now
        """Due times that count instead of the log's."""

    async def select(self, wanted: SelectDelayed, start: int, end: int) -> AsyncIterator[SelectedDelays]:
        """The delayed messages from `start` to `end` (positions, inclusive) that are wanted, a piece at a time.

        Of `message_ids` those that exist, wherever they lie. Raises Unavailable.
        """
        if wanted.message_ids:
            async for entries in self._at(places(wanted)):
                yield SelectedDelays(entries, _NO_NAMES)
            return
        hashes = _hashes(wanted)
        before = end + 1 if wanted.before is None else min(parse(wanted.before), end + 1)
        at = start
        while at < before:
            entries, resume = await self._read(at, READ_MOST, hashes)
            fits = (entries.positions >= at) & (entries.positions < before) & self._fits(wanted, entries)
            at = before if resume is None else resume
            entries = entries.take(fits)
            if len(entries):
                yield await self._named(wanted, entries)

    async def _at(self, positions: Positions) -> AsyncIterator[Entries]:
        """Those of the positions that are delayed messages; the log is read where they lie."""
        at = 0
        while at < len(positions):
            start = int(positions[at])
            entries, resume = await self._read(start, min(READ_MOST, int(positions[-1]) - start + 1))
            if len(here := entries.take(np.isin(entries.positions, positions))):
                yield here
            if resume is None:
                return
            at = max(at + 1, int(np.searchsorted(positions, resume)))

    async def _read(self, start: int, limit: int, hashes: Hashes | None = None) -> tuple[Entries, int | None]:
        """The delayed messages of some runs (hashes: only those), and where to read on; None: there is nothing more."""
        runs, resume = await read_index(self._ports, self._topic, start, limit)
        parts = [_delayed_rows(run, columns, hashes) for run, columns in runs]
        return concat([part for part in parts if len(part)]), resume

    def _fits(self, wanted: SelectDelayed, entries: Entries) -> Mask:
        due = self._changes.due(entries.positions, entries.deliver_at)
        fits = np.ones(len(entries), np.bool_)
        if wanted.due_from is not None:
            fits &= due >= wanted.due_from
        if wanted.due_to is not None:
            fits &= due < wanted.due_to
        return fits

    async def _named(self, wanted: SelectDelayed, entries: Entries) -> SelectedDelays:
        """Those whose key, or sender's id, is the wanted one indeed: a hash may stand for several."""
        if wanted.key is None and not wanted.delay_ids:
            return SelectedDelays(entries, _NO_NAMES)
        positions: list[Positions] = []
        names: list[str] = []
        for part in _parts(entries.positions):
            for received in await self._payloads.resolve(part, 0, 0):
                fits, called = _meant(wanted, received.rows)
                positions.append(received.positions[fits])
                names += called.filter(pa.array(fits)).to_pylist() if wanted.delay_ids else []
        kept = np.concatenate([np.empty(0, np.int64), *positions])
        return SelectedDelays(entries.take(np.isin(entries.positions, kept)), names)


def places(wanted: SelectDelayed) -> Positions:
    """The positions that are named, int64, ascending, each once. Raises Invalid for what is no message id."""
    return np.unique(np.array([parse(text) for text in wanted.message_ids], np.int64))


def _hashes(wanted: SelectDelayed) -> Hashes | None:
    """The masked hashes that a wanted message may have; None: any."""
    if wanted.key is not None:
        return hash_column(pa.array([wanted.key.encode()]))
    if wanted.delay_ids:
        return hash_column(pa.array([name.encode() for name in wanted.delay_ids]))
    return None


def _delayed_rows(run: RunIndex, columns: memoryview, wanted: Hashes | None) -> Entries:
    due, hashes = index_columns(columns, run.count, run.delayed)
    if due is None:
        return EMPTY
    fits = due > 0 if wanted is None else np.isin(hashes, wanted) & (due > 0)
    rows = np.flatnonzero(fits)  # of a million messages one may be wanted: no columns are made of the others
    return Entries(due[rows], rows + position(run.ledger, run.first_entry), hashes[rows])


def _parts(positions: Positions) -> list[Part]:
    """The positions as parts without a handle, so that the topic is asked; one a ledger."""
    ledgers = ledgers_of(positions)
    return [
        Part(
            ledger=int(ledger),
            first_entry=0,
            count=0,
            delayed=True,
            shape=0,
            crc=0,
            dispatch=0,
            rows=entries_of(positions[ledgers == ledger]),
        )
        for ledger in np.unique(ledgers)
    ]


def _meant(wanted: SelectDelayed, rows: pa.RecordBatch) -> tuple[Mask, pa.Array]:
    """Which of the rows are meant, bool (n,), and what their sender called each (null: nothing)."""
    fits = np.ones(rows.num_rows, np.bool_)
    called = pa.nulls(rows.num_rows, pa.string())
    if "properties" in rows.schema.names:
        called = pc.map_lookup(rows.column("properties"), DELAY_ID, "last")
    if wanted.key is not None:
        fits &= pc.equal(rows.column("key"), wanted.key.encode()).fill_null(False).to_numpy(zero_copy_only=False)
    if wanted.delay_ids:
        fits &= pc.is_in(called, pa.array(wanted.delay_ids)).to_numpy(zero_copy_only=False)
    return fits, called
