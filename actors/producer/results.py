"""Publishes the results of workers: once for each message, even if others publish results of the same message.

It is the other half of `actors.topic.partition.results`. Each row goes to the owner of its partition with the position
of the message that it was made of, and a request is repeated until it is answered. Between a partition of the source
and a partition of an output one request is in flight, and what comes meanwhile goes with the next one. That is for the
size of runs alone, since nothing here relies on an order: a key waits until the results of its last message are
confirmed. How much waits here is bounded by the caller, which has it in memory before.

The owner need not remember what the subscription has finished for good. The owner of the source's partition knows that
of every durable subscription, so it is asked now and then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np

from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import PublishResults, Stats, shown
from sluice.actors.ports import Ports, Unknown
from sluice.actors.ports.wire import Blob
from sluice.actors.producer.batches import BODY_BYTES, RUN_BYTES, RUN_MESSAGES
from sluice.actors.producer.producer import RETRY_FIRST, RETRY_MOST
from sluice.actors.producer.waves import PUBLISH_TIMEOUT
from sluice.actors.runtime.waiting import Backoff
from sluice.storage.errors import Corrupt, Fenced, Invalid, Overloaded, SluiceError, Unavailable
from sluice.storage.format.batch import StoredBatch, has_keyed_delay, joined
from sluice.storage.format.frame import make_run
from sluice.storage.format.position import EARLIEST, Positions, parse

T = TypeVar("T")

_Way = tuple[int, str, int]
"""Partition of the source, output, and its partition."""

MARKS_MS = 2_000
"""How old what is known of finished messages may become."""


@dataclass(eq=False, slots=True)
class Publication(Generic[T]):
    """The results of one message on their way. item: the publisher's own handle of the message.

    left: shares of it that are neither confirmed nor refused. error: why one of them was refused.
    """

    item: T
    partition: int
    position: int
    left: int = 0
    error: SluiceError | None = None


@dataclass(frozen=True, slots=True)
class ResultRows:
    """Rows for one output. owners: for each row the number of its message among those that are published together,
    ascending (int64, shape (n,)). All rows that a message has for the output are in one of these.
    """

    topic: str
    batch: StoredBatch
    owners: Positions


@dataclass(slots=True)
class _Share:
    """All rows that some messages have for one partition of an output. owners: see ResultRows, of `messages`."""

    batch: StoredBatch
    owners: Positions
    messages: Sequence[Publication[Any]]
    on_end: Callable[[list[Publication[Any]]], object]
    size: int

    @property
    def several(self) -> bool:
        """Whether it is of more messages than one."""
        return bool(self.owners[0] != self.owners[-1])

    def halves(self) -> list[_Share]:
        """Two, each of some of the messages."""
        distinct = _distinct(self.owners)
        middle = int(np.searchsorted(self.owners, distinct[len(distinct) // 2]))
        return [self.part(0, middle), self.part(middle, len(self.owners))]

    def part(self, start: int, stop: int) -> _Share:
        """Return the share of the rows start .. stop-1."""
        batch = self.batch.slice(start, stop)
        return _Share(batch, self.owners[start:stop], self.messages, self.on_end, int(batch.rows.nbytes))

    def positions(self) -> Positions:
        """The position of each row's message."""
        return np.array([self.messages[owner].position for owner in self.owners.tolist()], np.int64)

    def settle(self, error: SluiceError | None) -> None:
        """Count the rows as confirmed, or refused with an error."""
        ended = []
        for owner in _distinct(self.owners).tolist():
            message = self.messages[owner]
            message.error = message.error or error
            message.left -= 1
            if not message.left:
                ended.append(message)
        if ended:
            self.on_end(ended)


@dataclass(slots=True)
class _Lane:
    """The results that go from one partition of the source to one partition of an output."""

    waiting: deque[_Share] = field(default_factory=deque)
    working: bool = False

    def fail(self) -> None:
        """Refuse all that waits: the worker has ended."""
        while self.waiting:
            self.waiting.popleft().settle(Fenced("the worker has ended"))


