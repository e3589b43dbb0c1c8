"""Batches go out whole to a consumer of a whole partition: an Exclusive one, or the active one of Failover.

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
import numpy.typing as npt

from sluice.actors.consumer.partition import PartitionConsumer
from sluice.actors.consumer.payload import Payloads
from sluice.actors.consumer.unacked_messages import UNKNOWN, Received
from sluice.actors.ports import Ports
from sluice.actors.runtime.waiting import CancellableWait
from sluice.storage.errors import NotFound
from sluice.storage.format.position import entry_of, ledger_of

PATIENCE_MS = 2_000
"""The time (ms) of waiting for the rest of a batch."""
Rows = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class PartialBatch:
    """The last batch of a part, which continues behind it. first: its first row there. start, last: the positions of
    its first and its last message.
    """

    part: Received
    first: int
    start: int
    last: int
    missing: int = 0

    @property
    def behind(self) -> int:
        """The position of the first message that is not here."""
        return int(self.part.positions[-1]) + 1

    @property
    def rest(self) -> Rows:
        """The positions of what is not here."""
        return np.arange(self.behind, self.last + 1, dtype=np.int64)

    def waits(self) -> bool:
        """Return whether some of it is still to be sent."""
        return bool(self.part.open[self.first :].any())

    def comes_again(self, part: Received) -> bool:
        """Return whether some of it is in a later part: another consumer was active meanwhile and had all of it."""
        return bool(np.isin(part.positions, self.part.positions[self.first :]).any())


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows first .. end-1 of a part, which are sent together. rest: whether the end of one of their batches is missing.

    waiting: positions of what is missing in the batches of these rows and is not done; None: nobody has asked.
    """

    part: Received
    first: int
    end: int
    rest: bool = False
    waiting: frozenset[int] | None = None

    def is_open(self) -> bool:
        """Return whether any of these messages is neither done nor given back."""
        return bool(self.part.open[self.first : self.end].any())


def begun_in(part: Received, first: int = 0) -> PartialBatch | None:
    """Return the batch whose middle a part ends in, from row `first` on; None if the part ends with a whole batch."""
    if part.follows <= 0 or not part.open[-1]:
        return None
    last = int(part.positions[-1])
    index = int(part.rows.column("batch_index")[len(part) - 1].as_py())
    outside = np.flatnonzero((part.positions < last - index) | (part.positions > last))
    begins = max(first, int(outside[-1]) + 1 if len(outside) else 0)
    return PartialBatch(part, begins, last - index, last + part.follows)


def leading(stretch: RowRange, room: int) -> tuple[RowRange, RowRange | None]:
    """Return the part of a stretch that goes to a client with room for some messages, at least one; and the rest.

    A batch goes whole where there is room for its first message. What is done before and between its messages may go
    as holes, which take room as well.
    """
    part, first, end = stretch.part, stretch.first, stretch.end
    positions = part.positions[first:end]
    starts = positions
    if "batch_index" in part.schema.names:
        index = part.column("batch_index").slice(first, end - first).fill_null(0)
        starts = positions - index.to_numpy(zero_copy_only=False)
    begins = np.flatnonzero(np.diff(starts, prepend=-1))
    ends = np.append(begins[1:], len(positions)) - 1
    taken = np.cumsum(positions[ends] - starts[begins] + 1)
    behind = begins[1:][taken[:-1] >= room]
    if not len(behind):
        return stretch, None
    cut = first + int(behind[0])
    return RowRange(part, first, cut, stretch.rest), RowRange(part, cut, end, stretch.rest)


def goes_on_at(begun: PartialBatch, part: Received, first: int) -> int:
    """The first open row of a part, from a row on, that belongs to a batch or lies behind it; len(part) if there is
    none. What another consumer held may come after later messages of its batch.
    """
    there = (part.positions >= begun.start) & part.open
    there[:first] = False
    return int(np.argmax(np.append(there, True)))


def continued(begun: PartialBatch, part: Received, first: int) -> int:
    """Return how many of the rows of a part, from a row on, belong to a batch that was begun."""
    rest = part.positions[first:]
    inside = (rest >= begun.start) & (rest <= begun.last)
    return int(np.argmin(np.append(inside, False)))


def unsure_ends(part: Received, first: int, end: int) -> Rows:
    """Return the last open row of each batch that may go on behind it, as far as the part shows; int64, ascending.

    Only batches that begin in rows first .. end-1 count, and never the last row of the part: see Received.follows.
    """
    if "batch_index" not in part.schema.names:
        return np.empty(0, np.int64)
    index = np.asarray(part.column("batch_index").fill_null(-1).to_numpy(zero_copy_only=False), np.int64)
    rows: Rows = np.flatnonzero(part.open[first:end] & (index[first:end] >= 0)) + first
    starts = part.positions[rows] - index[rows]
    lasts = rows[len(rows) - 1 - np.unique(starts[::-1], return_index=True)[1]]
    lasts = np.sort(lasts[lasts < len(part) - 1])
    ended = (part.positions[lasts + 1] == part.positions[lasts] + 1) & (index[lasts + 1] <= 0)
    unsure: Rows = lasts[~ended]
    return unsure


