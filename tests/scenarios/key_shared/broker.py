"""A small broker for scenarios: controller, one bookie, topic, dispatcher, and consumers that do as they are told.

While it runs it checks two promises of every scenario: a key with open messages is at one consumer, and the first
deliveries of a key rise.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from sluice.actors.bookie import Bookie
from sluice.actors.consumer.config import ConsumerCallbacks, ConsumerConfig
from sluice.actors.consumer.partition import PartitionConsumer
from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.controller.controller import Controller
from sluice.actors.controller.factories import make_dispatcher, make_topic
from sluice.actors.delayed.shared import SharedIndexes
from sluice.actors.dispatcher import Dispatcher
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import (
    Configure,
    CreateTopic,
    Event,
    Stats,
    SubscriptionSettings,
    TopicSettings,
    request_of,
    shown,
)
from sluice.actors.ports import SHARED_FROM, Address, Ports, Unknown
from sluice.actors.ports.wire import Reply, Request
from sluice.actors.producer.batches import Outgoing, split
from sluice.actors.producer.producer import PartitionProducer, ProducerConfig
from sluice.actors.topic.topic import Topic
from sluice.cluster.launch.topic_rooms import topic_resources
from sluice.storage.errors import SluiceError
from sluice.storage.format.batch import make_batch
from tests.sim.world import Process, World
from tests.sim.worlds.ledger import BOOKIE

R = TypeVar("R", bound=Reply)

TOPIC, SUBSCRIPTION, CONTROLLER = "orders", "billing", "controller/controller"
KEYS = [str(key) for key in range(300)]


@dataclass(eq=False)
class Message:
    """A delivered message. number: how many of its key were published before it."""

    key: str
    number: int
    position: int
    again: int
    part: Received
    row: int
    done: bool = False


class Client:
    """A consumer on all partitions. acking: acknowledges at once. taking: empties its queue, so permits come back."""

    subscription, read_compacted = SUBSCRIPTION, False

    def __init__(self, broker: Broker, name: str, called: str, queue: int, *, acking: bool, taking: bool) -> None:
        self.broker, self.name, self.acking, self.taking = broker, name, acking, taking
        self.ports = broker.world.client(name)
        self.directory = Directory(self.ports, CONTROLLER)
        self.got: list[Message] = []
        self.events: list[Event] = []
        self.gone = False
        self._called, self._queue = called, queue
        self.parts: list[PartitionConsumer] = []

    async def open(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Attach to every partition. Raises the dispatcher's refusal."""
        for partition in range(self.broker.partitions):
            part = PartitionConsumer(
                self.ports,
                self.directory,
                ConsumerConfig(
                    topic=TOPIC,
                    partition=partition,
                    subscription=self.subscription,
                    name=self._called,
                    incarnation=self.name,
                    settings=self.broker.settings_of(self.subscription),
                    queue_size=self._queue,
                    ranges=ranges,
                    read_compacted=self.read_compacted,
                ),
                ConsumerCallbacks(on_received=self._received, on_event=lambda _, event: self.events.append(event)),
            )
            self.parts.append(part)
            await part.open()

    def came(self) -> list[str]:
        """Return the keys of the messages that came, in order."""
        return [message.key for message in self.got]

    def held(self) -> list[Message]:
        """Return the messages that came, are not done, and may still belong to this client."""
        if self.gone or any(part.lease_over() for part in self.parts):
            return []
        return [message for message in self.got if not message.done and not message.part.revoked]

    def ack(self, *messages: Message, through: Client | None = None) -> None:
        """Acknowledge messages, or all without an argument, at times through another consumer."""
        for message in messages or self.held():
            message.done = True
            message.part.open[message.row] = True
            (through or self).parts[message.part.partition].acknowledge(message.part, np.array([message.row]))

    async def nack(self, *messages: Message, delay: int = 0) -> None:
        """Give messages back."""
        for message in messages:
            message.done = True
            part = self.parts[message.part.partition]
            await part.negative_acknowledge(message.part, np.array([message.row]), delay)

    async def redeliver_all(self) -> None:
        """Give back everything, as an acknowledgement timeout does."""
        for message in self.held():
            message.done = True
        for part in self.parts:
            await part.redeliver_all()

    async def close(self) -> None:
        """Detach and close."""
        self.gone = True
        for part in self.parts:
            await part.close()
        self.broker.world.stop(self.ports.me)

    def crash(self) -> None:
        """End without a word."""
        self.gone = True
        self.broker.world.crash(self.name)

    def _received(self, part: Received) -> None:
        came = []
        for row, columns in enumerate(part.rows.to_pylist()):
            number = int(columns["payload"])
            key = f"-{number}" if columns["key"] is None else columns["key"].decode()
            came.append(Message(key, number, int(part.positions[row]), int(part.redeliveries[row]), part, row))
        self.broker.watch(self, came)
        self.got += came
        if self.taking:
            self.parts[part.partition].taken(part)
        if self.acking:
            self.ack(*came)