def _distinct(owners: Positions) -> Positions:
    """Each of these once; they ascend."""
    first = np.empty(len(owners), bool)
    first[0] = True
    np.not_equal(owners[1:], owners[:-1], out=first[1:])
    return owners[first]


def source_name(topic: str, subscription: str, partition: int) -> str:
    """The name under which an output topic remembers whose results it has. No part can have a slash."""
    return f"{topic}/{subscription}/{partition}"


class ResultPublisher:
    """Publishes results of the messages of one subscription, from within its worker's process."""

    def __init__(self, ports: Ports, directory: Directory, topic: str, subscription: str) -> None:
        self._ports, self._directory = ports, directory
        self._topic, self._subscription = topic, subscription
        self._lanes: dict[_Way, _Lane] = {}
        self._marks: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        self._closed = False

    async def publish(
        self,
        messages: Sequence[Publication[T]],
        results: Sequence[ResultRows],
        on_end: Callable[[list[Publication[T]]], object],
    ) -> None:
        """Publish results of several messages, at least one row for each. on_end: called with the messages whose rows
        are all confirmed or refused; rows of a refused message may be stored.

        Their errors are Invalid, NotFound, Fenced, and Conflict for a message that was finished before.
        """
        shares: list[tuple[_Way, _Share]] = []
        refused: list[tuple[_Share, SluiceError]] = []
        for rows in results:
            whole = _Share(rows.batch, rows.owners, messages, on_end, int(rows.batch.rows.nbytes))
            try:
                count = (await self._directory.settings(rows.topic)).partitions
            except SluiceError as reason:
                refused.append((whole, reason))
            else:
                shares += _divided(whole, rows.topic, count)
        # All are counted before the first of them can end.
        for share in [*(share for _, share in shares), *(share for share, _ in refused)]:
            for owner in _distinct(share.owners).tolist():
                messages[owner].left += 1
        for share, error in refused:
            share.settle(error)
        for way, share in shares:
            self._send(way, share)

    def close(self) -> None:
        """Close; results that are not confirmed yet fail."""
        self._closed = True
        for lane in self._lanes.values():
            lane.fail()

    def _send(self, way: _Way, share: _Share) -> None:
        if len(share.batch) > RUN_MESSAGES or share.size > BODY_BYTES:
            share.settle(
                Invalid(f"results of one message are at most {RUN_MESSAGES} rows and {BODY_BYTES} bytes a partition")
            )
            return
        lane = self._lanes.setdefault(way, _Lane())
        lane.waiting.append(share)
        if self._closed:
            lane.fail()
        elif not lane.working:
            lane.working = True
            self._ports.spawn(self._work(way, lane), f"results-{way[1]}-{way[2]}")

    async def _work(self, way: _Way, lane: _Lane) -> None:
        groups: list[list[_Share]] = []
        try:
            while lane.waiting:
                groups = [_gathered(lane.waiting)]
                while groups:
                    await self._publish_or_divide(way, groups)
        finally:
            lane.working = False
            if groups:  # the client ends
                lane.waiting.extend(share for group in groups for share in group)
                lane.fail()

    async def _publish_or_divide(self, way: _Way, groups: list[list[_Share]]) -> None:
        """The last of the groups; it leaves them when it has ended."""
        group = groups[-1]
        error: SluiceError | None = None
        try:
            await self._publish(way, group)
        except SluiceError as refused:
            error = refused
        except Exception as odd:  # rows that Arrow does not join: their messages fail, and others go on
            error = Invalid(f"the results cannot be published: {odd!r}")
        groups.pop()
        if error is not None and not isinstance(error, Fenced) and (len(group) > 1 or group[0].several):
            # It is refused as a whole: what can be told apart is refused alone.
            halves = group[0].halves() if len(group) == 1 else group
            middle = len(halves) // 2
            groups += [halves[middle:], halves[:middle]]
        else:
            for share in group:
                share.settle(error)

    async def _publish(self, way: _Way, group: list[_Share]) -> None:
        """Publish until there is an answer. Raises Conflict, Invalid, NotFound; Fenced once closed."""
        partition, topic, home = way
        batch = joined([share.batch for share in group])
        if batch.deliver_at is not None and not batch.deliver_at.any():
            batch = StoredBatch(batch.rows, None, batch.hashes)
        positions = np.concatenate([share.positions() for share in group])
        keyed_delay = has_keyed_delay(batch.rows, batch.deliver_at)
        run = make_run(batch)
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while not self._closed:
            self._look_up_mark(partition)
            request = PublishResults(
                source=source_name(self._topic, self._subscription, partition),
                positions=positions,
                finished=self._marks.get(partition, EARLIEST),
                count=run.count,
                delayed=run.delayed,
                shape=run.shape,
                crc=run.crc,
                payload=Blob(run.payload),
                keyed_delay=keyed_delay,
            )
            address = ""
            try:
                address = await self._directory.topic(topic, home)
                reply = await self._ports.net.call(address, request, PUBLISH_TIMEOUT)
                if not isinstance(reply, Unknown):
                    return
                self._ports.log("results_unknown", topic=topic, partition=home, reason=reply.reason)
                await self._directory.suspect(address)
            except (Overloaded, Unavailable, Corrupt) as error:
                self._ports.log("results_wait", topic=topic, partition=home, error=str(error))
            except Fenced:
                await self._directory.suspect(address)
            await wait.pause()
        raise Fenced("the worker has ended")

    def _look_up_mark(self, partition: int) -> None:
        """Ask, in the background, up to where the subscription has finished everything, unless that was done lately."""
        now = self._ports.clock.monotonic()
        if now - self._asked.get(partition, -MARKS_MS) >= MARKS_MS:
            self._asked[partition] = now
            self._ports.spawn(self._ask_mark(partition), f"mark-{partition}")

    async def _ask_mark(self, partition: int) -> None:
        try:
            reply = await self._directory.ask_owner(self._topic, partition, None, Stats(), patience=0)
        except SluiceError as error:  # nothing but memory depends on it
            self._ports.log("mark_waits", partition=partition, error=str(error))
            return
        mark = shown(reply)["subscriptions"].get(self._subscription)
        if mark is not None:
            self._marks[partition] = max(parse(mark), self._marks.get(partition, EARLIEST))