class BatchReassembler:
    """Parts of one consumer on their way out. ready: what may be sent now, in order.

    want: let so many messages be on their way, whatever the client has room for. send: told when there is more in
    `ready`. idle: whether everything that came was handed to `add`.
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
        self._joined: list[Received] = []
        """The joined part of a batch of which more came, until it is known whether the batch is whole."""
        self._working = False
        self._handling = CancellableWait()

    def add(self, part: Received) -> None:
        """A part came. From here on it is at the client, as far as others know."""
        part.shown = len(part)
        if not (self._working or self._begun or part.follows or self._may_be_cut(part, 0, len(part))):
            self.ready.append(RowRange(part, 0, len(part)))
            return
        self._queue.append(part)
        if not self._working:
            self._working = True
            self._ports.spawn(self._work(), "batches")

    @property
    def waiting(self) -> int:
        """Messages that came and were not sent."""
        return sum(end - first for _, first, end in self.unsent())

    def unsent(self) -> list[tuple[Received, int, int]]:
        """Return all rows that came and were not sent, as (part, first, end): rows first .. end-1."""
        ready = [(stretch.part, stretch.first, stretch.end) for stretch in self.ready]
        begun = [(begun.part, begun.first, len(begun.part)) for begun in self._begun]
        return ready + begun + [(part, 0, len(part)) for part in (*self._joined, *self._queue)]

    @property
    def waiting_bytes(self) -> int:
        """The bytes that waiting parts keep in memory, without parts that wait for the rest of a batch."""
        return sum(part.kept for part in (*dict.fromkeys(stretch.part for stretch in self.ready), *self._queue))

    def let_go(self, part: Received, end: int) -> None:
        """Rows of a part before `end` are in `ready`, were sent or went to another part: once they have all been, and
        nothing behind them waits, nobody looks at the part's rows any more.
        """
        if not part.open[end:].any() and all(stretch.part is not part for stretch in self.ready):
            part.release()

    def clear(self) -> None:
        """Everything that was not sent is others', and nothing more is found out about it: where nobody can read the
        log that never ends.
        """
        self._handling.end()
        for part in (*self._joined, *self._queue):
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
            await self._handling.run(self._handle(part))
            if self._queue and self._queue[0] is part:
                self._queue.popleft()
            self._send()
        self._working = False

    async def _handle(self, part: Received) -> None:
        if part.follows == UNKNOWN:
            part.follows = await self._follows(int(part.positions[-1]))
        first = await self._continue(part)
        await self._begin(part, first)

    async def _follows(self, at: int) -> int:
        """Return how much of the batch of the message at a position follows it in the log."""
        try:
            run = await self._payloads.run(ledger_of(at), entry_of(at))
        except NotFound:  # everybody is done with it
            return 0
        return run.follows(entry_of(at) - run.first_entry)

    async def _continue(self, part: Received) -> int:
        """A begun batch goes on with a part, or does not; returns the first row of the part that it does not take.

        Nothing of the part that lies behind a batch goes out before what was begun of it: keys keep their order.
        """
        first = 0
        for begun in [begun for begun in self._begun if begun.comes_again(part) or not begun.waits()]:
            begun.part.close(np.arange(begun.first, len(begun.part)))
            self._begun.remove(begun)
            self.let_go(begun.part, begun.first)
        while self._begun:
            row, begun = self._goes_on_first(part, first)
            if row == len(part):
                break
            await self._put(part, first, row)
            first = row
            if begun not in self._begun:
                continue
            taken = continued(begun, part, first)
            if not taken:
                await self._release(begun)
                continue
            self._begun.remove(begun)
            first += taken
            joined = self._batches.joined(begun.part, begun.first, part, row, taken)
            joined.follows = begun.last - int(joined.positions[-1])
            self.let_go(begun.part, begun.first)
            if first == len(part):
                self.let_go(part, first)
            self._joined.append(joined)
            try:
                await self._begin(joined, 0)
            finally:
                self._joined.remove(joined)
        for begun in self._begun:
            self._want(begun.missing)
        return first

    def _goes_on_first(self, part: Received, first: int) -> tuple[int, PartialBatch]:
        """Return the first row, from `first` on, that belongs to a begun batch or lies behind one, and that batch.
        Where it lies behind some and belongs to another, those come first: they have earlier messages of its keys.
        """
        found = [(goes_on_at(begun, part, first), begun.last, begun) for begun in self._begun]
        row, _, begun = min(found, key=lambda each: each[:2])
        return row, begun

    async def _begin(self, part: Received, first: int) -> None:
        """Send a part from a row on, except a batch whose rest is still to come."""
        begun = begun_in(part, first) if first < len(part) else None
        end = len(part) if begun is None or not await self._is_missing(begun) else begun.first
        await self._put(part, first, end)
        if begun is not None and end < len(part) and begun.waits():
            self._begun.append(begun)
            self._want(begun.missing)
            self._ports.spawn(self._be_patient(begun), "patience")

    async def _put(self, part: Received, first: int, end: int) -> None:
        """Make rows first .. end-1 ready to be sent. The rest of a batch is not waited for if later messages came."""
        if first < end:
            self.ready.append(RowRange(part, first, end, rest=await self._is_cut(part, first, end)))

    def _may_be_cut(self, part: Received, first: int, end: int) -> bool:
        """Return whether the log must say where one of these batches ends; it need not once ids may stand for parts."""
        return not self._batches.apart and len(unsure_ends(part, first, end)) > 0

    async def _is_cut(self, part: Received, first: int, end: int) -> bool:
        """Return whether messages that are not done are missing at the end of a batch in these rows."""
        if not self._may_be_cut(part, first, end):
            return False
        behind = [np.empty(0, np.int64)]
        for at in part.positions[unsure_ends(part, first, end)].tolist():
            follows = await self._follows(at)
            if follows == UNKNOWN:
                return True
            behind.append(np.arange(at + 1, at + follows + 1))
        missing = np.unique(np.concatenate(behind))
        return len(missing) > 0 and len(await self._batches.still_open(missing)) > 0

    async def _is_missing(self, begun: PartialBatch) -> bool:
        """Return whether a message of the batch that is missing here is not done."""
        begun.missing = len(await self._batches.still_open(begun.rest))
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
