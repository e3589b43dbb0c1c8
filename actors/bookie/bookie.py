"""The bookie: stores runs durably, and never claims more than it knows.

See `ledgers` for epochs and limbo, `commit` for the journal's writing end, storage.journal for its bytes.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np

from actors import messages
from actors.actor import Actor
from actors.bookie.commit import CommitLog, segment_name, segment_of
from actors.bookie.cookie import check_cookie
from actors.bookie.index import Index, Row
from actors.bookie.ledgers import Ledgers
from actors.bookie.replay import read_segment
from actors.bookie.settings import BookieSettings
from actors.ports import Disk, DiskFailed, Ports
from actors.wire import Blob, Reply, Request
from storage.errors import Conflict, Corrupt, Invalid, NotFound, Unavailable
from storage.frame import PREFIX_BYTES, Frame, Header, decode_frame, decode_head, head_size, payload_crc
from storage.journal import Envelope, Kind
from storage.position import MAX_ENTRY, MAX_LEDGER

MAX_EPOCH = (1 << 62) - 1


class Bookie(Actor):
    """One storage node. ports.disk must be there.

    Answers AddRun, FenceLedger, ReadRun, DescribeLedger, DeleteLedgers, ListLedgers and Stats.
    """

    def __init__(self, ports: Ports, *, bookie_id: str, settings: BookieSettings | None = None) -> None:
        super().__init__(ports)
        if ports.disk is None:
            raise Invalid("a bookie needs a disk")
        self.bookie_id = bookie_id
        self.settings = settings or BookieSettings()
        self.ledgers = Ledgers()
        self.index = Index()
        self.read_only: str | None = None
        self._disk: Disk = ports.disk
        self._log: CommitLog | None = None
        self._busy: dict[tuple[int, int], asyncio.Event] = {}

    async def start(self) -> None:
        """Check the cookie, replay the journal, begin a new segment."""
        salt = await check_cookie(self._disk, self.ports.meta, self.ports.rng, self.bookie_id)
        self._log = CommitLog(
            self._disk, self.settings, salt, apply=self._apply, failed=self._disk_failed, full=self._disk_full
        )
        segments = [n for name in await self._disk.names() if (n := segment_of(name)) is not None]
        last, size = 0, 0
        for number in segments:
            replayed = await read_segment(self._disk, salt, number)
            for finding in replayed.findings:
                if finding.envelope is not None:
                    self._replay(finding.envelope, damaged=finding.verdict == "damaged")
            if replayed.lost:
                self.ledgers.doubt_all(MAX_LEDGER + 1)
            last, size = number, replayed.size
        if last:
            await self._disk.append(segment_name(last), [], sync=True)
            await self._disk.truncate(segment_name(last), size)
        await self._log.open(last + 1, last, size)
        self.ports.spawn(self._log.run(), "commit")

    async def stop(self, reason: str) -> None:
        """Refuse everything from now on."""
        await super().stop(reason)
        if self._log is not None:
            self._log.close(reason)

    async def handle(self, request: Request[Any]) -> Reply:
        """Answer one request. Raises Unavailable once stopped."""
        if self.stopped is not None or self._log is None:
            raise Unavailable(f"bookie {self.bookie_id} is not serving: {self.stopped or 'it has not started'}")
        try:
            return await super().handle(request)
        except DiskFailed as error:
            self._disk_failed(str(error))
            raise Unavailable(f"bookie {self.bookie_id} ends: {error}") from error

    # -- requests --

    async def on_add_run(self, request: messages.AddRun) -> messages.Done:
        """Store one frame; see messages.AddRun."""
        header = _check_add(request)
        payload = await self._payload(request, header)
        key = (header.ledger, header.run)
        while (busy := self._busy.get(key)) is not None:
            await busy.wait()
        self._busy[key] = asyncio.Event()
        written: asyncio.Future[Envelope] | None = None
        try:
            written = await self._admit(request, header, payload)
            if written is not None:
                await asyncio.shield(written)
            return messages.Done()
        finally:
            # A caller that went away leaves its record in flight: the number stays claimed until that is decided.
            if written is None or written.done():
                self._release(key)
            else:
                written.add_done_callback(lambda _: self._release(key))

    async def _admit(
        self, request: messages.AddRun, header: Header, payload: memoryview
    ) -> asyncio.Future[Envelope] | None:
        """Queue a run whose number is claimed, so that nobody else stores it meanwhile. None: it is stored."""
        known = await self._known(header)
        if known is None and self.read_only is not None:
            raise Unavailable(f"bookie {self.bookie_id} is read-only: {self.read_only}")
        # From here to the end of `submit` there is no await: the epoch is checked and the run queued in one step.
        self.ledgers.admit(header.ledger, request.epoch, recovery=request.recovery)
        if known is None:
            return self._journal.submit(_record(request, header), [request.head, payload])
        if (known.crc, known.first_entry, known.count) != (header.crc, header.first_entry, header.count):
            raise Conflict(f"run {header.run} of ledger {header.ledger} is stored with other contents")
        return None

    def _release(self, key: tuple[int, int]) -> None:
        self._busy.pop(key).set()

    async def on_fence_ledger(self, request: messages.FenceLedger) -> messages.FenceState:
        """Raise the epoch durably; see messages.FenceLedger."""
        _check_ledger(request.ledger, request.epoch)
        await self._fence(request.ledger, request.epoch)
        state = self.ledgers.get(request.ledger)
        if state.limbo:
            raise Unavailable(f"bookie {self.bookie_id} may have lost runs of ledger {request.ledger}")
        return messages.FenceState(last_confirmed=state.last_confirmed, last_run=state.last_run)

    async def on_read_run(self, request: messages.ReadRun) -> messages.RunRead:
        """Read one run; see messages.ReadRun."""
        _check_ledger(request.ledger, request.fence_epoch or 0)
        if request.fence_epoch is not None:
            await self._fence(request.ledger, request.fence_epoch)
        busy = self._busy.get((request.ledger, request.run))
        if busy is not None:
            await busy.wait()
        row = await self.index.find(request.ledger, request.run)
        if row is None:
            if self.ledgers.peek(request.ledger).limbo:
                raise Unavailable(f"bookie {self.bookie_id} may have lost runs of ledger {request.ledger}")
            return messages.RunRead()
        data, frame = await self._load(row)
        size = PREFIX_BYTES + head_size(data)[0]
        return messages.RunRead(head=data[:size], payload=Blob(frame.payload))

    async def on_describe_ledger(self, request: messages.DescribeLedger) -> messages.LedgerIndex:
        """What is here of a ledger."""
        _check_ledger(request.ledger)
        state = self.ledgers.peek(request.ledger)
        rows = await self.index.rows(request.ledger)
        good, bad = rows[rows["segment"] > 0], rows[rows["segment"] == 0]
        return messages.LedgerIndex(
            runs=np.ascontiguousarray(good["run"]),
            first_entries=np.ascontiguousarray(good["first_entry"]),
            counts=np.ascontiguousarray(good["count"]),
            last_confirmed=state.last_confirmed,
            damaged=np.ascontiguousarray(bad["run"]),
        )

    async def on_delete_ledgers(self, request: messages.DeleteLedgers) -> messages.Done:
        """Forget ledgers, durably."""
        for ledger in request.ledgers:
            _check_ledger(ledger)
        waits = [
            self._journal.submit(Envelope(Kind.DELETE, 0, 0, ledger=ledger), [])
            for ledger in sorted(request.ledgers)
            if ledger not in self.ledgers.deleted
        ]
        for wait in waits:
            await wait
        return messages.Done()

    async def on_list_ledgers(self, request: messages.ListLedgers) -> messages.LedgerList:
        """Every ledger of which something is kept."""
        return messages.LedgerList(ledgers=self.ledgers.ids())

    async def on_stats(self, request: messages.Stats) -> messages.Text:
        """Counters and sizes."""
        log = self._journal
        return messages.Text(
            json=json.dumps(
                {
                    "bookie": self.bookie_id,
                    "read_only": self.read_only,
                    "ledgers": len(self.ledgers.states),
                    "limbo": sum(state.limbo for state in self.ledgers.states.values()),
                    "journal_groups": log.groups,
                    "journal_bytes": log.written,
                    "queued_bytes": log.queued_bytes,
                    "free_bytes": await self._disk.free(),
                }
            )
        )

    # -- inside --

    @property
    def _journal(self) -> CommitLog:
        if self._log is None:
            raise Unavailable(f"bookie {self.bookie_id} has not started")
        return self._log

    async def _payload(self, request: messages.AddRun, header: Header) -> memoryview:
        payload = request.payload.data
        if payload is None:
            payload = await self.ports.net.fetch(request.payload)
        if payload is None:
            raise Unavailable("the payload's sharer is gone; send the payload itself")
        if len(payload) != sum(head_size(request.head)[1:]) or payload_crc(payload) != header.crc:
            raise Corrupt(f"the payload of run {header.run} of ledger {header.ledger} does not fit its header")
        return payload

    async def _known(self, header: Header) -> Header | None:
        """The header of the stored run of this number, if there is one and it can be read."""
        if header.run > self.ledgers.peek(header.ledger).last_run:
            return None
        row = await self.index.find(header.ledger, header.run)
        if row is None or row.damaged:
            return None
        try:
            return (await self._load(row))[1].header
        except Corrupt:
            return None

    async def _load(self, row: Row) -> tuple[bytes, Frame]:
        if row.damaged:
            raise Corrupt(f"run {row.run} of ledger {row.ledger} is damaged on bookie {self.bookie_id}")
        try:
            data = await self._disk.read(segment_name(row.segment), row.offset, row.size)
            frame = decode_frame(data)
        except (NotFound, Corrupt) as error:
            raise Corrupt(f"run {row.run} of ledger {row.ledger} is damaged on {self.bookie_id}: {error}") from error
        if (frame.header.ledger, frame.header.run) != (row.ledger, row.run):
            raise Corrupt(f"run {row.run} of ledger {row.ledger} is not where bookie {self.bookie_id} put it")
        return data, frame

    async def _fence(self, ledger: int, epoch: int) -> None:
        state = self.ledgers.admit(ledger, epoch)
        if state.durable_epoch < epoch:
            await self._journal.submit(Envelope(Kind.FENCE, 0, 0, ledger=ledger, epoch=epoch), [])

    def _apply(self, record: Envelope) -> None:
        self._replay(record, damaged=False)

    def _replay(self, record: Envelope, *, damaged: bool) -> None:
        self.ledgers.apply(record)
        if record.kind is Kind.DELETE:
            self.index.forget(record.ledger)
        elif record.kind is Kind.RUN and record.ledger not in self.ledgers.deleted:
            segment = 0 if damaged else record.segment
            self.index.insert(
                Row(record.ledger, record.run, record.first_entry, record.count, segment, record.body, record.size)
            )

    def _disk_full(self) -> None:
        self.read_only = "the disk is full"
        self.ports.log("bookie_read_only", bookie=self.bookie_id)

    def _disk_failed(self, reason: str) -> None:
        if self.stopped is None:
            self.ports.log("bookie_disk_failed", bookie=self.bookie_id, reason=reason)
        self.stopped = self.stopped or reason
        if self._log is not None:
            self._log.close(reason)


def _check_ledger(ledger: int, epoch: int = 0) -> None:
    if not (0 <= ledger <= MAX_LEDGER and 0 <= epoch <= MAX_EPOCH):
        raise Invalid(f"ledger {ledger} or epoch {epoch} is out of range")


def _check_add(request: messages.AddRun) -> Header:
    header = decode_head(request.head)
    _check_ledger(request.ledger, request.epoch)
    if header.ledger != request.ledger:
        raise Invalid(f"the frame is of ledger {header.ledger}, the request of ledger {request.ledger}")
    if not (0 <= header.run <= MAX_ENTRY and header.first_entry >= 0 and header.last_entry <= MAX_ENTRY):
        raise Invalid(f"run {header.run} with entries from {header.first_entry} is out of range")
    if not -1 <= header.last_confirmed <= MAX_ENTRY or not 0 <= header.crc < 1 << 32:
        raise Invalid("the header's last confirmed entry or checksum is out of range")
    return header


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
