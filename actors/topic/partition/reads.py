"""Reading the log: by index columns for dispatchers, by payload for consumers, by time for seeks.

A requested position may lie anywhere: before the oldest kept ledger (trimmed), between two ledgers, behind the end.
Reading starts at the first existing message from there on, and `resume` says where to go on. The answer names closed
ledgers that were passed over, with their last entry.

New runs come from the entry cache, others from a bookie. Older runs are read whole, several at a time: so the bookie
has verified them, and the payload is ready for the consumers. A large one is shared, as when it was published, and is
read once, however many consumers have messages in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from sluice.actors.ledger.fan_out import together
from sluice.actors.ledger.reader import StoredFrame
from sluice.actors.ledger.record import GivenUp, LedgerRecord, LedgerState
from sluice.actors.ledger.run_offsets import RunOffsets
from sluice.actors.messages import (
    NO_ROWS,
    Ends,
    IndexRead,
    PayloadRead,
    PositionFound,
    ReadIndex,
    RowIndex,
    RunIndex,
)
from sluice.actors.messages.limits import MAX_ANSWER_BYTES
from sluice.actors.ports import Ports
from sluice.actors.ports.wire import Blob, owned
from sluice.actors.runtime.waiting import Signal
from sluice.actors.topic.partition.entry_cache import OLD_BYTES, CachedRun, CacheRoom, EntryCache
from sluice.actors.topic.partition.managed_ledger import ManagedLedger
from sluice.actors.topic.partition.unreadable import ALL_RUNS, Unreadable
from sluice.storage.errors import Corrupt, NotFound, SluiceError, Unavailable
from sluice.storage.format.batch import decode_body
from sluice.storage.format.frame import Header, index_columns
from sluice.storage.format.position import Positions, entry_of, ledger_of, position, split_by_ledger

READ_AT_ONCE = 8
AHEAD_RUNS, AHEAD_BYTES, AHEAD_MS = 64, 1024 * 1024, 100
"""Runs, bytes of them, and milliseconds for reading them, that come along with one that was asked for, at most."""


@dataclass(slots=True)
class _Budget:
    """How much a read may still return. bytes: those that travel with the answer. whole: these and shared payloads,
    which travel too if they cannot be passed on.
    """

    messages: int
    bytes: int
    whole: int

    def spent(self) -> bool:
        return self.messages <= 0 or self.bytes <= 0 or self.whole <= 0


class LogReads:
    """The reading half of a topic."""

    def __init__(self, ports: Ports, log: ManagedLedger, room: CacheRoom | None = None) -> None:
        self._ports = ports
        self._log = log
        self._old = EntryCache(OLD_BYTES, room)
        self.unreadable = Unreadable(ports)
        self._loading: dict[int, asyncio.Lock] = {}
        self._coming: dict[tuple[int, int], Signal] = {}

    def forget_unused(self) -> None:
        """Forget cached runs that nobody has read since this was last called."""
        self._old.forget_unused()

    def close(self) -> None:
        """Forget cached runs, and cache no more."""
        self._old.close()

    # -- where things are --------------------------------------------------------------------------------------------

    def ends(self) -> Ends:
        """Return the ends of the topic. An empty topic without a ledger begins and goes on at 0."""
        ledgers = self._log.record.ledgers
        if not ledgers:
            start = self._log.record.trimmed_before
            return Ends(first=start, last=self._log.last_confirmed, next=start)
        last = ledgers[-1]
        return Ends(
            first=position(ledgers[0].id, 0),
            last=self._log.last_confirmed,
            next=position(last.id, self._log.last_entry(last) + 1),
            ledgers=[
                (ledger.id, self._log.last_entry(ledger) if ledger.state is LedgerState.CLOSED else None)
                for ledger in ledgers
            ],
        )

    async def _table(self, ledger: LedgerRecord) -> RunOffsets:
        lock = self._loading.setdefault(ledger.id, asyncio.Lock())
        async with lock:
            try:
                table = await self._log.table(ledger)
            except Unavailable as error:
                if not ledger.fragments and self._is_there(ledger):  # else a bookie that comes back has it
                    self.unreadable.failed(ledger.id, ALL_RUNS, 0, ledger.last_entry + 1, error)
                raise
            if not ledger.fragments:
                self.unreadable.fine(ledger.id, ALL_RUNS)
            return table

    # -- index columns -----------------------------------------------------------------------------------------------

    async def index(self, request: ReadIndex) -> IndexRead:
        """Return the index from `start` on, without waiting for more. Raises Unavailable if nothing can be read now."""
        resume = max(request.start, self._log.record.trimmed_before)
        reply = IndexRead(runs=[], resume=resume, last_confirmed=self._log.last_confirmed)
        budget = _Budget(request.limit, request.max_bytes, MAX_ANSWER_BYTES)
        chain = [ledger for ledger in self._log.record.ledgers if ledger.id >= ledger_of(request.start)]
        for ledger, following in zip(chain, [*chain[1:], None], strict=False):  # an empty chain has no last ledger
            entry = entry_of(request.start) if ledger.id == ledger_of(request.start) else 0
            last = self._log.last_entry(ledger)
            reply.resume = max(reply.resume, position(ledger.id, entry))
            if entry <= last:
                try:
                    await self._read_ledger(ledger, entry, last, reply, budget)
                except Unavailable:
                    if not reply.runs and not reply.lost:
                        raise
                    return reply
            if following is None or ledger.state is not LedgerState.CLOSED or entry_of(reply.resume) <= last:
                return reply
            reply.ended.append((ledger.id, ledger.last_entry))
            reply.resume = position(following.id, 0)
        return reply

    async def _read_ledger(
        self, ledger: LedgerRecord, entry: int, last: int, reply: IndexRead, budget: _Budget
    ) -> None:
        table = await self._table(ledger)
        run, stop = table.run_of(entry), table.run_of(last) + 1
        lost = {given.run: given for given in self._log.record.given_up if given.ledger == ledger.id}
        while run < stop and not budget.spent():
            if run in lost:
                reply.lost.append((ledger.id, lost[run].first_entry, lost[run].count))
                reply.resume = position(ledger.id, lost[run].end)
                run += 1
                continue
            until, wanted = run, 0
            while until < min(stop, run + READ_AT_ONCE) and (until == run or wanted < budget.messages):
                if until in lost:
                    break
                wanted += table.count(until)
                until += 1
            for cached in await self._as_many(ledger, range(run, until)):
                if budget.spent():
                    return
                reply.runs.append(self._shown(cached))
                reply.resume = position(ledger.id, cached.header.last_entry + 1)
                budget.messages -= cached.header.count
                budget.whole -= cached.columns.size + cached.bytes
                budget.bytes -= cached.columns.size + (cached.bytes if cached.bytes < self._ports.shared_from else 0)
                run += 1

    async def _as_many(self, ledger: LedgerRecord, runs: range) -> list[CachedRun]:
        """Return the runs, or the first alone if not all can be read, so that an unreadable run hides none
        before it.
        """
        try:
            return await self._runs(ledger, runs)
        except Unavailable:
            if len(runs) == 1:
                raise
            return await self._runs(ledger, runs[:1])

    def _shown(self, cached: CachedRun) -> RunIndex:
        header, blob = cached.header, cached.blob
        if blob is not None and blob.handle is None and blob.size >= self._ports.shared_from:
            blob = None
        return RunIndex(
            ledger=header.ledger,
            first_entry=header.first_entry,
            count=header.count,
            delayed=header.delayed,
            shape=header.shape,
            crc=header.crc,
            bytes=cached.bytes,
            columns=cached.columns,
            blob=blob,
            cut=NO_ROWS,
            appended=cached.appended,
        )

    async def _runs(
        self, ledger: LedgerRecord, runs: Sequence[int], *, whole: bool = False, keep: bool = True
    ) -> list[CachedRun]:
        """Return runs in order, those that are not in memory from bookies, all at once. keep: their payloads, too."""
        found = [self._cached(ledger.id, run, whole) for run in runs]
        if all(found):
            return [cached for cached in found if cached is not None]
        missing = [run for run, cached in zip(runs, found, strict=True) if cached is None]
        loads = [partial(self._load_once, ledger, run, whole, keep) for run in missing]
        loaded = iter(await together(self._ports, "read", loads))
        return [cached if cached is not None else next(loaded) for cached in found]

    def _cached(self, ledger: int, run: int, whole: bool) -> CachedRun | None:
        cached = self._log.cache.get(ledger, run) or self._old.get(ledger, run)
        return None if cached is None or (whole and cached.blob is None) else cached

    async def _load_once(self, ledger: LedgerRecord, run: int, whole: bool, keep: bool) -> CachedRun:
        """Load a run, or wait until it is loaded: all consumers of a dead owner come with the same messages."""
        key = (ledger.id, run)
        while (coming := self._coming.get(key)) is not None:
            await coming.wait(self._ports)
            if (cached := self._cached(ledger.id, run, whole)) is not None:
                return cached
        done = self._coming[key] = Signal()
        try:
            return await self._load(ledger, run, keep=keep)
        finally:
            del self._coming[key]
            done.set()

    async def _load(self, ledger: LedgerRecord, run: int, *, keep: bool = True) -> CachedRun:
        try:
            frame = await self._log.reader.run(ledger, run)
        except Unavailable as error:
            newest = self._log.record.ledger(ledger.id)
            if newest is not None and newest.offloaded != ledger.offloaded:  # it is somewhere else by now
                return await self._load(newest, run, keep=keep)
            await self._failed(ledger, run, error)
            raise
        self.unreadable.fine(ledger.id, run)
        header, size = frame.header, frame.full_size
        data = frame.payload.data
        if data is None:
            data = await self._ports.net.fetch(frame.payload)
        if data is None or len(data) < header.columns_bytes:
            raise Unavailable(f"run {run} of ledger {ledger.id} is out of reach for a moment")
        columns = Blob(owned(data[: header.columns_bytes]))
        cached = CachedRun(header, columns, await self._shared(data) if keep else None, size)
        newest = self._log.record.ledger(ledger.id)
        if newest is not None and newest.offloaded == ledger.offloaded:  # else messages of it may have been erased
            self._old.put(cached)
        return cached

    def _is_there(self, ledger: LedgerRecord) -> bool:
        """Return whether the ledger was not trimmed meanwhile: a trimmed one is not missed."""
        return self._log.record.ledger(ledger.id) is not None

    async def _failed(self, ledger: LedgerRecord, run: int, error: SluiceError) -> None:
        if not self._is_there(ledger):
            return
        table = await self._table(ledger)
        self.unreadable.failed(ledger.id, run, table.first(run), table.count(run), error)

    async def _shared(self, data: memoryview) -> Blob:
        """Return a payload that every consumer of the run will ask for; a large one is kept by its handle alone."""
        blob = await self._ports.net.share(data)
        return Blob(owned(data)) if blob.handle is None else Blob(handle=blob.handle, size=blob.size)

    async def rows(self, positions: Positions) -> RowIndex:
        """Return index columns of single messages; trimmed ones are left out.

        Raises Unavailable for what is not known here. The consumer that asks holds it, so it is confirmed: this owner
        was replaced and does not know it, and must not say that there is nothing.
        """
        shown: list[Positions] = []
        hashes: list[np.ndarray] = []
        for ledger_id, entries in split_by_ledger(np.unique(positions)):
            ledger = self._log.record.ledger(ledger_id)
            if ledger is None:
                self._check_trimmed(position(ledger_id, int(entries[-1])))
                continue
            there = entries.astype(np.int64) <= self._log.last_entry(ledger)
            if ledger.state is not LedgerState.CLOSED and not there.all():
                raise Unavailable(f"entry {entries[-1]} of ledger {ledger_id} is not confirmed")
            entries = entries[there]
            if not len(entries):
                continue
            table = await self._table(ledger)
            which = table.runs_of(entries)
            lost = [given.run for given in self._log.record.given_up if given.ledger == ledger_id]
            if lost and np.isin(which, lost).any():
                entries, which = entries[~np.isin(which, lost)], which[~np.isin(which, lost)]
                if not len(entries):
                    continue
            runs, starts = np.unique(which, return_index=True)
            groups = np.split(entries, starts[1:])
            for begin in range(0, len(runs), READ_AT_ONCE):
                chosen = runs[begin : begin + READ_AT_ONCE].tolist()
                loaded = await self._runs(ledger, chosen, keep=False)
                for cached, group in zip(loaded, groups[begin : begin + READ_AT_ONCE], strict=True):
                    header = cached.header
                    column = index_columns(cached.columns.data or b"", header.count, header.delayed)[1]
                    hashes.append(column[group - np.uint32(header.first_entry)])
                    shown.append(group.astype(np.int64) + position(ledger_id, 0))
        if not shown:
            return RowIndex(positions=np.empty(0, np.int64), hashes=np.empty(0, np.uint32))
        return RowIndex(positions=np.concatenate(shown), hashes=np.concatenate(hashes))

    def _check_trimmed(self, at: int) -> None:
        """Raise Unavailable if a ledger that is not in the record is newer than this owner, and not trimmed."""
        if at >= self._log.record.trimmed_before:
            raise Unavailable(f"ledger {ledger_of(at)} is not known to this owner of the partition")

    # -- payloads ----------------------------------------------------------------------------------------------------

    async def payload(self, ledger_id: int, entry: int, *, again: bool = False) -> PayloadRead:
        """Return the run that contains an entry. Raises NotFound if it was trimmed, Unavailable if it is not confirmed.

        again: what is in memory was of no use to the asker; read a copy from a bookie and verify it.
        """
        ledger = self._log.record.ledger(ledger_id)
        if ledger is None:
            self._check_trimmed(position(ledger_id, entry))
            raise NotFound(f"ledger {ledger_id} was trimmed")
        if entry > self._log.last_entry(ledger):
            if ledger.state is LedgerState.CLOSED:
                raise NotFound(f"ledger {ledger_id} ends at entry {ledger.last_entry}")
            raise Unavailable(f"entry {entry} of ledger {ledger_id} is not confirmed")
        run = (await self._table(ledger)).run_of(entry)
        lost = self._log.record.lost_run(ledger_id, run)
        if lost is not None:
            entries = f"entries {lost.first_entry} to {lost.end - 1} of ledger {ledger_id}"
            raise NotFound(f"{entries} were given up: no copy could be read")
        if again:
            frame, data = await self._again(ledger, run)
            header, blob = frame.header, Blob(data)
        else:
            cached = await self._whole(ledger, run)
            header = cached.header
            if cached.blob is None:
                raise Unavailable(f"run {run} of ledger {ledger_id} is out of reach for a moment")
            blob = cached.blob
        return _payload_read(header, blob)

    async def ahead(self, ledger_id: int, entries: npt.NDArray[np.uint32]) -> list[PayloadRead]:
        """Small runs with these entries (ascending); the rest, and what cannot be read now, is left out.

        Messages that fall due come from everywhere, one or two of a run: asked for one by one, they would come no
        faster than one answer after the other.
        """
        found: list[PayloadRead] = []
        ledger = self._log.record.ledger(ledger_id)
        if ledger is None or not len(entries):
            return found
        entries = entries[entries.astype(np.int64) <= self._log.last_entry(ledger)]
        runs = np.unique((await self._table(ledger)).runs_of(entries))[:AHEAD_RUNS].tolist()
        runs = [run for run in runs if self._log.record.lost_run(ledger_id, run) is None]
        bytes_left, until = AHEAD_BYTES, self._ports.clock.monotonic() + AHEAD_MS
        for begin in range(0, len(runs), READ_AT_ONCE):
            if begin and self._ports.clock.monotonic() >= until:
                return found
            try:
                loaded = await self._runs(ledger, runs[begin : begin + READ_AT_ONCE], whole=True)
            except (Unavailable, Corrupt):
                return found
            for cached in loaded:
                bytes_left -= cached.bytes
                if bytes_left < 0:
                    return found
                if cached.blob is not None and cached.blob.data is not None:
                    found.append(_payload_read(cached.header, cached.blob))
        return found

    async def _again(self, ledger: LedgerRecord, run: int) -> tuple[StoredFrame, memoryview]:
        """Return a verified copy for a reader that could not use the first one; perhaps no copy can be used."""
        try:
            frame, data = await self._log.reader.whole(ledger, run)
            decode_body(data[frame.header.columns_bytes :], frame.header.shape, frame.header.count)
        except (Unavailable, Corrupt) as error:
            newest = self._log.record.ledger(ledger.id)
            if newest is not None and newest.offloaded != ledger.offloaded:
                return await self._again(newest, run)
            await self._failed(ledger, run, error)
            raise
        self.unreadable.fine(ledger.id, run)
        return frame, data

    async def _whole(self, ledger: LedgerRecord, run: int) -> CachedRun:
        return (await self._runs(ledger, range(run, run + 1), whole=True))[0]

    # -- time --------------------------------------------------------------------------------------------------------

    async def find_time(self, time: int) -> PositionFound:
        """Return the first message published at or after `time` (ms), by halving: ledgers, then runs, then rows.

        Publish times are the producers'; where their clocks disagree the answer is near, as in Pulsar. Where all are
        earlier it is the end as it was when the search began: what comes while runs are read was not looked at.
        """
        end = self.ends().next
        chain = [ledger for ledger in self._log.record.ledgers if self._log.last_entry(ledger) >= 0]
        low, high = 0, len(chain)
        while low < high:  # the first ledger whose last run reaches the time
            middle = (low + high) // 2
            if int((await self._times(chain[middle], await self._last_run(chain[middle]))).max()) >= time:
                high = middle
            else:
                low = middle + 1
        if low == len(chain):
            return PositionFound(position=end)
        ledger = chain[low]
        first, last = 0, await self._last_run(ledger)
        while first < last:
            middle = (first + last) // 2
            if int((await self._times(ledger, middle)).max()) >= time:
                last = middle
            else:
                first = middle + 1
        given_up = self._log.record.lost_run(ledger.id, first) is not None
        row = 0 if given_up else int(np.argmax(await self._times(ledger, first) >= time))
        return PositionFound(position=position(ledger.id, (await self._table(ledger)).first(first) + row))

    async def _last_run(self, ledger: LedgerRecord) -> int:
        return (await self._table(ledger)).run_of(self._log.last_entry(ledger))

    async def _times(self, ledger: LedgerRecord, run: int) -> np.ndarray:
        """Publish times of one run, int64 ms; of one that was given up, the last ones before it."""
        lost = {given.run for given in self._log.record.given_up if given.ledger == ledger.id}
        while run in lost:
            run -= 1
        if run < 0:
            return np.zeros(1, np.int64)
        cached = await self._whole(ledger, run)
        blob, header = cached.blob, cached.header
        data = None if blob is None else blob.data if blob.data is not None else await self._ports.net.fetch(blob)
        if data is None:
            raise Unavailable(f"run {run} of ledger {ledger.id} is out of reach for a moment")
        rows = decode_body(data[header.columns_bytes :], header.shape, header.count)
        times: np.ndarray = rows.column("publish_time").to_numpy()
        if not len(times):
            raise Corrupt(f"run {run} of ledger {ledger.id} is empty")
        return times

    def given_up(self, lost: GivenUp) -> None:
        """Drop a run that was given up."""
        self._old.drop(lost.ledger, lost.run)
        self.unreadable.fine(lost.ledger, lost.run)

    def evict(self, ledgers: list[int]) -> None:
        """Drop cached runs of trimmed ledgers."""
        self._old.drop_ledgers(ledgers)
        self.unreadable.discard(ledgers)
        for ledger in ledgers:
            self._loading.pop(ledger, None)


def _payload_read(header: Header, payload: Blob) -> PayloadRead:
    return PayloadRead(
        count=header.count,
        delayed=header.delayed,
        shape=header.shape,
        crc=header.crc,
        first_entry=header.first_entry,
        payload=payload,
    )
