"""From a delivered part to its rows: fetch the run's payload, check it, take this consumer's rows.

The dispatcher sends row numbers and a handle. If the handle is gone (the process that shared it died), or there never
was one (due messages), the consumer asks the topic, and the topic asks its bookies. A payload whose checksum does not
match is never delivered (S18): it is fetched again from the topic.

Messages that fall due come a few at a time from many runs. So the consumer tells the topic what it will need next
(`expect`), and the topic sends small runs along. Runs that came stay decoded, and small pieces that arrive together are
joined, so that a user gets whole columns.

Nothing that is kept, here or by the user, stays in the memory that the processes of a machine share. That memory is
small, and is for payloads on their way. If consumers kept unacknowledged messages there, no room would be left for
others, such as a recovering topic.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.actors.consumer.unacked_messages import NONE_OVERTOOK, UNKNOWN, LazyBatch, Received
from sluice.actors.lookup.directory import Directory
from sluice.actors.lookup.topic_client import TopicClient
from sluice.actors.messages import NO_ROWS, Part, PayloadRead, ReadPayload, RunIndex
from sluice.actors.messages.limits import KEPT_MS
from sluice.actors.ports import Ports
from sluice.actors.ports.wire import Blob, owned
from sluice.actors.runtime.waiting import Backoff, Signal
from sluice.storage.errors import Corrupt, Fenced, NotFound, Overloaded, Unavailable
from sluice.storage.format.batch import StoredBatch, decode_body, rows_of_body
from sluice.storage.format.checked_payload import NO_SUMS, CheckedPayload, Sums, checked
from sluice.storage.format.frame import Run, index_columns
from sluice.storage.format.position import MAX_ENTRY, positions_of, run_positions

READ_TIMEOUT = 10_000
RETRY_FIRST, RETRY_MOST = 5, 500
GONE_MS = 10_000
DECODED_BYTES = 32 * 1024 * 1024
RUN_BYTES = 4_500
"""The memory of a decoded run beside its columns, as measured: Arrow's objects for each of them."""
AHEAD_ENTRIES = 256
"""The most messages wanted next that one request names to the topic."""
MOST_SPARE = 4
"""A published run is kept as it was made as long as that takes at most so many times its own bytes."""


