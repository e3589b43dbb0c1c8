"""Where a partition begins and ends, asked for as long as it takes."""

from __future__ import annotations

from actors.messages import Ends, ReadEnds
from actors.ports import Ports
from actors.topic_client import TopicClient
from storage.errors import Fenced, SluiceError, Unavailable

FOREVER_MS = 1 << 62


async def read_ends(ports: Ports, topic: TopicClient, patience: int = FOREVER_MS) -> Ends:
    """Where the partition begins and ends now; waits so many ms for its owner. Raises Unavailable: why it has none."""
    until = ports.clock.monotonic() + patience

    def waits(error: SluiceError) -> bool:
        ports.log("topic_waits", error=str(error))
        return isinstance(error, (Unavailable, Fenced)) and ports.clock.monotonic() <= until

    try:
        return await topic.insist(ReadEnds(), refused=waits)
    except Fenced as error:
        raise Unavailable(str(error)) from error
