"""Reads a ledger: one run from any bookie of its write set that has it, and the table of its runs.

An answer is checked before it is believed: the header's checksum, ledger and run number, and that the payload has
the length the header promises. The payload's own checksum is looked at where bytes become a copy (recovery,
re-replication) and by the consumer, not on every read in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from sluice.actors.ledger.bookies import Bookies
from sluice.actors.ledger.fan_out import FanOut, together
from sluice.actors.ledger.record import LedgerRecord
from sluice.actors.ledger.run_offsets import RunOffsets, TableBuilder
from sluice.actors.messages import DescribeLedger, LedgerIndex, ReadHeads, ReadRun, RunRead
from sluice.actors.ports import Ports
from sluice.actors.ports.wire import Blob
from sluice.storage.errors import Corrupt, Fenced, SluiceError, Unavailable
from sluice.storage.format.checked_payload import payload_crc
from sluice.storage.format.frame import Frame, Header, decode_head, encode_head, head_size

if TYPE_CHECKING:
    from sluice.actors.ledger.history_reader import HistoryReader

READ_TIMEOUT, HEADS_TIMEOUT = 3_000, 1_000
SPECULATE_MS = 300
"""A reader that waits for a run delays a consumer's next message. A bookie answers within a few milliseconds, or hangs.
"""
DESCRIBE_TIMEOUT = 10_000
HISTORY = "the object store"
"""The source of a run, in place of a bookie's name."""


class StoredFrame:
    """A run as a bookie sent it: the decoded header, its bytes, and the payload (perhaps by handle)."""

    __slots__ = ("bookie", "head", "header", "payload")

    def __init__(self, header: Header, head: bytes, payload: Blob, bookie: str) -> None:
        self.header = header
        self.head = head
        self.payload = payload
        self.bookie = bookie

    @property
    def full_size(self) -> int:
        """Length of the whole payload, also when only a part of it came."""
        return payload_size(self.head)


def check_answer(reply: RunRead, ledger_id: int, run: int, bookie: str) -> StoredFrame | None:
    """The frame of an answer; None for the explicit "no such run". Raises Corrupt if it is another run."""
    if reply.head is None:
        return None
    header = decode_head(reply.head)
    if header.ledger != ledger_id or header.run != run:
        raise Corrupt(f"asked for run {run} of ledger {ledger_id}, got {header.run} of {header.ledger}")
    return StoredFrame(header, reply.head, reply.payload or Blob(b""), bookie)


