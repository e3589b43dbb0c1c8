"""Batches go out whole to a consumer that has all of its partition: an Exclusive one, or the active one of Failover.

Clients take an id for the whole batch that they were sent under it, and say it again after a gateway's death to another
one that has never sent it. So there an id has to mean what the log says: all of the producer's batch. Where a part
came, because the client has room for no more, the rest is asked for, and the client is sent more than it has room for,
as Pulsar does it. What is done already is no part of that: an acknowledgement of all of a batch is true of it.

The rest may not come: single messages of the batch wait for something else, or are at a consumer of another kind. Then
the part goes out after PATIENCE_MS, or as soon as something comes that lies behind it. Before that the subscription
notes for good that ids may stand for parts; from then on one that is not known stands for its first message alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from actors.consumer.held import UNKNOWN, Received
from actors.consumer.partition import PartitionConsumer
from actors.consumer.payload import Payloads
from actors.ports import Ports
from storage.errors import NotFound
from storage.position import entry_of, ledger_of

PATIENCE_MS = 2_000
"""So long the rest of a batch is waited for."""


@dataclass(slots=True, eq=False)
class PartialBatch:
    """The last batch of a part, which goes on behind it. first: its first row there. last: position of its end."""

    part: Received
    first: int
    last: int
    missing: int = 0

    @property
    def behind(self) -> int:
        """The position of the first message that is not here."""
        return int(self.part.positions[-1]) + 1

    def waits(self) -> bool:
        """Whether some of it is still to be sent."""
        return bool(self.part.open[self.first :].any())


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows first .. end-1 of a part, which are sent together. rest: of the last batch something is missing.

    waiting: positions of what is missing in the batches of these rows and is not done; None: nobody has asked.
    """

    part: Received
    first: int
    end: int
    rest: bool = False
    waiting: frozenset[int] | None = None


def begun_in(part: Received, first: int = 0) -> PartialBatch | None:
    """The batch that a part ends in the midst of, from a row on; None if it does not."""
    if part.follows <= 0 or not part.open[-1]:
        return None
    last = int(part.positions[-1])
    index = int(part.rows.column("batch_index")[len(part) - 1].as_py())
    outside = np.flatnonzero((part.positions < last - index) | (part.positions > last))
    return PartialBatch(part, max(first, int(outside[-1]) + 1 if len(outside) else 0), last + part.follows)


def leading(stretch: RowRange, room: int) -> tuple[RowRange, RowRange | None]:
    """What of a stretch goes to a client that has room for so many messages, one or more; and what stays.

    A batch goes whole where there is room for its first message. What is done in its midst takes room as well.
    """
    part, first, end = stretch.part, stretch.first, stretch.end
    positions = part.positions[first:end]
    if abs(int(positions[-1]) - int(positions[0])) < room:
        return stretch, None
    starts = positions
    if "batch_index" in part.schema.names:
        index = part.column("batch_index").slice(first, end - first).fill_null(0)
        starts = positions - index.to_numpy(zero_copy_only=False)
    begins = np.flatnonzero(np.diff(starts, prepend=-1))
    ends = np.append(begins[1:], len(positions)) - 1
    taken = np.cumsum(positions[ends] - positions[begins] + 1)
    behind = begins[1:][taken[:-1] >= room]
    if not len(behind):
        return stretch, None
    cut = first + int(behind[0])
    return RowRange(part, first, cut), RowRange(part, cut, end, stretch.rest)


def continued(begun: PartialBatch, part: Received) -> int:
    """How many of the first rows of a part belong to a batch that was begun."""
    inside = (part.positions >= begun.behind) & (part.positions <= begun.last)
    return int(np.argmin(np.append(inside, False)))


