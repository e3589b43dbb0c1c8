"""Reads the log of a topic past every subscription: for batch jobs, copies and looks at the past.

What is there when the question is asked is a list of ranges, one a ledger, and a range never changes: a ledger's
entries are final once they are confirmed. So a reader needs no cursor and no consumer, several may read at once, and
a range that is read again gives the same messages again, in the same order, which is what a retried Spark task wants.

Everything is read as it was published. Delayed messages are among the others, at their places, with the time at which
they are due; what subscriptions have done with a message is not looked at. The one thing that may happen meanwhile
is that the topic trims what every subscription is done with; a reader that comes too late is told so (NotFound).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sluice.actors.consumer.payload import Payloads
from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.messages import Ends
from sluice.cluster.base.loop import LoopThread, within
from sluice.storage.errors import Invalid
from sluice.storage.format.position import entry_of, ledger_of, position

READ_S = 120.0
"""How long one run may take to come, over changes of the partition's owner and lost bookies, before it is given up."""


@dataclass(frozen=True, slots=True)
class StoredRange:
    """Entries first .. last (inclusive, never empty) of one ledger of one partition; an entry is a message."""

    partition: int
    ledger: int
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1

    def split(self, most: int) -> list[StoredRange]:
        """Pieces of at most `most` messages, in order. Raises Invalid unless `most` is at least 1."""
        if most < 1:
            raise Invalid(f"a piece holds at least 1 message, not {most}")
        starts = range(self.first, self.last + 1, most)
        return [StoredRange(self.partition, self.ledger, start, min(start + most - 1, self.last)) for start in starts]

    def within(self, start: int, stop: int) -> StoredRange | None:
        """Return the part of the range at or behind position `start` and before `stop`; None if it is empty."""
        first = max(position(self.ledger, self.first), start)
        last = min(position(self.ledger, self.last), stop - 1)
        return StoredRange(self.partition, self.ledger, entry_of(first), entry_of(last)) if first <= last else None


def ranges_of(partition: int, ends: Ends) -> list[StoredRange]:
    """The ranges that a partition stores, in order, by the ends that its owner reports. Empty ledgers are left out."""
    found = []
    for ledger, last in ends.last_entries().items():
        first = entry_of(ends.first) if ledger_of(ends.first) == ledger else 0
        if last >= first:
            found.append(StoredRange(partition, ledger, first, last))
    return found


class RangeReader:
    """The messages of a range in order, a run at a time, each verified by its checksum."""

    def __init__(self, payloads: Payloads, wanted: StoredRange) -> None:
        self._payloads, self._wanted, self._entry = payloads, wanted, wanted.first

    async def next_part(self) -> Received | None:
        """Return the next messages; None behind the last one.

        Raises NotFound if the range was trimmed or the topic deleted, Unavailable if a run cannot be read for long.
        """
        wanted, entry = self._wanted, self._entry
        if entry > wanted.last:
            return None
        run = await within(self._payloads.run(wanted.ledger, entry), READ_S)
        count = min(wanted.last + 1, run.end) - entry
        part = run.received(wanted.partition, entry - run.first_entry, count)
        self._entry += len(part)
        return part


def read_range(loop: LoopThread, payloads: Payloads, wanted: StoredRange) -> Iterator[Received]:
    """The messages of a range for a caller that blocks; see RangeReader."""
    reading = RangeReader(payloads, wanted)
    while (part := loop.run(reading.next_part())) is not None:
        yield part
