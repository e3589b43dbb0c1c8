"""The consumer of the Python client: batches or single messages from all partitions of a subscription.

Messages that a user took and acknowledged are reported to the loop's thread together: with the next poll, when they are
a large part of the queue, or HAND_OVER_MS after the last delivery at the latest. Waking that thread for each message
would cost more than all other work on an acknowledgement here.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.actors.consumer.acknowledgements import report_losses
from sluice.actors.consumer.partition import PartitionConsumer
from sluice.actors.consumer.revocations import TakingBack
from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.messages import Event
from sluice.cluster.base.loop import LoopThread, call_user
from sluice.cluster.base.own_process import OfThisProcess
from sluice.cluster.client.message import Batch, Message, MessageId
from sluice.cluster.client.receiver_queue import ReceiverQueue
from sluice.cluster.client.settings_input import check_timeout
from sluice.storage.errors import Fenced, Invalid, NotFound, SluiceError
from sluice.storage.format.position import ascending

Rows = npt.NDArray[np.int64]
ChosenRows = Rows | Sequence[int]
"""Numbers of a batch's rows, in any order."""
RangesCallback = Callable[[int, str, list[tuple[int, int]]], None]
"""Called with (partition, kind, ranges); kind is assigned, revoked, drained or lost."""

HAND_OVER_MS = 20
CLOSE_S = 30.0
FEW = 8
"""Of larger parts nothing waits: their messages are no single ones now and then, and the thread is awake anyway."""
URGENT_SHARE = 4
"""This part of a partition's share of the queue is handed over at once: permits that nobody knows of hold it up."""
_batch_of, _number_of = attrgetter("batch"), attrgetter("row")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """See Client.subscribe. named: the user chose the name, and the consumer may come back under it. queue_size: over
    all partitions.
    """

    topic: str
    subscription: str
    name: str
    named: bool = True
    queue_size: int
    ranges: Sequence[tuple[int, int]] = ()
    priority: int = 0
    read_compacted: bool = False
    negative_ack_redelivery_delay_ms: int = 60_000
    on_ranges: RangesCallback | None = None


