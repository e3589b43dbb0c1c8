"""Reading a ledger: one run from whichever bookie of its write set can give it, and the table of its runs.

An answer is checked before it is believed: the header's checksum, ledger and run number, and that the payload has
the length the header promises. The payload's own checksum is looked at where bytes become a copy (recovery,
re-replication) and by the consumer, not on every read in between.
"""

from __future__ import annotations

from actors.ledger.bookies import Bookies
from actors.ledger.fan import Fan
from actors.ledger.record import LedgerRecord
from actors.ledger.table import RunTable, TableBuilder
from actors.messages import DescribeLedger, LedgerIndex, ReadRun, RunRead
from actors.ports import Ports
from actors.wire import Blob
from storage.errors import Corrupt, Fenced, SluiceError, Unavailable
from storage.frame import Header, decode_head, head_size, payload_crc

READ_TIMEOUT = 3_000
DESCRIBE_TIMEOUT = 10_000


class StoredFrame:
    """A run as a bookie gave it: the decoded header, its bytes, and the payload (perhaps by handle)."""

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
    """Reads the runs of ledgers from their bookies."""

    def __init__(self, ports: Ports, bookies: Bookies) -> None:
        self._ports = ports
        self._bookies = bookies

    async def run(
        self, ledger: LedgerRecord, run: int, *, part: str = "all", skip: tuple[str, ...] = ()
    ) -> StoredFrame:
        """One run that is known to exist, from the first bookie that can give it. Raises Unavailable.

        Bookies that failed lately are asked last. part "head" brings no payload.
        """
        reasons = []
        order = [name for name in ledger.write_set(run) if name not in skip]
        for bookie in sorted(order, key=self._bookies.suspected):
            try:
                reply = await self._bookies.ask(bookie, ReadRun(ledger=ledger.id, run=run, part=part), READ_TIMEOUT)
                frame = check_answer(reply, ledger.id, run, bookie)
                if frame is not None and (part != "all" or frame.payload.size == frame.full_size):
                    return frame
                reasons.append(f"{bookie} does not have it")
            except SluiceError as error:
                reasons.append(f"{bookie}: {error}")
        raise Unavailable(f"run {run} of ledger {ledger.id} cannot be read now ({'; '.join(reasons)})")

    async def whole(self, ledger: LedgerRecord, run: int, skip: tuple[str, ...] = ()) -> tuple[StoredFrame, memoryview]:
        """One run with its payload in hand and its checksum verified. Raises Unavailable."""
        tried = list(skip)
        while True:
            frame = await self.run(ledger, run, skip=tuple(tried))
            data = await self.verified(frame)
            if data is not None:
                return frame, data
            self._ports.log("copy_unusable", ledger=ledger.id, run=run, bookie=frame.bookie)
            tried.append(frame.bookie)

    async def verified(self, frame: StoredFrame) -> memoryview | None:
        """The payload's bytes if they are there and fit their checksum."""
        data = frame.payload.data if frame.payload.data is not None else await self._ports.net.fetch(frame.payload)
        if data is None or payload_crc(data) != frame.header.crc:
            return None
        return data

    async def table(self, ledger: LedgerRecord) -> RunTable:
        """The table of a closed ledger, from as few bookies as tell it whole. Raises Unavailable, Corrupt."""
        if ledger.last_run < 0:
            return RunTable()
        builder = TableBuilder(ledger)
        fan: Fan[str, LedgerIndex] = Fan(self._ports, "describe")
        reasons = []
        try:
            for bookie in ledger.bookies():
                fan.start(bookie, self._bookies.ask(bookie, DescribeLedger(ledger=ledger.id), DESCRIBE_TIMEOUT))
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
