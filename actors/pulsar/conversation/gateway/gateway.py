"""The state that the connections of one gateway share: topics, producers, consumers, schemas.

A gateway owns nothing: it is a producer and a consumer like any other, for clients that speak Pulsar's protocol. When
it dies, its clients connect again and its consumers' leases give back what they held.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sluice.actors.consumer.payload import DecodedRuns
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import ClientsHere, Done, ProducersHere, ProducersPresent, RatesHere, SendAway, Text
from sluice.actors.messages.limits import KEPT_MS
from sluice.actors.policies.audited import Audit, nowhere
from sluice.actors.policies.backlog_quotas import Quotas
from sluice.actors.policies.limits import LimitRecords
from sluice.actors.policies.namespaces import Namespaces
from sluice.actors.policies.policy_records import AGES
from sluice.actors.ports import Address, Ports
from sluice.actors.producer.waves import Waves
from sluice.actors.pulsar.codec.frame_cache import FrameCache
from sluice.actors.pulsar.codec.frames import Buffer
from sluice.actors.pulsar.codec.loop_decoder import VECTORIZED_FROM
from sluice.actors.pulsar.conversation.gateway.access_control import AccessControl
from sluice.actors.pulsar.conversation.gateway.acked_batch_sizes import AckedBatchSizes
from sluice.actors.pulsar.conversation.gateway.backlogs import Backlogs
from sluice.actors.pulsar.conversation.gateway.clients import ClientIntroduction, clients_here, send_away
from sluice.actors.pulsar.conversation.gateway.schemas import Schemas
from sluice.actors.pulsar.conversation.limits.head_count import HeadCount
from sluice.actors.pulsar.conversation.limits.intake import HeldBytes, Speakers
from sluice.actors.pulsar.conversation.limits.rate_shares import RateShares
from sluice.actors.pulsar.conversation.limits.rates import RateLimiter
from sluice.actors.pulsar.conversation.limits.unacked_bytes import UnackedBytes
from sluice.actors.pulsar.topic_names import TopicPartition
from sluice.actors.runtime.host import Actor
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import SluiceError
from sluice.storage.format.batch import MAX_MESSAGE_BYTES

DECODED_BYTES = 128 * 1024 * 1024
"""Memory of decoded runs that are kept, for the consumers of all partitions."""
FORGET_MS = 5_000
"""A run that a consumer had is kept for so long, and at most for twice as long, for others who want it."""
VERSION = "Sluice"
PROTOCOL = 20
"""Pulsar's protocol version that is spoken; a client's lower one is answered with its own."""


class ClientIdentity(Protocol):
    """The identity of a client. ends: when it expires, in seconds since 1970; None if never."""

    @property
    def roles(self) -> Sequence[str]:
        """The names by which it is known, at least one; it may do what any of them may."""

    @property
    def ends(self) -> float | None:
        """See above."""


@dataclass(frozen=True, slots=True)
class Certified:
    """A client that showed a certificate, or one that is known by a name for other reasons."""

    role: str
    ends: float | None = None

    @property
    def roles(self) -> Sequence[str]:
        """See ClientIdentity."""
        return (self.role,)


Authenticate = Callable[[str, bytes], Awaitable[ClientIdentity]]
"""A check of credentials, by the method's name, that returns their owner. Raises Invalid if it lets none in."""


class Link(Protocol):
    """The bytes of one connection, as the conversation sees them."""

    peer: str

    def write(self, *data: Buffer) -> None:
        """Send consecutive parts without a copy, so they never change; does nothing once the connection is over."""

    def close(self) -> None:
        """End the connection when everything written is sent."""

    def pause(self) -> None:
        """Read no more for now."""

    def resume(self) -> None:
        """Read again."""

    def unsent(self) -> int:
        """Return bytes that were written and that the client has not taken."""


class ConsumerHere(Protocol):
    """A consumer that is connected here, as other connections see it."""

    tp: TopicPartition
    closed: bool

    @property
    def is_reader(self) -> bool:
        """Whether it reads the log past every subscription."""

    def come_back(self) -> None:
        """Send the consumer away: its client has to subscribe again."""

    async def answers(self) -> bool:
        """Return whether its client shows a sign of life soon; the connection of one that does not is over."""

    async def close(self) -> None:
        """Leave; messages that are still held go to the others in order."""


class ProducerHere(Protocol):
    """A producer that is connected here, as other connections see it."""

    tp: TopicPartition
    name: str
    incarnation: str

    def give_way(self) -> None:
        """Another producer has the topic to itself from now on."""

    async def come_again(self) -> None:
        """Send the producer away once all of its sends are settled: its client has to ask for it again."""

    async def answers(self) -> bool:
        """Return whether its client shows a sign of life soon; the connection of one that does not is over."""


REPEATED_FROM = 16
"""From so many ids of one ACK, or frames of one delivery, on they are taken together."""


