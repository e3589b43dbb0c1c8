"""The part that both faces of a consumer share: what has arrived, what was taken, and what is done.

Consumer blocks its caller, AsyncConsumer lets the other tasks of its loop go on.

Messages that a user took and acknowledged are reported to the loop's thread together: with the next poll, when they are
a large part of the queue, or HAND_OVER_MS after the last delivery at the latest. Waking that thread for each message
would cost more than all other work on an acknowledgement here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Generic, Protocol

import numpy as np
import numpy.typing as npt

from sluice.actors.consumer.chunks import MessageChunk
from sluice.actors.consumer.partition import PartitionConsumer
from sluice.actors.consumer.revocations import TakingBack
from sluice.actors.consumer.unacked_messages import Received, report_losses
from sluice.actors.messages import Event
from sluice.cluster.base import tracing
from sluice.cluster.base.loop import Home, NoReplyInTime, call_user, within
from sluice.cluster.base.own_process import OfThisProcess
from sluice.cluster.client.chunk_joiner import ChunkJoiner
from sluice.cluster.client.message import Batch, Message, MessageId
from sluice.cluster.client.options import ConsumerOptions
from sluice.cluster.client.receiver_queue import ReceiverQueue
from sluice.cluster.client.typed_values import TypedValues
from sluice.cluster.typed.variables import V
from sluice.storage.errors import Fenced, Invalid, NotFound, SluiceError, Unavailable
from sluice.storage.format.batch import LAST_TIME
from sluice.storage.format.position import ascending, parse

Rows = npt.NDArray[np.int64]
ChosenRows = Rows | Sequence[int]
"""Numbers of a batch's rows, in any order."""
HAND_OVER_MS = 20
CLOSE_S = SEEK_S = 30.0
DRAIN_LOOK_S = 0.005
FEW = 8
"""Of larger parts nothing waits: their messages are no single ones now and then, and the thread is awake anyway."""
URGENT_SHARE = 4
"""This part of a partition's share of the queue is handed over at once: permits that nobody knows of hold it up."""
_batch_of, _number_of = attrgetter("batch"), attrgetter("row")


class Asking(Protocol):
    """The questions that a consumer asks through its client."""

    async def admin(
        self, /, topic: str, subscription: str, verb: str, *, partition: int | None = None, **arguments: Any
    ) -> list[Any]: ...

    async def last_message_ids(self, topic: str) -> list[MessageId]: ...

    async def stats(self, topic: str, subscription: str) -> list[dict[str, Any]]: ...

    async def topic_of(self, message: MessageId, topics: Sequence[str]) -> str: ...

    async def delete_subscription(self, topic: str, subscription: str, force: bool = False) -> None: ...


