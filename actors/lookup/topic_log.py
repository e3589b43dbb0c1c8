"""Reads the log of one partition by asking its owner: where it begins and ends, and what lies from a position on.

All readers of a log use it: the dispatcher, the search through its backlog, and a client's reader. An
answer has runs with their index columns alone; payloads come through `actors/consumer/payload.py`.
"""

from __future__ import annotations

from sluice.actors.lookup.topic_client import TopicClient
from sluice.actors.messages import Ends, IndexRead, ReadEnds, ReadIndex, RunIndex
from sluice.actors.ports import Ports
from sluice.storage.errors import Fenced, SluiceError, Unavailable

FOREVER_MS = 1 << 62
READ_MOST = 65_536
"""Messages of one look, about."""
READ_TIMEOUT = 8_000
"""Milliseconds that an answer may take, beyond what it waits for a publish."""


class TopicLog:
    """Reads one log on and on; of a compacted one it knows which table it was in."""

    def __init__(self, ports: Ports, topic: TopicClient) -> None:
        self._ports, self._topic = ports, topic
        self._table = self._since = -1

    async def ends(self, patience: int = FOREVER_MS, subscription: str = "") -> Ends:
        """Return the ends of the log as they are now. patience: ms to wait for its owner. subscription: see ReadEnds.

        Raises Unavailable with the reason.
        """
        until = self._ports.clock.monotonic() + patience

        def waits(error: SluiceError) -> bool:
            self._ports.log("topic_waits", error=str(error))
            return isinstance(error, (Unavailable, Fenced)) and self._ports.clock.monotonic() <= until

        try:
            return await self._topic.insist(ReadEnds(subscription=subscription), refused=waits)
        except Fenced as error:
            raise Unavailable(str(error)) from error

    async def read(
        self,
        start: int,
        limit: int = READ_MOST,
        *,
        wait: int = 0,
        ends_known: bool = False,
        compacted: bool = False,
        patience: int = READ_TIMEOUT,
    ) -> IndexRead:
        """See ReadIndex. Raises SluiceError."""
        table, since = (self._table, self._since) if compacted else (-1, -1)
        request = ReadIndex(
            start=start,
            limit=limit,
            wait=wait,
            ends_known=ends_known,
            compacted=compacted,
            table=table,
            since=since,
        )
        return await self._topic.ask(request, wait + patience)

    def go_on_from(self, reply: IndexRead) -> None:
        """The next read of the compacted log is behind what this answer has."""
        self._table, self._since = reply.table, reply.since

    def begin_anew(self) -> None:
        """The next read of the compacted log is elsewhere."""
        self._table = self._since = -1

    async def columns(self, run: RunIndex) -> memoryview:
        """The index columns of a run. Raises Unavailable if they are gone: the run has to be read again."""
        columns = await self._ports.net.fetch(run.columns)
        if columns is None:
            raise Unavailable("the index columns of a run were gone before they were read; ask again")
        return columns

    async def runs(self, start: int, limit: int = READ_MOST) -> tuple[list[tuple[RunIndex, memoryview]], int | None]:
        """Some runs from a position on with their columns, and where to read on; None: there is nothing more.

        Raises SluiceError.
        """
        reply = await self.read(start, limit)
        found = [(run, await self.columns(run)) for run in reply.runs]
        more = (reply.runs or reply.lost) and reply.resume > start
        return found, reply.resume if more else None
