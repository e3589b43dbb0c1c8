"""The index columns of the log, read for questions that the dispatcher's reader did not ask."""

from __future__ import annotations

from actors.messages import ReadIndex, RunIndex
from actors.ports import Ports
from actors.topic_client import TopicClient
from storage.errors import Unavailable

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