class Gateway:
    """The state behind all connections. url, url_tls: the answers to lookups, empty if nothing listens there.

    authenticate: None lets everybody in.
    """

    def __init__(
        self,
        ports: Ports,
        controller: Address,
        url: str = "",
        process: str = "",
        authenticate: Authenticate | None = None,
        vectorized_from: int = VECTORIZED_FROM,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self.ports = ports
        self.vectorized_from = vectorized_from
        """From so many SENDs of one read on columns are cheaper than the loop."""
        self.repeated_from = min(vectorized_from, REPEATED_FROM)
        self.controller = controller
        self.url, self.url_tls = url, ""
        self.process = process
        self.authenticate = authenticate
        self.max_message_bytes = max_message_bytes
        """The bytes that clients may put into a message, or a batch; a connection with larger frames is closed."""
        self.directory, self.waves = Directory(ports, controller), Waves(ports)
        self.namespaces = Namespaces(ports.meta)
        self.schemas = Schemas(ports)
        self.pieces = AckedBatchSizes()
        self.recent = FrameCache(ports.clock.monotonic, KEPT_MS)
        self.decoded = DecodedRuns(ports.clock.monotonic, DECODED_BYTES, forgets=True)
        """The runs that consumers have read of the log: those of one partition mostly want the same ones."""
        self.consumers: dict[tuple[str, str], list[ConsumerHere]] = {}
        """The connected consumers, by topic and subscription."""
        self._readers: dict[tuple[str, int], dict[ConsumerHere, None]] = {}
        self.producers: dict[tuple[str, int], list[ProducerHere]] = {}
        """The connected producers, by topic and partition."""
        self.quotas, self.ages = Quotas(ports.meta), Quotas(ports.meta, AGES)
        self.limits = LimitRecords(ports.meta)
        self.rates = RateLimiter(ports.clock, self.limits)
        self.head_count = HeadCount(ports, self.directory, self.limits)
        self.rate_shares = RateShares(ports, self.rates, self.head_count)
        self.backlogs = Backlogs(ports, self.directory, self.quotas, self.ages, self.producers, self.limits)
        self.introductions: dict[object, ClientIntroduction] = {}
        """The introductions of clients for connected producers and consumers."""
        self.moving: dict[tuple[str, int, str], Signal] = {}
        """The subscriptions that are being moved, by topic, partition and name: set when that is over."""
        self.held, self.speakers = HeldBytes(), Speakers()
        self.unacked = UnackedBytes(ports)
        self.access = AccessControl(ports)
        self.audit: Audit = nowhere
        """The receiver of reports of what clients have done, and what was refused."""
        self._made = 0

    def start(self) -> None:
        """Begin what goes on beside the connections, for as long as the process lives."""
        self.ports.spawn(self._forget(), "memory")
        self.ports.spawn(self.backlogs.run(), "backlogs")
        self.ports.spawn(self.rate_shares.run(), "rates")
        self.ports.spawn(self.access.run(), "permissions")

    async def _forget(self) -> None:
        """Let go, again and again, of what consumers here have not wanted for a while."""
        while True:
            await self.ports.clock.sleep(FORGET_MS)
            self.decoded.forget_used()

    def reads(self, consumer: ConsumerHere) -> None:
        self._readers.setdefault((consumer.tp.topic, consumer.tp.partition), {})[consumer] = None

    def reads_no_more(self, consumer: ConsumerHere) -> None:
        """Drop a consumer that has gone. Idempotent."""
        key = consumer.tp.topic, consumer.tp.partition
        others = self._readers.get(key, {})
        others.pop(consumer, None)
        if not others:
            self._readers.pop(key, None)

    def is_read(self, topic: str, partition: int) -> bool:
        """Return whether a partition has consumers here."""
        return (topic, partition) in self._readers

    def fresh(self, word: str) -> str:
        """A name that nobody else has. It is short, because each frame of a producer carries its producer's name."""
        self._made += 1
        drawn, made = (np.base_repr(number, 36).lower() for number in (self.ports.rng.randrange(1 << 48), self._made))
        return f"{word}-{drawn:0>10}-{made}"

    async def producers_here(self, request: ProducersHere) -> ProducersPresent:
        """See messages.ProducersHere. Those that are to give way do so."""
        here = self.producers.get((request.topic, request.partition), [])
        meant = [producer for producer in here if producer.incarnation in request.incarnations]
        if request.news == "taken":
            for producer in meant:
                producer.give_way()
        elif request.news == "over":
            for producer in meant:
                self.ports.spawn(producer.come_again(), "over")
        else:
            answered = await asyncio.gather(*(producer.answers() for producer in meant))
            meant = [producer for producer, answers in zip(meant, answered, strict=True) if answers]
        return ProducersPresent(incarnations=[producer.incarnation for producer in meant])


class GatewayActor(Actor):
    """Answers the requests of other actors to a gateway."""

    outlives = (SluiceError,)  # of one client's consumer or producer; the others go on
    gateway: Gateway

    async def on_producers_here(self, request: ProducersHere) -> ProducersPresent:
        return await self.gateway.producers_here(request)

    async def on_clients_here(self, request: ClientsHere) -> Text:
        return Text(json=json.dumps(clients_here(self.gateway, request.topic, request.partition)))

    async def on_rates_here(self, request: RatesHere) -> Text:
        return Text(json=self.gateway.rate_shares.here())

    async def on_send_away(self, request: SendAway) -> Done:
        send_away(self.gateway, request.topic, request.partition)
        return Done()