def _gathered(waiting: deque[_Share]) -> list[_Share]:
    """The head of the line, and what may go with it in one run: the same shape, within the limits."""
    group = [waiting.popleft()]
    rows, size, schema = len(group[0].batch), group[0].size, group[0].batch.rows.schema
    while waiting:
        rows, size = rows + len(waiting[0].batch), size + waiting[0].size
        if rows > RUN_MESSAGES or size > RUN_BYTES or not waiting[0].batch.rows.schema.equals(schema):
            break
        group.append(waiting.popleft())
    return group


def _divided(whole: _Share, topic: str, partitions: int) -> list[tuple[_Way, _Share]]:
    """By the partition of the source and of the output, and so that each fits into a run if it is of several messages;
    rows keep their order.
    """
    sources = np.array([message.partition for message in whole.messages])[whole.owners]
    lanes = sources * partitions + whole.batch.hashes % np.uint32(partitions)
    order = np.argsort(lanes, kind="stable")
    lanes = lanes[order]
    sorted_rows = whole
    if not np.array_equal(order, np.arange(len(order))):
        batch = whole.batch.take(order)
        sorted_rows = _Share(batch, whole.owners[order], whole.messages, whole.on_end, whole.size)
    starts = [0, *(np.flatnonzero(np.diff(lanes)) + 1).tolist(), len(lanes)]
    found = []
    for start, stop in pairwise(starts):
        way = (int(lanes[start]) // partitions, topic, int(lanes[start]) % partitions)
        waiting = [sorted_rows.part(start, stop)]
        while waiting:
            share = waiting.pop()
            if share.several and (len(share.batch) > RUN_MESSAGES or share.size > BODY_BYTES):
                waiting += reversed(share.halves())
            else:
                found.append((way, share))
    return found
