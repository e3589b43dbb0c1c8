"""Reading of a compacted log: the last message of each key up to the horizon, and behind it the log.

What is answered for positions up to the horizon comes from the table alone, whether or not the log still has it.

A newer table may take the place of the one that a reader has begun with. What it reads from then on are the last
messages up to the newer horizon; of the keys that it has seen so far each newer message lies behind its place, and so
does the message that deletes a key. A reader that began at the beginning of the table that it reads knows no such key,
and does not get that message (`since`).
"""

from __future__ import annotations

from sluice.actors.ledger.compacted_reader import CompactedReader
from sluice.actors.ledger.record import Compacted, LedgerState
from sluice.actors.messages import Ends, IndexRead, PayloadRead, ReadIndex, RunIndex
from sluice.actors.ports import Ports
from sluice.actors.ports.wire import Blob
from sluice.actors.topic.partition.managed_ledger import ManagedLedger
from sluice.storage.errors import Corrupt, Unavailable
from sluice.storage.format.frame import Run
from sluice.storage.format.position import ledger_of, position
from sluice.storage.history.compacted import CompactedPiece

MOST_BYTES = 1024 * 1024
"""The most bytes of one answer, unless a single message is larger."""


class CompactedReads:
    """The reading of a compacted log."""

    def __init__(self, ports: Ports, log: ManagedLedger, reader: CompactedReader) -> None:
        self._ports, self._log, self._reader = ports, log, reader
        self.problem = ""
        """The part of the table that cannot be read, and why; empty if all can."""

    async def index(self, request: ReadIndex) -> IndexRead | None:
        """Return the answer to a question for the compacted log; None: the log itself goes on there. Raises
        Unavailable.
        """
        start = max(request.start, 0)
        while (table := self._log.record.compacted) is not None and start <= table.horizon:
            try:
                reply = await self._index(table, request, start)
            except Corrupt as error:
                if self._log.record.compacted is not table:
                    continue  # the table was replaced, and its objects are deleted
                self.problem = str(error)
                raise Unavailable(f"the compacted log cannot be read: {error}") from error
            self.problem = ""
            return reply
        return None

    async def _index(self, table: Compacted, request: ReadIndex, start: int) -> IndexRead:
        since = request.since if request.table == table.horizon else start
        reply = IndexRead(
            runs=[],
            resume=table.horizon + 1,
            last_confirmed=self._log.last_confirmed,
            table=table.horizon,
            since=since,
        )
        rows = await self._reader.rows_at(table, start)
        if rows is not None:
            pieces, left = rows.pieces(
                start, limit=request.limit, max_bytes=min(request.max_bytes, MOST_BYTES), empty=since > table.base
            )
            reply.runs = [await self._shown(piece) for piece in pieces]
            reply.resume = int(rows.positions[-1]) + 1 if left is None else left
        for ledger in self._log.record.ledgers:
            passed = ledger.state is LedgerState.CLOSED and position(ledger.id, ledger.last_entry) < reply.resume
            if passed and ledger.id >= ledger_of(start):
                reply.ended.append((ledger.id, ledger.last_entry))
        return reply

    async def _shown(self, piece: CompactedPiece) -> RunIndex:
        run = piece.run
        columns = run.payload[: run.count * (12 if run.delayed else 4)]
        return RunIndex(
            ledger=piece.ledger,
            first_entry=piece.first_entry,
            count=piece.count,
            delayed=run.delayed,
            shape=run.shape,
            crc=run.crc,
            bytes=len(run.payload),
            columns=Blob(columns),
            blob=await self._blob(run),
            cut=piece.cut,
        )

    async def _blob(self, run: Run) -> Blob:
        large = len(run.payload) >= self._ports.shared_from
        return await self._ports.net.share(run.payload) if large else Blob(run.payload)

    async def payload(self, ledger: int, entry: int) -> PayloadRead | None:
        """Return a message that the log may not have any more; None if the table has none there. Raises Unavailable."""
        table, at = self._log.record.compacted, position(ledger, entry)
        if table is None or at > table.horizon:
            return None
        try:
            rows = await self._reader.rows_at(table, at)
        except Corrupt as error:
            raise Unavailable(f"the compacted log cannot be read: {error}") from error
        if rows is None:
            return None
        pieces, _ = rows.pieces(at, limit=1, max_bytes=MOST_BYTES, empty=True)
        if not pieces or (pieces[0].ledger, pieces[0].first_entry) != (ledger, entry):
            return None
        piece, run = pieces[0], pieces[0].run
        return PayloadRead(
            count=1,
            delayed=run.delayed,
            shape=run.shape,
            crc=run.crc,
            first_entry=piece.first_entry,
            payload=await self._blob(run),
            cut=piece.cut,
        )

    def ends(self, ends: Ends) -> Ends:
        """Return the ends of the topic for a reader of the compacted log: a message that was compacted away is not the
        last.
        """
        table = self._log.record.compacted
        if table is not None and ends.last <= table.horizon:
            ends.last, ends.compacted = table.last, True
        return ends