@dataclass(frozen=True, slots=True)
class DecodedRun:
    """A run whose checksum was verified. rows: its stored columns. due: int64 ms (count,), None if none is delayed.

    bytes: what its columns take in memory, inflated. held: the entries of the run that are here (int64, ascending), if
    it was cut down to some of them. checked: the bytes in which its rows lie, if there are many.
    """

    ledger: int
    first_entry: int
    rows: pa.RecordBatch
    due: npt.NDArray[np.int64] | None
    bytes: int
    held: npt.NDArray[np.int64] | None = None
    checked: CheckedPayload | None = None

    @property
    def end(self) -> int:
        """The entry behind the last one that is here."""
        return int(self.first_entry + self.rows.num_rows if self.held is None else self.held[-1] + 1)

    @property
    def weight(self) -> int:
        """Bytes that it holds in memory, about."""
        return RUN_BYTES + self.bytes

    def holds(self, entry: int) -> bool:
        """Whether an entry, not before the first one of the run, is here."""
        return entry < self.end and (self.held is None or entry in self.held)

    def leading(self, entries: npt.NDArray[np.int64]) -> int:
        """How many of these (ascending, the first is here) are here without a gap."""
        inside = int(entries.searchsorted(self.end))
        if self.held is None:
            return inside
        missing = np.flatnonzero(~np.isin(entries[:inside], self.held))
        return int(missing[0]) if len(missing) else inside

    def rows_of(self, entries: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows of these entries in the columns; all of them must be here."""
        return entries - self.first_entry if self.held is None else self.held.searchsorted(entries)

    def sums(self, rows: npt.NDArray[np.int64]) -> Sums:
        """See CheckedPayload.sums."""
        return NO_SUMS if self.checked is None else self.checked.sums(self.rows.column("payload"), rows)

    def received(self, partition: int, row: int, count: int) -> Received:
        """Rows as they were published, for a reader past every subscription: nobody has to acknowledge them."""
        if self.held is None:
            positions = run_positions(self.ledger, self.first_entry + row, count)
        else:
            positions = positions_of(self.ledger, self.held[row : row + count])
        return Received(
            rows=self.rows.slice(row, count),
            partition=partition,
            positions=positions,
            dispatch=np.zeros(count, np.int64),
            redeliveries=np.zeros(count, np.uint8),
            deliver_at=np.zeros(count, np.int64) if self.due is None else self.due[row : row + count],
            epoch=0,
            session=0,
            sums=self.sums(np.arange(row, row + count)),
        )

    def follows(self, row: int) -> int:
        """How many messages of a row's batch, as a client sent it, follow it; UNKNOWN if they may not be here."""
        if (row == self.rows.num_rows - 1 and self.held is None) or "batch_index" not in self.rows.schema.names:
            return 0
        index = self.rows.column("batch_index")
        here, following = (*index.slice(row, 2).to_pylist(), None)[:2]
        if here is None or self.held is not None:
            return 0 if here is None else UNKNOWN
        if following != here + 1:
            return 0
        behind = index.slice(row).fill_null(-1).to_numpy(zero_copy_only=False)
        return int(np.argmin(np.append(np.diff(behind) == 1, False)))


class DecodedRuns:
    """The most recently used runs, up to a number of bytes of memory; any entry in a run finds it.

    None is found for long, because messages of it may have been erased since. monotonic: the time now, in ms.
    Several consumers of one process may share them, of whatever topics: a ledger belongs to one partition. Then nearly
    all are used once, soon after they came. forgets: `forget_used` is called from time to time.
    """

    def __init__(self, monotonic: Callable[[], int], limit: int = DECODED_BYTES, *, forgets: bool = False) -> None:
        self._monotonic, self._limit = monotonic, limit
        self._bytes = 0
        self._used: dict[tuple[int, int], None] | None = {} if forgets else None
        """The runs that were found since used ones were last forgotten."""
        self._used_before: dict[tuple[int, int], None] = {}
        self._runs: OrderedDict[tuple[int, int], DecodedRun] = OrderedDict()
        self._since: OrderedDict[tuple[int, int], int] = OrderedDict()
        """When each came, the oldest first."""
        self._firsts: list[tuple[int, int]] = []
        self.coming: dict[tuple[int, int], Signal] = {}
        """Runs that are being asked for, by ledger and first entry; set when there is an answer."""

    def find(self, ledger: int, entry: int) -> DecodedRun | None:
        """The run that holds an entry, if it is here."""
        self._let_go_old()
        at = bisect_right(self._firsts, (ledger, entry)) - 1
        if at < 0:
            return None
        key = self._firsts[at]
        run = self._runs[key]
        if run.ledger != ledger or not run.holds(entry):
            return None
        self._runs.move_to_end(key)
        if self._used is not None:
            self._used[key] = None
        return run

    def forget_used(self) -> None:
        """Drop the runs that were used before the last call, and not since: their readers have them."""
        if self._used is None:
            return
        self._let_go_old()
        for key in self._used_before:
            if key not in self._used and key in self._runs:
                self._let_go(key)
        self._used, self._used_before = {}, self._used

    def _let_go_old(self) -> None:
        before = self._monotonic() - KEPT_MS
        while self._since and next(iter(self._since.values())) <= before:
            self._let_go(next(iter(self._since)))

    def _let_go(self, key: tuple[int, int]) -> None:
        self._bytes -= self._runs.pop(key).weight
        del self._since[key]
        self._firsts.pop(bisect_left(self._firsts, key))

    def missing(self, ledger: int, entries: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the entries of a ledger (ascending) whose run is not here."""
        absent = np.zeros(len(entries), bool)
        at = 0
        while at < len(entries):
            entry = int(entries[at])
            if (run := self.find(ledger, entry)) is not None:
                at += run.leading(entries[at:])
                continue
            stop = max(int(entries.searchsorted(self._next_known(ledger, entry))), at + 1)
            absent[at:stop] = True
            at = stop
        return entries[absent]

    def _next_known(self, ledger: int, entry: int) -> int:
        """The first entry from here on that may be here, which this one is not."""
        at = bisect_right(self._firsts, (ledger, entry))
        if at and self._firsts[at - 1][0] == ledger and entry < self._runs[self._firsts[at - 1]].end:
            return entry + 1  # a part of its run is here
        return self._firsts[at][1] if at < len(self._firsts) and self._firsts[at][0] == ledger else MAX_ENTRY

    def add(self, run: DecodedRun, *, used: bool = False) -> None:
        """Keep a run; those not used for the longest time go. used: who asked for it has it already."""
        self._let_go_old()
        key = (run.ledger, run.first_entry)
        if used and self._used is not None:
            self._used[key] = None
        known = self._runs.get(key)
        if known is None:
            insort(self._firsts, key)
        elif known.held is None:
            return
        else:  # other rows of it are wanted now, or all of them
            self._bytes -= known.weight
        self._runs[key] = run
        self._since[key] = self._monotonic()
        self._since.move_to_end(key)
        self._bytes += run.weight
        while self._bytes > self._limit and len(self._runs) > 1:
            self._let_go(next(iter(self._runs)))


class Payloads:
    """Finds the payloads of one partition's parts. decoded: a cache of runs that others share, if there is one.

    lazy: nothing is taken out of the runs before somebody looks at it. Until then a part keeps its runs.
    sums: parts have the sums of their payloads.
    """

    def __init__(
        self,
        ports: Ports,
        directory: Directory,
        topic: str,
        partition: int,
        decoded: DecodedRuns | None = None,
        *,
        lazy: bool = False,
        sums: bool = False,
    ) -> None:
        self._ports = ports
        self._topic = TopicClient(ports, directory, topic, partition)
        self._partition = partition
        self._decoded = DecodedRuns(ports.clock.monotonic) if decoded is None else decoded
        self._lazy, self._sums = lazy, sums
        self._cut_apart = False
        """The topic is far: everybody is given rows of his own, and waits for nobody else's."""
        self._gone_ledger, self._gone_until = -1, 0
        self._expected: dict[int, npt.NDArray[np.int64]] = {}

    def expect(self, parts: Iterable[Part]) -> None:
        """Announce parts that will be resolved, so that the topic can be asked for several at once."""
        wanted: dict[int, list[npt.NDArray[np.int64]]] = {}
        for part in parts:
            if part.blob is None:
                wanted.setdefault(part.ledger, []).append(part.first_entry + part.rows.astype(np.int64))
        self._expected = {ledger: _ascending(entries) for ledger, entries in wanted.items()}

    async def resolve(self, part: Part, epoch: int, session: int) -> list[LazyBatch]:
        """The part's messages, in order, one `Received` a run. Messages that were trimmed are left out."""
        found: list[LazyBatch] = []
        entries = part.first_entry + part.rows.astype(np.int64)
        start = 0
        while start < len(entries):
            try:
                run = await self._run(part, entries[start:])
            except NotFound:
                self._ports.log("trimmed", ledger=part.ledger, entry=int(entries[start]))
                start += 1
                continue
            stop = start + run.leading(entries[start:])
            found.append(self._cut(part, run, entries[start:stop], start, epoch, session))
            start = stop
        return found

    async def run(self, ledger: int, entry: int, *, patience: int = 0) -> DecodedRun:
        """The run that holds an entry, for who reads the log itself. Raises NotFound if it was trimmed, and Unavailable
        after so many milliseconds of patience; 0: that has no end.
        """
        known = self._decoded.find(ledger, entry)
        if known is not None and known.held is None:
            return known
        return await self._from_topic(ledger, entry, again=False, patience=patience)

    async def sent_along(self, index: RunIndex) -> DecodedRun | None:
        """Return a run that came with its index columns, for a reader of the log itself; None if it must be asked for
        again.
        """
        payload = None if index.blob is None else await self._ports.net.fetch(index.blob)
        return None if payload is None else _piece(index.ledger, index, owned(payload))

    async def _run(self, part: Part, entries: npt.NDArray[np.int64]) -> DecodedRun:
        """The decoded run that holds the first of a part's entries: kept, by the part's handle, or from the topic.
        Raises NotFound.
        """
        entry = int(entries[0])
        known = self._decoded.find(part.ledger, entry)
        if known is not None:
            return known
        damaged = False
        if part.count and part.blob is not None:
            payload = await self._sent_along(part.ledger, part.blob)
            if payload is not None:
                run = _sent(part, payload, kept=self._lazy)
                if run is not None:
                    return run
                damaged = True
        return await self._asked_once(part, entries, again=damaged)

    async def _asked_once(self, part: Part, entries: npt.NDArray[np.int64], *, again: bool) -> DecodedRun:
        """The run from the topic, or the answer to another consumer's request for it that is under way."""
        key, entry = (part.ledger, part.first_entry), int(entries[0])
        coming = self._decoded.coming.get(key)
        if coming is not None and part.count and not self._cut_apart:
            await coming.wait(self._ports)
            known = self._decoded.find(part.ledger, entry)
            if known is not None:
                return known
        answered = self._decoded.coming[key] = Signal()
        try:
            return await self._from_topic(part.ledger, entry, again=again, wanted=entries.astype(np.uint32))
        finally:
            answered.set()
            if self._decoded.coming.get(key) is answered:
                del self._decoded.coming[key]

    async def _sent_along(self, ledger: int, blob: Blob) -> memoryview | None:
        """The payload that came with a part, None if its handle is gone.

        To learn that takes a second. Who shared it has died, and what it shared of this and earlier ledgers has gone
        with it: for a while none of that is asked for.
        """
        now = self._ports.clock.monotonic()
        if blob.data is None and ledger <= self._gone_ledger and now < self._gone_until:
            return None
        payload = await self._ports.net.fetch(blob)
        if payload is None:
            self._gone_ledger, self._gone_until = ledger, now + GONE_MS
        return payload

    async def _from_topic(
        self,
        ledger: int,
        entry: int,
        *,
        again: bool,
        wanted: npt.NDArray[np.uint32] | None = None,
        patience: int = 0,
    ) -> DecodedRun:
        """The run that holds an entry, asked of the topic for as long as it takes, or as there is patience; where it
        would travel whole between machines, the wanted entries of it. Raises NotFound, Unavailable.
        """
        request = ReadPayload(ledger=ledger, entry=entry, again=again)
        if wanted is not None:
            request.wanted = wanted
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST, patience)
        while (run := await self._read(request)) is None:
            request.again = True
            if patience:
                await wait.pause_after(Unavailable(f"entry {entry} of ledger {ledger} cannot be read now"))
            else:
                await wait.pause()
        if run.held is None:
            self._decoded.add(run, used=True)
        return run

    def _next(self, ledger: int, entry: int) -> npt.NDArray[np.uint32]:
        """The wanted entries of the ledger behind an entry that are not here."""
        entries = self._expected.get(ledger, np.empty(0, np.int64))
        first = int(entries.searchsorted(entry, side="right"))
        return self._decoded.missing(ledger, entries[first : first + AHEAD_ENTRIES]).astype(np.uint32)

    async def _read(self, request: ReadPayload) -> DecodedRun | None:
        """One try to get a run from the topic; `again` says that an earlier copy could not be used."""
        ledger, entry = request.ledger, request.entry
        # If something is out of reach, what is wanted now does not wait for more of that.
        request.ahead = NO_ROWS if request.again else self._next(ledger, entry)
        try:
            owner = await self._topic.owner()
            request.rows_from = self._ports.net.rows_from(owner) if len(request.wanted) else 0
            self._cut_apart = bool(request.rows_from)
            reply = await self._topic.ask(request, READ_TIMEOUT, to=owner)
            for ahead in reply.ahead:
                run = await self._fetched(ledger, ahead)
                if run is not None:  # else it is asked for when its turn comes
                    self._decoded.add(run)
            return await self._fetched(ledger, reply)
        except (Unavailable, Fenced, Corrupt, Overloaded) as error:
            self._ports.log("payload_waits", ledger=ledger, entry=entry, error=str(error))
            return None

    async def _fetched(self, ledger: int, read: PayloadRead) -> DecodedRun | None:
        payload = await self._ports.net.fetch(read.payload)
        if payload is None:
            return None
        return _piece(ledger, read, owned(payload))

    def _cut(
        self, part: Part, run: DecodedRun, entries: npt.NDArray[np.int64], start: int, epoch: int, session: int
    ) -> LazyBatch:
        rows = run.rows_of(entries)
        count = len(rows)
        counts = part.redeliveries[start : start + count]
        piece = run.rows, None if count == run.rows.num_rows else rows
        received = LazyBatch(
            [piece],
            (run.bytes,),
            partition=self._partition,
            positions=positions_of(part.ledger, entries),
            dispatch=np.arange(part.dispatch + start, part.dispatch + start + count, dtype=np.int64),
            redeliveries=counts.copy() if len(counts) else np.zeros(count, np.uint8),
            deliver_at=np.zeros(count, np.int64) if run.due is None else run.due[rows],
            epoch=epoch,
            session=session,
            overtook=np.isin(part.rows[start : start + count], part.overtook) if len(part.overtook) else NONE_OVERTOOK,
            follows=run.follows(int(rows[-1])),
            sums=run.sums(rows) if self._sums else NO_SUMS,
        )
        if not self._lazy:
            received.take_out()
        return received


def _ascending(several: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """All of them in order, each once: nearly always that is how they come."""
    entries = several[0] if len(several) == 1 else np.concatenate(several)
    return entries if bool((np.diff(entries) > 0).all()) else np.unique(entries)


def published_run(ledger: int, first_entry: int, run: Run, batch: StoredBatch) -> DecodedRun:
    """A run that this process made of a batch and published. It is not checked, because it was not read."""
    rows, size = batch.rows, max(len(run.payload), batch.rows.get_total_buffer_size())
    if size > MOST_SPARE * len(run.payload):  # a slice, which would keep the memory of all of them
        rows, size = rows_of_body(run.payload[run.count * (12 if run.delayed else 4) :], run.shape), len(run.payload)
    return DecodedRun(ledger, first_entry, rows, batch.deliver_at, size)


def _sent(part: Part, payload: memoryview, *, kept: bool) -> DecodedRun | None:
    """The run that came with a part, None if its checksum does not fit. kept: also when rows were taken out of it."""
    # Of a piece, the rows that are taken out are a copy anyway.
    if kept or len(part.rows) == (len(part.cut) or part.count):
        payload = owned(payload)
    return _piece(part.ledger, part, payload)


def _piece(ledger: int, of: Part | PayloadRead | RunIndex, payload: memoryview) -> DecodedRun | None:
    """The run of a payload, or those of its rows that were cut out; None if its checksum does not fit."""
    run = _decode(ledger, of.first_entry, len(of.cut) or of.count, of.delayed, of.shape, of.crc, payload)
    return replace(run, held=of.first_entry + of.cut.astype(np.int64)) if run is not None and len(of.cut) else run


def _decode(
    ledger: int, first_entry: int, count: int, delayed: bool, shape: int, crc: int, payload: memoryview
) -> DecodedRun | None:
    """The run of a payload, None if its checksum does not fit."""
    verified = checked(payload, crc)
    if verified is None:
        return None
    payload = verified
    columns = count * (12 if delayed else 4)
    due, _ = index_columns(payload[:columns], count, delayed)
    rows = decode_body(payload[columns:], shape, count)
    size = max(len(payload), rows.get_total_buffer_size())
    return DecodedRun(ledger, first_entry, rows, due, size, checked=CheckedPayload.shown_by(payload))