class Consumer(OfThisProcess):
    """Receives from every partition. Safe for threads.

    Messages stay this consumer's until they are acknowledged, given back, or its lease runs out (a process that is
    stopped for longer must assume that others have them; their acknowledgements are then ignored).
    """

    elsewhere = "another one connects and opens its own"

    def __init__(
        self,
        loop: LoopThread,
        options: ConsumerOptions,
        on_close: Callable[[Consumer], None],
    ) -> None:
        self._loop, self.options, self._on_close = loop, options, on_close
        self.parts: list[PartitionConsumer] = []
        self._receiving = ReceiverQueue(
            options.topic, lambda partition: self.parts[partition], self._took, lambda: loop.check_thread()
        )
        self._taken: deque[tuple[PartitionConsumer, Received]] = deque()
        self._done: deque[tuple[PartitionConsumer, Received, Rows | None]] = deque()
        """What was acknowledged and not handed to its partition yet: some rows of a part, or all."""
        self._done_singly: list[Message] = []
        """The same of single messages. Whoever acknowledges one only adds it at the end."""
        self._waiting = 0
        """Messages in all three, more or less."""
        self._loop_told = self._loop_called = False
        """Whether the loop's thread will look at them: at some time, and at once."""
        self._timer: asyncio.TimerHandle | None = None
        self._full = False
        """Whether the partitions fetch nothing, because what was not received yet has many bytes."""
        self._closed = False

    # -- called on the loop's thread ------------------------------------------------------------------------------

    def received(self, part: Received) -> None:
        self._receiving.add(part)
        self._hold_if_full()
        if len(part) <= FEW and not self._loop_told:
            self._loop_told = True
            self._timer = self._loop.later(HAND_OVER_MS, partial(self.tell_partitions, waited=True))

    def _hold_if_full(self) -> None:
        if (full := self._receiving.is_full) != self._full:
            self._full = full
            for part in self.parts:
                part.hold(full)

    def tell_partitions(self, *, waited: bool = False) -> None:
        """Report taken and acknowledged messages to the partitions, single ones as columns. Also before each poll
        and before somebody waits until that is durable.

        waited: long enough for acknowledgements not to wait for a poll any more.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # From here on whoever adds something calls again; what was added before is seen below.
        self._loop_told = self._loop_called = False
        self._waiting = 0
        while self._taken:
            consumer, part = self._taken.popleft()
            consumer.taken(part)
        self._hold_if_full()
        while self._done:
            consumer, part, done = self._done.popleft()
            consumer.acknowledge(part, done, waited=waited)
        singly = self._done_singly[:]
        del self._done_singly[: len(singly)]  # and not what others add meanwhile
        rows: dict[Received, tuple[PartitionConsumer, list[int]]] = {}
        for batch, messages in groupby(singly, _batch_of):
            rows.setdefault(batch.received, (batch.consumer, []))[1].extend(map(_number_of, messages))
        for part, (consumer, numbers) in rows.items():
            consumer.acknowledge(part, np.array(numbers), waited=waited)

    def on_event(self, partition: int, event: Event) -> None:
        """A partition has news."""
        if event.kind in ("failed", "found"):
            self._receiving.fail(next((part.failed for part in self.parts if part.failed is not None), None))
        elif self.options.on_ranges is not None and event.kind not in ("inactive", "handed_over", "end_of_topic"):
            call_user("on_ranges", self.options.on_ranges, partition, event.kind, event.ranges)

    def leave(self, *, for_good: bool = False) -> None:
        """Begin to close every partition, also when the caller gave up waiting; partitions that close already go on."""
        for part in self.parts:
            part.begin_close(for_good=for_good)

    # -- called by users ------------------------------------------------------------------------------------------

    @property
    def taking_back(self) -> TakingBack:
        """How a partition takes revoked messages back (`nack_order=key`): never while a user takes one."""
        return TakingBack(guard=self._receiving.lock)

    def receive_batch(self, timeout_ms: int | None = None) -> Batch | None:
        """Return the next batch (messages of one run), or None after `timeout_ms`. Raises Fenced once closed.

        Receive batches or single messages: after `receive` took a message of a batch, the rest stays for `receive`.
        """
        self._loop.check_process()
        return self._receiving.receive_batch(timeout_ms)

    def batches(self, timeout_ms: int | None = None) -> Iterator[Batch]:
        """Batches, for ever; with `timeout_ms` until none came for so long."""
        while (batch := self.receive_batch(timeout_ms)) is not None:
            yield batch

    def receive(self, timeout_millis: int | None = None) -> Message:
        """One message. Raises Timeout if none came in time."""
        self._loop.check_process()
        return self._receiving.receive(timeout_millis)

    def receive_several(self, most: int) -> list[Message]:
        """Take several messages for a caller that handles them one at a time; see ReceiverQueue.receive_several."""
        self._loop.check_process()
        return self._receiving.receive_several(most)

    def receive_here(self, most: int) -> list[Message]:
        """Up to so many messages that are here already."""
        self._loop.check_process()
        return self._receiving.receive_here(most)

    def receive_nowait(self, count: int) -> list[Message] | None:
        """This number of messages if all are here already; else None, and all of them stay here."""
        self._loop.check_process()
        found = self._receiving.receive_nowait(count)
        if found is None and self._full:
            self._loop.soon(self._hold_if_full)
        return found

    async def receive_async(self, timeout_millis: int | None = None) -> Message:
        """The same as `receive` for a running event loop: its other tasks go on meanwhile. A wait that is cancelled
        takes no message. Raises Timeout if none came in time.
        """
        self._loop.check_process()
        return await self._receiving.receive_async(timeout_millis)

    def wake(self) -> None:
        """Let one thread or task that waits for messages, or the next one that would, go on as if its time were up."""
        self._receiving.wake()

    def look(self, seen: Callable[[Received, int], object]) -> None:
        """Call it with each part that waits to be received, and from which row on; parts are not changed meanwhile."""
        self._receiving.look(seen)

    def acknowledge(
        self,
        what: Batch | Message | MessageId,
        *,
        ack_receipt: bool = False,
        rows: ChosenRows | None = None,
    ) -> None:
        """Done with it, for good. ack_receipt: wait until that is durable. rows: of a batch, only these.

        Raises NotFound for what was not received here, or is done; Invalid for rows that the batch does not have.
        """
        self._loop.check_process()
        if isinstance(what, Message):  # most are, so this comes first and does little
            consumer = self._partition_of(what.batch)
            self._done_singly.append(what)
            if not (ack_receipt or self._loop_told):
                self._hand_over_now()
        elif isinstance(what, Batch):
            consumer, rows = self._partition_of(what), _checked(what, rows)
            self._done.append((consumer, what.received, rows))
            if not ack_receipt:
                self._tell_loop(len(what) if rows is None else len(rows))
        else:
            consumer, part, row = self._row_of(what)
            self._done.append((consumer, part, np.array([row])))
            if not (ack_receipt or self._loop_told):
                self._hand_over_now()
        if ack_receipt:
            self._wait_confirmed([consumer])  # which asks for what is done, and sends it

    def _took(self, consumer: PartitionConsumer, part: Received) -> None:
        """A part was taken from the queue, and its permits are free now."""
        self._taken.append((consumer, part))
        self._tell_loop(len(part))

    def _tell_loop(self, messages: int) -> None:
        """More messages were taken or acknowledged."""
        self._waiting += messages
        many = self._waiting * URGENT_SHARE * len(self.parts) >= self.options.queue_size
        if not self._loop_told or (many and not self._loop_called):
            self._hand_over_now()

    def _hand_over_now(self) -> None:
        self._loop_told = self._loop_called = True
        self._loop.soon(self.tell_partitions)

    def acknowledge_cumulative(self, what: Message | MessageId) -> None:
        """Refused: a cumulative acknowledgement has no meaning when several consumers share a subscription (KS-56)."""
        raise Invalid("cumulative acknowledgement is not possible on a shared subscription; acknowledge each message")

    def negative_acknowledge(
        self,
        what: Batch | Message | MessageId,
        *,
        delay_ms: int | None = None,
        rows: ChosenRows | None = None,
    ) -> None:
        """Give it back; it comes again after `delay_ms` (default: negative_ack_redelivery_delay_ms, 60 s).

        rows: of a batch, only these. With `nack_order=key` its key waits for that long, and later messages of the key
        that are here are taken back before this returns: those that were received say so (`taken_back`), and come again
        too, behind it. An interrupted call gives it back too, but some of the later messages may be received before it.
        """
        if isinstance(what, Batch):
            consumer, part, rows = self._partition_of(what), what.received, _checked(what, rows)
        else:
            consumer, part, row = self._row_of(what)
            rows = np.array([row])
        self._hand_over_now()
        delay = self.options.negative_ack_redelivery_delay_ms if delay_ms is None else delay_ms
        self._loop.run(consumer.negative_acknowledge(part, rows, delay))

    def redeliver_unacknowledged_messages(self) -> None:
        """Give back everything that is not acknowledged."""
        self._receiving.forget_current()
        self._hand_over_now()
        self._loop.run(_together(part.redeliver_all() for part in self.parts))
        self._receiving.forget_given_back()  # what another thread began to receive meanwhile was given back as well

    def wait_acknowledged(self, timeout_ms: int | None = None) -> None:
        """Wait until every acknowledgement so far is durable.

        Raises Unavailable (time-out), and Fenced, once, if a session was lost before its acknowledgements were: those
        messages come again.
        """
        check_timeout("timeout_ms", timeout_ms)
        self._wait_confirmed(self.parts, None if timeout_ms is None else timeout_ms / 1000)

    def _wait_confirmed(self, parts: list[PartitionConsumer], timeout: float | None = None) -> None:
        """Losses count as reported when everything has settled in time: a caller that gives up hears of none."""
        losses = [part.losses for part in parts]
        reported = [one.reported for one in losses]
        self._loop.run(_together(part.settle() for part in parts), timeout)
        report_losses(losses, since=reported)

    def pause(self) -> None:
        """Ask for no more messages; those that were granted may still come."""
        for part in self.parts:
            self._loop.soon(part.pause)

    def resume(self) -> None:
        for part in self.parts:
            self._loop.soon(part.resume)

    def held(self) -> int:
        """Messages that this consumer has and has not finished."""
        return 0 if self._closed else self._loop.ask(self._held)

    def _held(self) -> int:
        return sum(part.held() for part in self.parts)

    def topic(self) -> str:
        return self.options.topic

    def subscription_name(self) -> str:
        return self.options.subscription

    def consumer_name(self) -> str:
        """This consumer's name; several consumers may have the same."""
        return self.options.name

    def is_connected(self) -> bool:
        """Whether every partition has a session."""
        return not self._closed and all(part.session for part in self.parts)

    def hand_over(self, to: str | None = None) -> None:
        """Let the consumer that subscribes next under the name `to` (default: this one's own) take over all hashes, so
        that a restart moves nobody's keys (`grace_ms`). Call it before that one subscribes; durable when it returns.

        From then on this one goes on until it `is_handed_over`, and should then be closed: each key passes over when
        what it holds of it is acknowledged. Raises Invalid, and Conflict if one of that name has hashes already.
        """
        self._loop.run(_together(part.handing_over.offer(to or self.options.name) for part in self.parts))

    def is_handed_over(self) -> bool:
        """Another consumer took over on every partition, and nothing is held here any more."""
        return all(part.handing_over.done for part in self.parts) and not self.held()

    def close(self, drain_timeout_ms: int = 0, *, for_good: bool = False) -> None:
        """Leave. With a drain time-out first wait so long for what is held to be acknowledged (from other threads);
        the rest goes to the others in order, without counting as a redelivery. With `grace_ms` it waits for one of this
        name instead, with the hashes; for_good: nobody will come back, and all goes to the others at once. In a forked
        child it is its parent's, and stays.
        """
        if self._closed or not self._loop.is_here:
            return
        self._loop.check_thread()
        self._hand_over_now()
        self.pause()
        for unseen in self._receiving.clear():  # nobody will see these: they go back with the rest
            self._loop.soon(unseen.close)
        deadline = time.monotonic() + drain_timeout_ms / 1000
        while drain_timeout_ms and self.held() and time.monotonic() < deadline:
            self._hand_over_now()
            try:
                self._loop.run(_together(part.settle() for part in self.parts), max(deadline - time.monotonic(), 0))
            except SluiceError:  # not in time, or one has failed: more waiting changes nothing
                break
            time.sleep(0.005)
        self._closed = True
        self._receiving.end(Fenced("the consumer is closed"))
        self._hand_over_now()
        try:
            self._loop.run(_together(part.close(for_good=for_good) for part in self.parts), CLOSE_S)
        finally:
            self._loop.soon(partial(self.leave, for_good=for_good))
            self._on_close(self)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _row_of(self, what: object) -> tuple[PartitionConsumer, Received, int]:
        if isinstance(what, Message):
            return self._partition_of(what.batch), what.batch.received, what.row
        if not isinstance(what, MessageId):
            raise Invalid(f"give a message, a batch or a message id, not {type(what).__name__}")
        consumer = self.parts[what.partition_index] if 0 <= what.partition_index < len(self.parts) else None
        with self._receiving.lock:  # nothing is taken back meanwhile
            found = consumer.find(what.position) if consumer is not None else None
        if consumer is None or found is None:
            raise NotFound(f"message {what} was not received here, or is done")
        return consumer, *found

    def _partition_of(self, batch: Batch) -> PartitionConsumer:
        """Find the partition that received the batch. Raises NotFound: another consumer's partitions may be on another
        thread.
        """
        partition = batch.received.partition
        if partition >= len(self.parts) or self.parts[partition] is not batch.consumer:
            raise NotFound("another consumer received this: acknowledge it, or give it back, there")
        return batch.consumer


def _checked(batch: Batch, rows: ChosenRows | None) -> Rows | None:
    """Numbers of some of its rows, ascending, each once; None: all. Raises Invalid."""
    if rows is None:
        return None
    chosen = np.asarray(rows)
    numbers = chosen.ndim == 1 and (chosen.dtype.kind in "iu" or not chosen.size)
    if not numbers or (chosen.size and not 0 <= chosen.min() <= chosen.max() < len(batch)):
        raise Invalid(f"rows are an array of numbers of the batch's rows, 0 to {len(batch) - 1}")
    return ascending(chosen.astype(np.int64))


async def _together(works: Iterable[Coroutine[Any, Any, object]]) -> None:
    """All partitions at once: what becomes durable for one does so for the others in the same write. Raises the first
    error when all have ended.
    """
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
