"""The client of an asyncio program, and the core of the other one: topics, producers, consumers, questions.

`sluice.connect_async()` makes one in the loop of its caller. Nothing here blocks, and no thread is added.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar, Unpack, cast
from weakref import WeakValueDictionary

import msgspec

from sluice.actors.consumer.config import ConsumerCallbacks, ConsumerConfig
from sluice.actors.consumer.partition import PartitionConsumer
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import (
    AddPartitions,
    Compact,
    CreateTopic,
    DeleteSubscription,
    DescribeCluster,
    DrainNode,
    Erase,
    Event,
    Explain,
    ListSubscriptions,
    ListTopics,
    Offload,
    ReadEnds,
    RemoveSubscription,
    RemoveTopic,
    Stats,
    SubscriptionSettings,
    Terminate,
    TopicSettings,
    request_of,
    shown,
)
from sluice.actors.messages.settings import OF_MAKING
from sluice.actors.ownership.names import check_name
from sluice.actors.ports import Ports
from sluice.actors.ports.wire import Request
from sluice.actors.producer.producer import Entrance, PartitionProducer, ProducerConfig
from sluice.actors.producer.waves import Waves
from sluice.actors.runtime.waiting import CancellableWait
from sluice.cluster.base.loop import CLOSED, Home, NoReplyInTime, within
from sluice.cluster.base.own_process import OfThisProcess
from sluice.cluster.base.real import RealClock, StructuredLog, Tasks, TroubleLog, make_rng
from sluice.cluster.client.alarms import alarms_of
from sluice.cluster.client.async_consumer import AsyncConsumer
from sluice.cluster.client.async_producer import AsyncProducer
from sluice.cluster.client.chunk_joiner import divide
from sluice.cluster.client.consumer_core import ConsumerCore
from sluice.cluster.client.dead_letters import AsyncDeadLetters
from sluice.cluster.client.delayed import DelayedChanges, due_time
from sluice.cluster.client.message import MessageId
from sluice.cluster.client.options import ConsumerOptions, ProducerOptions, producer_options
from sluice.cluster.client.producer_core import ProducerCore
from sluice.cluster.client.reader import AsyncReader, reader_name, reading
from sluice.cluster.client.settings_input import (
    check_known,
    check_names,
    divided,
    wanted_settings,
    wanted_subscription,
)
from sluice.cluster.client.stored_messages import StoredMessages
from sluice.cluster.client.topic_pattern import TopicPattern, Topics, named_topics, shown_topics
from sluice.cluster.client.typed_settings import ConsumerSettings, DelayedChoice, ProducerSettings, TopicOptions
from sluice.cluster.client.typed_values import TypedValues, typed_values
from sluice.cluster.node.process_watch import this_process
from sluice.cluster.typed.codecs import SchemaType
from sluice.cluster.typed.variables import S, V
from sluice.cluster.wire.net import CONTROLLER, DirectNet
from sluice.storage.errors import Fenced, Invalid, NotFound, SluiceError, Unavailable
from sluice.storage.format.hashing import key_bytes, masked_hash
from sluice.storage.format.position import show

T = TypeVar("T")
OPEN_TIMEOUT = SUBSCRIBE_TIMEOUT = 120_000
OPERATION_TIMEOUT = 30_000
"""Milliseconds for which a question waits for a controller that does not answer, as Pulsar's clients do."""


F = TypeVar("F", bound=ProducerCore[Any] | ConsumerCore[Any])
P = TypeVar("P", bound=ProducerCore[Any])
C = TypeVar("C", bound=ConsumerCore[Any])


@dataclass(frozen=True, slots=True)
class Opening(Generic[F]):
    """A producer or a consumer that is about to be opened.

    begin: does the work. give_up: called on the loop whenever the caller does not get what was opened, so that it ends.
    """

    client: AsyncClient
    what: str
    timeout_ms: float | None
    begin: Callable[[], Coroutine[Any, Any, F]]
    give_up: Callable[[], object]

    async def open(self) -> F:
        """Return what was opened. Raises Unavailable that says why, if that is known, when it was not in time."""
        seconds = None if self.timeout_ms is None else self.timeout_ms / 1000
        try:
            return await self.client.until_closed(within(self.begin(), seconds))
        except BaseException as error:
            self.give_up()
            if not isinstance(error, NoReplyInTime):
                raise
            reasons = "; ".join(self.client.troubles()) or "nobody answers"
            raise Unavailable(f"{self.what} did not succeed within {seconds:g} s: {reasons}") from None