class Broker:
    """The broker of the module's docstring.

    calls: how often each kind of request was made. reads: when index columns were asked for.
    """

    def __init__(
        self,
        world: World,
        partitions: int,
        settings: SubscriptionSettings,
        topic: dict[str, Any] | None = None,
        close_idle_after_ms: int = 0,
    ) -> None:
        self.world, self.partitions, self.settings = world, partitions, settings
        self.topic = TopicSettings(partitions=partitions, ensemble=1, write_quorum=1, ack_quorum=1, **topic or {})
        self.shared, self._close_idle_after_ms = SharedIndexes(), close_idle_after_ms
        self.clients: dict[str, Client] = {}
        self.calls: Counter[str] = Counter()
        self.reads: list[int] = []
        self._numbers: Counter[str] = Counter()
        self._first: dict[str, int] = {}
        self._seen: dict[int, None] = {}
        self._sequences = [0] * partitions
        self._producers: list[PartitionProducer] = []
        world.witness = self._witness

    async def open(self) -> None:
        """Start everything. The subscription exists before the first message."""
        kinds = self.world.kinds
        kinds["bookie"] = (lambda ports, s: Bookie(ports, bookie_id=s["bookie"], settings=BOOKIE), _disk, _disk)
        kinds["topic"] = (self._topic, lambda settings: "broker", lambda settings: None)
        kinds["dispatcher"] = (self._dispatcher, lambda settings: "broker", lambda settings: None)
        await self.world.start("controller", self._controller, fixed=True)
        self.ports = self.world.client("admin")
        self.directory = Directory(self.ports, CONTROLLER)
        created = await self.ports.net.call(CONTROLLER, CreateTopic(topic=TOPIC, settings=self.topic), 10_000)
        assert not isinstance(created, Unknown)
        for partition in range(self.partitions):
            await self.address(partition)
            producer = PartitionProducer(
                self.ports, self.directory, ProducerConfig(TOPIC, partition, "producer", "producer-1")
            )
            await producer.open()
            self._producers.append(producer)

    async def ask(self, request: Request[R], partition: int = 0, subscription: str = SUBSCRIPTION) -> R:
        """Return the answer of the dispatcher, or of its successor."""
        for _ in range(5):
            address = await self.address(partition, subscription)
            reply = await self.ports.net.call(address, request, 5_000)
            if not isinstance(reply, Unknown):
                return reply
            await self.directory.suspect(address)
        raise AssertionError(f"no dispatcher of {subscription} answers")

    def settings_of(self, subscription: str) -> SubscriptionSettings:
        """Return the settings of a subscription."""
        return self.settings

    async def address(self, partition: int = 0, subscription: str = SUBSCRIPTION) -> Address:
        """Return the dispatcher's address. Another subscription's is found whatever settings its creator asked for."""
        find = self.directory.dispatcher if subscription == SUBSCRIPTION else self.directory.dispatcher_again
        return await find(TOPIC, partition, subscription, self.settings_of(subscription))

    async def publish(self, *keys: str | None, ordering: Sequence[str] = (), delay: int | Sequence[int] = 0) -> None:
        """Publish one message a key, and wait for the confirmations. delay: ms, of all or of each."""
        assert not await self.offer(*keys, ordering=ordering, delay=delay)

    async def offer(
        self, *keys: str | None, ordering: Sequence[str] = (), delay: int | Sequence[int] = 0
    ) -> list[SluiceError]:
        """Publish, and return the refusals."""
        columns: dict[str, Any] = {"key": pa.array(keys, pa.string()), "payload": []}
        for key in keys:
            columns["payload"].append(str(self._numbers[str(key)]))
            self._numbers[str(key)] += 1
        if ordering:
            columns["ordering_key"] = list(ordering)
        now = self.ports.clock.now()
        if delay:
            delays = [delay] * len(keys) if isinstance(delay, int) else delay
            columns["deliver_at"] = pa.array([now + wait if wait else 0 for wait in delays], pa.int64())
        batch = make_batch(pa.table(columns), now=now, producer="producer", first_sequence=sum(self._sequences))
        errors: list[SluiceError] = []

        def told(rows: Any, at: int, error: SluiceError | None) -> None:
            errors.extend([error] if error else [])

        for partition, share, _ in split(batch, self.partitions):
            rows = np.arange(len(share))
            outgoing = Outgoing(share, self._sequences[partition], rows, told)
            self._sequences[partition] += len(share)
            self._producers[partition].send(outgoing)
        for producer in self._producers:
            await producer.flush()
        return errors

    async def join(
        self,
        name: str,
        *,
        queue: int = 1000,
        ranges: Sequence[tuple[int, int]] = (),
        acking: bool = True,
        taking: bool = True,
        called: str = "",
        read_compacted: bool = False,
    ) -> Client:
        """Attach a consumer. called: its name for the broker, if that is another one."""
        client = Client(self, name, called or name, queue, acking=acking, taking=taking)
        client.read_compacted = read_compacted
        await client.open(ranges)
        self.clients[name] = client
        return client

    def watch(self, client: Client, came: list[Message]) -> None:
        """Check promises 2 and 3, as the consumers see them."""
        others = [other for other in self.clients.values() if other is not client]
        elsewhere = {held.key: other.name for other in others for held in other.held()}
        for message in came:
            assert message.key not in elsewhere, f"{message.key} is at {elsewhere[message.key]} too"
            if message.position not in self._seen:
                assert message.number > self._first.get(message.key, -1), f"{message.key}: {message.number} comes late"
                self._first[message.key] = message.number
                self._seen[message.position] = None

    def seen(self) -> int:
        """Return how many different messages came to any consumer."""
        return len(self._seen)

    async def until(self, done: Callable[[], bool], milliseconds: int = 10_000) -> None:
        """Wait for a condition, at most `milliseconds` of virtual time."""
        assert await self.world.loop.until(done, milliseconds), f"did not happen in {milliseconds} ms"

    async def quiet(self, milliseconds: int) -> None:
        """Let time pass."""
        await self.world.loop.pause(milliseconds)

    async def stats(self, partition: int = 0, subscription: str = SUBSCRIPTION) -> dict[str, Any]:
        """Return the statistics of the subscription on one partition."""
        reply = await self.ask(Stats(), partition, subscription)
        found: dict[str, Any] = json.loads(reply.json)
        return found

    async def consumer_stats(self) -> dict[str, dict[str, Any]]:
        """Return the statistics of the consumers by name."""
        return {row["consumerName"]: row for row in (await self.stats())["consumers"]}

    async def admin(self, verb: str, **arguments: Any) -> Any:
        """Run an administrative verb, and return its answer."""
        return shown(await self.ask(request_of(verb, arguments)))

    async def configure(self, **changed: Any) -> None:
        """Change settings of the subscription."""
        self.settings = msgspec.structs.replace(self.settings, **changed)
        await self.ask(Configure(settings=self.settings))

    def _controller(self, ports: Ports) -> Controller:
        return Controller(ports, bookies=["bookie-0"], close_idle_after_ms=self._close_idle_after_ms)

    def _topic(self, ports: Ports, settings: dict[str, Any]) -> Topic:
        return make_topic(ports, settings, CONTROLLER, self.shared, topic_resources())

    def _dispatcher(self, ports: Ports, settings: dict[str, Any]) -> Dispatcher:
        return make_dispatcher(ports, settings, CONTROLLER, self.shared)

    def _witness(
        self, caller: Process, to: Address, request: Request[Any], outcome: Reply | Unknown | tuple[str, str]
    ) -> None:
        self.calls[type(request).__name__] += 1
        if type(request).__name__ == "ReadIndex":
            self.reads.append(self.world.loop.now)


def play(
    scenario: Callable[[Broker], Coroutine[Any, Any, None]],
    *,
    seed: int = 1,
    partitions: int = 1,
    shared_from: int = SHARED_FROM,
    topic: dict[str, Any] | None = None,
    close_idle_after_ms: int = 0,
    **settings: Any,
) -> None:
    """Run a scenario. At its end, the sentinels of all partitions have seen something, and nothing wrong.

    shared_from: see Ports. topic: settings of the topic. close_idle_after_ms: see IdleOwners.
    """
    plain = SubscriptionSettings(**{"initial_position": "earliest", **settings})

    async def main(world: World) -> None:
        broker = Broker(world, partitions, plain, topic, close_idle_after_ms)
        await broker.open()
        await scenario(broker)
        for partition in range(partitions):
            assert (await broker.stats(partition))["orderViolationsTotal"] == 0

    world = World(seed)
    world.shared_from = shared_from
    world.play(main)


def _disk(settings: dict[str, Any]) -> str:
    return str(settings["bookie"])