class ConsumerCore(OfThisProcess, Generic[V]):
    """A consumer without the calls that wait. Safe for threads on a LoopThread."""

    inner = OfThisProcess.inner | {
        "abandon", "asking", "drop_topic", "join", "leave", "missed_topic", "on_event", "options", "parts",
        "receive_here", "receive_nowait", "receive_several", "received", "receiver_of", "taking_back",
        "tell_partitions", "traces", "visit", "wake"
    }  # fmt: skip

    elsewhere = "another one connects and opens its own"
    traces = True
    """Whether a tracer hears of what is received. A pool tells it by itself."""

    def __init__(
        self,
        loop: Home,
        options: ConsumerOptions,
        on_close: Callable[[ConsumerCore[Any]], None],
        typed: TypedValues[V] | None = None,
    ) -> None:
        """typed: the values of a consumer with a schema."""
        self._loop, self.options, self._on_close = loop, options, on_close
        self._typed = typed
        self._unread: deque[tuple[PartitionConsumer, Received]] = deque()
        """Parts in the order of their arrival, while definitions are awaited that the first of them needs."""
        self._reading: asyncio.Task[None] | None = None
        self.parts: Mapping[PartitionConsumer, None] = {}
        """The partitions of all topics, in order. Replaced when a topic comes or goes, and never changed."""
        self._misses = asyncio.Event()
        self.asking: Asking | None = None
        self._has_lost = asyncio.Event()
        self._receiving = ReceiverQueue(self._took, lambda: loop.check_thread(), typed)
        self._taken: deque[tuple[PartitionConsumer, Received]] = deque()
        self._done: deque[tuple[PartitionConsumer, Received, Rows | None]] = deque()
        """What was acknowledged and not handed to its partition yet: some rows of a part, or all."""
        self._done_singly: list[Message[Any]] = []
        """The same of single messages. Whoever acknowledges one only adds it at the end."""
        self._waiting = 0
        """Messages in all three, more or less."""
        self._loop_told = self._loop_called = False
        """Whether the loop's thread will look at them: at some time, and at once."""
        self._timer: asyncio.TimerHandle | None = None
        self._chunks = ChunkJoiner(loop, options, lambda: self._client, self._receiving.end)
        self._full = False
        """Whether the partitions fetch nothing, because what was not received yet has many bytes."""
        self.goes_on: dict[int, int] = {}
        """Where the last seek put each partition that it moved; of one topic."""
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic()}, {self.subscription_name()}, {self.consumer_name()})"

    # -- called on the loop's thread ------------------------------------------------------------------------------

    def join(self, parts: Iterable[PartitionConsumer]) -> None:
        """Receive from these partitions too."""
        self.parts = {**self.parts, **dict.fromkeys(parts)}

    def drop_topic(self, topic: str, beyond: int = 0) -> None:
        """Forget a topic that was deleted, or matches no more, or its partitions from this number on."""
        gone = [part for part in self.parts if part.topic == topic and part.partition >= beyond]
        self.parts = {part: None for part in self.parts if part not in gone}
        for part in gone:
            part.begin_close(for_good=True)

    async def missed_topic(self, within_ms: int) -> bool:
        """Wait so long, or until a topic seems to be deleted. Return whether the consumer is open still."""
        with contextlib.suppress(NoReplyInTime):
            await within(self._misses.wait(), within_ms / 1000)
        self._misses.clear()
        return not self._closed

    def receiver_of(self, parts: Sequence[PartitionConsumer]) -> Callable[[Received], None]:
        """Make the callback of a topic's partitions, which may be filled in later; they stand by their numbers."""
        return lambda received: self.received(parts[received.partition], received)

    def received(self, consumer: PartitionConsumer, part: Received) -> None:
        """A part has arrived. One whose definitions are not here waits for them, and so do those behind it."""
        if isinstance(part, MessageChunk):
            if (whole := self._chunks.add(consumer, part)) is None:
                return
            part = whole
        if self._typed is None or not (self._unread or self._typed.unknown_in(part)):
            self._add(consumer, part)
            return
        self._unread.append((consumer, part))
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read_definitions(self._typed))

    async def _read_definitions(self, typed: TypedValues[V]) -> None:
        while self._unread:
            await typed.load(typed.unknown_in(self._unread[0][1]))
            if self._unread:
                self._add(*self._unread.popleft())
        self._reading = None

    def _add(self, consumer: PartitionConsumer, part: Received) -> None:
        self._receiving.add(consumer, part)
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
        if event.kind == "lost":
            self._has_lost.set()
        if event.kind in ("failed", "found"):
            failures = [part.failed for part in self.parts if part.failed is not None]
            if self.options.by_pattern and any(isinstance(error, NotFound) for error in failures):
                self._misses.set()  # the others go on
                failures = [error for error in failures if not isinstance(error, NotFound)]
            self._receiving.fail(next(iter(failures), None))
        elif self.options.on_ranges is not None and event.kind not in ("inactive", "handed_over", "end_of_topic"):
            call_user("on_ranges", self.options.on_ranges, partition, event.kind, event.ranges)

    def abandon(self, why: str) -> None:
        """Nothing more comes: let those who receive get what is here, and then an error."""
        self._receiving.end(Unavailable(why))

    def leave(self, *, for_good: bool = False) -> None:
        """Begin to close every partition, also when the caller gave up waiting; partitions that close already go on."""
        for part in self.parts:
            part.begin_close(for_good=for_good)

    # -- called by users ------------------------------------------------------------------------------------------

    @property
    def taking_back(self) -> TakingBack:
        """How a partition takes revoked messages back (`nack_order=key`): never while a user takes one."""
        return TakingBack(guard=self._receiving.lock)

    def wake(self) -> None:
        """Let one thread or task that waits for messages, or the next one that would, go on as if its time were up."""
        self._receiving.wake()

    def visit(self, seen: Callable[[Received, int], object]) -> None:
        """Call it with each part that waits to be received, and from which row on; parts are not changed meanwhile."""
        self._receiving.visit(seen)

    def _note_done(
        self, what: Batch[Any] | Message[Any] | MessageId, *, ack_receipt: bool, rows: ChosenRows | None
    ) -> PartitionConsumer:
        """Note messages as done, and return the partition that they came from.

        ack_receipt: the caller waits until that is durable, which hands it over at once.
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
        return consumer

    def _traced(self, message: Message[V]) -> Message[V]:
        if self.traces and tracing.ACTIVE is not None:
            tracing.ACTIVE.received(message, self.options.subscription)
        return message

    def _took(self, consumer: PartitionConsumer, part: Received) -> None:
        """A part was taken from the queue, and its permits are free now."""
        self._taken.append((consumer, part))
        self._tell_loop(len(part))

    def _tell_loop(self, messages: int) -> None:
        """More messages were taken or acknowledged."""
        self._waiting += messages
        many = self._waiting * URGENT_SHARE * len(self.parts) >= self.options.receiver_queue_size
        if not self._loop_told or (many and not self._loop_called):
            self._hand_over_now()

    def _hand_over_now(self) -> None:
        self._loop_told = self._loop_called = True
        self._loop.soon(self.tell_partitions)

    def _giving_back(
        self, what: Batch[Any] | Message[Any] | MessageId, delay_ms: int | None, rows: ChosenRows | None
    ) -> Coroutine[Any, Any, object]:
        """Check what is given back, and return the work that does it."""
        self._loop.check_process()
        if isinstance(what, Batch):
            consumer, part, rows = self._partition_of(what), what.received, _checked(what, rows)
        else:
            consumer, part, row = self._row_of(what)
            rows = np.array([row])
        self._hand_over_now()
        delay = self.options.negative_ack_redelivery_delay_ms if delay_ms is None else delay_ms
        return consumer.negative_acknowledge(part, rows, delay)

    async def _give_everything_back(self) -> None:
        self._receiving.forget_current()
        self.tell_partitions()
        await together(part.redeliver_all() for part in self.parts)
        self._receiving.forget_given_back()  # what another thread began to receive meanwhile was given back as well

    async def _confirm(self, parts: Collection[PartitionConsumer]) -> None:
        """Losses count as reported when everything has settled in time: a caller that gives up hears of none."""
        losses = [part.losses for part in parts]
        reported = [one.reported for one in losses]
        await together(part.settle() for part in parts)
        report_losses(losses, since=reported)

    def pause(self) -> None:
        """Ask for no more messages; those that were granted may still come."""
        for part in self.parts:
            self._loop.soon(part.pause)

    def resume(self) -> None:
        for part in self.parts:
            self._loop.soon(part.resume)

    async def _seek(self, to: MessageId | int) -> None:
        """Move the subscription, and wait until no message from before can be received any more."""
        words, partition = _sought(to)
        topics = self.topics()
        if isinstance(to, MessageId) and partition is not None and len(topics) != 1:
            topics = [await self._client.topic_of(to, topics)]
        sessions = [
            (part, part.session)
            for part in self.parts
            if part.session and part.topic in topics and (partition is None or part.partition == partition)
        ]
        client, subscription = self._client, self.options.subscription
        for part, session in sessions:
            part.sought = session

        async def move(topic: str) -> None:
            rows = await client.admin(topic, subscription, "seek", partition=partition, **words)
            self.goes_on = {number: parse(row["position"]) for number, row in enumerate(rows, partition or 0)}

        await together(move(topic) for topic in topics)
        await within(self._sessions_over(sessions), SEEK_S)

    async def _sessions_over(self, sessions: list[tuple[PartitionConsumer, int]]) -> None:
        while any(part.session == session for part, session in sessions):
            self._has_lost.clear()
            await self._has_lost.wait()

    @property
    def _client(self) -> Asking:
        if self.asking is None or self._closed:
            raise Fenced("the consumer is closed")
        return self.asking

    def _held(self) -> int:
        return 0 if self._closed else sum(part.held() for part in self.parts)

    def topic(self) -> str:
        """Return the name of the topic; of several topics all names with commas, and of a pattern its text."""
        return self.options.topic

    def topics(self) -> list[str]:
        """Return the names of the topics that are received from by now."""
        return list(dict.fromkeys(part.topic for part in self.parts))

    async def _last_message_ids(self) -> list[MessageId]:
        client = self._client
        of_each = await asyncio.gather(*(client.last_message_ids(topic) for topic in self.topics()))
        return [one for last in of_each for one in last]

    async def _delete_subscription(self, client: Asking) -> None:
        await together(client.delete_subscription(topic, self.subscription_name()) for topic in self.topics())

    def subscription_name(self) -> str:
        return self.options.subscription

    def consumer_name(self) -> str:
        """This consumer's name; several consumers may have the same."""
        return self.options.name

    def is_connected(self) -> bool:
        """Whether every partition has a session."""
        return not self._closed and all(part.session for part in self.parts)

    def _offering(self, to: str | None) -> Coroutine[Any, Any, None]:
        return together(part.handing_over.offer(to or self.options.name) for part in self.parts)

    def is_handed_over(self) -> bool:
        """Whether another consumer took over on every partition, and nothing is held here any more."""
        return all(part.handing_over.done for part in self.parts) and not self._held()

    async def _drain(self, drain_timeout_ms: int, *, for_good: bool) -> None:
        """Wait so long for what is held to be acknowledged, then leave."""
        self.tell_partitions()
        for part in self.parts:
            part.pause()
        waiting = [part for _, part in self._unread]
        for unseen in [
            *self._receiving.clear(),
            *waiting,
            *self._chunks.clear(),
        ]:  # nobody will see these: they go back with the rest
            unseen.close()
        self._unread.clear()
        deadline = time.monotonic() + drain_timeout_ms / 1000
        while drain_timeout_ms and self._held() and (left := deadline - time.monotonic()) > 0:
            self.tell_partitions()
            try:
                await within(together(part.settle() for part in self.parts), left)
            except SluiceError:  # not in time, or one has failed: more waiting changes nothing
                break
            await asyncio.sleep(DRAIN_LOOK_S)
        self._end()
        self.tell_partitions()
        await within(together(part.close(for_good=for_good) for part in self.parts), CLOSE_S)

    def _end(self) -> None:
        self._closed = True
        self._receiving.end(Fenced("the consumer is closed"))
        self._loop.soon(self._misses.set)

    def _left(self, *, for_good: bool) -> None:
        """Go on with leaving where the caller stopped waiting for it."""
        self._end()
        self._loop.soon(partial(self.leave, for_good=for_good))
        self._on_close(self)

    def _row_of(self, what: object) -> tuple[PartitionConsumer, Received, int]:
        if isinstance(what, Message):
            return self._partition_of(what.batch), what.batch.received, what.row
        if not isinstance(what, MessageId):
            raise Invalid(f"give a message, a batch or a message id, not {type(what).__name__}")
        with self._receiving.lock:  # nothing is taken back meanwhile
            for consumer in self.parts:  # no two topics have a ledger in common
                if consumer.partition == what.partition_index and (found := consumer.find(what.position)):
                    part, row = found
                    return consumer, *part.as_shown(row)
        raise NotFound(f"message {what} was not received here, or is done")

    def _partition_of(self, batch: Batch[Any]) -> PartitionConsumer:
        """Find the partition that received the batch. Raises NotFound: another consumer's partitions may be on another
        thread.
        """
        if batch.consumer not in self.parts and not batch.consumer.closing:  # else its topic was deleted
            raise NotFound("another consumer received this: acknowledge it, or give it back, there")
        return batch.consumer