class AsyncClient(OfThisProcess, StoredMessages):
    """A connection to a cluster, in the event loop of its caller. Close it, or use it with `async with`.

    Client is the same for threads that block: it calls these methods in a loop of its own.
    """

    elsewhere = "another one calls sluice.connect_async() itself"
    inner = OfThisProcess.inner | {
        "ask_controller", "closed", "consumer_opening", "directory", "end", "home", "net", "opened", "payloads",
        "ports", "producer_opening", "tasks", "until_closed"
    }  # fmt: skip

    def __init__(
        self,
        home: Home,
        net: DirectNet,
        on_close: contextlib.AsyncExitStack | None = None,
        ports: Ports | None = None,
    ) -> None:
        """home: the loop that everything runs on. net: reaches the cluster. on_close: closed with the client.

        ports: of another world than the real one.
        """
        self.home, self.net = home, net
        self.tasks = Tasks("client", self._broken)
        self._on_close = on_close or contextlib.AsyncExitStack()
        me = f"client-{secrets.token_hex(4)}/client"
        self._log = TroubleLog(StructuredLog(me), RealClock())
        # A client has no stores and no disk: everything it wants it asks of the actors.
        self.ports = ports or Ports(
            me=me,
            clock=RealClock(),
            net=net,
            objects=None,  # type: ignore[arg-type]
            meta=None,  # type: ignore[arg-type]
            rng=make_rng(),
            spawn=self.tasks,
            log=self._log,
        )
        self.directory, self.waves = Directory(self.ports, CONTROLLER), Waves(self.ports)
        self.pulsar_service_url = ""
        """Where clients of Apache Pulsar connect to a cluster in this process; empty if it serves none."""
        self.opened: dict[int, ProducerCore[Any] | ConsumerCore[Any]] = {}
        self._producers: WeakValueDictionary[int, ProducerCore[Any]] = WeakValueDictionary()
        """Closed ones too, which may not have heard of all that they sent."""
        self._waits: dict[CancellableWait, None] = {}
        self.closed = False

    # -- topics ---------------------------------------------------------------------------------------------------

    async def create_topic(self, topic: str, partitions: int = 1, **settings: Unpack[TopicOptions]) -> None:
        """Create a topic; fine if it exists with the same settings. Settings: actors.messages.TopicSettings."""
        topic = check_name("topic", topic)
        wanted = wanted_settings({"partitions": partitions, **settings}, TopicSettings)
        await self._ask(CreateTopic(topic=topic, settings=wanted))

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """Give a partitioned topic so many partitions. Producers and consumers that are opened later use them all, and
        others from when they look for the owner of a partition again.
        """
        topic = check_name("topic", topic)
        await self._ask(AddPartitions(topic=topic, partitions=partitions))
        self.directory.invalidate(topic)

    async def terminate_topic(self, topic: str) -> list[str]:
        """Let a topic take no more messages, for good; returns the last id of each partition, "earliest" for none."""
        return [show(reply.last) for reply in await self._ask_owners(topic, None, Terminate())]

    async def offload(self, topic: str, keep_bytes: int = 0) -> list[dict[str, Any]]:
        """Let closed ledgers of a topic leave for the object store, until at most keep_bytes of each partition are on
        bookies alone. Returns at once what `offload_status` returns; nothing is `asked` any more when it is done.
        """
        return await self._of_partitions(topic, Offload(keep_bytes=keep_bytes))

    async def compact(self, topic: str) -> list[dict[str, Any]]:
        """Keep of each key of a topic the last message as a table, for readers of the compacted topic. Returns at once
        what `compaction_status` returns; nothing is `asked` any more when it is done.
        """
        return await self._of_partitions(topic, Compact(ask=True))

    async def erase(self, topic: str, key: str | bytes) -> list[dict[str, Any]]:
        """Forget the messages of a key that a topic has now, wherever they lie; each leaves an empty one at its place.
        Returns what `erase_status` returns as soon as it is durable; nothing is left of `keys` when all is done.
        """
        return await self._of_partitions(topic, Erase(key=key_bytes(key)))

    async def erase_status(self, topic: str) -> list[dict[str, Any]]:
        """How the erasing of keys stands in each partition; fields: actors.messages.EraseStatus."""
        return await self._of_partitions(topic, Erase())

    async def compaction_status(self, topic: str) -> list[dict[str, Any]]:
        """How the compaction of each partition stands; fields: actors.messages.CompactionStatus."""
        return await self._of_partitions(topic, Compact())

    async def offload_status(self, topic: str) -> list[dict[str, Any]]:
        """How the offloading of each partition stands; fields: actors.messages.OffloadStatus."""
        return await self._of_partitions(topic, Offload())

    async def _of_partitions(self, topic: str, request: Offload | Compact | Erase) -> list[dict[str, Any]]:
        replies = enumerate(await self._ask_owners(check_name("topic", topic), None, request))
        return [{"partition": partition, **msgspec.structs.asdict(reply)} for partition, reply in replies]

    async def topics(self) -> list[dict[str, Any]]:
        """Name and settings of every topic."""
        found = (await self._ask(ListTopics())).topics
        return [{"topic": name, **msgspec.to_builtins(settings)} for name, settings in found.items()]

    async def subscriptions(self, topic: str) -> list[str]:
        """Names of a topic's subscriptions."""
        return list((await self._ask(ListSubscriptions(topic=check_name("topic", topic)))).names)

    async def delete_topic(self, topic: str, force: bool = False) -> None:
        """Delete a topic and its messages; refused while it has subscriptions unless force."""
        await self._ask(RemoveTopic(topic=check_name("topic", topic), force=force))

    async def delete_subscription(self, topic: str, subscription: str, force: bool = False) -> None:
        """Delete a subscription and what it remembers; refused while consumers are connected unless force."""
        topic = check_name("topic", topic)
        await self._ask(RemoveSubscription(topic=topic, subscription=subscription, force=force))

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """The names of a topic's partitions."""
        topic = check_name("topic", topic)
        settings = await self.until_closed(self.directory.settings_within(topic, OPERATION_TIMEOUT, now=True))
        return [f"{topic}-partition-{partition}" for partition in range(settings.partitions)]

    # -- producers and consumers ----------------------------------------------------------------------------------

    async def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        *,
        schema: type[S] | None = None,
        schema_type: SchemaType = "json",
        **settings: Unpack[ProducerSettings],
    ) -> AsyncProducer[S]:
        """Open a producer. With a name, its sequences are remembered over restarts, and a newer producer of the same
        name fences this one. initial_sequence_id: number the rows from there, so that an identical repetition after a
        failure stores nothing twice; None goes on behind what is stored. compression: None, lz4 or zstd.
        send_timeout_millis: how long `send` waits for the confirmation, 0 without end.

        batching_*: of messages that are sent one by one, how many and how many bytes go out together at the most, and
        how long one may wait for others while the producer has messages in flight; with nothing in flight none waits.

        access_mode: `shared`, or one way to have the topic alone: `exclusive` is refused while another producer has it,
        `wait_for_exclusive` waits without end for its turn, and `exclusive_with_fencing` ends the others. A producer
        that lost the topic raises ProducerFenced. A producer that died has lost it after 10 s. Producers of Sluice's
        own that share a topic keep no other one out; from then on their messages are refused.

        hashing_scheme: how a key finds its partition, `murmur3_32_hash`, or `java_string_hash` as Pulsar's Java client
        has it by default. All producers of a topic should use the same, or a key has no order between them.

        schema: a dataclass, a msgspec.Struct or a pydantic model, whose objects are sent, in JSON or, with schema_type,
        in Avro. It is registered for the topic. Raises Invalid if it does not go with the schemas before it.
        """
        typed = typed_values(self, topic, schema, schema_type)
        return await self.producer_opening(AsyncProducer[S], topic, producer_name, settings, typed).open()

    def producer_opening(
        self,
        face: Callable[..., P],
        topic: str,
        name: str | None,
        settings: ProducerSettings,
        typed: TypedValues[Any] | None = None,
    ) -> Opening[P]:
        """Check what a producer is opened with. face: the class that its user sees. Raises Invalid."""
        check_names("setting", settings, ProducerSettings)
        topic = check_name("topic", topic)
        options = producer_options(topic, name or f"producer-{secrets.token_hex(8)}", **settings)
        parts: list[PartitionProducer] = []

        async def begin() -> P:
            max_delay_ms = await self._open_parts(parts, options)
            used = options if typed is None else replace(options, values=typed, pulsar=await typed.register())
            producer = face(
                self.home, self.ports, used, parts, max_delay_ms=max_delay_ms, on_close=self._forget,
                count_again=partial(self._open_parts, parts, options, attempts=0),
            )  # fmt: skip
            self.opened[id(producer)] = self._producers[id(producer)] = producer
            return producer

        def give_up() -> None:
            for part in parts:
                part.close()
                if options.access != "shared":
                    self.tasks(part.leave(), "leave")

        patience = None if options.access == "wait_for_exclusive" else OPEN_TIMEOUT
        return Opening(self, f"opening a producer on {topic}", patience, begin, give_up)

    async def _open_parts(self, parts: list[PartitionProducer], options: ProducerOptions, *, attempts: int = 20) -> int:
        """Let these be one producer for each partition; return the longest delay that the topic takes, ms.

        attempts: how often an owner that is being replaced is tried, 0 without end.
        """
        topic, incarnation = options.topic, self._fresh()
        settings = await self.directory.settings_within(topic, OPEN_TIMEOUT, now=True)
        for part in parts[settings.partitions :]:
            part.close()
        del parts[settings.partitions :]
        further = [
            PartitionProducer(
                self.ports,
                self.directory,
                ProducerConfig(
                    topic, partition, options.name, incarnation, options.compression, Entrance(access=options.access)
                ),
                waves=self.waves,
            )
            for partition in range(len(parts), settings.partitions)
        ]
        parts += further
        if options.access != "shared" and further:  # two that want all partitions begin at the same one
            await further[0].open(attempts=attempts)
        await asyncio.gather(*(part.open(attempts=attempts) for part in further if not part.session))
        for part in parts:
            part.divide_by(settings.partitions)
        return settings.max_delay_ms

    async def subscribe(
        self,
        topic: Topics,
        subscription_name: str,
        *,
        schema: type[V] | None = None,
        schema_type: SchemaType = "json",
        **settings: Unpack[ConsumerSettings],
    ) -> AsyncConsumer[V]:
        """Join a subscription, made at `initial_position` (latest or earliest) if it is new.

        topic: a name, a list of names, or a compiled pattern for whole names, as `re.compile("orders-.*")`; with a
        slash it is for full names. One consumer receives from all of them, each key of each topic in order. A topic
        that matches and is made later is joined at its first message; pattern_auto_discovery_period: seconds between
        two looks for such topics.

        receiver_queue_size: messages that may wait here, over all partitions; while 64 MiB of them wait, no more are
        fetched. key_shared_ranges: this consumer's hash ranges when selector is "sticky". priority_level: 0 is served
        first, where the type is shared or failover. read_compacted: of each key the last message alone, as far as the
        topic was compacted; of type exclusive or failover. timeout_ms: how long to try. consumer_name: by which it
        comes back, with `grace_ms` to its own hashes.
        Settings: actors.messages.SubscriptionSettings; a new subscription is Key_Shared by default. A subscription that
        is there keeps those that are not given, and changes the others while no consumer is connected (Conflict).
        Raises Unavailable with the reason.

        schema: the type of `message.value()`, see `create_producer`. Raises Invalid if it does not read the newest one.
        """
        typed = typed_values(self, topic, schema, schema_type)
        return await self.consumer_opening(AsyncConsumer[V], topic, subscription_name, settings, typed).open()

    def consumer_opening(
        self,
        face: Callable[..., C],
        topics: Topics,
        subscription_name: str,
        settings: ConsumerSettings,
        typed: TypedValues[Any] | None = None,
    ) -> Opening[C]:
        """Check what a consumer is opened with. face: the class that its user sees. Raises Invalid."""
        check_names("setting", settings, ConsumerSettings)
        named, topic = named_topics(topics), shown_topics(topics)
        check_name("subscription", subscription_name)
        own, kept = divided(settings)
        timeout_ms = settings.get("timeout_ms", SUBSCRIBE_TIMEOUT)
        wanted = wanted_subscription(kept, named, subscription_name, named=bool(own.get("consumer_name")))
        options = ConsumerOptions(
            topic=topic, subscription=subscription_name, by_pattern=not named, shared=wanted.type == "shared", **own
        )
        said = [setting for setting in kept if setting not in OF_MAKING]
        from_start = msgspec.structs.replace(wanted, initial_position="earliest")
        consumer = face(self.home, options, self._forget, typed)

        async def begin() -> C:
            if isinstance(topics, re.Pattern):
                pattern = TopicPattern(
                    topics, self.ports, self.directory.ask_controller,
                    lambda topic: self._join(consumer, [topic], from_start, said, timeout_ms),
                    int(options.pattern_auto_discovery_period * 1000),
                )  # fmt: skip
                matching = await pattern.matching(subscription_name, wanted)
                await self._join(consumer, matching, wanted, said, timeout_ms)
                self.tasks(pattern.follow(consumer, wanted), "pattern")
            else:
                if typed is not None:
                    await self.directory.settings_within(topic, timeout_ms or SUBSCRIBE_TIMEOUT, now=True)
                    await typed.check()
                await self._join(consumer, named, wanted, said, timeout_ms)
            consumer.asking = self
            self.opened[id(consumer)] = consumer
            return consumer

        return Opening(self, f"subscribing to {topic}", timeout_ms, begin, consumer.leave)

    async def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        *,
        start_message_id_inclusive: bool = False,
        receiver_queue_size: int = 1000,
        schema: type[V] | None = None,
        schema_type: SchemaType = "json",
    ) -> AsyncReader[V]:
        """Open a reader behind a message (with start_message_id_inclusive: at it), or at MessageId.earliest or latest.

        A message id says where its own partition begins; the others begin at their first message.
        """
        name = reader_name(self.ports)
        settings = reading(start_message_id, receiver_queue_size, name)
        consumer = await self.subscribe(topic, name, schema=schema, schema_type=schema_type, **settings)
        try:
            last = await self.last_message_ids(topic)
            if start_message_id.is_stored():
                await consumer.seek(start_message_id)
        except BaseException:
            await consumer.close(for_good=True)
            raise
        return AsyncReader(consumer, start_message_id, last, inclusive=start_message_id_inclusive)

    async def last_message_ids(self, topic: str) -> list[MessageId]:
        """Return the last stored message of each partition; its position is -1 where there is none."""
        ends = await self._ask_owners(topic, None, ReadEnds())
        return [MessageId(p, each.last if each.last >= each.first else -1) for p, each in enumerate(ends)]

    def _fresh(self) -> str:
        """Make up what no other client has."""
        return f"{self.ports.rng.randrange(1 << 64):016x}"

    async def topic_of(self, message: MessageId, topics: Sequence[str]) -> str:
        """Return which of these topics stores a message. Raises NotFound."""
        for topic in topics:
            if message.partition_index < await self._partitions(topic):
                asked = self.directory.ask_owner(topic, message.partition_index, None, ReadEnds())
                if message.ledger_id() in (await self.until_closed(asked)).last_entries():
                    return topic
        raise NotFound(f"no topic of {', '.join(topics) or 'none'} has message {message}")

    async def _join(
        self,
        consumer: ConsumerCore,
        topics: list[str],
        wanted: SubscriptionSettings,
        said: list[str],
        timeout_ms: int | None,
    ) -> None:
        """Let a consumer receive from these topics too, or from none of them."""
        among = len(topics) + len(consumer.topics())
        made = await asyncio.gather(
            *(self._parts_of(consumer, topic, wanted, said, timeout_ms, among) for topic in topics)
        )
        parts = [part for of_topic in made for part in of_topic]
        consumer.join(parts)
        opening = asyncio.gather(*(part.open() for part in parts), return_exceptions=True)
        # Whoever gives up does not end an attach that is under way: its answer names the session that is to be left.
        opened = await asyncio.shield(opening)
        failed = next((one for one in opened if isinstance(one, BaseException)), None)
        if failed is not None:
            await asyncio.gather(*(part.close() for part in parts if part.session))
            for topic in topics:
                consumer.drop_topic(topic)
            raise failed

    async def _parts_of(
        self,
        consumer: ConsumerCore,
        topic: str,
        wanted: SubscriptionSettings,
        said: list[str],
        timeout_ms: int | None,
        among: int,
    ) -> list[PartitionConsumer]:
        """The consumers of a topic's partitions, to be opened. among: topics that share the receiver queue."""
        options = consumer.options
        try:
            settings = await self.directory.join(topic, options.subscription, wanted, said)
        except Unavailable:
            settings = await self.directory.settings_within(topic, timeout_ms or SUBSCRIBE_TIMEOUT, now=True)
        incarnation = f"{options.name}-{self._fresh()}"
        parts: list[PartitionConsumer] = []

        def on_event(partition: int, event: Event) -> None:
            consumer.on_event(partition, event)
            if event.kind == "found":
                self.tasks(self._count_again(consumer, topic, parts, make), f"partitions-{topic}")

        callbacks = ConsumerCallbacks(
            on_received=consumer.receiver_of(parts),
            on_event=on_event,
            before_send=consumer.tell_partitions,
            taking_back=consumer.taking_back,
            divide=divide,
        )

        def make(partition: int, partitions: int) -> PartitionConsumer:
            config = ConsumerConfig(
                topic=topic, partition=partition, subscription=options.subscription, name=options.name,
                incarnation=incarnation, settings=wanted, said=said, ranges=options.key_shared_ranges or (),
                process=this_process(), priority=options.priority_level,
                queue_size=max(options.receiver_queue_size // (among * partitions), 1),
                keep_place=bool(options.consumer_name), read_compacted=options.read_compacted,
            )  # fmt: skip
            return PartitionConsumer(self.ports, self.directory, config, callbacks)

        parts += [make(partition, settings.partitions) for partition in range(settings.partitions)]
        return parts

    async def _count_again(
        self,
        consumer: ConsumerCore,
        topic: str,
        parts: list[PartitionConsumer],
        make: Callable[[int, int], PartitionConsumer],
    ) -> None:
        """Receive from the partitions that a topic has by now: it may have been deleted, and made again with another
        number. parts: of the topic, by their numbers.
        """
        try:
            count = (await self.directory.settings_now(topic)).partitions
        except SluiceError as error:  # the topic, or its owners, are looked for again, and found
            self.ports.log("partitions_unknown", topic=topic, error=str(error))
            return
        if id(consumer) not in self.opened or topic not in consumer.topics():
            return
        if count < len(parts):
            consumer.drop_topic(topic, count)
            del parts[count:]
            consumer.on_event(0, Event(kind="found"))  # those may have failed
        further = [make(partition, count) for partition in range(len(parts), count)]
        parts += further
        consumer.join(further)
        for part in further:
            part.converse()

    def dead_letters(self, topic: str, subscription: str) -> AsyncDeadLetters:
        """The dead letters of a subscription, to look at and to decide of, wherever they wait."""
        return AsyncDeadLetters(self, topic, subscription)

    # -- delayed messages -----------------------------------------------------------------------------------------

    async def cancel_delayed(
        self, topic: str, subscription: str | None = None, **chosen: Unpack[DelayedChoice]
    ) -> list[dict[str, Any]]:
        """Take delayed messages back: the subscription, or each one that the topic has now, does not get them.

        Choose by `message_id` or `delay_id` (one or many; of a message with a key also its `key`), else by a filter:
        `key`, `due_from` <= due time < `due_to` (ms), `before` (a message id), or `everything=True`. `dry_run=True`
        only says what would be done. Returns a row a subscription and partition, durable when it is told: counts, and
        for ids `cancelled`, `too late: delivered`, `too late: at consumer NAME` or `unknown`. Raises Invalid, NotFound,
        Unavailable: then some may be cancelled; ask again.
        """
        return await self._delays(topic, subscription, "cancel_delayed", chosen)

    async def reschedule_delayed(
        self,
        topic: str,
        subscription: str | None = None,
        *,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        **chosen: Unpack[DelayedChoice],
    ) -> list[dict[str, Any]]:
        """Give delayed messages another due time: `deliver_at` (ms since 1970), or `deliver_after` from now.

        Otherwise as `cancel_delayed`, with `rescheduled` and `too late: due`; Overloaded: a million wait already.
        """
        due = due_time(deliver_at, deliver_after, self.ports.clock.now())
        return await self._delays(topic, subscription, "reschedule_delayed", {**chosen, "deliver_at": due})

    async def _delays(
        self, topic: str, subscription: str | None, verb: str, chosen: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        topic = check_name("topic", topic)

        async def names() -> list[str]:
            return list((await self.directory.ask_controller(ListSubscriptions(topic=topic))).names)

        asked = DelayedChanges(self.directory, names).change(topic, subscription, verb, chosen)
        return await self.until_closed(asked)

    # -- questions ------------------------------------------------------------------------------------------------

    async def stats(self, topic: str, subscription: str | None = None) -> list[dict[str, Any]]:
        """Statistics of a topic, or of one subscription, a row a partition; Pulsar's names."""
        return [shown(reply) for reply in await self._ask_owners(topic, subscription, Stats())]

    async def admin(
        self, /, topic: str, subscription: str, verb: str, *, partition: int | None = None, **arguments: Any
    ) -> list[Any]:
        """Run an administrative verb of a subscription (`messages.VERBS`) on one partition, or on all of them.

        Raises Invalid for an argument that it does not have: what it was to limit would be done to everything.
        """
        request = request_of(verb, arguments)
        check_known(f"argument of {verb}", arguments, type(request))
        count = await self._partitions(topic)
        if isinstance(request, DeleteSubscription) and partition is None and not request.only_unused:
            # Not by its owners alone: the controller would find them gone, and knows what a lost answer means.
            await self.delete_subscription(topic, subscription, force=request.force)
            return [{"deleted": True}] * count
        if partition is not None:
            return [await self._ask_owner(topic, partition, subscription, request)]
        if count > 1 and arguments.get("message_id", "earliest") not in ("earliest", "latest"):
            raise Invalid(f"topic {topic} has {count} partitions; name the message's: LEDGER:ENTRY:PARTITION")
        return [shown(reply) for reply in await self._ask_owners(topic, subscription, request)]

    async def explain(
        self,
        topic: str,
        subscription: str,
        *,
        key: str | bytes | None = None,
        hash: int | None = None,
        message_id: MessageId | str | None = None,
    ) -> dict[str, Any]:
        """Why this key, hash or message is not being delivered, and what would unblock it. Give one of the three.

        hash is as the selector sees it (1 .. 65535); it is asked of every partition.
        """
        if sum(given is not None for given in (key, hash, message_id)) != 1:
            raise Invalid("explain needs exactly one of key, hash and message_id")
        if message_id is not None:
            at = MessageId.parse(message_id) if isinstance(message_id, str) else message_id
            return dict(await self._ask_owner(topic, at.partition_index, subscription, Explain(position=at.position)))
        encoded = None if key is None else key_bytes(key)
        if encoded is not None:
            home = masked_hash(encoded) % await self._partitions(topic)
            return dict(await self._ask_owner(topic, home, subscription, Explain(key=encoded)))
        return {
            "partitions": [shown(reply) for reply in await self._ask_owners(topic, subscription, Explain(hash=hash))]
        }

    async def status(self) -> dict[str, Any]:
        """The cluster's processes and actors, and where they run."""
        return dict(shown(await self._ask(DescribeCluster())))

    async def drain_node(self, node: str, *, keep_ledgers: bool = False) -> dict[str, Any]:
        """Begin to move everything away from a node; see messages.DrainNode and NodeDrain.

        node: the address of its machine, or its id. Raises NotFound, Invalid.
        """
        return msgspec.structs.asdict(await self._ask(DrainNode(node=node, keep_ledgers=keep_ledgers)))

    async def drain_status(self, node: str) -> dict[str, Any]:
        """How far that is; not `drained` any more if somebody lets the node be used again. Raises NotFound, Invalid."""
        return msgspec.structs.asdict(await self._ask(DrainNode(node=node, look=True)))

    async def uncordon_node(self, node: str) -> dict[str, Any]:
        """Use a node again that was drained. Raises NotFound, Invalid."""
        return msgspec.structs.asdict(await self._ask(DrainNode(node=node, withdrawn=True)))

    async def alarms(self) -> list[str]:
        """Return each alarm of the cluster as one line of text."""
        return alarms_of(await self.status())

    def troubles(self) -> list[str]:
        """Why something that this client waits for did not work when it was last tried, one line for each cause."""
        return self._log.troubles()

    async def _partitions(self, topic: str) -> int:
        asking = self.directory.settings_within(check_name("topic", topic), OPERATION_TIMEOUT)
        return (await self.until_closed(asking)).partitions

    async def _ask_owners(self, topic: str, subscription: str | None, request: Request[Any]) -> list[Any]:
        """The answers of the owners of all partitions, or of a subscription on them, which are asked at once.

        A topic that was made again may turn out to have another number: then all are asked once more.
        """

        async def ask(partitions: int) -> list[Any]:
            each = (self.directory.ask_owner(topic, p, subscription, request) for p in range(partitions))
            return await asyncio.gather(*each)

        topic = check_name("topic", topic)
        while True:
            partitions = await self._partitions(topic)
            try:
                answers = await self.until_closed(ask(partitions))
            except NotFound:
                if await self._partitions(topic) == partitions:
                    raise
            else:
                if await self._partitions(topic) == partitions or not request.repeatable:
                    return answers

    async def _ask_owner(self, topic: str, partition: int, subscription: str | None, request: Request[Any]) -> Any:
        """The answer of one of them, as plain values. Raises NotFound if there is no such partition."""
        topic = check_name("topic", topic)
        if not 0 <= partition < await self._partitions(topic):
            raise NotFound(f"topic {topic} has no partition {partition}")
        return shown(await self.until_closed(self.directory.ask_owner(topic, partition, subscription, request)))

    async def ask_controller(self, request: Request[Any], patience_ms: int = OPERATION_TIMEOUT) -> Any:
        """Ask the controller, for the parts of this package, and return its answer. Wait for a controller that is
        away.
        """
        return await self.until_closed(self.directory.ask_controller(request, patience=patience_ms))

    async def _ask(self, request: Request[Any]) -> Any:
        return await self.until_closed(self.directory.ask_controller(request))

    async def until_closed(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of some work, or raise its error; Fenced when the client is closed."""
        wait = CancellableWait()
        try:
            self.home.check_process()
            if self.closed:
                raise Fenced(CLOSED)
        except SluiceError:
            work.close()
            raise
        self._waits[wait] = None
        try:
            result = await wait.run(work)
        finally:
            del self._waits[wait]
        if result is None and self.closed:
            raise Fenced(CLOSED)
        return cast("T", result)

    # -- life -----------------------------------------------------------------------------------------------------

    def _forget(self, closed: ProducerCore[Any] | ConsumerCore[Any]) -> None:
        self.opened.pop(id(closed), None)

    def _broken(self, task: str, error: Exception) -> None:
        """A task has ended by a defect, and nothing begins it again: nobody waits on for what it did. Errors of the
        cluster are told where they are met.
        """
        if not isinstance(error, SluiceError):
            why = f"a defect in the client has ended this, open another one: {task}: {error!r}"
            for opened in list(self.opened.values()):
                opened.abandon(why)

    def end(self) -> None:
        """End what this client does in its loop: tasks, waits, messages that have no outcome, connections."""
        self.closed = True
        self.tasks.cancel_all()
        for producer in list(self._producers.values()):
            producer.abandon("the client was closed before this was confirmed")
        for wait in list(self._waits):
            wait.end()
        self.net.close()

    async def close(self) -> None:
        """Close every producer and consumer, then the connection. In a forked child they are its parent's, and stay.

        A close that was cancelled can be repeated, and goes on with the rest.
        """
        if self.closed or not self.home.is_here:
            return
        self.home.check_process()
        for opened in list(self.opened.values()):
            with contextlib.suppress(Exception):
                await cast("AsyncProducer[Any] | AsyncConsumer[Any]", opened).close()
        self.end()
        await self.tasks.ended()
        await self._on_close.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