class BatchReassembler:
    """Parts of one consumer on their way out. ready: what may be sent now, in order.

    want: let so many messages be on their way, whatever the client has room for. send: told when there is more in
    `ready`. idle: whether everything that came was handed to `take`.
    """

    def __init__(
        self,
        ports: Ports,
        part: PartitionConsumer,
        payloads: Payloads,
        *,
        want: Callable[[int], None],
        send: Callable[[], None],
        idle: Callable[[], bool],
    ) -> None:
        self._ports, self._batches, self._payloads = ports, part.batches, payloads
        self._want, self._send, self._idle = want, send, idle
        self.ready: deque[RowRange] = deque()
        self._queue: deque[Received] = deque()
        self._begun: list[PartialBatch] = []
        self._working = False

    def take(self, part: Received) -> None:
        """A part came. From here on it is at the client, as far as others know."""
        part.shown = len(part)
        if not (self._working or self._begun or part.follows):
            self.ready.append(RowRange(part, 0, len(part)))
            return
        self._queue.append(part)
        if not self._working:
            self._working = True
            self._ports.spawn(self._work(), "batches")

    @property
    def waiting(self) -> int:
        """Messages that came and were not sent."""
        ready = sum(stretch.end - stretch.first for stretch in self.ready)
        begun = sum(len(begun.part) - begun.first for begun in self._begun)
        return ready + begun + sum(len(part) for part in self._queue)

    def clear(self) -> None:
        """Everything that was not sent is others'."""
        for part in self._queue:
            part.close()
        for stretch in self.ready:
            stretch.part.close(np.arange(stretch.first, stretch.end))
        for begun in self._begun:
            begun.part.close(np.arange(begun.first, len(begun.part)))
        self._queue.clear()
        self.ready.clear()
        self._begun.clear()

    async def _work(self) -> None:
        while self._queue:
            part = self._queue[0]
            if part.follows == UNKNOWN:
                part.follows = await self._follows(part)
            first = await self._continue(part)
            await self._begin(part, first)
            if self._queue and self._queue[0] is part:
                self._queue.popleft()
            self._send()
        self._working = False

    async def _follows(self, part: Received) -> int:
        """How much of the last batch of a part follows it in the log."""
        last = int(part.positions[-1])
        try:
            run = await self._payloads.run(ledger_of(last), entry_of(last))
        except NotFound:  # everybody is done with it
            return 0
        return run.follows(entry_of(last) - run.first_entry)

    async def _continue(self, part: Received) -> int:
        """What was begun goes on with a part, or does not; returns how many of its first rows are taken."""
        taken = 0
        for begun in list(self._begun):
            if begun not in self._begun:
                continue
            if not begun.waits():
                self._begun.remove(begun)
            elif not taken and (taken := continued(begun, part)):
                self._begun.remove(begun)
                joined = self._batches.joined(begun.part, begun.first, part, taken)
                joined.follows = begun.last - int(joined.positions[-1])
                await self._begin(joined, 0)
            elif int(part.positions[min(taken, len(part) - 1)]) > begun.last:
                await self._release(begun)
            else:
                self._want(begun.missing)
        return taken

    async def _begin(self, part: Received, first: int) -> None:
        """Send a part from a row on, but for a batch of which something is still to come."""
        begun = begun_in(part, first) if first < len(part) else None
        end = len(part) if begun is None or not await self._is_missing(begun) else begun.first
        if first < end:
            self.ready.append(RowRange(part, first, end))
        if begun is not None and end < len(part) and begun.waits():
            self._begun.append(begun)
            self._want(begun.missing)
            self._ports.spawn(self._be_patient(begun), "patience")

    async def _is_missing(self, begun: PartialBatch) -> bool:
        """Whether anything of the batch that is not here is not done."""
        behind = np.arange(begun.behind, begun.last + 1, dtype=np.int64)
        begun.missing = len(await self._batches.still_open(behind))
        return begun.missing > 0

    async def _be_patient(self, begun: PartialBatch) -> None:
        while begun in self._begun:
            await self._ports.clock.sleep(PATIENCE_MS)
            if begun in self._begun and not self._working and self._idle():
                await self._release(begun)
                self._send()

    async def _release(self, begun: PartialBatch) -> None:
        """The rest does not come."""
        missing = await self._is_missing(begun)
        if begun in self._begun:
            self._begun.remove(begun)
            self.ready.append(RowRange(begun.part, begun.first, len(begun.part), rest=missing))
