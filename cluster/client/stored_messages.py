"""The part of the client that reads the log itself, past all subscriptions."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from sluice.actors.consumer.payload import Payloads
from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import AcceptLoss, FindTime, ReadEnds
from sluice.actors.ownership.names import check_name
from sluice.actors.ports import Ports
from sluice.actors.ports.wire import Request
from sluice.cluster.client.log_reader import RangeReader, StoredRange, ranges_of
from sluice.storage.errors import Invalid, NotFound
from sluice.storage.format.position import EARLIEST, MAX_ENTRY, MAX_LEDGER, entry_of, ledger_of, parse, position

T = TypeVar("T")
MAX_POSITION = position(MAX_LEDGER, MAX_ENTRY)


class StoredMessages(ABC):
    """A view of the stored messages of topics, as ranges and as messages. `sluice.read_dataset` has both as a Ray Data
    dataset.
    """

    ports: Ports
    directory: Directory

    @abstractmethod
    async def _ask_owners(self, topic: str, subscription: str | None, request: Request[Any]) -> list[Any]:
        """The answers of the owners of all partitions."""

    @abstractmethod
    async def _ask_owner(self, topic: str, partition: int, subscription: str | None, request: Request[Any]) -> Any:
        """The answer of one of them, as plain values. Raises NotFound."""

    @abstractmethod
    async def until_closed(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of some work. Raises Fenced when the client is closed."""

    @abstractmethod
    async def _partitions(self, topic: str) -> int:
        """How many partitions the topic has."""

    async def stored(self, topic: str, start: int | None = None, end: int | None = None) -> list[StoredRange]:
        """Return the confirmed messages of a topic as ranges that never change; by partition, in order.

        start, end: only what was published at or after the one and before the other, ms since 1970, as far as the
        clocks of the producers agree.
        """
        ends = await self._ask_owners(topic, None, ReadEnds())
        starts = await self._at_time(topic, start, ends, EARLIEST)
        stops = await self._at_time(topic, end, ends, MAX_POSITION)
        found = [part.within(starts[p], stops[p]) for p, reply in enumerate(ends) for part in ranges_of(p, reply)]
        return [part for part in found if part is not None]

    async def _at_time(self, topic: str, time: int | None, ends: list[Any], otherwise: int) -> list[int]:
        """The first position of each partition that was published at or after a time; otherwise: without a time."""
        if time is None:
            return [otherwise] * len(ends)
        return [int(reply.position) for reply in await self._ask_owners(topic, None, FindTime(time=time))]

    async def read(self, topic: str, wanted: StoredRange) -> AsyncIterator[Received]:
        """The messages of a range in order, delayed ones included, whatever subscriptions did with them; without
        acknowledgements. Raises NotFound if they were trimmed meanwhile.
        """
        reading = RangeReader(self.payloads(topic, wanted.partition), wanted)
        while (part := await self.until_closed(reading.next_part())) is not None:
            yield part

    def payloads(self, topic: str, partition: int) -> Payloads:
        """Return the reader of one partition's log."""
        return Payloads(self.ports, self.directory, check_name("topic", topic), partition)

    async def accept_loss(self, topic: str, run: str, dry_run: bool = False) -> dict[str, Any]:
        """Give up the run that holds an entry (LEDGER:ENTRY), because no copy of it can be read: its messages count as
        done for every subscription, and readers are told that they were given up. The other messages keep their order.
        dry_run: only say which messages these are. Raises Invalid if the run can be read.
        """
        at = parse(run)
        if at < 0:
            raise Invalid("accept_loss needs LEDGER:ENTRY")
        request = AcceptLoss(ledger=ledger_of(at), entry=entry_of(at), dry_run=dry_run)
        for partition in range(await self._partitions(topic)):
            with contextlib.suppress(NotFound):
                return dict(await self._ask_owner(topic, partition, None, request))
        raise NotFound(f"no partition of {topic} has entry {run}")
