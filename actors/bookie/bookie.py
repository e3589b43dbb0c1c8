"""The bookie: stores runs durably, and never claims more than it knows.

See `known_ledgers` for epochs and limbo, `journal` for the writing end of the journal, storage.format.journal for its
bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from sluice.actors import messages
from sluice.actors.bookie.cookie import check_cookie, publish_cookie
from sluice.actors.bookie.maintenance import BookieMaintenance
from sluice.actors.bookie.settings import BookieSettings
from sluice.actors.bookie.store import BookieStore
from sluice.actors.ownership.ids import stay_above
from sluice.actors.ports import Disk, DiskFailed, DiskFull, Ports
from sluice.actors.ports.wire import Blob, Reply, Request
from sluice.actors.runtime.host import Actor, Outcome
from sluice.actors.runtime.waiting import SharedFuture, all_of
from sluice.storage.errors import Conflict, Corrupt, Invalid, SluiceError, Unavailable
from sluice.storage.format.checked_payload import payload_crc
from sluice.storage.format.frame import PREFIX_BYTES, Header, decode_head, head_size
from sluice.storage.format.journal import Envelope, Kind
from sluice.storage.format.position import MAX_ENTRY, MAX_LEDGER

MAX_EPOCH = (1 << 62) - 1

_decode_head = lru_cache(16)(decode_head)
"""Of the bookies of one process several are sent the same head, one right after the other."""


class Bookie(Actor):
    """One storage node. It needs ports.disk.

    Answers AddRun, FenceLedger, ReadRun, ReadHeads, DescribeLedger, DeleteLedgers, ListLedgers, Stats and Ping.
    """

    def __init__(
        self, ports: Ports, *, bookie_id: str, settings: BookieSettings | None = None, cluster: str = ""
    ) -> None:
        """cluster: the id of the cluster that the disk must belong to; empty: it is not compared."""
        super().__init__(ports)
        self._cluster = cluster
        if ports.disk is None:
            raise Invalid("a bookie needs a disk")
        self.bookie_id = bookie_id
        self.settings = settings or BookieSettings()
        self._disk: Disk = ports.disk
        self._opened: BookieStore | None = None
        self._maintenance: BookieMaintenance | None = None
        self._busy: dict[tuple[int, int], SharedFuture[None]] = {}
        """Runs, by ledger and number, that an AddRun is about to store. Settled when it is stored or refused."""

    async def start(self) -> None:
        """Check the cookie, bring the state back, and begin to serve.

        Raises Corrupt if this is not the disk of this bookie, Unavailable if the disk or the metadata store does not
        answer now.
        """
        try:
            cookie = await check_cookie(self._disk, self.ports.meta, self.ports.rng, self.bookie_id, self._cluster)
            store = BookieStore(self._disk, self.settings, cookie.salt, on_failed=self._fail, on_full=self._disk_full)
            if not cookie.used and not cookie.published:
                await store.format()
            if not cookie.published:
                await publish_cookie(self.ports.meta, cookie)
            await store.open()
            await self._stay_above(store)
            self._maintenance = BookieMaintenance(store)
            await self._maintenance.prepare()
        except (DiskFailed, DiskFull) as error:
            raise Unavailable(f"bookie {self.bookie_id} cannot start: {error}") from error
        replay = store.replayed
        self.ports.log(
            "bookie_started",
            bookie=self.bookie_id,
            records=replay.records,
            torn_bytes=replay.torn,
            damaged=len(replay.damaged),
            lost=replay.lost,
        )
        self._opened = store
        self.ports.spawn(store.journal.run(), "commit")
        self.ports.spawn(self._keep(), "maintenance")

    async def _stay_above(self, store: BookieStore) -> None:
        """See to it that no ledger that was ever here is given its number again. Raises Unavailable."""
        highest = store.highest_ledger()
        if self._cluster and highest and await stay_above(self.ports.meta, self.ports.me, highest):
            self.ports.log("metadata_older_than_disk", bookie=self.bookie_id, highest_ledger=highest)

    async def stop(self, reason: str) -> None:
        """Refuse everything from now on."""
        await super().stop(reason)
        if self._opened is not None:
            self._opened.journal.close(reason)

    @property
    def refuses(self) -> str:
        """Why it is read-only, if it is."""
        return (self._maintenance.read_only or "") if self._maintenance is not None else ""

    @property
    def lost_records(self) -> bool:
        """Whether the last start found that records without a name are lost."""
        return self.store.replayed.lost

    async def maintain(self) -> None:
        """One round of housekeeping now; it runs by itself every `housekeeping_ms`."""
        if self._maintenance is not None and self.stopped is None:
            try:
                await self._maintenance.maintain()
            except DiskFailed as error:
                self._fail(f"the disk failed: {error}")

    async def handle(self, request: Request[Any]) -> Reply:
        """Answer one request. Raises Unavailable once stopped."""
        if self.stopped is not None or self._opened is None:
            raise Unavailable(f"bookie {self.bookie_id} is not serving: {self.stopped or 'it has not started'}")
        try:
            return await super().handle(request)
        except DiskFailed as error:
            self._fail(f"the disk failed: {error}")
            raise Unavailable(f"bookie {self.bookie_id} ends: the disk failed: {error}") from error

    # -- requests --

    def now_add_run(self, request: messages.AddRun, answer: Callable[[Outcome], None]) -> bool:
        """Queue a run for the journal, unless something must be fetched, read or waited for before that."""
        store, payload = self.store, request.payload.data
        header = _check_add(request)
        state = store.ledgers.refuse_older(request.ledger, request.epoch)
        key = (header.ledger, header.run)
        new = header.run > state.last_run and key not in self._busy
        if payload is None or not new or self.refuses or header.ledger >= store.watermark:
            return False
        _check_payload(request, header, payload)
        self._busy[key] = SharedFuture()
        try:
            written = self._queue(request, header, payload)
        except SluiceError:
            self._release(key)
            raise
        written.then(lambda: self._written(key, written, answer))
        return True

    def _written(
        self, key: tuple[int, int], written: SharedFuture[Envelope], answer: Callable[[Outcome], None]
    ) -> None:
        self._release(key)
        outcome = written.outcome()
        answer(outcome if isinstance(outcome, SluiceError) else messages.Done())

    async def on_add_run(self, request: messages.AddRun) -> messages.Done:
        """Store one frame; see messages.AddRun."""
        header = _check_add(request)
        self.store.ledgers.refuse_older(request.ledger, request.epoch)
        payload = await self._payload(request, header)
        key = (header.ledger, header.run)
        while (busy := self._busy.get(key)) is not None:
            await busy
        self._busy[key] = SharedFuture()
        written: SharedFuture[Envelope] | None = None
        try:
            written = await self._admit(request, header, payload)
            if written is not None:
                await written
            return messages.Done()
        finally:
            # A caller that went away leaves its record in flight: the number stays claimed until that is decided.
            if written is None:
                self._release(key)
            else:
                written.then(partial(self._release, key))

    async def _admit(
        self, request: messages.AddRun, header: Header, payload: memoryview
    ) -> SharedFuture[Envelope] | None:
        """Queue a run whose number is claimed, so that nobody else stores it meanwhile. None: it is stored."""
        known = await self._known(header)
        if known is None:
            await self._check_writable(header.ledger)
            return self._queue(request, header, payload)
        self.store.ledgers.admit(header.ledger, request.epoch, recovery=request.recovery)
        if (known.crc, known.first_entry, known.count) != (header.crc, header.first_entry, header.count):
            raise Conflict(f"run {header.run} of ledger {header.ledger} is stored with other contents")
        return None

    def _queue(self, request: messages.AddRun, header: Header, payload: memoryview) -> SharedFuture[Envelope]:
        """Check the epoch and queue the run in one step, in which nothing is awaited."""
        store = self.store
        store.ledgers.admit(header.ledger, request.epoch, recovery=request.recovery)
        return store.journal.submit(_record(request, header), [request.head, payload])

    def _release(self, key: tuple[int, int]) -> None:
        self._busy.pop(key).set_result(None)

    async def on_fence_ledger(self, request: messages.FenceLedger) -> messages.FenceState:
        """Raise the epoch durably; see messages.FenceLedger."""
        _check_ledger(request.ledger, request.epoch)
        await self._fence(request.ledger, request.epoch)
        state = self.store.ledgers.get(request.ledger)
        if state.limbo:
            raise Unavailable(f"bookie {self.bookie_id} may have lost runs of ledger {request.ledger}")
        return messages.FenceState(last_confirmed=state.last_confirmed, last_run=state.last_run)

    async def on_read_run(self, request: messages.ReadRun) -> messages.RunRead:
        """Read one run; see messages.ReadRun."""
        _check_ledger(request.ledger, request.fence_epoch or 0)
        if not 0 <= request.run <= MAX_ENTRY:
            raise Invalid(f"run {request.run} is out of range")
        if request.part not in messages.PARTS:
            raise Invalid(f"a part of a run is {' or '.join(messages.PARTS)}, not {request.part!r}")
        if request.fence_epoch is not None:
            await self._fence(request.ledger, request.fence_epoch)
        busy = self._busy.get((request.ledger, request.run))
        if busy is not None:
            await busy
        load = self.store.load_head if request.part == "head" else self.store.load
        found = await load(request.ledger, request.run)
        if found is None:
            if self.store.ledgers.peek(request.ledger).limbo:
                raise Unavailable(f"bookie {self.bookie_id} may have lost runs of ledger {request.ledger}")
            return messages.RunRead()
        data, frame = found
        size = PREFIX_BYTES + head_size(data)[0]
        payload = None if request.part == "head" else Blob(frame.payload)
        return messages.RunRead(head=data[:size], payload=payload)

    async def on_read_heads(self, request: messages.ReadHeads) -> messages.HeadsRead:
        """The heads of those of the runs that are here and can be read."""
        _check_ledger(request.ledger)
        if len(request.runs) > messages.HEADS_AT_ONCE:
            raise Invalid(f"{len(request.runs)} heads at once, the limit is {messages.HEADS_AT_ONCE}")
        heads = []
        for run in request.runs.tolist():
            try:
                reply = await self.on_read_run(messages.ReadRun(ledger=request.ledger, run=run, part="head"))
            except (Corrupt, Unavailable):
                reply = messages.RunRead()
            heads.append(reply.head or b"")
        return messages.HeadsRead(heads=heads)

    async def on_describe_ledger(self, request: messages.DescribeLedger) -> messages.LedgerIndex:
        """The runs of a ledger that are here."""
        _check_ledger(request.ledger)
        state = self.store.ledgers.peek(request.ledger)
        rows = await self.store.index.rows(request.ledger)
        good, bad = rows[rows["segment"] > 0], rows[rows["segment"] == 0]
        return messages.LedgerIndex(
            runs=np.ascontiguousarray(good["run"]),
            first_entries=np.ascontiguousarray(good["first_entry"]),
            counts=np.ascontiguousarray(good["entries"]),
            last_confirmed=state.last_confirmed,
            damaged=np.ascontiguousarray(bad["run"]),
            damaged_first_entries=np.ascontiguousarray(bad["first_entry"]),
            damaged_counts=np.ascontiguousarray(bad["entries"]),
        )

    async def on_delete_ledgers(self, request: messages.DeleteLedgers) -> messages.Done:
        """Forget ledgers, durably."""
        for ledger in request.ledgers:
            _check_ledger(ledger)
        waits = [
            self.store.journal.submit(Envelope(Kind.DELETE, 0, 0, ledger=ledger), [])
            for ledger in sorted(request.ledgers)
            if ledger not in self.store.ledgers.deleted
        ]
        await all_of(waits)
        return messages.Done()

    async def on_list_ledgers(self, request: messages.ListLedgers) -> messages.LedgerList:
        """Every ledger that has runs here."""
        return messages.LedgerList(ledgers=self.store.ledgers.ids())

    async def on_stats(self, request: messages.Stats) -> messages.Text:
        store, journal = self.store, self.store.journal
        stats = {
            "bookie": self.bookie_id,
            "read_only": self._maintenance.read_only if self._maintenance is not None else None,
            "ledgers": len(store.ledgers.states),
            "ledgers_in_limbo": [ledger for ledger in store.ledgers.ids() if store.ledgers.states[ledger].limbo],
            "journal_groups": journal.groups,
            "journal_bytes": journal.written,
            "journal_segments": len(store.segments.sizes) + 1,
            "queued_bytes": journal.queued_bytes,
            "index_tables": len(store.index.tables),
            "index_tail": store.index.tail_rows,
            "compacted_bytes": self._maintenance.compacted_bytes if self._maintenance is not None else 0,
            "deleted_segments": self._maintenance.deleted_segments if self._maintenance is not None else 0,
            "free_bytes": await self._disk.free(),
        }
        return messages.Text(json=json.dumps(stats))

    # -- inside --

    @property
    def store(self) -> BookieStore:
        """The data on the disk. Raises Unavailable before the start."""
        if self._opened is None:
            raise Unavailable(f"bookie {self.bookie_id} has not started")
        return self._opened

    async def _payload(self, request: messages.AddRun, header: Header) -> memoryview:
        payload = request.payload.data
        if payload is None:
            payload = await self.ports.net.fetch(request.payload)
        if payload is None:
            raise Unavailable("the process that shared the payload is gone; send the payload itself")
        _check_payload(request, header, payload)
        return payload

    async def _known(self, header: Header) -> Header | None:
        """The header of the stored run of this number, if there is one and it can be read."""
        if header.run > self.store.ledgers.peek(header.ledger).last_run:
            return None
        try:
            found = await self.store.load(header.ledger, header.run)
        except Corrupt:
            return None
        return None if found is None else found[1].header

    async def _check_writable(self, ledger: int) -> None:
        reason = self.refuses
        if not reason:
            try:
                await self.store.known_below(ledger)
                return
            except DiskFull as error:
                self._disk_full()
                reason = str(error)
        raise Unavailable(f"bookie {self.bookie_id} is read-only: {reason}")

    async def _fence(self, ledger: int, epoch: int) -> None:
        """Raise the epoch, durably. Everything that older epochs had in flight is durable and visible then."""
        store = self.store
        try:
            await store.known_below(ledger, use_reserve=True)
        except DiskFull as error:
            raise Unavailable(f"bookie {self.bookie_id} cannot fence ledger {ledger}: {error}") from error
        state = store.ledgers.admit(ledger, epoch)
        if state.durable_epoch < epoch:
            await store.journal.submit(Envelope(Kind.FENCE, 0, 0, ledger=ledger, epoch=epoch), [])

    async def _keep(self) -> None:
        while self.stopped is None:
            await self.ports.clock.sleep(self.settings.housekeeping_ms)
            await self.maintain()

    def _disk_full(self) -> None:
        if self._maintenance is not None and self._maintenance.read_only is None:
            self._maintenance.full("a write found no space")
            self.ports.log("bookie_read_only", bookie=self.bookie_id)

    def _fail(self, reason: str) -> None:
        if self.stopped is None:
            self.ports.log("bookie_failed", bookie=self.bookie_id, reason=reason)
        self.stopped = self.stopped or reason
        if self._opened is not None:
            self._opened.journal.close(reason)


def _check_ledger(ledger: int, epoch: int = 0) -> None:
    if not (0 <= ledger <= MAX_LEDGER and 0 <= epoch <= MAX_EPOCH):
        raise Invalid(f"ledger {ledger} or epoch {epoch} is out of range")


def _check_add(request: messages.AddRun) -> Header:
    header = _decode_head(request.head)
    _check_ledger(request.ledger, request.epoch)
    if header.ledger != request.ledger:
        raise Invalid(f"the frame is of ledger {header.ledger}, the request of ledger {request.ledger}")
    if not (0 <= header.run <= MAX_ENTRY and header.first_entry >= 0 and header.last_entry <= MAX_ENTRY):
        raise Invalid(f"run {header.run} with entries from {header.first_entry} is out of range")
    if not -1 <= header.last_confirmed <= MAX_ENTRY or not 0 <= header.crc < 1 << 32:
        raise Invalid("the header's last confirmed entry or checksum is out of range")
    return header


def _check_payload(request: messages.AddRun, header: Header, payload: memoryview) -> None:
    if len(payload) != sum(head_size(request.head)[1:]) or payload_crc(payload) != header.crc:
        raise Corrupt(f"the payload of run {header.run} of ledger {header.ledger} does not fit its header")


def _record(request: messages.AddRun, header: Header) -> Envelope:
    return Envelope(
        Kind.RUN,
        0,
        0,
        size=len(request.head) + request.payload.size,
        ledger=header.ledger,
        run=header.run,
        first_entry=header.first_entry,
        count=header.count,
        crc=header.crc,
        epoch=request.epoch,
        last_confirmed=header.last_confirmed,
    )
