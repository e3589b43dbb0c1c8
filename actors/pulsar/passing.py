"""Topics of which nothing is kept: `non-persistent://public/default/x`.

What a producer sends goes at once to the consumers that have room for it, and nowhere else. It is not stored, its ids
are all alike, nothing waits for an acknowledgement, and nothing comes again. A topic is there while a client uses it.

All of it is in the memory of one gateway, which its clients must share: see `PassingTopics.check`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from actors.messages import DescribeCluster, PassingHere, SubscriptionSettings
from actors.names import namespace_of
from actors.ports import Address, Ports, Unknown
from actors.pulsar.fields import Malformed, Metadata, ServerError, command, parse
from actors.pulsar.frames import encode, encode_message
from actors.pulsar.refusals import Refused
from actors.pulsar.sends import Send
from actors.pulsar.topics import Place, topic_name
from actors.wire import Request
from storage.errors import Unavailable
from storage.hashing import masked_hash

KIND = "non-persistent://"
ASK_MS = 5_000
NOWHERE = {"ledger": 0, "entry": 0}
"""The id of every message, as Pulsar has it."""


def passes(text: str) -> bool:
    """Whether a client names such a topic."""
    return text.startswith(KIND)


def persistent_name(text: str) -> str:
    """The topic of that name that is kept: as with Pulsar, the two share their schemas. Raises Invalid."""
    return topic_name(text.removeprefix(KIND))


def passing_place(text: str) -> Place:
    """Where such a topic is, whatever way its name is written. Raises Invalid."""
    space, own = namespace_of(persistent_name(text))
    return Place(f"{KIND}{space}/{own}", 0, -1)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client wants of a subscription."""

    subscription: str
    name: str
    settings: SubscriptionSettings
    priority: int = 0


class PassingProducer:
    """One producer of one connection."""

    incarnation = ""
    topic_epoch = None
    last_sequence_id = -1
    ready = True
    told = False

    def __init__(
        self,
        topic: PassingTopic,
        place: Place,
        number: int,
        name: str,
        *,
        write: Callable[[bytes], None],
        lost: Callable[[PassingProducer], None],
        settled: Callable[[int], None],
        alive: Callable[[], Awaitable[bool]],
        fails_by: int,
    ) -> None:
        self._topic, self.place, self.number, self.name = topic, place, number, name
        self._write, self._lost, self._settled, self._alive = write, lost, settled, alive
        self._fails_by = fails_by
        self.closed = False

    def takes(self, sends: object) -> bool:
        """Frames are passed on one by one."""
        return False

    def send_abreast(self, sends: object) -> None:
        """Never: see `takes`."""

    def send(self, sends: Sequence[Send], size: int) -> None:
        """Frames of one read, each of which has its receipt when it was passed on, or dropped."""
        self._write(b"".join([encode(self._sent(send)) for send in sends]))
        self._settled(size)

    def _sent(self, send: Send) -> Any:
        told = {"producer_id": self.number, "sequence_id": send.command.sequence_id}
        try:
            self._topic.publish(send)
        except Malformed as error:
            code = ServerError.CHECKSUM if send.body.damaged else self._fails_by
            return command("send_error", **told, error=code, message=str(error))
        answer = command("send_receipt", **told, message_id={**NOWHERE, "partition": -1})
        if send.command.HasField("highest_sequence_id"):
            answer.send_receipt.highest_sequence_id = send.command.highest_sequence_id
        return answer

    async def flush(self) -> None:
        """Everything has its outcome."""

    def give_way(self) -> None:
        """Its client is to ask for it again."""
        self._lost(self)

    async def come_again(self) -> None:
        """The same."""
        self._lost(self)

    async def answers(self) -> bool:
        """Whether its client shows a sign of life soon."""
        return not self.closed and await self._alive()

    def close(self) -> None:
        """Send no more."""
        self.closed = True
        self._topic.leave(self)


