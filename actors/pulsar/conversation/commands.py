"""A client's requests to the cluster: topics, producers, consumers, positions, schemas, statistics."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from typing import Any

from sluice.actors.messages import (
    ACCESS_MODES,
    FindTime,
    ListTopics,
    ReadEnds,
    RemoveSubscription,
    Seek,
    Stats,
    SubscriptionSettings,
)
from sluice.actors.ownership.names import check_name, namespace_of, quoted, unquoted
from sluice.actors.policies.authorization import Wish, of_space, of_topic
from sluice.actors.ports.wire import R, Request
from sluice.actors.producer.producer import Entrance
from sluice.actors.pulsar.codec.fields import UNSIGNED
from sluice.actors.pulsar.codec.protocol import ServerError
from sluice.actors.pulsar.conversation.client_session import ClientSession
from sluice.actors.pulsar.conversation.consuming.last_ids import id_before, place_of
from sluice.actors.pulsar.conversation.consuming.log_extent import ASK_MS, PATIENCE_MS
from sluice.actors.pulsar.conversation.consuming.wanted_consumer import (
    EXCLUSIVE,
    STICKY,
    WantedConsumer,
    check_subscribe,
    is_reader,
    wanted_consumer,
)
from sluice.actors.pulsar.conversation.consuming.wire_consumer import WireConsumer
from sluice.actors.pulsar.conversation.gateway.gateway import Certified, ClientIdentity, ConsumerHere
from sluice.actors.pulsar.conversation.limits.intake import MOST_TEXT
from sluice.actors.pulsar.conversation.producing.wire_producer import WireProducer
from sluice.actors.pulsar.refusals import CommandRefused, code_of
from sluice.actors.pulsar.topic_names import (
    TopicMaker,
    TopicPartition,
    find_partition,
    full_names,
    split_name,
    topics_in,
)
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import Conflict, Invalid, NotFound, SluiceError
from sluice.storage.format.position import EARLIEST, MAX_ENTRY, MAX_LEDGER, entry_of, ledger_of, position, show

SUCCESS, FAILED = 0, 1
CONNECT, LOOKUP_FAILED = 1, 2
LATEST = (1 << 63) - 1
NON_PERSISTENT = 1
BY_CERTIFICATE = "tls"
"""The method's name where a client is who its certificate says."""


