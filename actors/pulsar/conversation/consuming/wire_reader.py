"""A client's reader on one partition: the log from a position on, past every subscription.

It holds nothing, owns nothing and makes nothing durable, so it costs the topic's owner only its questions. Delayed
messages are among the others, at their places, as for every exclusive consumer of Pulsar.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

import numpy as np

from sluice.actors.consumer.config import ConsumerCallbacks
from sluice.actors.consumer.payload import DecodedRun, Payloads
from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.lookup.directory import Directory
from sluice.actors.lookup.topic_client import TopicClient, TopicLog
from sluice.actors.messages import NO_COUNTS, NO_POSITIONS, Event, IndexRead, RunIndex
from sluice.actors.ports import Ports
from sluice.actors.pulsar.topic_names import TopicPartition
from sluice.actors.runtime.waiting import Backoff, CancellableWait, Signal
from sluice.storage.errors import Fenced, NotFound, SluiceError, Unavailable
from sluice.storage.format.position import Positions, entry_of, position

RETRY_FIRST, RETRY_MOST = 5, 500
MOST_ROWS = 4_096
WAIT_MS, READ_TIMEOUT = 1_000, 5_000
MANY_HANDED = 64
"""Parts that were handed out, before the first look which of them are done."""


class _GivenBack:
    """Messages that are to be handed out again: positions (int64, ascending) and of each the redeliveries (uint8)."""

    def __init__(self) -> None:
        self.positions = NO_POSITIONS
        self._counts = NO_COUNTS

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, part: Received, rows: np.ndarray) -> None:
        """Note rows of a part for redelivery, each with one redelivery more, at most 255."""
        counts = np.minimum(part.redeliveries[rows].astype(np.int64) + 1, 255).astype(np.uint8)
        positions = np.concatenate([self.positions, part.positions[rows]])
        self.positions, first = np.unique(positions, return_index=True)
        self._counts = np.concatenate([self._counts, counts])[first]

    def pop(self, positions: Positions) -> np.ndarray:
        """Remove the positions (ascending) that are noted here; return the redelivery count of each removed one."""
        taken = np.isin(self.positions, positions)
        counts: np.ndarray = self._counts[taken]
        self.positions, self._counts = self.positions[~taken], self._counts[~taken]
        return counts


class LogReader:
    """Reads as long as it has permits. It is used like a consumer, but gives nothing back to a dispatcher: what the
    client wants again is read again, before anything that lies behind it.
    """

    def __init__(
        self,
        ports: Ports,
        directory: Directory,
        tp: TopicPartition,
        start: int,
        payloads: Payloads,
        callbacks: ConsumerCallbacks,
        compacted: bool = False,
    ) -> None:
        """compacted: of each key the last message alone, as far as the topic was compacted."""
        self._ports, self._payloads, self._tp = ports, payloads, tp
        self._topic = TopicClient(ports, directory, tp.topic, tp.partition)
        self._log = TopicLog(ports, self._topic)
        self._callbacks = callbacks
        self.at = max(start, 0)
        """The position of the next message."""
        self.handed_out = 0
        """Messages, those that came again included."""
        self._compacted = compacted
        self._permits = 0
        self._signal = Signal()
        self._handed: list[Received] = []
        self._many_handed = MANY_HANDED
        self._again = _GivenBack()
        self._room = Signal()
        self._redelivering = False
        self._under_way: list[CancellableWait] = []
        """The reads that are under way."""
        self._closed = self._over = self._knows_end = self._held = False
        self.by_index = False
        """The same as of any consumer; a reader gets the rest of a batch as it is."""

    async def open(self) -> None:
        """Begin to read. Raises NotFound, Unavailable."""
        await self._topic.owner()
        self._ports.spawn(self._run(), f"read-{self._tp.partition}")

    def grant(self, permits: int) -> None:
        """Allow more messages to be handed out."""
        self._permits += permits
        self._signal.set()

    def hold(self, held: bool) -> None:
        """Read nothing for now, or go on."""
        self._held = held
        self._signal.set()
        self._room.set()

    def lease_over(self) -> bool:
        """A reader has no lease."""
        return False

    def acknowledge(self, part: Received, rows: np.ndarray | None = None) -> None:
        """Close rows of a part, all by default: they need not come again."""
        part.close(rows)
        self._tell_end()

    def _tell_end(self) -> None:
        """Report once that the topic was terminated and that everything was read and acknowledged."""
        if (
            self._over
            and not self._knows_end
            and not len(self._again)
            and not any(one.open.any() for one in self._handed)
        ):
            self._knows_end = True
            self._callbacks.on_event(self._tp.partition, Event(kind="end_of_topic"))

    def acknowledge_positions(self, positions: Positions) -> None:
        """Nothing is remembered."""

    async def nack(self, given: Sequence[tuple[Received, np.ndarray | None]], delay: int) -> bool:
        """Hand these out again, in the order of the log."""
        for part, rows in given:
            self._give_back(part, np.flatnonzero(part.open) if rows is None else rows[part.open[rows]])
        self._hand_again()
        return True

    def redeliver_all(self) -> Coroutine[Any, Any, None]:
        """Hand everything out again that is not acknowledged."""
        handed, self._handed = self._handed, []
        for part in handed:
            self._give_back(part, np.flatnonzero(part.open))
        self._hand_again()
        return self.wait_confirmed()

    def _give_back(self, part: Received, rows: np.ndarray) -> None:
        if len(rows):
            self._again.add(part, rows)
            part.close(rows)

    def _hand_again(self) -> None:
        if len(self._again) and not self._redelivering:
            self._redelivering = True
            self._ports.spawn(self._redeliver(), f"read-again-{self._tp.partition}")

    def _hand_out(self, part: Received) -> None:
        if len(self._handed) >= self._many_handed:
            self._handed = [one for one in self._handed if one.open.any()]
            self._many_handed = max(MANY_HANDED, 2 * len(self._handed))
        self._handed.append(part)
        self.handed_out += len(part)
        self._permits -= len(part)
        self._callbacks.on_received(part)

    async def wait_confirmed(self) -> None:
        """There is nothing to wait for."""

    async def close(self) -> None:
        """Read nothing any more, nor wait for what is being read: while nobody can read it that never ends."""
        self._closed = True
        self._signal.set()
        self._room.set()
        for reading in self._under_way:
            reading.end()

    async def _run(self) -> None:
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while not self._closed:
            if self._permits <= 0 or self._held or len(self._again):
                self._signal.clear()
                await self._signal.wait(self._ports)
                continue
            if not await self._tried(self._read_on(), wait):
                return

    async def _tried(self, reading: Coroutine[Any, Any, None], wait: Backoff) -> bool:
        """Read, or wait until that may go; False: it never will."""
        self._under_way.append(under_way := CancellableWait())
        try:
            await under_way.run(reading)
        except (Unavailable, Fenced) as error:
            self._ports.log("reader_waits", error=str(error))
            await wait.pause()
        except SluiceError:
            self._callbacks.on_event(self._tp.partition, Event(kind="failed"))
            return False
        finally:
            self._under_way.remove(under_way)
        return True

    async def _read_on(self) -> None:
        found = await self._log.read(
            self.at,
            min(self._permits, MOST_ROWS),
            wait=WAIT_MS,
            ends_known=self._over,
            compacted=self._compacted,
            patience=READ_TIMEOUT,
        )
        await self._read(found)

    async def _redeliver(self) -> None:
        """Until nothing is left that was given back; what lies behind that waits."""
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while len(self._again) and not self._closed:
            if self._held:
                self._room.clear()
                await self._room.wait(self._ports)
                continue
            if not await self._tried(self._read_again(), wait):
                return
        self._redelivering = False
        self._signal.set()
        self._tell_end()

    async def _read_again(self) -> None:
        """Hand out what was given back, as far as one look at the log brings it. What was trimmed meanwhile is not."""
        left = self._again.positions
        log = TopicLog(self._ports, self._topic)
        found = await log.read(int(left[0]), MOST_ROWS, compacted=self._compacted, patience=READ_TIMEOUT)
        if found.resume <= left[0]:
            raise Unavailable("what was given back cannot be read now")
        for index in found.runs:
            first = position(index.ledger, index.first_entry)
            here = left[left.searchsorted(first) : left.searchsorted(first + index.count)]
            if not len(here):
                continue
            if self._held or self._closed:
                return
            if (run := await self._run_of(index)) is not None:
                part = run.received(self._tp.partition, 0, run.rows.num_rows)
                part = part.take(np.flatnonzero(np.isin(part.positions, here)))
                if not len(part):
                    continue
                part.redeliveries = self._again.pop(part.positions)
                left = np.setdiff1d(left, part.positions)
                self._hand_out(part)
        self._again.pop(left[: left.searchsorted(found.resume)])

    async def _run_of(self, index: RunIndex) -> DecodedRun | None:
        """Return the run that an index is of; None if it was trimmed. Raises Unavailable."""
        if not len(index.cut):
            try:
                return await self._payloads.run(index.ledger, index.first_entry)
            except NotFound:
                return None
        run = await self._payloads.sent_along(index)
        if run is None or run.held is None:
            raise Unavailable("what a compacted log has of a run was gone before it was read")
        return run

    async def _read(self, found: IndexRead) -> None:
        if len(self._again):
            return  # that comes first
        self._log.go_on_from(found)
        for run in found.runs:
            if len(run.cut):
                if not await self._read_compacted(run):
                    return
                continue
            last = position(run.ledger, run.first_entry) + run.count
            at = max(self.at, position(run.ledger, run.first_entry))
            while at < last and not self._closed:
                if self._permits <= 0 or self._held:
                    return
                try:
                    part = self._cut(await self._payloads.run(run.ledger, entry_of(at)), at)
                except NotFound:
                    break  # it was trimmed meanwhile
                if len(self._again):
                    return
                at = self.at = at + len(part)
                if not self._closed:
                    self._hand_out(part)
        self.at, self._over = max(self.at, found.resume), found.ends
        self._tell_end()

    async def _read_compacted(self, index: RunIndex) -> bool:
        """Hand out what a compacted log has of a run; False: some of it has to be asked for again."""
        run = await self._payloads.sent_along(index)
        if run is None or run.held is None or self._closed or len(self._again):
            return False
        positions = position(run.ledger, 0) + run.held
        first = int(positions.searchsorted(self.at))
        stop = min(first + max(self._permits, 0), len(positions))
        if stop > first:
            part = run.received(self._tp.partition, first, stop - first)
            self.at = int(positions[stop - 1]) + 1
            self._hand_out(part)
        return stop == len(positions)

    def _cut(self, run: DecodedRun, at: int) -> Received:
        """Return rows of a run from a position on: as many as are wanted, and the rest of the last batch."""
        start = entry_of(at) - run.first_entry
        end = min(start + min(self._permits, MOST_ROWS), run.rows.num_rows)
        if "batch_index" in run.rows.schema.names:
            index = run.rows.column("batch_index").fill_null(-1).to_numpy(zero_copy_only=False)
            behind = np.flatnonzero(index[end:] <= 0)
            end = end + int(behind[0]) if len(behind) else run.rows.num_rows
        return run.received(self._tp.partition, start, end - start)