def _sought(to: MessageId | int) -> tuple[dict[str, Any], int | None]:
    """The words of a seek, and its partition; None is all of them. Raises Invalid."""
    if isinstance(to, MessageId):
        if to in (MessageId.earliest, MessageId.latest):
            return {"message_id": "earliest" if to == MessageId.earliest else "latest"}, None
        return {"message_id": f"{to.ledger_id()}:{to.entry_id()}"}, to.partition_index
    if isinstance(to, int) and not isinstance(to, bool) and 0 <= to <= LAST_TIME:
        return {"time": to}, None
    raise Invalid(f"seek to a MessageId, or to a time in ms since 1970, not {to!r}")


def _checked(batch: Batch[Any], rows: ChosenRows | None) -> Rows | None:
    """Numbers of some of its rows, ascending, each once; None: all. Raises Invalid."""
    if rows is None:
        return None
    chosen = np.asarray(rows)
    numbers = chosen.ndim == 1 and (chosen.dtype.kind in "iu" or not chosen.size)
    if not numbers or (chosen.size and not 0 <= chosen.min() <= chosen.max() < len(batch)):
        raise Invalid(f"rows are an array of numbers of the batch's rows, 0 to {len(batch) - 1}")
    return ascending(chosen.astype(np.int64))


async def together(works: Iterable[Coroutine[Any, Any, object]]) -> None:
    """All partitions at once: what becomes durable for one does so for the others in the same write. Raises the first
    error when all have ended.
    """
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def single(last: list[MessageId]) -> MessageId:
    """The only one. Raises Invalid."""
    if len(last) > 1:
        raise Invalid(f"there are {len(last)} partitions, and each has a last message: get_last_message_ids")
    return last[0]


def refuse_cumulative() -> None:
    """Raise Invalid: several consumers share a subscription."""
    raise Invalid("cumulative acknowledgement is not possible on a shared subscription; acknowledge each message")
