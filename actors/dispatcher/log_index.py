"""Other questions about the log than the reader's: where it begins and ends, and its index columns."""

from __future__ import annotations

from actors.messages import Ends, ReadEnds, ReadIndex, RunIndex
from actors.ports import Ports
from actors.topic_client import TopicClient
from storage.errors import Fenced, SluiceError, Unavailable

FOREVER_MS = 1 << 62


async def read_ends(ports: Ports, topic: TopicClient, patience: int = FOREVER_MS) -> Ends:
    """Where the partition begins and ends now; waits a time (ms) for its owner. Raises Unavailable with the reason."""
    until = ports.clock.monotonic() + patience

    def waits(error: SluiceError) -> bool:
        ports.log("topic_waits", error=str(error))
        return isinstance(error, (Unavailable, Fenced)) and ports.clock.monotonic() <= until

    try:
        return await topic.insist(ReadEnds(), refused=waits)
    except Fenced as error:
        raise Unavailable(str(error)) from error


READ_MOST = 65_536
"""Messages of one look, about."""
READ_TIMEOUT = 10_000


async def read_index(
    ports: Ports, topic: TopicClient, start: int, limit: int = READ_MOST
) -> tuple[list[tuple[RunIndex, memoryview]], int | None]:
    """Some runs from the position `start` on with their columns, and where to read on; None: there is nothing more.

    Raises SluiceError.
    """
    reply = await topic.ask(ReadIndex(start=start, limit=limit), READ_TIMEOUT)
    found = []
    for run in reply.runs:
        columns = await ports.net.fetch(run.columns)
        if columns is None:
            raise Unavailable("the index columns of a run were gone before they were read; ask again")
        found.append((run, columns))
    more = (reply.runs or reply.lost) and reply.resume > start
    return found, reply.resume if more else None
