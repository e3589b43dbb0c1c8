"""The producers and consumers of one connection, and the commands that it sends to its client."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from sluice.actors.policies.audited import DONE, REFUSED, Audited
from sluice.actors.policies.authorization import Wish
from sluice.actors.ports import Task
from sluice.actors.pulsar.codec.frames import Buffer, encode
from sluice.actors.pulsar.codec.protocol import ServerError, command
from sluice.actors.pulsar.codec.vectorized_decoder import Answered, receipts
from sluice.actors.pulsar.conversation.consuming.reader_seeks import Seeks
from sluice.actors.pulsar.conversation.consuming.wire_consumer import ConsumingClient, WireConsumer
from sluice.actors.pulsar.conversation.gateway.clients import MOST_VERSION, ClientIntroduction, metadata_of
from sluice.actors.pulsar.conversation.gateway.gateway import PROTOCOL, VERSION, ClientIdentity, Gateway, Link
from sluice.actors.pulsar.conversation.gateway.openings import Openings
from sluice.actors.pulsar.conversation.limits.intake import MOST_TEXT, Intake, Turn
from sluice.actors.pulsar.conversation.limits.unacked_bytes import UnackedShare
from sluice.actors.pulsar.conversation.producing.wire_producer import WireProducer
from sluice.actors.pulsar.refusals import CommandRefused
from sluice.actors.runtime.gc_pressure import CONNECTION, LET_GO
from sluice.actors.runtime.waiting import Signal, soon
from sluice.actors.runtime.wall_clock import pause_until
from sluice.storage.errors import SluiceError

MOST_HANDLES = 20_000
"""Producers and consumers of one connection: a client has one to a gateway, for all partitions of all its topics."""
QUESTIONS = frozenset(
    (
        "connect",
        "partition_metadata",
        "lookup",
        "topics_of",
        "get_last_id",
        "get_schema",
        "put_schema",
        "consumer_stats",
    )
)
"""Commands that nobody needs to be carried out when their connection has ended. The others go on to their end, because
half of them would be worse than none: what they make is closed then, and a topic that they make is written down.
"""
BRING_SCHEMAS = frozenset(("producer", "subscribe"))
"""Commands that may bring a schema, which is compared with many others: one that does is carried out like a LARGE one,
except that it does not wait until the client has taken its answers.
"""
LARGE = frozenset(("get_schema", "put_schema", "topics_of"))
"""Commands whose answers may be large, or for which much is read: one of them at a time."""
GATHERED_BYTES = 256 * 1024
"""The most bytes that wait to be written together with later ones."""
ALIVE_MS = 1_000
"""The time (ms) in which a client that another one would replace must show that it is there."""
NO_REQUEST = (1 << 64) - 1
OFFERED = {"partitions_without_creation": True}
"""The features that a client may count on. A client in Java asks whether there are topics with the names that retry and
dead letter topics had in earlier releases. If it cannot ask without creating them, it assumes that there are, and would
use them for all topics of a namespace together.
"""
CPP = "Pulsar-CPP"
"""How the client in C++, and with it that in Python, names itself. Of all refusals of a message it takes one for what
it is; at any other it connects and sends again for ever. In Java that one means to send again.
"""


class ClientSession:
    """The state of one client's connection, and its outgoing commands."""

    def __init__(self, gateway: Gateway, link: Link) -> None:
        self.gateway, self.link = gateway, link
        self.producers: dict[int, WireProducer] = {}
        self.consumers: dict[int, WireConsumer] = {}
        self.seeks = Seeks()
        self.openings = Openings()
        self.identity: ClientIdentity | None = None
        self.certified: ClientIdentity | None = None
        """The identity in the client's certificate, if it showed one of a trusted authority."""
        self.version = ""
        """How the client names itself."""
        self.greeted = self.closed = False
        self.fails_by = ServerError.NOT_ALLOWED
        self.intake = Intake(gateway.held, self.adjust_reading)
        self.consuming = ConsumingClient(self.write, self.send_away, self.answers, UnackedShare(gateway.unacked))
        self._confirmed: list[Answered] = []
        """Frames whose receipts were not written yet."""
        self._unwritten: list[Buffer] = []
        self._settled = 0
        """Bytes of sends that have their outcome and count as pending until the receipts are written."""
        self._gathered, self._written_at = 0, -1
        """The number of these bytes, and when something was written to the client last."""
        self._asking: dict[Turn, tuple[str, Task]] = {}
        self._turns: dict[int, Turn] = {}
        self._sign = Signal()
        """A sign of life from the client: set by every command from it, cleared before a look at whether it lives."""
        self._sign.set()
        self._looks = LET_GO.looks

    def adjust_reading(self) -> None:
        """The connection may have become full, or have room again."""

    def settled(self, size: int) -> None:
        """Sends with this number of bytes have their outcome."""
        self._write_later()
        self._settled += size

    def write(self, *data: Buffer) -> None:
        """Send bytes to the client, in consecutive parts; they may overtake receipts.

        What comes within a millisecond of others waits, and is written soon together: where a client consumes a
        thousand partitions, each delivery alone would cost a write to its socket.
        """
        if self.closed:
            return
        now = self.gateway.ports.clock.monotonic()
        if now != self._written_at and not self._unwritten:
            self._written_at = now
            self.link.write(*data)
            return
        self._write_later()
        self._unwritten += data
        self._gathered += sum(map(len, data))
        if self._gathered > GATHERED_BYTES:
            self._write_gathered()

    def _write_gathered(self) -> None:
        if self._unwritten:
            unwritten, self._unwritten, gathered, self._gathered = self._unwritten, [], self._gathered, 0
            self._written_at = self.gateway.ports.clock.monotonic()
            self.link.write(*(unwritten if gathered > GATHERED_BYTES else [b"".join(unwritten)]))

    def confirm(self, answered: Answered) -> None:
        """See ProducerSession. What becomes durable together is confirmed together: where a client sends to a thousand
        partitions, each alone would cost a write to its socket and as much work as all of them.
        """
        self._write_later()
        self._confirmed.append(answered)

    def _write_later(self) -> None:
        if not (self._confirmed or self._unwritten or self._settled):
            soon(self.gateway.ports, self._write_soon)

    def _write_soon(self) -> None:
        """When all that goes on by now has gone on."""
        if not self.closed:
            settled, self._settled = self._settled, 0
            self._write_receipts()
            self._write_gathered()
            self.intake.pending(-settled)

    def _write_receipts(self) -> None:
        if self._confirmed:
            confirmed, self._confirmed = self._confirmed, []
            self._unwritten.append(receipts(confirmed))

    def answer(self, data: bytes) -> None:
        """See ProducerSession."""
        self._write_receipts()
        self.write(data)

    def say(self, name: str, **values: Any) -> None:
        """Send a command that is only a command."""
        self.answer(encode(command(name, **values)))

    def refuse(self, request: int, code: int, text: str) -> None:
        """Answer a request with an error."""
        self.say("error", request_id=request, error=code, message=text[:MOST_TEXT])

    def choke(self, choked: bool) -> None:
        """Written bytes pile up, or were taken: stop delivering and reading meanwhile, or go on."""
        self.intake.choke(choked)
        for consumer in list(self.consumers.values()):
            consumer.choke(choked)

    def greet(self, asked: Any, identity: ClientIdentity | None) -> None:
        """The client may go on. Raises CommandRefused if its role has enough connections."""
        if self.closed:
            return
        self.gateway.access.enter(() if identity is None else identity.roles)
        self.greeted, self.identity, self.version = True, identity, asked.client_version[:MOST_VERSION]
        if asked.client_version.startswith(CPP):
            self.fails_by = ServerError.CHECKSUM
        version = min(asked.protocol_version, PROTOCOL)
        largest = self.gateway.max_message_bytes
        self.say(
            "connected",
            server_version=VERSION,
            protocol_version=version,
            max_message_size=largest,
            feature_flags=OFFERED,
        )
        if identity is not None:
            self.gateway.ports.spawn(self._end_with(identity), "credentials")

    async def _end_with(self, identity: ClientIdentity) -> None:
        """End the connection when its client's credentials end, by the wall clock, which may be set meanwhile."""
        clock = self.gateway.ports.clock
        while not self.closed and identity.ends is not None:
            ends, now = math.ceil(identity.ends * 1000), clock.now()
            if ends <= now:
                self.end()
            else:
                await clock.sleep(pause_until(ends, now))

    # -- rights ---------------------------------------------------------------------------------------------------

    @property
    def roles(self) -> Sequence[str]:
        """The client's roles; none before the client is known."""
        return () if self.identity is None else self.identity.roles

    @property
    def role(self) -> str:
        """The one under which the client is counted, the first; empty before it is known."""
        return self.roles[0] if self.roles else ""

    async def check(self, *wishes: Wish) -> None:
        """Raise Forbidden if the client may not do this, Unavailable if that is not known now."""
        await self.gateway.access.check(self.roles, *wishes)

    def audit(self, what: str, topic: str, subscription: str = "", refusal: SluiceError | None = None) -> None:
        """Write down what the client did, or was refused."""
        outcome = DONE if refusal is None else REFUSED
        reason = "" if refusal is None else str(refusal)
        role = ",".join(self.roles)
        self.gateway.audit(Audited(role, self.link.peer, what, topic, subscription, outcome, reason))

    # -- who is here ----------------------------------------------------------------------------------------------

    def _introduce(self, one: object, number: int, asked: Any, access_mode: str = "") -> None:
        properties = metadata_of(asked.metadata)
        now = self.gateway.ports.clock.now()
        made = ClientIntroduction(number, self.link.peer, self.version, now, properties, access_mode)
        self.gateway.introductions[one] = made

    def add_consumer(self, consumer: WireConsumer, asked: Any, wish: Wish) -> None:
        """Add a consumer, its introduction, and the right that it lives by.

        Raises CommandRefused if there are too many, or the session is closed.
        """
        self.check_room("consumers")
        self.consumers[consumer.number] = consumer
        key = (consumer.tp.topic, consumer.asked.subscription)
        self.gateway.consumers.setdefault(key, []).append(consumer)
        self.gateway.reads(consumer)
        self._introduce(consumer, consumer.number, asked)
        self.gateway.access.admit(consumer, self.roles, (wish,), consumer.come_back)
        consumer.choke(self.intake.choked)

    def check_room(self, what: str) -> None:
        """Raise CommandRefused if there are too many, or the connection is over."""
        if self.closed:
            raise CommandRefused(ServerError.SERVICE_NOT_READY, "the connection has ended")
        if len(self.consumers) + len(self.producers) >= MOST_HANDLES:
            raise CommandRefused(ServerError.TOO_MANY_REQUESTS, f"a connection has at most {MOST_HANDLES} {what}")

    def remove_consumer(self, consumer: WireConsumer) -> None:
        if self.consumers.get(consumer.number) is consumer:
            del self.consumers[consumer.number]
        _discard(self.gateway.consumers, (consumer.tp.topic, consumer.asked.subscription), consumer)
        self.gateway.reads_no_more(consumer)
        self.gateway.introductions.pop(consumer, None)
        self.gateway.access.remove(consumer)

    async def leave(self, consumer: WireConsumer) -> None:
        """A consumer that was removed does not come back; a subscription that is not durable goes with its last one.

        Its owner sees that as well, after a lease (`actors.dispatcher.operator.deletion`); here it is known at once.
        """
        await consumer.close()
        topic, subscription = consumer.tp.topic, consumer.asked.subscription
        durable = consumer.is_reader or consumer.asked.settings.durable
        if not durable and not self.gateway.consumers.get((topic, subscription)):
            with contextlib.suppress(SluiceError):
                await self.gateway.directory.remove_unused(topic, subscription)

    def add_producer(self, producer: WireProducer, asked: Any, access_mode: str, wishes: Sequence[Wish]) -> None:
        """Add a producer, its introduction, and the rights that it lives by.

        Raises CommandRefused if there are too many, or the session is closed.
        """
        self.check_room("producers")
        self.producers[producer.number] = producer
        self.gateway.producers.setdefault((producer.tp.topic, producer.tp.partition), []).append(producer)
        self._introduce(producer, producer.number, asked, access_mode)
        self.gateway.access.admit(producer, self.roles, wishes, producer.give_way)

    def remove_producer(self, producer: WireProducer) -> None:
        if self.producers.get(producer.number) is producer:
            del self.producers[producer.number]
        _discard(self.gateway.producers, (producer.tp.topic, producer.tp.partition), producer)
        self.gateway.introductions.pop(producer, None)
        self.gateway.access.remove(producer)

    def send_away(self, consumer: WireConsumer) -> None:
        """The client must come back with this consumer: it drops its messages, and subscribes again.

        One that is still being opened is refused instead, where that was asked for.
        """
        self.remove_consumer(consumer)
        if consumer.opened:
            self.say("close_consumer", consumer_id=consumer.number, request_id=NO_REQUEST)
        self.spawn(consumer.close(), "close")

    def fenced(self, producer: WireProducer) -> None:
        """Another producer of this name has taken its place. One that is still being opened is refused instead."""
        producer.close()
        self.remove_producer(producer)
        if producer.announced:
            self.say("close_producer", producer_id=producer.number, request_id=NO_REQUEST)

    async def answers(self) -> bool:
        """Ask the client for a sign of life; one that gives none within ALIVE_MS has lost its connection.

        To take what it was written is one. Of a client that is not listened to for want of room nothing is wanted.
        """
        if self.intake.full and not self.intake.choked:
            return not self.closed
        if self._sign.is_set():
            self._sign.clear()
            self.say("ping")
        unsent = self.link.unsent()
        answered = await self._sign.wait(self.gateway.ports, ALIVE_MS)
        if not answered and not (self.intake.choked and self.link.unsent() < unsent):
            self.end()
        return not self.closed

    def ask(
        self, name: str, work: Callable[[], Awaitable[None]], request: int, size: int, *, laborious: bool = False
    ) -> None:
        """Carry out a request of so many bytes when it is its turn. One of QUESTIONS, and one whose turn has not come,
        ends with the connection. laborious: see Turn.acquire.
        """
        turn = self._turns[request] = self.intake.request(size)
        begin = partial(turn.acquire, self.gateway.ports, large=name in LARGE, laborious=laborious)
        self._asking[turn] = name, self.gateway.ports.spawn(self._in_turn(turn, begin, name, work, request), name)

    async def _in_turn(
        self,
        turn: Turn,
        begin: Callable[[], Awaitable[None]],
        name: str,
        work: Callable[[], Awaitable[None]],
        request: int,
    ) -> None:
        async def asked() -> None:
            await begin()
            await work()
            clock = self.gateway.ports.clock
            if self.gateway.speakers.others(self, clock.monotonic()):
                await turn.rest(clock)

        try:
            await self._guarded(asked, name)
        finally:
            turn.over()
            self._asking.pop(turn, None)
            if self._turns.get(request) is turn:
                del self._turns[request]

    def waits(self, request_id: int, **fields: Any) -> None:
        """A producer waits until it has the partition to itself; its request keeps no other from its turn."""
        if request_id in self._turns:
            self._turns[request_id].over()
        self.say("producer_success", request_id=request_id, **fields)

    def spawn(self, work: Coroutine[Any, Any, None], name: str, size: int = 0) -> None:
        """Do something beside what else comes. A defect in it ends this connection, and no other."""
        turn = self.intake.request(size)

        async def counted() -> None:
            try:
                await work
            finally:
                turn.over()

        self.gateway.ports.spawn(self._guarded(counted, name), name)

    async def _guarded(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        try:
            await work()
        except SluiceError as error:
            self.gateway.ports.log("failed", peer=self.link.peer, work=name, error=str(error))
        except Exception as error:
            self.gateway.ports.log("defect", peer=self.link.peer, work=name, error=repr(error))
            self.end()

    # -- the end --------------------------------------------------------------------------------------------------

    def end(self) -> None:
        self._write_receipts()
        self._write_gathered()
        self.link.close()
        self.over()

    def over(self) -> None:
        """The connection has ended: everything that it had goes back."""
        if self.closed:
            return
        self.closed = True
        LET_GO.add(CONNECTION, self._looks)
        if self.greeted:
            self.gateway.access.leave(self.roles)
        for turn, (name, task) in list(self._asking.items()):
            if name in QUESTIONS or not turn.begun:
                task.cancel()
        for producer in list(self.producers.values()):
            producer.close()
            self.remove_producer(producer)
        for consumer in list(self.consumers.values()):
            self.remove_consumer(consumer)
            self.spawn(self.leave(consumer), "close")
        self.intake.end()


def _discard(table: dict[Any, list[Any]], key: Any, one: Any) -> None:
    here = table.get(key, [])
    with contextlib.suppress(ValueError):
        here.remove(one)  # the first, as a rule: those of one connection go in the order in which they came
    if not here:
        table.pop(key, None)
