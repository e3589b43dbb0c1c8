"""A client's reader on one partition: the log from a position on, past every subscription.

It holds nothing, owns nothing and makes nothing durable, so it costs the topic's owner only its questions. Delayed
messages are among the others, at their places, as for every exclusive consumer of Pulsar.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from actors.backoff import Backoff
from actors.consumer.config import ConsumerCallbacks
from actors.consumer.held import Received
from actors.consumer.payload import DecodedRun, Payloads
from actors.directory import Directory
from actors.messages import Event, IndexRead, RunIndex
from actors.ports import Ports
from actors.pulsar.conversation.topic_names import TopicPartition
from actors.signal import Signal
from actors.topic_client import TopicClient
from actors.topic_log import TopicLog
from storage.errors import Fenced, NotFound, SluiceError, Unavailable
from storage.position import Positions, entry_of, position

RETRY_FIRST, RETRY_MOST = 5, 500
MOST_ROWS = 4_096
WAIT_MS, READ_TIMEOUT = 1_000, 5_000


class LogReader:
    """Reads as long as it has permits. It is used like a consumer, but never gives messages back."""

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
        self._closed = self._over = self._knows_end = self._held = False
        self.by_index = False
        """As of any consumer; what is left of a batch comes as what it is."""

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

    def lease_over(self) -> bool:
        """A reader has no lease."""
        return False

    def acknowledge(self, part: Received, rows: np.ndarray | None = None) -> None:
        """These need not come again."""
        part.close(rows)
        self._tell_end()

    def _tell_end(self) -> None:
        """Report once that the topic was terminated and that everything was read and acknowledged."""
        if self._over and not self._knows_end and not any(one.open.any() for one in self._handed):
            self._knows_end = True
            self._callbacks.on_event(self._tp.partition, Event(kind="end_of_topic"))

    def acknowledge_positions(self, positions: Positions) -> None:
        """Nothing is remembered."""

    async def nack(self, given: Sequence[tuple[Received, np.ndarray | None]], delay: int) -> bool:
        """Hand these out again, in the order of the log."""
        for part, rows in sorted(given, key=lambda one: int(one[0].positions[0])):
            self._hand_again(part, np.flatnonzero(part.open) if rows is None else rows[part.open[rows]])
        return True

    async def redeliver_all(self) -> None:
        """Hand everything out again that is not acknowledged."""
        handed, self._handed = self._handed, []
        for part in handed:
            self._hand_again(part, np.flatnonzero(part.open))

    def _hand_again(self, part: Received, rows: np.ndarray) -> None:
        if not len(rows):
            return
        part.close(rows)
        again = part.take(rows)
        again.redeliveries = np.minimum(again.redeliveries.astype(np.int64) + 1, 255).astype(np.uint8)
        self._hand_out(again)

    def _hand_out(self, part: Received) -> None:
        self._handed = [one for one in self._handed if one.open.any()]
        self._handed.append(part)
        self.handed_out += len(part)
        self._callbacks.on_received(part)

    async def wait_confirmed(self) -> None:
        """There is nothing to wait for."""

    async def close(self) -> None:
        self._closed = True
        self._signal.set()

    async def _run(self) -> None:
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while not self._closed:
            if self._permits <= 0 or self._held:
                self._signal.clear()
                await self._signal.wait(self._ports)
                continue
            try:
                limit = min(self._permits, MOST_ROWS)
                await self._read(
                    await self._log.read(self.at, limit, wait=WAIT_MS, compacted=self._compacted, patience=READ_TIMEOUT)
                )
            except (Unavailable, Fenced) as error:
                self._ports.log("reader_waits", error=str(error))
                await wait.pause()
            except SluiceError:
                self._callbacks.on_event(self._tp.partition, Event(kind="failed"))
                return

    async def _read(self, found: IndexRead) -> None:
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
                at = self.at = at + len(part)
                self._permits -= len(part)
                if not self._closed:
                    self._hand_out(part)
        self.at, self._over = max(self.at, found.resume), found.ends
        self._tell_end()

    async def _read_compacted(self, index: RunIndex) -> bool:
        """Hand out what a compacted log has of a run; False: some of it has to be asked for again."""
        run = await self._payloads.sent_along(index)
        if run is None or run.held is None or self._closed:
            return False
        positions = position(run.ledger, 0) + run.held
        first = int(positions.searchsorted(self.at))
        stop = min(first + max(self._permits, 0), len(positions))
        if stop > first:
            part = run.received(self._tp.partition, first, stop - first)
            self.at = int(positions[stop - 1]) + 1
            self._permits -= len(part)
            self._hand_out(part)
        return stop == len(positions)

    def _cut(self, run: DecodedRun, at: int) -> Received:
        """Rows of a run from a position on: as many as are wanted, and the rest of the last batch."""
        start = entry_of(at) - run.first_entry
        end = min(start + min(self._permits, MOST_ROWS), run.rows.num_rows)
        if "batch_index" in run.rows.schema.names:
            index = run.rows.column("batch_index").fill_null(-1).to_numpy(zero_copy_only=False)
            behind = np.flatnonzero(index[end:] <= 0)
            end = end + int(behind[0]) if len(behind) else run.rows.num_rows
        return run.received(self._tp.partition, start, end - start)
