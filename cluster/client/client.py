"""The public client: topics, producers, consumers, questions. `sluice.connect()` makes one."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec
import numpy as np
import pyarrow as pa

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
    Explain,
    ListSubscriptions,
    ListTopics,
    Offload,
    RemoveSubscription,
    RemoveTopic,
    Stats,
    SubscriptionSettings,
    Terminate,
    TopicSettings,
    request_of,
    shown,
)
from sluice.actors.messages.limits import SEQUENCES
from sluice.actors.messages.settings import OF_MAKING
from sluice.actors.ownership.names import check_name
from sluice.actors.ports import Ports
from sluice.actors.ports.wire import Request
from sluice.actors.producer.outgoing import HASHING_SCHEMES, MURMUR3
from sluice.actors.producer.producer import PartitionProducer, ProducerConfig
from sluice.actors.producer.waves import Waves
from sluice.cluster.base.loop import LoopThread, NoReplyInTime
from sluice.cluster.base.own_process import OfThisProcess
from sluice.cluster.base.real import RealClock, StructuredLog, Tasks, TroubleLog, make_rng
from sluice.cluster.client.alarms import alarms_of
from sluice.cluster.client.consumer import Consumer, ConsumerOptions, RangesCallback
from sluice.cluster.client.delayed import DelayedChanges, due_time
from sluice.cluster.client.message import MessageId
from sluice.cluster.client.producer import Batching, Producer, ProducerOptions
from sluice.cluster.client.settings_input import (
    check_callback,
    check_known,
    check_timeout,
    check_whole,
    wanted_settings,
    wanted_subscription,
)
from sluice.cluster.client.stored_messages import StoredMessages
from sluice.cluster.node.process_watch import this_process
from sluice.cluster.wire.net import CONTROLLER, DirectNet
from sluice.storage.errors import Invalid, NotFound, Unavailable
from sluice.storage.format.batch import LAST_TIME, check_compression
from sluice.storage.format.hashing import key_bytes, masked_hash
from sluice.storage.format.position import MAX_ENTRY, MAX_LEDGER, position, show

T = TypeVar("T")
OPEN_TIMEOUT = SUBSCRIBE_TIMEOUT = 120_000
MOST_PRIORITY = MOST_QUEUED = (1 << 31) - 1
MAX_POSITION = position(MAX_LEDGER, MAX_ENTRY)
OPERATION_TIMEOUT = 30_000
"""Milliseconds for which a question waits for a controller that does not answer, as Pulsar's clients do."""


