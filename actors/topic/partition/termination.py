"""The end of a partition: it keeps its messages and takes no more.

What is on its way to the bookies is waited for, and nothing new is let in meanwhile. So the end that is told is the end
for good, for every later owner of the partition. Only what is durable is said: a refused producer knows that no owner
will ever take its message.
"""

from __future__ import annotations

import msgspec

from sluice.actors.ports import Ports
from sluice.actors.topic.partition.managed_ledger import ManagedLedger
from sluice.storage.errors import Terminated, Unavailable

SETTLE_MS = 5_000
"""The time for appends under way to be confirmed; after that producers go on, and the caller has to ask again."""


class Termination:
    """Whether a partition takes messages."""

    def __init__(self, ports: Ports, log: ManagedLedger) -> None:
        self._ports, self._log = ports, log
        self.under_way = 0
        """How many requests are just ending it."""

    @property
    def done(self) -> bool:
        """Whether it takes none any more, durably."""
        return self._log.record.terminated

    def check(self) -> None:
        """Raise Terminated if it takes no message, Unavailable while that is being settled."""
        record = self._log.record
        if record.terminated:
            raise Terminated(f"topic {record.topic!r} was terminated: it takes no more messages")
        if self.under_way:
            raise Unavailable(f"topic {record.topic!r} is being terminated")

    async def end(self) -> None:
        """Take no more messages, durably. Raises Unavailable, Fenced."""
        self.under_way += 1
        try:
            await self._settle()
            await self._log.metadata.update(lambda record: msgspec.structs.replace(record, terminated=True))
        finally:
            self.under_way -= 1
        self._ports.log("terminated", topic=self._log.record.topic, partition=self._log.record.partition)
        self._log.wake()

    async def _settle(self) -> None:
        """Wait until nothing is on its way. Raises Unavailable."""
        until = self._ports.clock.monotonic() + SETTLE_MS
        while self._log.in_flight:
            left = until - self._ports.clock.monotonic()
            if left <= 0:
                raise Unavailable("messages are on their way and not confirmed; terminate again")
            await self._log.news(left)