class PassingConsumer:
    """One consumer of one connection."""

    is_reader = False
    opened = True

    def __init__(
        self,
        topic: PassingTopic,
        place: Place,
        number: int,
        asked: Wanted,
        *,
        write: Callable[[bytes], None],
        lost: Callable[[PassingConsumer], None],
        alive: Callable[[], Awaitable[bool]],
    ) -> None:
        self._topic, self.place, self.number, self.asked = topic, place, number, asked
        self._write, self._lost, self._alive = write, lost, alive
        self._choked = self.closed = False
        self._active: bool | None = None
        self.permits = 0
        self.epoch: int | None = None

    @property
    def has_room(self) -> bool:
        """Whether something can be sent now."""
        return self.permits > 0 and not self._choked and not self.closed

    def take(self, send: Send, messages: int) -> None:
        """Send it on."""
        self.permits -= messages
        told = command("message", consumer_id=self.number, message_id={**NOWHERE, "partition": -1})
        if self.epoch is not None:
            told.message.consumer_epoch = self.epoch
        self._write(encode_message(told.SerializeToString(), bytes(send.body.metadata), bytes(send.body.payload)))

    def tell_active(self, active: bool) -> None:
        """Of a Failover subscription: this is, or is not, the consumer that has everything."""
        if self._active is not active:
            self._active = active
            self._write(encode(command("active_consumer", consumer_id=self.number, is_active=active)))

    def flow(self, permits: int) -> None:
        """The client has room for so many more messages."""
        self.permits += permits

    def choke(self, choked: bool) -> None:
        """The connection takes nothing for now, or takes something again."""
        self._choked = choked

    def subscribed(self) -> None:
        """The client knows that it is subscribed."""
        self._topic.joined(self)

    def acknowledge_sent(self, ids: Sequence[bytes], *, cumulative: bool) -> list[Any]:
        """Nothing waits for it."""
        return []

    async def acknowledge(self, ids: list[Any], *, cumulative: bool) -> list[int]:
        """The same."""
        return []

    async def stand_alone(self, positions: list[int]) -> bool:
        """There is nothing to be unsure of."""
        return True

    async def confirmed(self) -> None:
        """Nothing is to be stored."""

    async def looked_up(self) -> None:
        """Nothing is looked up."""

    async def redeliver(self, ids: list[Any]) -> None:
        """Nothing comes again."""

    def read_so_far(self) -> dict[str, Any]:
        """For people: the room that its client has."""
        return {"availablePermits": max(self.permits, 0)}

    def unacknowledged(self) -> int:
        """Nothing waits to be acknowledged."""
        return 0

    async def answers(self) -> bool:
        """Whether its client shows a sign of life soon."""
        return not self.closed and await self._alive()

    def come_back(self) -> None:
        """The client has to subscribe again."""
        self._lost(self)

    async def close(self) -> None:
        """Leave."""
        self.closed = True
        self._topic.left(self)