class LedgerReader:
    """Reads the runs of ledgers from their bookies, and from the object store. history: makes what reads there, when
    it is needed first; None where no ledger has left.
    """

    def __init__(self, ports: Ports, bookies: Bookies, history: Callable[[Ports], HistoryReader] | None = None) -> None:
        self._ports = ports
        self._bookies = bookies
        self._make_history = history
        self._history: HistoryReader | None = None

    @property
    def history(self) -> HistoryReader:
        """The reader of ledgers in the object store. Raises Unavailable where there is none."""
        if self._history is None:
            if self._make_history is None:
                raise Unavailable("ledgers in the object store are not read here")
            self._history = self._make_history(self._ports)
        return self._history

    def forget_history(self) -> None:
        """Keep nothing of the object store in memory."""
        if self._history is not None:
            self._history.clear()

    async def run(
        self, ledger: LedgerRecord, run: int, *, part: str = "all", skip: tuple[str, ...] = ()
    ) -> StoredFrame:
        """One run that is known to exist, from a bookie or from the object store. Raises Unavailable."""
        if not ledger.fragments:
            return await self._from_history(ledger, run)
        try:
            return await self._from_bookies(ledger, run, part, skip)
        except Unavailable:
            if ledger.offloaded is None or HISTORY in skip:
                raise
            return await self._from_history(ledger, run)

    async def _from_history(self, ledger: LedgerRecord, run: int) -> StoredFrame:
        try:
            frame = await self.history.run(ledger, run)
        except Corrupt as error:
            raise Unavailable(f"run {run} of ledger {ledger.id} cannot be read: {error}") from error
        head = encode_head(frame.header, len(frame.payload))
        return StoredFrame(frame.header, head, Blob(frame.payload), HISTORY)

    async def _from_bookies(self, ledger: LedgerRecord, run: int, part: str, skip: tuple[str, ...]) -> StoredFrame:
        """From the first bookie that can give it. Raises Unavailable.

        Bookies that failed lately are asked last. One that says nothing for SPECULATE_MS is asked no more for now: the
        next one is asked as well, and the first good answer counts (BookKeeper's speculative read). part "head" brings
        no payload.
        """
        reasons = []
        request = ReadRun(ledger=ledger.id, run=run, part=part)
        write_set = [name for name in ledger.write_set(run) if name not in skip]
        left = deque(sorted(write_set, key=self._bookies.suspected))
        asked = ""
        fan: FanOut[str, RunRead] = FanOut(self._ports, "read")
        try:
            while left or fan.busy:
                if left and not (fan.busy and await fan.within(SPECULATE_MS)):
                    if fan.busy:
                        self._bookies.suspect(asked)
                    asked = left.popleft()
                    fan.start(asked, self._bookies.ask, asked, request, READ_TIMEOUT)
                    continue
                bookie, outcome = await fan.next()
                try:
                    if isinstance(outcome, SluiceError):
                        raise outcome
                    frame = check_answer(outcome, ledger.id, run, bookie)
                    if frame is not None and (part != "all" or frame.payload.size == frame.full_size):
                        return frame
                    reasons.append(f"{bookie} does not have it")
                except SluiceError as error:
                    reasons.append(f"{bookie}: {error}")
        finally:
            fan.cancel()
        raise Unavailable(f"run {run} of ledger {ledger.id} cannot be read now ({'; '.join(reasons)})")

    async def heads(self, ledger: LedgerRecord, runs: Sequence[int]) -> list[StoredFrame]:
        """The heads of runs that are known to exist, in order; at most HEADS_AT_ONCE. Raises Unavailable.

        Each bookie is asked once for all that it should have; what it does not give is asked of the others.
        """
        if not ledger.fragments:
            return [await self.run(ledger, run) for run in runs]
        shares: dict[str, list[int]] = {}
        for run in runs:
            shares.setdefault(min(ledger.write_set(run), key=self._bookies.suspected), []).append(run)
        asked = [partial(self._heads_of, ledger, bookie, share) for bookie, share in shares.items()]
        found = {frame.header.run: frame for frames in await together(self._ports, "heads", asked) for frame in frames}
        left = [partial(self.run, ledger, run, part="head") for run in runs if run not in found]
        found |= {frame.header.run: frame for frame in await together(self._ports, "head", left)}
        return [found[run] for run in runs]

    async def _heads_of(self, ledger: LedgerRecord, bookie: str, runs: list[int]) -> list[StoredFrame]:
        """One bookie's heads of these runs; none if it does not answer."""
        request = ReadHeads(ledger=ledger.id, runs=np.array(runs, np.uint32))
        try:
            reply = await self._bookies.ask(bookie, request, HEADS_TIMEOUT)
            answers = zip(runs, reply.heads, strict=False)
            frames = [check_answer(RunRead(head=head), ledger.id, run, bookie) for run, head in answers if head]
        except SluiceError as error:
            self._ports.log("heads_missed", ledger=ledger.id, bookie=bookie, error=str(error))
            return []
        return [frame for frame in frames if frame is not None]

    async def whole(self, ledger: LedgerRecord, run: int, skip: tuple[str, ...] = ()) -> tuple[StoredFrame, memoryview]:
        """One run with its payload in hand and its checksum verified. Raises Unavailable."""
        tried = list(skip)
        while True:
            frame = await self.run(ledger, run, skip=tuple(tried))
            data = await self.verified(frame)
            if data is not None:
                return frame, data
            self._ports.log("copy_unusable", ledger=ledger.id, run=run, bookie=frame.bookie)
            if frame.bookie == HISTORY:
                raise Unavailable(f"run {run} of ledger {ledger.id} cannot be read: no copy is whole")
            tried.append(frame.bookie)

    async def frame(self, ledger: LedgerRecord, run: int) -> Frame:
        """One run whose checksum was verified. Raises Unavailable."""
        stored, data = await self.whole(ledger, run)
        return Frame(stored.header, data)

    async def verified(self, frame: StoredFrame) -> memoryview | None:
        """The payload's bytes, if they are here and match their checksum."""
        data = frame.payload.data if frame.payload.data is not None else await self._ports.net.fetch(frame.payload)
        if data is None or payload_crc(data) != frame.header.crc:
            return None
        return data

    async def table(self, ledger: LedgerRecord) -> RunOffsets:
        """The table of a closed ledger, from bookies or from the object store. Raises Unavailable, Corrupt."""
        if ledger.last_run < 0:
            return RunOffsets()
        if ledger.fragments:
            try:
                return await self._table_from_bookies(ledger)
            except Unavailable:
                if ledger.offloaded is None:
                    raise
        try:
            return await self.history.table(ledger)
        except Corrupt as error:
            raise Unavailable(f"the runs of ledger {ledger.id} are not found: {error}") from error

    async def _table_from_bookies(self, ledger: LedgerRecord) -> RunOffsets:
        """From as few as have all of it. Raises Unavailable, Corrupt."""
        builder = TableBuilder(ledger)
        fan: FanOut[str, LedgerIndex] = FanOut(self._ports, "describe")
        reasons = []
        try:
            for bookie in ledger.bookies():
                fan.start(bookie, self._bookies.ask, bookie, DescribeLedger(ledger=ledger.id), DESCRIBE_TIMEOUT)
            while fan.busy and not builder.complete:
                bookie, outcome = await fan.next()
                if isinstance(outcome, Fenced):
                    raise outcome
                if isinstance(outcome, SluiceError):
                    reasons.append(f"{bookie}: {outcome}")
                else:
                    builder.add(outcome)
        finally:
            fan.cancel()
        if not builder.complete:
            raise Unavailable(
                f"{builder.missing()} runs of ledger {ledger.id} are not found now ({'; '.join(reasons)})"
            )
        return builder.table()


def payload_size(head: bytes) -> int:
    """How long the payload of a frame is, from its encoded head."""
    _, columns, body = head_size(head)
    return columns + body