class CommandHandlers:
    """The requests of one connection that need a question to another actor: one method for each command."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._gateway = session.gateway

    def refused(self, name: str, request: int, error: SluiceError) -> bool:
        """Answer where the protocol has an answer of its own for refusals; False where ERROR is the one."""
        code, text = code_of(error), str(error)[:MOST_TEXT]
        if name == "partition_metadata":
            answer = {"request_id": request, "response": FAILED, "error": code, "message": text}
            self._session.say("partition_metadata_answer", **answer)
        elif name == "lookup":
            self._session.say("lookup_answer", request_id=request, response=LOOKUP_FAILED, error=code, message=text)
        elif name in ("get_schema", "put_schema", "consumer_stats"):
            self._session.say(f"{name}_answer", request_id=request, error=code, message=text)
        else:
            return False
        return True

    # -- where things are -----------------------------------------------------------------------------------------

    async def connect(self, asked: Any) -> None:
        """CONNECT: identify the client."""
        identity: ClientIdentity | None = None
        if self._session.certified is not None and asked.auth_method_name == BY_CERTIFICATE:
            identity = self._session.certified
        elif self._gateway.authenticate is not None:
            try:
                identity = await self._gateway.authenticate(asked.auth_method_name, asked.auth_data)
            except Invalid as error:
                raise CommandRefused(ServerError.AUTHENTICATION, str(error)) from None
        if identity is None and self._gateway.access.permissions is not None:
            if not (role := self._gateway.access.anonymous):
                raise CommandRefused(ServerError.AUTHENTICATION, "this broker needs a client that it knows")
            identity = Certified(role)
        self._gateway.access.check_speaks_for_itself(asked.original_principal)
        self._session.greet(asked, identity)

    async def partition_metadata(self, asked: Any) -> None:
        """How many partitions a topic has: none of one that could be made. To ask does not make it, as with Pulsar."""
        count = 0
        topic, partition = split_name(asked.topic)
        await self._session.check(of_topic("either", topic, looks=not asked.allow_creation))
        if partition is not None:
            await find_partition(self._gateway.directory, asked.topic, create=None)
        else:
            try:
                settings = await self._gateway.directory.settings_now(topic)
                count = settings.partitions if settings.has_partitions else 0
            except NotFound:
                if not asked.allow_creation:
                    raise
                await self._gateway.namespaces.policies(namespace_of(topic)[0])
        self._session.say("partition_metadata_answer", request_id=asked.request_id, partitions=count, response=SUCCESS)

    async def lookup(self, asked: Any) -> None:
        """Answer that this broker serves the topic, whichever topic it is. The broker listens under no other name.

        A lookup makes no topic, as with Pulsar: a client that subscribes by a pattern looks deleted ones up.
        """
        if asked.listener:
            raise CommandRefused(ServerError.NOT_ALLOWED, f"the broker has no listener {asked.listener!r}")
        topic, partition = split_name(asked.topic)
        await self._session.check(of_topic("either", topic))
        try:
            await self._gateway.directory.settings(topic)
        except NotFound:
            if partition is not None:
                raise
            await self._gateway.namespaces.policies(namespace_of(topic)[0])
        urls = {"url": self._gateway.url, "url_tls": self._gateway.url_tls}
        known = {name: url for name, url in urls.items() if url}
        self._session.say("lookup_answer", request_id=asked.request_id, response=CONNECT, authoritative=True, **known)

    def _making(self, wanted: bool = True) -> TopicMaker | None:
        """Return a maker of missing topics, whose making is audited; None unless `wanted`."""
        made = partial(self._session.audit, "create topic")
        return TopicMaker(self._gateway.namespaces, made) if wanted else None

    async def topics_of(self, asked: Any) -> None:
        """The topics of a namespace, partitions by their names: none of one that there is not, as with Pulsar."""
        names: list[str] = []
        await self._session.check(of_space("consume", asked.namespace, looks=True))
        known = await self._gateway.directory.ask_controller(ListTopics())
        if asked.mode != NON_PERSISTENT:
            names = full_names(topics_in(asked.namespace, known.topics))
        self._session.say("topics_of_answer", request_id=asked.request_id, topics=names, filtered=False, changed=True)

    # -- producers ------------------------------------------------------------------------------------------------

    async def producer(self, asked: Any) -> None:
        """PRODUCER: one more on a partition."""
        wishes = _wishes_of_producer(asked)
        await self._session.check(*wishes)
        self._session.openings.check_closed("producer", asked)
        known = self._session.producers.get(asked.producer_id)
        if known is not None and known.ready:
            await self._produce(asked, known)
            return
        self._check_free(asked.producer_id)
        self._session.check_room("producers")
        tp = await find_partition(self._gateway.directory, asked.topic, create=self._making())
        await self._gateway.backlogs.check(tp.topic, tp.partition)
        await self._gateway.head_count.check_producer(tp)
        name = asked.producer_name or self._gateway.fresh("sluice")
        deduplicate = (await self._gateway.directory.settings(tp.topic)).deduplication_enabled
        _check_access(asked)
        waiting = {"request_id": asked.request_id, "producer_name": name, "producer_ready": False}
        entrance = Entrance(
            self._gateway.ports.me,
            ACCESS_MODES[asked.access_mode],
            asked.topic_epoch if asked.HasField("topic_epoch") else None,
            again=bool(asked.epoch) and not asked.user_provided_name,
            waits=partial(self._session.waits, **waiting),
        )
        self._check_free(asked.producer_id)
        self._session.openings.check("producer", asked)
        made = WireProducer(
            self._gateway, self._session, tp, asked.producer_id, name, entrance=entrance, deduplicate=deduplicate
        )
        self._session.add_producer(made, asked, entrance.access, wishes)
        try:
            await made.open()
            if self._session.closed:
                made.close()
                return
            if asked.initial_subscription:
                first = check_name("subscription", quoted(asked.initial_subscription))
                settings = SubscriptionSettings(type="shared", initial_position="earliest")
                await self._gateway.directory.dispatcher_again(tp.topic, tp.partition, first, settings)
            await self._session.check(*wishes)
            await self._produce(asked, made)
        except SluiceError:
            made.close()
            self._session.remove_producer(made)
            raise

    def _check_free(self, number: int) -> None:
        """Raise CommandRefused for the id of a producer that this connection has: none takes another's place."""
        if number in self._session.producers:
            raise _opening("producer")

    async def _produce(self, asked: Any, producer: WireProducer) -> None:
        version, own, topic = b"", {}, producer.tp.topic
        if producer.topic_epoch is not None:
            own = {"topic_epoch": producer.topic_epoch}
        if asked.HasField("schema"):
            version = await self._gateway.schemas.put(topic, asked.schema)
        else:
            await self._gateway.schemas.check_writer(topic)
        if producer.closed:
            raise CommandRefused(ServerError.SERVICE_NOT_READY, "the producer lost its place meanwhile; ask again")
        producer.announced = True
        self._session.say(
            "producer_success",
            request_id=asked.request_id,
            producer_name=producer.name,
            last_sequence_id=producer.last_sequence_id,
            schema_version=version,
            producer_ready=True,
            **own,
        )

    async def close_producer(self, asked: Any) -> None:
        """CLOSE_PRODUCER: after everything it sent has its receipt."""
        producer = self._session.producers.get(asked.producer_id)
        if producer is not None:
            await producer.flush()
            producer.close()
            self._session.remove_producer(producer)
        self._session.say("success", request_id=asked.request_id)

    # -- consumers ------------------------------------------------------------------------------------------------

    async def subscribe(self, asked: Any) -> None:
        """SUBSCRIBE: one more consumer, or a reader."""
        self._session.openings.check_closed("subscribe", asked)
        if (known := self._session.consumers.get(asked.consumer_id)) is not None:
            if known.opened:
                self._session.say("success", request_id=asked.request_id)
                return
            raise _opening("consumer")
        self._session.check_room("consumers")
        wish = of_topic("consume", split_name(asked.topic)[0], quoted(asked.subscription))
        await self._session.check(wish)
        check_subscribe(asked)
        tp = await find_partition(self._gateway.directory, asked.topic, create=self._making(asked.force_topic_creation))
        if asked.HasField("schema"):
            await self._gateway.schemas.check_reader(tp.topic, asked.schema)
        wanted = await self._wanted(asked, tp)
        await self._gateway.head_count.check_consumer(tp, asked.subscription)
        if wanted.start is not None and asked.type == EXCLUSIVE:
            await self._wait_alone(tp, wanted.subscription)
        await self._moved(tp, wanted.subscription)
        here = self._session
        if asked.consumer_id in here.consumers:
            raise _opening("consumer")
        here.openings.check("subscribe", asked)
        made = WireConsumer(self._gateway, tp, asked.consumer_id, wanted, here.consuming)
        self._session.add_consumer(made, asked, wish)
        made.epoch = asked.consumer_epoch if asked.HasField("consumer_epoch") else None
        try:
            await made.open()
            await self._session.check(wish)
        except SluiceError as error:
            self._session.remove_consumer(made)
            if made.opened:
                await made.close()
            if isinstance(error, Conflict | Invalid) and asked.key_shared.mode == STICKY:
                raise CommandRefused(ServerError.CONSUMER_ASSIGN, str(error)) from None
            raise
        if self._session.closed:
            await made.close()
        if made.closed:
            raise CommandRefused(
                ServerError.SERVICE_NOT_READY, "the consumer lost its place meanwhile; subscribe again"
            )
        self._session.seeks.arrived(asked.consumer_id, wanted.start)
        self._session.say("success", request_id=asked.request_id)
        made.subscribed()

    async def _wait_alone(self, tp: TopicPartition, name: str) -> None:
        """Readers of one name exclude each other at a gateway, as long as the earlier one's client lives."""

        def readers() -> list[ConsumerHere]:
            here = self._gateway.consumers.get((tp.topic, name), [])
            return [one for one in here if one.is_reader and not one.closed and one.tp.partition == tp.partition]

        while earlier := readers():
            if await earlier[0].answers():
                raise CommandRefused(ServerError.CONSUMER_BUSY, f"another reader named {name} is connected")

    async def _wanted(self, asked: Any, tp: TopicPartition) -> WantedConsumer:
        start = await self._start(asked, tp, quoted(asked.subscription)) if is_reader(asked) else None
        name = asked.consumer_name or self._gateway.fresh("consumer")
        return wanted_consumer(asked, name, start, self._session.role)

    async def _start(self, asked: Any, tp: TopicPartition, name: str) -> int:
        """Return the position at which a reader begins: after a seek there, else at its rollback time or start id, else
        at its initial position.
        """
        if (sought := self._session.seeks.start(asked.consumer_id, (tp.topic, tp.partition, name))) is not None:
            return sought
        if asked.start_rollback_seconds:
            since = max(self._gateway.ports.clock.now() - asked.start_rollback_seconds * 1000, 0)
            return (await self._ask_owner(tp, None, FindTime(time=since))).position
        if asked.HasField("start_message_id"):
            return await self._at(asked.start_message_id, tp)
        return EARLIEST if asked.initial_position == 1 else (await self._ask_owner(tp, None, ReadEnds())).next

    async def _at(self, one: Any, tp: TopicPartition) -> int:
        """The position of an id, earliest and latest included; of a batch its first row: clients skip by themselves.

        Its numbers have signs, though they travel without: -1 lies before the first ledger, and before every entry.
        """
        ledger, entry = (number - (number > LATEST) * (UNSIGNED + 1) for number in (one.ledger, one.entry))
        if ledger > MAX_LEDGER or entry == LATEST:
            return (await self._ask_owner(tp, None, ReadEnds())).next
        return position(ledger, min(max(entry, 0), MAX_ENTRY)) if ledger > 0 else EARLIEST

    async def _ask_owner(self, tp: TopicPartition, subscription: str | None, request: Request[R]) -> R:
        ask = partial(self._gateway.directory.ask_owner, timeout=ASK_MS, patience=PATIENCE_MS)
        return await ask(tp.topic, tp.partition, subscription, request)

    def _consumer(self, number: int) -> WireConsumer:
        found = self._session.consumers.get(number)
        if found is None:
            raise CommandRefused(ServerError.CONSUMER_NOT_FOUND, f"there is no consumer {number}")
        return found

    async def close_consumer(self, asked: Any) -> None:
        """CLOSE_CONSUMER: its acknowledgements are passed on, and then its messages go to the others."""
        self._session.seeks.discard(asked.consumer_id)
        consumer = self._session.consumers.get(asked.consumer_id)
        if consumer is not None:
            await consumer.looked_up()
            self._session.remove_consumer(consumer)
            await self._session.leave(consumer)
        self._session.say("success", request_id=asked.request_id)

    async def unsubscribe(self, asked: Any) -> None:
        """UNSUBSCRIBE: the last consumer of a subscription ends it, on every partition.

        Clients say this for one partition after the other; as long as others are connected here, it is only noted. Who
        else is attached to the partition, at whichever gateway, the subscription's owner knows.
        """
        consumer = self._consumer(asked.consumer_id)
        key = consumer.tp.topic, consumer.asked.subscription
        await self._session.check(of_topic("consume", *key))
        if not asked.force and not consumer.is_reader and (await self._stats(consumer))["consumersCount"] > 1:
            raise CommandRefused(ServerError.CONSUMER_BUSY, "other consumers are connected to the subscription")
        await consumer.close()
        self._session.remove_consumer(consumer)
        if not consumer.is_reader and not self._gateway.consumers.get(key):
            try:
                remove = RemoveSubscription(topic=key[0], subscription=key[1], force=asked.force)
                await self._gateway.directory.ask_controller(remove)
            except NotFound:
                pass
            except SluiceError as error:
                # Its client goes on with it, and is told that it has left, but not before it is told of the refusal.
                self._session.spawn(self._come_back(consumer), "unsubscribe")
                if isinstance(error, Invalid):
                    raise CommandRefused(ServerError.CONSUMER_BUSY, str(error)) from None
                raise
        self._session.say("success", request_id=asked.request_id)

    async def _come_back(self, consumer: WireConsumer) -> None:
        consumer.come_back()

    # -- positions ------------------------------------------------------------------------------------------------

    async def seek(self, asked: Any) -> None:
        """SEEK: every consumer of the partition is sent away, and comes back by itself."""
        consumer = self._consumer(asked.consumer_id)
        tp, name = consumer.tp, consumer.asked.subscription
        await self._session.check(of_topic("consume", tp.topic, name))
        if asked.HasField("publish_time"):
            found = await self._ask_owner(tp, None, FindTime(time=min(asked.publish_time, LATEST >> 16)))
            target = found.position
        elif asked.HasField("message_id"):
            target = await self._at(asked.message_id, tp)
        else:
            raise CommandRefused(ServerError.METADATA, "a seek names a message id or a time, and this one neither")
        if consumer.is_reader:
            self._session.seeks.remember(consumer.number, (tp.topic, tp.partition, name), target)
            self._session.send_away(consumer)
        else:
            await self._seek_all(tp, name, target)
        self._session.say("success", request_id=asked.request_id)

    async def _seek_all(self, tp: TopicPartition, subscription: str, target: int) -> None:
        """Consumers leave before the subscription moves, because the seek would wait for those that are sent away.

        They are told afterwards, and until then nobody subscribes.
        """
        await self._moved(tp, subscription)
        done = self._gateway.moving[tp.topic, tp.partition, subscription] = Signal()
        everyone = self._gateway.consumers.get((tp.topic, subscription), [])
        here = [other for other in everyone if other.tp.partition == tp.partition]
        try:
            for other in here:
                await other.close()
            await self._ask_owner(tp, subscription, Seek(message_id=show(target)))
        finally:
            del self._gateway.moving[tp.topic, tp.partition, subscription]
            done.set()
            for other in here:
                other.come_back()

    async def _moved(self, tp: TopicPartition, subscription: str) -> None:
        """Wait until no seek of the subscription is under way: another may begin as soon as one ends."""
        while (moving := self._gateway.moving.get((tp.topic, tp.partition, subscription))) is not None:
            await moving.wait(self._gateway.ports)

    async def get_last_id(self, asked: Any) -> None:
        """GET_LAST_MESSAGE_ID: of the last message, with its place in its batch; of none if that was deleted."""
        consumer = self._consumer(asked.consumer_id)
        ends = await self._ask_owner(consumer.tp, None, ReadEnds(compacted=consumer.asked.compacted))
        last: dict[str, int] = {"ledger": UNSIGNED, "entry": UNSIGNED, "batch_index": -1}
        if ends.compacted and ends.last >= 0:  # its messages come alone, whatever batch they came in
            last = {"ledger": ledger_of(ends.last), "entry": entry_of(ends.last), "batch_index": -1}
        elif (at := ends.last) >= max(ends.first, 0):
            with contextlib.suppress(NotFound):
                run = await consumer.payloads.run(ledger_of(at), entry_of(at), patience=PATIENCE_MS)
                last = {"ledger": ledger_of(at), **place_of(run, at)}
        answer = {"last": {**last, "partition": consumer.tp.wire_partition}}
        if consumer.asked.start is not None:
            answer["mark_delete"] = id_before(consumer.asked.start, ends, last)
        self._session.say("last_id_answer", request_id=asked.request_id, **answer)

    # -- schemas and statistics -----------------------------------------------------------------------------------

    async def get_schema(self, asked: Any) -> None:
        """GET_SCHEMA: a version, or the newest."""
        topic, _ = split_name(asked.topic)
        await self._session.check(of_topic("either", topic, looks=True))
        schema, version = await self._gateway.schemas.get(topic, asked.version)
        self._session.say("get_schema_answer", request_id=asked.request_id, schema=schema, version=version)

    async def put_schema(self, asked: Any) -> None:
        """GET_OR_CREATE_SCHEMA: the version of a schema."""
        topic, _ = split_name(asked.topic)
        await self._session.check(of_topic("produce", topic))
        version = await self._gateway.schemas.put(topic, asked.schema)
        self._session.say("put_schema_answer", request_id=asked.request_id, version=version)

    async def consumer_stats(self, asked: Any) -> None:
        """CONSUMER_STATS: what the broker knows of a consumer."""
        consumer = self._consumer(asked.consumer_id)
        answer = {} if consumer.is_reader else {"backlog": int((await self._stats(consumer))["msgBacklog"])}
        self._session.say(
            "consumer_stats_answer",
            request_id=asked.request_id,
            consumer_name=unquoted(consumer.asked.name),
            available_permits=max(consumer.permits, 0),
            unacked=consumer.unacknowledged(),
            blocked=consumer.blocked,
            address=self._session.link.peer,
            type=consumer.asked.settings.type.title(),
            **answer,
        )

    async def _stats(self, consumer: WireConsumer) -> dict[str, Any]:
        """Return the statistics of a consumer's subscription on its partition."""
        answer = await self._ask_owner(consumer.tp, consumer.asked.subscription, Stats())
        figures: dict[str, Any] = json.loads(answer.json)
        return figures


def _wishes_of_producer(asked: Any) -> list[Wish]:
    """Return the rights that a PRODUCER needs: to produce, and to consume if it makes an initial subscription too."""
    topic, _ = split_name(asked.topic)
    first = asked.initial_subscription
    return [of_topic("produce", topic), *([of_topic("consume", topic, quoted(first))] if first else [])]


def _opening(what: str) -> CommandRefused:
    """Return the answer to a repeated request for an id while the first one is carried out."""
    return CommandRefused(ServerError.SERVICE_NOT_READY, f"the {what} is being opened")


def _check_access(asked: Any) -> None:
    """Raise CommandRefused for an access mode that there is not."""
    if not 0 <= asked.access_mode < len(ACCESS_MODES):
        raise CommandRefused(ServerError.NOT_ALLOWED, f"there is no access mode {asked.access_mode}")