class Client(OfThisProcess, StoredMessages):
    """A connection to a cluster. Safe for threads; close it, or use it as a context manager."""

    elsewhere = "another one calls sluice.connect() itself"

    def __init__(
        self, on_close: contextlib.ExitStack | None = None, net: DirectNet | None = None, loop: LoopThread | None = None
    ) -> None:
        """on_close: closed with the client. net: reaches the cluster; Ray's by default.

        loop: an event loop to run on, which `close` does not end; by default one of its own.
        """
        # pyarrow imports pandas at its first conversion, a quarter of a second that the first message should not wait.
        pa.array(np.zeros(1))
        self._loop = loop or LoopThread("sluice-client")
        self._own_loop = loop is None
        self._cleanup = on_close or contextlib.ExitStack()
        self._tasks = Tasks("client")
        self._net = net or DirectNet()
        me = f"client-{secrets.token_hex(4)}/client"
        self._log = TroubleLog(StructuredLog(me), RealClock())
        # A client has no stores and no disk: everything it wants it asks of the actors.
        self._ports = Ports(
            me=me,
            clock=RealClock(),
            net=self._net,
            objects=None,  # type: ignore[arg-type]
            meta=None,  # type: ignore[arg-type]
            rng=make_rng(),
            spawn=self._tasks,
            log=self._log,
        )
        self._directory, self._waves = Directory(self._ports, CONTROLLER), Waves(self._ports)
        self.pulsar_service_url = ""
        """Where clients of Apache Pulsar connect to a cluster in this process; empty if it serves none."""
        self._open: dict[int, Producer | Consumer] = {}
        self._producers: WeakValueDictionary[int, Producer] = WeakValueDictionary()
        """Closed ones too, which may not have heard of all that they sent."""
        self._closed = False

    # -- topics ---------------------------------------------------------------------------------------------------

    def create_topic(self, topic: str, partitions: int = 1, **settings: Any) -> None:
        """Create a topic; fine if it exists with the same settings. Settings: actors.messages.TopicSettings."""
        topic = check_name("topic", topic)
        wanted = wanted_settings({"partitions": partitions, **settings}, TopicSettings)
        self._ask(CreateTopic(topic=topic, settings=wanted))

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Give a partitioned topic so many partitions. Producers and consumers that are opened later use them all."""
        topic = check_name("topic", topic)
        self._ask(AddPartitions(topic=topic, partitions=partitions))
        self._directory.forget(topic)

    def terminate_topic(self, topic: str) -> list[str]:
        """Let a topic take no more messages, for good; returns the last id of each partition, "earliest" for none."""
        return [show(reply.last) for reply in self._ask_owners(topic, None, Terminate())]

    def offload(self, topic: str, keep_bytes: int = 0) -> list[dict[str, Any]]:
        """Let closed ledgers of a topic leave for the object store, until at most keep_bytes of each partition are on
        bookies alone. Returns at once what `offload_status` returns; nothing is `asked` any more when it is done.
        """
        return self._of_partitions(topic, Offload(keep_bytes=keep_bytes))

    def compact(self, topic: str) -> list[dict[str, Any]]:
        """Keep of each key of a topic the last message as a table, for who reads it compacted. Returns at once what
        `compaction_status` returns; nothing is `asked` any more when it is done.
        """
        return self._of_partitions(topic, Compact(ask=True))

    def erase(self, topic: str, key: str | bytes) -> list[dict[str, Any]]:
        """Forget the messages of a key that a topic has now, wherever they lie; each leaves an empty one at its place.
        Returns what `erase_status` returns as soon as it is durable; nothing is left of `keys` when all is done.
        """
        return self._of_partitions(topic, Erase(key=key_bytes(key)))

    def erase_status(self, topic: str) -> list[dict[str, Any]]:
        """How the erasing of keys stands in each partition; fields: actors.messages.EraseStatus."""
        return self._of_partitions(topic, Erase())

    def compaction_status(self, topic: str) -> list[dict[str, Any]]:
        """How the compaction of each partition stands; fields: actors.messages.CompactionStatus."""
        return self._of_partitions(topic, Compact())

    def offload_status(self, topic: str) -> list[dict[str, Any]]:
        """How the offloading of each partition stands; fields: actors.messages.OffloadStatus."""
        return self._of_partitions(topic, Offload())

    def _of_partitions(self, topic: str, request: Offload | Compact | Erase) -> list[dict[str, Any]]:
        replies = enumerate(self._ask_owners(check_name("topic", topic), None, request))
        return [{"partition": partition, **msgspec.structs.asdict(reply)} for partition, reply in replies]

    def topics(self) -> list[dict[str, Any]]:
        """Name and settings of every topic."""
        found = self._ask(ListTopics()).topics
        return [{"topic": name, **msgspec.to_builtins(settings)} for name, settings in found.items()]

    def subscriptions(self, topic: str) -> list[str]:
        """Names of a topic's subscriptions."""
        return list(self._ask(ListSubscriptions(topic=check_name("topic", topic))).names)

    def delete_topic(self, topic: str, force: bool = False) -> None:
        """Delete a topic and its messages; refused while it has subscriptions unless force."""
        self._ask(RemoveTopic(topic=check_name("topic", topic), force=force))

    def delete_subscription(self, topic: str, subscription: str, force: bool = False) -> None:
        """Delete a subscription and what it remembers; refused while consumers are connected unless force."""
        topic = check_name("topic", topic)
        self._ask(RemoveSubscription(topic=topic, subscription=subscription, force=force))

    def get_topic_partitions(self, topic: str) -> list[str]:
        """The names of a topic's partitions."""
        topic = check_name("topic", topic)
        settings = self._loop.run(self._directory.settings_within(topic, OPERATION_TIMEOUT, now=True))
        return [f"{topic}-partition-{partition}" for partition in range(settings.partitions)]

    # -- producers and consumers ----------------------------------------------------------------------------------

    def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        *,
        initial_sequence_id: int | None = None,
        compression: str | None = None,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: int = 10,
        hashing_scheme: str = MURMUR3,
    ) -> Producer:
        """Open a producer. With a name, its sequences are remembered over restarts, and a newer producer of the same
        name fences this one. initial_sequence_id: number the rows from there, so that an identical repetition after a
        failure stores nothing twice; None goes on behind what is stored. compression: None, lz4 or zstd.

        batching_*: of messages that are sent one by one, how many and how many bytes go out together at the most, and
        how long one may wait for others while the producer has messages in flight; with nothing in flight none waits.

        hashing_scheme: how a key finds its partition, `murmur3_32_hash`, or `java_string_hash` as Pulsar's Java client
        has it by default. All producers of a topic should use the same, or a key has no order between them.
        """
        if hashing_scheme not in HASHING_SCHEMES:
            raise Invalid(f"hashing_scheme is {' or '.join(HASHING_SCHEMES)}, not {hashing_scheme!r}")
        if initial_sequence_id is not None:
            check_whole("initial_sequence_id", initial_sequence_id, 0, SEQUENCES - 1)
        check_compression(compression)
        topic = check_name("topic", topic)
        name = check_name("producer", producer_name or f"producer-{secrets.token_hex(8)}")
        options = ProducerOptions(
            topic=topic,
            name=name,
            initial_sequence_id=initial_sequence_id,
            compression=compression,
            batching=Batching(batching_max_messages, batching_max_allowed_size_in_bytes, batching_max_publish_delay_ms),
            hashing_scheme=hashing_scheme,
        )
        parts: list[PartitionProducer] = []
        work = self._create_producer(parts, options)

        def give_up() -> None:
            for part in parts:
                part.close()

        producer = self._open_within(work, OPEN_TIMEOUT, f"opening a producer on {topic}", give_up)
        self._remember(producer)
        self._producers[id(producer)] = producer
        return producer

    def _open_within(
        self, work: Coroutine[Any, Any, T], timeout_ms: int, what: str, give_up: Callable[[], object]
    ) -> T:
        """Run it. Raises Unavailable that says why, if that is known, when it did not end in time.

        give_up: called on the loop's thread whenever the caller does not get what was opened, so that it ends.
        """
        try:
            return self._loop.run(work, timeout_ms / 1000)
        except BaseException as error:
            self._loop.soon(give_up)
            if not isinstance(error, NoReplyInTime):
                raise
            reasons = "; ".join(self.troubles()) or "nobody answers"
            raise Unavailable(f"{what} did not succeed within {timeout_ms / 1000:g} s: {reasons}") from None

    async def _create_producer(self, parts: list[PartitionProducer], options: ProducerOptions) -> Producer:
        topic = options.topic
        settings = await self._directory.settings_within(topic, OPEN_TIMEOUT, now=True)
        incarnation = secrets.token_hex(8)
        parts += [
            PartitionProducer(
                self._ports,
                self._directory,
                ProducerConfig(topic, partition, options.name, incarnation, options.compression),
                waves=self._waves,
            )
            for partition in range(settings.partitions)
        ]
        await asyncio.gather(*(part.open() for part in parts))
        return Producer(
            self._loop,
            self._ports,
            options,
            parts,
            max_delay_ms=settings.max_delay_ms,
            on_close=self._forget,
        )

    def subscribe(
        self,
        topic: str,
        subscription_name: str,
        *,
        consumer_name: str | None = None,
        receiver_queue_size: int = 1000,
        key_shared_ranges: list[tuple[int, int]] | None = None,
        priority_level: int = 0,
        read_compacted: bool = False,
        negative_ack_redelivery_delay_ms: int = 60_000,
        on_ranges: RangesCallback | None = None,
        timeout_ms: int = SUBSCRIBE_TIMEOUT,
        **settings: Any,
    ) -> Consumer:
        """Join a subscription, made at `initial_position` (latest or earliest) if it is new.

        receiver_queue_size: messages that may wait here, over all partitions; while 64 MiB of them wait, no more are
        fetched. key_shared_ranges: this consumer's hash ranges when selector is "sticky". priority_level: 0 is served
        first, where the type is shared or failover. read_compacted: of each key the last message alone, as far as the
        topic was compacted; of type exclusive or failover. timeout_ms: how long to try. consumer_name: by which it
        comes back, with `grace_ms` to its own hashes.
        Settings: actors.messages.SubscriptionSettings; a new subscription is Key_Shared by default. A subscription that
        is there keeps those that are not given, and changes the others while no consumer is connected (Conflict).
        Raises Unavailable with the reason.
        """
        topic = check_name("topic", topic)
        check_name("subscription", subscription_name)
        check_whole("receiver_queue_size", receiver_queue_size, 1, MOST_QUEUED)
        check_whole("priority_level", priority_level, 0, MOST_PRIORITY)
        check_whole("negative_ack_redelivery_delay_ms", negative_ack_redelivery_delay_ms, 0, LAST_TIME)
        check_timeout("timeout_ms", timeout_ms)
        check_callback("on_ranges", on_ranges)
        if not isinstance(consumer_name, str | None):
            raise Invalid(f"consumer_name is text, not {consumer_name!r}")
        name = consumer_name or f"consumer-{secrets.token_hex(4)}"
        wanted = wanted_subscription(settings, topic, subscription_name, named=bool(consumer_name))
        consumer = Consumer(
            self._loop,
            ConsumerOptions(
                topic=topic,
                subscription=subscription_name,
                name=name,
                named=bool(consumer_name),
                queue_size=receiver_queue_size,
                ranges=key_shared_ranges or (),
                priority=priority_level,
                read_compacted=read_compacted,
                negative_ack_redelivery_delay_ms=negative_ack_redelivery_delay_ms,
                on_ranges=on_ranges,
            ),
            self._forget,
        )
        said = [setting for setting in settings if setting not in OF_MAKING]
        work = self._subscribe(consumer, wanted, said, timeout_ms)

        self._open_within(work, timeout_ms, f"subscribing to {topic}", consumer.leave)
        self._remember(consumer)
        return consumer

    async def _subscribe(
        self, consumer: Consumer, wanted: SubscriptionSettings, said: list[str], timeout_ms: int
    ) -> None:
        options = consumer.options
        topic = options.topic
        try:
            settings = await self._directory.join(topic, options.subscription, wanted, said)
        except Unavailable:
            settings = await self._directory.settings_within(topic, timeout_ms, now=True)
        incarnation = f"{options.name}-{secrets.token_hex(8)}"
        callbacks = ConsumerCallbacks(
            on_received=consumer.received,
            on_event=consumer.on_event,
            before_send=consumer.tell_partitions,
            taking_back=consumer.taking_back,
        )
        consumer.parts = [
            PartitionConsumer(
                self._ports,
                self._directory,
                ConsumerConfig(
                    topic=topic,
                    partition=partition,
                    subscription=options.subscription,
                    name=options.name,
                    incarnation=incarnation,
                    settings=wanted,
                    said=said,
                    queue_size=max(options.queue_size // settings.partitions, 1),
                    ranges=options.ranges,
                    process=this_process(),
                    priority=options.priority,
                    keep_place=options.named,
                    read_compacted=options.read_compacted,
                ),
                callbacks,
            )
            for partition in range(settings.partitions)
        ]
        opening = asyncio.gather(*(part.open() for part in consumer.parts), return_exceptions=True)
        # Whoever gives up does not end an attach that is under way: its answer names the session that is to be left.
        opened = await asyncio.shield(opening)
        failed = next((one for one in opened if isinstance(one, BaseException)), None)
        if failed is not None:
            await asyncio.gather(*(part.close() for part in consumer.parts if part.session))
            raise failed

    def owners(self) -> tuple[LoopThread, Ports, Directory]:
        """Return what asks the owners of partitions: the loop's thread, its ports, the directory of addresses."""
        return self._loop, self._ports, self._directory

    # -- the log itself: see StoredMessages -------------------------------------------------------------------------

    # -- delayed messages -----------------------------------------------------------------------------------------

    def cancel_delayed(self, topic: str, subscription: str | None = None, **chosen: Any) -> list[dict[str, Any]]:
        """Take delayed messages back: the subscription, or each one that the topic has now, does not get them.

        Choose by `message_id` or `delay_id` (one or many; of a message with a key also its `key`), else by a filter:
        `key`, `due_from` <= due time < `due_to` (ms), `before` (a message id), or `everything=True`. `dry_run=True`
        only says what would be done. Returns a row a subscription and partition, durable when it is told: counts, and
        for ids `cancelled`, `too late: delivered`, `too late: at consumer NAME` or `unknown`. Raises Invalid, NotFound,
        Unavailable: then some may be cancelled; ask again.
        """
        return self._delays(topic, subscription, "cancel_delayed", chosen)

    def reschedule_delayed(
        self,
        topic: str,
        subscription: str | None = None,
        *,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        **chosen: Any,
    ) -> list[dict[str, Any]]:
        """Give delayed messages another due time: `deliver_at` (ms since 1970), or `deliver_after` from now.

        Otherwise as `cancel_delayed`, with `rescheduled` and `too late: due`; Overloaded: a million wait already.
        """
        due = due_time(deliver_at, deliver_after, self._ports.clock.now())
        return self._delays(topic, subscription, "reschedule_delayed", {**chosen, "deliver_at": due})

    def _delays(self, topic: str, subscription: str | None, verb: str, chosen: dict[str, Any]) -> list[dict[str, Any]]:
        topic = check_name("topic", topic)

        async def names() -> list[str]:
            return list((await self._directory.ask_controller(ListSubscriptions(topic=topic))).names)

        asked = DelayedChanges(self._directory, names).change(topic, subscription, verb, chosen)
        return self._loop.run(asked)

    # -- questions ------------------------------------------------------------------------------------------------

    def stats(self, topic: str, subscription: str | None = None) -> list[dict[str, Any]]:
        """Statistics of a topic, or of one subscription, a row a partition; Pulsar's names."""
        return [shown(reply) for reply in self._ask_owners(topic, subscription, Stats())]

    def admin(
        self, topic: str, subscription: str, verb: str, *, partition: int | None = None, **arguments: Any
    ) -> list[Any]:
        """Run an administrative verb of a subscription (`messages.VERBS`) on one partition, or on all of them.

        Raises Invalid for an argument that it does not have: what it was to limit would be done to everything.
        """
        request = request_of(verb, arguments)
        check_known(f"argument of {verb}", arguments, type(request))
        count = self._partitions(topic)
        if isinstance(request, DeleteSubscription) and partition is None and not request.only_unused:
            # Not by its owners alone: the controller would find them gone, and knows what a lost answer means.
            self.delete_subscription(topic, subscription, force=request.force)
            return [{"deleted": True}] * count
        if partition is not None:
            return [self._ask_owner(topic, partition, subscription, request)]
        if count > 1 and arguments.get("message_id", "earliest") not in ("earliest", "latest"):
            raise Invalid(f"topic {topic} has {count} partitions; name the message's: LEDGER:ENTRY:PARTITION")
        return [shown(reply) for reply in self._ask_owners(topic, subscription, request)]

    def explain(
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
            return dict(self._ask_owner(topic, at.partition_index, subscription, Explain(position=at.position)))
        encoded = None if key is None else key_bytes(key)
        if encoded is not None:
            home = masked_hash(encoded) % self._partitions(topic)
            return dict(self._ask_owner(topic, home, subscription, Explain(key=encoded)))
        return {"partitions": [shown(reply) for reply in self._ask_owners(topic, subscription, Explain(hash=hash))]}

    def status(self) -> dict[str, Any]:
        """The cluster's processes and actors, and where they run."""
        return dict(shown(self._ask(DescribeCluster())))

    def drain_node(self, node: str, *, keep_ledgers: bool = False) -> dict[str, Any]:
        """Begin to move everything away from a node; see messages.DrainNode and NodeDrain.

        node: the address of its machine, or its id. Raises NotFound, Invalid.
        """
        return msgspec.structs.asdict(self._ask(DrainNode(node=node, keep_ledgers=keep_ledgers)))

    def drain_status(self, node: str) -> dict[str, Any]:
        """How far that is; not `drained` any more if somebody lets the node be used again. Raises NotFound, Invalid."""
        return msgspec.structs.asdict(self._ask(DrainNode(node=node, look=True)))

    def uncordon_node(self, node: str) -> dict[str, Any]:
        """Use a node again that was drained. Raises NotFound, Invalid."""
        return msgspec.structs.asdict(self._ask(DrainNode(node=node, withdrawn=True)))

    def alarms(self) -> list[str]:
        """Return each alarm of the cluster as one line of text."""
        return alarms_of(self.status())

    def troubles(self) -> list[str]:
        """Why something that this client waits for did not work when it was last tried, one line for each cause."""
        return self._log.troubles()

    def _partitions(self, topic: str) -> int:
        return self._loop.run(self._directory.settings_within(check_name("topic", topic), OPERATION_TIMEOUT)).partitions

    def _ask_owners(self, topic: str, subscription: str | None, request: Request[Any]) -> list[Any]:
        """The answers of the owners of all partitions, or of a subscription on them, which are asked at once."""

        async def ask(partitions: int) -> list[Any]:
            each = (self._directory.ask_owner(topic, p, subscription, request) for p in range(partitions))
            return await asyncio.gather(*each)

        topic = check_name("topic", topic)
        return self._loop.run(ask(self._partitions(topic)))

    def _ask_owner(self, topic: str, partition: int, subscription: str | None, request: Request[Any]) -> Any:
        """The answer of one of them, as plain values. Raises NotFound if there is no such partition."""
        topic = check_name("topic", topic)
        if not 0 <= partition < self._partitions(topic):
            raise NotFound(f"topic {topic} has no partition {partition}")
        return shown(self._loop.run(self._directory.ask_owner(topic, partition, subscription, request)))

    def ask_controller(self, request: Request[Any], patience_ms: int = OPERATION_TIMEOUT) -> Any:
        """Ask the controller, for the parts of this package, and return its answer. Wait for a controller that is
        away.
        """
        return self._loop.run(self._directory.ask_controller(request, patience=patience_ms))

    def _ask(self, request: Request[Any]) -> Any:
        return self._loop.run(self._directory.ask_controller(request))

    # -- life -----------------------------------------------------------------------------------------------------

    def _remember(self, opened: Producer | Consumer) -> None:
        self._open[id(opened)] = opened

    def _forget(self, closed: Producer | Consumer) -> None:
        self._open.pop(id(closed), None)

    def close(self) -> None:
        """Close every producer and consumer, then the connection. In a forked child they are its parent's, and stay.

        A close that was interrupted can be repeated, and goes on with the rest.
        """
        if self._closed or not self._loop.is_here:
            return
        self._loop.check_thread()
        self._closed = True
        try:
            for opened in list(self._open.values()):
                with contextlib.suppress(Exception):
                    opened.close()
            self._loop.soon(self._tasks.cancel_all)
            for reference in self._producers.valuerefs():  # a list, whatever other threads open meanwhile
                if (producer := reference()) is not None:
                    self._loop.soon(producer.abandon)
            self._loop.soon(self._net.close)
            if self._own_loop:
                self._loop.stop()
            self._cleanup.close()
        except BaseException:
            self._closed = False
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
