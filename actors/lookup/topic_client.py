"""Asks the owner of a partition: it finds the owner, suspects a silent one, and decides how long to go on.

An address is a hint. An owner that does not answer, or says that it was replaced, is suspected: the controller checks
it, and the next request finds its successor. Silence (`Unknown`) proves nothing.

All readers of a log use TopicLog: the dispatcher, the search through its backlog, and a client's reader. An answer has
runs with their index columns alone; payloads come through `actors/consumer/payload.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import Ends, IndexRead, ReadEnds, ReadIndex, RunIndex
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.ports.wire import Reply, Request
from sluice.actors.runtime.waiting import Backoff
from sluice.storage.errors import Fenced, SluiceError, Unavailable

R = TypeVar("R", bound=Reply)

CALL_TIMEOUT = 5_000
RETRY_FIRST, RETRY_MOST = 50, 2_000
FOREVER_MS = 1 << 62
READ_MOST = 65_536
"""Messages of one look, about."""
READ_TIMEOUT = 8_000
"""Milliseconds that an answer may take, beyond what it waits for a publish."""


class TopicClient:
    """Asks the owner of one partition of a topic."""

    def __init__(self, ports: Ports, directory: Directory, topic: str, partition: int) -> None:
        self._ports, self._directory = ports, directory
        self.topic, self.partition = topic, partition

    async def owner(self) -> Address:
        """The owner's address. Raises NotFound, Unavailable."""
        return await self._directory.topic(self.topic, self.partition)

    def known_owner(self) -> Address:
        """Return the owner's address if it is known; otherwise an empty one."""
        return self._directory.known_topic(self.topic, self.partition)

    async def ask(self, request: Request[R], timeout: int = CALL_TIMEOUT, *, to: Address = "") -> R:
        """The answer of the owner, or of the one at `to`.

        Raises Unavailable if none came within `timeout` ms, and what the owner refuses with.
        """
        address = to or await self.owner()
        try:
            reply = await self._ports.net.call(address, request, timeout)
        except Fenced:
            await self._directory.suspect(address)
            raise
        if isinstance(reply, Unknown):
            await self._directory.suspect(address)
            raise Unavailable(f"partition {self.partition} of {self.topic!r} does not answer: {reply.reason}")
        return reply

    async def insist(
        self,
        request: Request[R],
        timeout: int = CALL_TIMEOUT,
        *,
        refused: Callable[[SluiceError], bool] = lambda error: isinstance(error, (Unavailable, Fenced)),
    ) -> R:
        """The answer, however long it takes. refused: called with each refusal; if it returns False, that is raised."""
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while True:
            try:
                return await self.ask(request, timeout)
            except SluiceError as error:
                if not refused(error):
                    raise
            await wait.pause()


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