class PassingSubscription:
    """Which consumer has a message. kind: as in SubscriptionSettings."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.consumers: list[PassingConsumer] = []
        self.passed = self.dropped = 0

    def pass_on(self, send: Send, metadata: Any, messages: int) -> None:
        """To one consumer, or to nobody where the one that it is for has no room."""
        to = self._choose(metadata)
        if to is None or not to.has_room:
            self.dropped += messages
            return
        self.passed += messages
        to.take(send, messages)

    def _choose(self, metadata: Any) -> PassingConsumer | None:
        if not self.consumers:
            return None
        if self.kind == "key_shared":
            key = metadata.ordering_key or metadata.partition_key
            return self.consumers[masked_hash(key) % len(self.consumers)]
        if self.kind != "shared":
            return self.active
        able = [one for one in self.consumers if one.has_room]
        first = min((one.asked.priority for one in able), default=0)
        to = next((one for one in able if one.asked.priority == first), None)
        if to is not None:  # it has had its turn
            self.consumers.remove(to)
            self.consumers.append(to)
        return to

    @property
    def active(self) -> PassingConsumer | None:
        """Who has everything, where one does: the first by name of the lowest priority number."""
        return min(self.consumers, key=lambda one: (one.asked.priority, one.asked.name), default=None)

    def tell_active(self) -> None:
        """To all, of a Failover subscription."""
        for one in self.consumers if self.kind == "failover" else ():
            one.tell_active(one is self.active)


class PassingTopic:
    """One topic's producers and subscriptions. over: told when it has none any more."""

    def __init__(self, over: Callable[[], None]) -> None:
        self._over = over
        self.producers: list[PassingProducer] = []
        self.subscriptions: dict[str, PassingSubscription] = {}
        self.messages = self.bytes = 0

    def publish(self, send: Send) -> None:
        """Pass a frame on to every subscription. Raises Malformed if it cannot be."""
        if send.body.damaged:
            raise Malformed("the checksum does not fit")
        if send.command.txn_least or send.command.txn_most:
            raise Malformed("transactions are not offered")
        metadata = parse(Metadata, send.body.metadata)
        if metadata.deliver_at_time:
            raise Malformed("a topic that is not persistent delays nothing: send to a persistent one")
        messages = max(metadata.num_messages, 1)
        self.messages += messages
        self.bytes += len(send.body.payload)
        for subscription in self.subscriptions.values():
            subscription.pass_on(send, metadata, messages)

    def leave(self, producer: PassingProducer) -> None:
        """One producer less."""
        self.producers = [one for one in self.producers if one is not producer]
        self._look()

    def join(self, consumer: PassingConsumer) -> None:
        """One more consumer. Raises Refused where another kind of subscription is in use, or by one alone."""
        name, kind = consumer.asked.subscription, consumer.asked.settings.type
        known = self.subscriptions.setdefault(name, PassingSubscription(kind))
        if known.kind != kind:
            raise Refused(ServerError.CONSUMER_BUSY, f"subscription {name} is of another type: {known.kind}")
        if kind == "exclusive" and known.consumers:
            raise Refused(ServerError.CONSUMER_BUSY, "Exclusive consumer is already connected")
        known.consumers.append(consumer)

    def joined(self, consumer: PassingConsumer) -> None:
        """Its client knows it."""
        self.subscriptions[consumer.asked.subscription].tell_active()

    def left(self, consumer: PassingConsumer) -> None:
        """One less; a subscription goes with its last one."""
        name = consumer.asked.subscription
        known = self.subscriptions.get(name)
        if known is None:
            return
        known.consumers = [one for one in known.consumers if one is not consumer]
        if known.consumers:
            known.tell_active()
        else:
            del self.subscriptions[name]
        self._look()

    def _look(self) -> None:
        if not self.producers and not self.subscriptions:
            self._over()

    def told(self) -> dict[str, Any]:
        """For people, with Pulsar's names."""
        subscriptions = {
            name: {"type": one.kind, "msgOutCounter": one.passed, "msgDropCount": one.dropped}
            for name, one in self.subscriptions.items()
        }
        return {"msgInCounter": self.messages, "bytesInCounter": self.bytes, "subscriptions": subscriptions}


class PassingTopics:
    """All of one gateway. listens: whether clients can connect to it."""

    def __init__(self, ports: Ports, controller: Address, listens: Callable[[], bool]) -> None:
        self._ports, self._controller, self._listens = ports, controller, listens
        self._known: dict[str, PassingTopic] = {}

    def topic(self, name: str) -> PassingTopic:
        """That of a name, made if need be."""
        if name not in self._known:
            self._known[name] = PassingTopic(lambda: self._forget(name))
        return self._known[name]

    def producers_of(self, name: str) -> list[PassingProducer]:
        """Those of a topic, which may not be there."""
        return self._known[name].producers if name in self._known else []

    def consumers_of(self, name: str, subscription: str) -> list[PassingConsumer]:
        """Those of a subscription, which may not be there."""
        known = self._known[name].subscriptions.get(subscription) if name in self._known else None
        return known.consumers if known is not None else []

    def _forget(self, name: str) -> None:
        self._known.pop(name, None)

    def names_in(self, space: str) -> list[str]:
        """The topics of a namespace."""
        return sorted(name for name in self._known if name.startswith(f"{KIND}{space}/"))

    def here(self) -> str:
        """See messages.PassingHere."""
        topics = {name: topic.told() for name, topic in self._known.items()}
        return json.dumps({"listens": self._listens(), "topics": topics})

    async def check(self) -> None:
        """Clients of one topic meet in one gateway, so there may be no other that they could connect to.

        Raises Refused if there is one, Unavailable if that is not known now.
        """
        described = json.loads((await self._ask(self._controller, DescribeCluster())).json)
        for row in described["actors"]:
            if row["kind"] == "gateway" and row["address"] not in ("", self._ports.me):
                await self._check_alone(row["address"])

    async def _check_alone(self, other: Address) -> None:
        if json.loads((await self._ask(other, PassingHere())).json)["listens"]:
            text = "topics that are not persistent are offered only where one gateway serves all clients"
            raise Refused(ServerError.NOT_ALLOWED, f"{text}, and this cluster has several: use persistent://")

    async def _ask(self, address: Address, request: Request[Any]) -> Any:
        reply = await self._ports.net.call(address, request, ASK_MS)
        if isinstance(reply, Unknown):
            raise Unavailable(f"{address} does not answer: {reply.reason}")
        return reply
