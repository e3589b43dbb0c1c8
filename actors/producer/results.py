"""Publishes what workers made of messages: once for each message, whoever else publishes results of the same message.

It is the other half of `actors.topic.results`. Each row goes to the owner of its partition with the position of the
message that it was made of, and a request is repeated until it is answered. Between a partition of the source and a
partition of an output one request is in flight, and what comes meanwhile goes with the next one. That is for the size
of runs alone, since nothing here relies on an order: a key waits until the results of its last message are confirmed.
How much waits here is bounded by whoever calls, who has it in memory before.

The owner need not remember what the subscription has finished for good. The owner of the source's partition knows that
of every durable subscription, so it is asked now and then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from actors.backoff import Backoff
from actors.directory import Directory
from actors.messages import PublishResults, Stats, shown
from actors.ports import Ports, Unknown
from actors.producer.producer import (
    BODY_BYTES,
    PUBLISH_TIMEOUT,
    RETRY_FIRST,
    RETRY_MOST,
    RUN_BYTES,
    RUN_MESSAGES,
    joined,
    split,
)
from actors.shared_future import SharedFuture
from actors.wire import Blob
from storage.batch import StoredBatch, has_keyed_delay
from storage.errors import Corrupt, Fenced, Invalid, Overloaded, SluiceError, Unavailable
from storage.frame import make_run
from storage.position import EARLIEST, parse

MARKS_MS = 2_000
"""How old what is known of finished messages may become."""


@dataclass(slots=True)
class _Share:
    """All rows of one message for one partition of an output."""

    position: int
    batch: StoredBatch
    size: int
    done: SharedFuture[None]


@dataclass(slots=True)
class _Lane:
    """The results that go from one partition of the source to one partition of an output."""

    waiting: deque[_Share] = field(default_factory=deque)
    working: bool = False


def source_name(topic: str, subscription: str, partition: int) -> str:
    """The name under which an output topic remembers whose results it has. No part can have a slash."""
    return f"{topic}/{subscription}/{partition}"


class ResultPublisher:
    """Publishes results of the messages of one subscription, from within its worker's process."""

    def __init__(self, ports: Ports, directory: Directory, topic: str, subscription: str) -> None:
        self._ports, self._directory = ports, directory
        self._topic, self._subscription = topic, subscription
        self._lanes: dict[tuple[int, str, int], _Lane] = {}
        self._marks: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        self._closed = False

    async def publish(self, partition: int, position: int, results: Sequence[tuple[str, StoredBatch]]) -> None:
        """Publish all results of a message, and wait until they are confirmed.

        results: rows by output, each output once. Raises Invalid, NotFound, and Conflict for a message that was
        finished before; some of the rows may be stored then.
        """
        waits = []
        for topic, batch in results:
            count = (await self._directory.settings(topic)).partitions
            for home, share, _ in split(batch, count):
                waits.append(await self._send((partition, topic, home), position, share))
        failed: SluiceError | None = None
        for done in waits:
            try:
                await done
            except SluiceError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Close; results that are not confirmed yet fail."""
        self._closed = True
        for lane in self._lanes.values():
            while lane.waiting:
                self._settle([lane.waiting.popleft()], Fenced("the worker has ended"))

    async def _send(self, way: tuple[int, str, int], position: int, batch: StoredBatch) -> SharedFuture[None]:
        size = int(batch.rows.nbytes)
        if len(batch) > RUN_MESSAGES or size > BODY_BYTES:
            raise Invalid(f"results of one message are at most {RUN_MESSAGES} rows and {BODY_BYTES} bytes a partition")
        if self._closed:
            raise Fenced("the worker has ended")
        lane = self._lanes.setdefault(way, _Lane())
        share = _Share(position, batch, size, SharedFuture())
        lane.waiting.append(share)
        if not lane.working:
            lane.working = True
            self._ports.spawn(self._work(way, lane), f"results-{way[1]}-{way[2]}")
        return share.done

    def _settle(self, shares: list[_Share], error: SluiceError | None) -> None:
        for share in shares:
            if error is None:
                share.done.set_result(None)
            else:
                share.done.set_exception(error)

    async def _work(self, way: tuple[int, str, int], lane: _Lane) -> None:
        while lane.waiting:
            groups = [_gathered(lane.waiting)]
            while groups:
                group = groups.pop()
                try:
                    await self._publish(way, group)
                except SluiceError as error:
                    if len(group) > 1 and not isinstance(error, Fenced):
                        # It is refused as a whole: what can be told apart is refused alone.
                        middle = len(group) // 2
                        groups += [group[middle:], group[:middle]]
                    else:
                        self._settle(group, error)
                except Exception as error:  # rows that Arrow does not join: their messages fail, and others go on
                    self._settle(group, Invalid(f"the results cannot be published: {error!r}"))
                else:
                    self._settle(group, None)
        lane.working = False

    async def _publish(self, way: tuple[int, str, int], group: list[_Share]) -> None:
        """Publish until there is an answer. Raises Conflict, Invalid, NotFound; Fenced once closed."""
        partition, topic, home = way
        batch = joined([share.batch for share in group])
        positions = _column(group)
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


def _column(group: list[_Share]) -> npt.NDArray[np.int64]:
    """The position of each row's message."""
    return np.repeat(np.array([share.position for share in group], np.int64), [len(share.batch) for share in group])
