"""One client's connection: its requests and their answers, in the order of Pulsar's protocol.

Commands that need no other actor (SEND, FLOW, ACK, PING) are carried out as they are read. Other requests run beside
that, and are answered when they can be: clients use a producer or consumer only when they know that it is there. A
request that is not offered is refused at once with Pulsar's code, because silence costs a client its time-out of 30 s.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Any

from sluice.actors.ports import Task
from sluice.actors.pulsar.codec.frames import HEADROOM, CommandFrame, Cutter, body_of, encode
from sluice.actors.pulsar.codec.loop_decoder import SentRows, read_few
from sluice.actors.pulsar.codec.protocol import (
    FIELD_OF,
    NOT_OFFERED,
    AckCommand,
    Command,
    MalformedCommand,
    ServerError,
    check_text,
    command,
    parse,
)
from sluice.actors.pulsar.codec.send_decoder import GROUP_BYTES, PIECE_MESSAGES, Send, is_large, unpacked_bytes
from sluice.actors.pulsar.codec.vectorized_decoder import Sends
from sluice.actors.pulsar.conversation.client_session import BRING_SCHEMAS, NO_REQUEST, ClientSession
from sluice.actors.pulsar.conversation.commands import CommandHandlers
from sluice.actors.pulsar.conversation.consuming.reading_ahead import Reading
from sluice.actors.pulsar.conversation.consuming.wanted_consumer import ONE_HAS_ALL
from sluice.actors.pulsar.conversation.consuming.wire_consumer import WireConsumer
from sluice.actors.pulsar.conversation.gateway.clients import check_introduction
from sluice.actors.pulsar.conversation.gateway.gateway import ClientIdentity, Gateway, Link
from sluice.actors.pulsar.conversation.limits.intake import (
    GREETING_BYTES,
    MANY_PRODUCERS,
    MOST_REST_MS,
    MOST_REST_OF_MANY_MS,
    TURN,
    TURN_MS,
    TURN_OF_MANY,
    VECTORIZED_TURN,
    rest,
)
from sluice.actors.pulsar.conversation.limits.rates import Passed, held_back
from sluice.actors.pulsar.conversation.producing.joint_sends import send_together
from sluice.actors.pulsar.conversation.producing.large_frame import LargeFrame
from sluice.actors.pulsar.conversation.producing.wire_producer import WireProducer
from sluice.actors.pulsar.refusals import CommandRefused, code_of
from sluice.actors.pulsar.topic_names import TopicPartition, said_name
from sluice.storage.errors import SluiceError

KEEP_ALIVE_MS = 30_000
FRAME_MS = 60_000
"""The time in which a frame must become whole, or its connection ends."""
CUMULATIVE = 1
MOST_IDS = 4_000
"""The ids of one acknowledgement that are taken up at once; a client may name any number,"""
IDS_OF_A_COMMAND = 100
"""and the ids that take as much of a turn as a command."""

Handler = Callable[[Any], Awaitable[None]]


class ClientConnection(ClientSession):
    """The conversation with one client."""

    def __init__(self, gateway: Gateway, link: Link) -> None:
        super().__init__(gateway, link)
        self._cutter = Cutter(GREETING_BYTES)
        self._answers = CommandHandlers(self)
        self._heard = gateway.ports.clock.monotonic()
        self._begun: int | None = None
        """When the first byte came of the frame that is not whole yet."""
        self._read: deque[Reading] = deque()
        """The frames that were read and are not taken up yet."""
        self._handling = self._goes_on = False
        self._going_on: Task | None = None
        self._held_back: dict[Passed, int] = {}
        """Until when (monotonic ms) nothing is read, because of what rates."""
        self._sends: list[tuple[WireProducer, list[Send], int]] = []
        self._taken_up = self._messages = 0
        """Bytes that these become, about, and how many messages are in them."""
        self._large: LargeFrame | None = None
        """The frame that is being decoded in turns; nothing behind it is taken up."""
        self._many = asyncio.Semaphore(1)
        """For what takes long: one at a time."""
        self._immediate: dict[str, Callable[[Any], None]] = {
            "ping": lambda _: self.write(_PONG),
            "pong": lambda _: None,
            "flow": self._flow,
            "ack": self._ack,
            "redeliver": self._redeliver,
        }
        self._keeping = gateway.ports.spawn(self._keep_alive(), "keep-alive")

    # -- in -------------------------------------------------------------------------------------------------------

    def data(self, chunk: bytes | memoryview) -> None:
        """Take bytes that were read; the caller may overwrite them afterwards.

        Never raises: a client that breaks the protocol is told and closed.
        """
        if self.closed:
            return
        self._heard = self.gateway.ports.clock.monotonic()
        self.gateway.speakers.heard(self, self._heard)
        if not self._sign.is_set():
            self._sign.set()
        try:
            cut = self._cutter.feed(chunk)
        except MalformedCommand as error:
            self._break(error)
            return
        if len(cut):
            self._read.append(Reading(cut))
        if not self._cutter.kept:
            self._begun = None
        elif self._begun is None or len(cut):
            self._begun = self._heard
        if self.intake.connecting and self._waiting() > GREETING_BYTES:
            self._break(MalformedCommand(f"more than {GREETING_BYTES} bytes before CONNECT has its answer"))
            return
        if not self._goes_on:
            self._turn()
        self._count()

    def _waiting(self) -> int:
        """Return bytes that were read and wait: for the rest of their frame, or for room."""
        return self._cutter.kept + sum(len(each.cut.data) for each in self._read)

    def _break(self, error: Exception) -> None:
        """Nothing can be read from this client any more."""
        self.gateway.ports.log("protocol", peer=self.link.peer, error=str(error))
        self._flush()
        self.refuse(NO_REQUEST, ServerError.UNSUPPORTED_VERSION, str(error))
        self.end()

    def _count(self) -> None:
        """Report how many bytes were read and wait, and whether more may be read."""
        if not self.closed:
            self.intake.unfinished(self._waiting())
            self.adjust_reading()

    def adjust_reading(self) -> None:
        """Stop reading if there is no room or if frames wait, and go on when that has changed. Within a turn nothing
        changes, because the turn's own frames wait; its end asks for this.
        """
        if self._handling or self.closed or not self._goes_further:
            return
        if not self.intake.connecting:  # of a stranger who has left we want to hear, and it may send little
            self.link.pause()
        if self._goes_on:
            return
        self._goes_on = True
        self._going_on = self.gateway.ports.spawn(self._guarded(self._go_on, "read"), "read")

    async def _go_on(self) -> None:
        """Handle the frames that were read, turn by turn, as far as there is room; then read again."""
        ports, intake = self.gateway.ports, self.intake
        while not self.closed and self._goes_further:
            if self._large is not None or (self._read and not intake.full):
                await rest(ports.clock, most=MOST_REST_OF_MANY_MS if self._has_many else MOST_REST_MS)
                self._turn()
                self._count()
            else:
                intake.room.clear()
                await intake.room.wait(ports)
        self._goes_on = False
        self._heard = ports.clock.monotonic()
        self.link.resume()

    @property
    def _goes_further(self) -> bool:
        """Whether something that was read waits, or there is no room to read more."""
        return bool(self._large is not None or self._read or self.intake.full or self.intake.crowded)

    @property
    def _has_many(self) -> bool:
        """Whether its SENDs may be as many pieces of work."""
        return len(self.producers) >= MANY_PRODUCERS

    def _turn(self) -> None:
        """Handle the frames that were read in order, as far as there is room, and neighbouring SENDs together.

        While others speak, and where they are of many producers, SENDs take their part of the turn as well.
        """
        left, gateway, clock = TURN, self.gateway, self.gateway.ports.clock
        least, begun = gateway.vectorized_from, clock.monotonic()
        shared = self._has_many or gateway.speakers.others(self, begun)
        most = TURN_OF_MANY if self._has_many else VECTORIZED_TURN if shared else sys.maxsize
        self._handling = True
        try:
            self._decode_on(shared)
            while self._read and left > 0 and not (self._large or self.intake.full or self.closed):
                reading = self._read[0]
                begin, few = reading.at, left if shared else most
                end = reading.sends_from_here(least, most, few) if self.greeted else begin
                if end > begin:
                    self._together(reading, end)
                    if shared and reading.at == end:
                        left -= TURN if end - begin >= least else end - begin
                else:
                    frame, reading.at = reading.cut[reading.at], reading.at + 1
                    left -= max(self._frame(frame, reading), shared)
                    self._decode_on(shared)
                if clock.monotonic() - begun >= TURN_MS:
                    left = 0
                if reading.at == len(reading.cut):
                    self._read.popleft()
        except (MalformedCommand, UnicodeDecodeError) as error:
            self._break(error)
        else:
            self._flush()
        finally:
            self._handling = False

    def _together(self, reading: Reading, end: int) -> None:
        """SENDs up to there. Each producer's go out in their order, decoded together or, later, one by one."""
        self._flush()
        read = read_few(reading.cut, reading.at, end, self.gateway.vectorized_from)
        taken = send_together(self, read, self._producer)
        self._count_taken(taken.values())
        if read and len(taken) == len(read):
            reading.at = end
        else:
            reading.done, reading.done_until = taken, end

    def _count_taken(self, taken: Collection[tuple[WireProducer, SentRows | Sends]]) -> None:
        """Count frames that were sent, for the bounds of this connection and for the rates of their partitions."""
        self.intake.pending(sum([sent.size for _, sent in taken]))
        passed: dict[TopicPartition, tuple[int, int]] = {}
        for producer, sent in taken:
            messages, size = passed.get(producer.tp, (0, 0))
            passed[producer.tp] = messages + sent.messages, size + sent.size
        for tp, (messages, size) in passed.items():
            self._pace(tp, messages, size)

    def _frame(self, frame: CommandFrame, reading: Reading) -> int:
        """Take one up. Returns how much of a turn it takes."""
        asked = _parsed(frame.command)
        name = FIELD_OF.get(asked.type, "")
        if not self.greeted and name != "connect":
            raise MalformedCommand("the first command of a connection is CONNECT")
        if name == "send":
            return self._send(asked.send, frame, reading)
        self._flush()
        if not name or not asked.HasField(name):
            raise MalformedCommand(f"there is no command {asked.type}, or it is empty")
        body = getattr(asked, name)
        if name == "connect":
            self._connect(body)
        elif name in self._immediate:
            self._immediate[name](body)
        else:
            self._begin(name, body, len(frame.command))
        return 1 + (len(body.message_id) // IDS_OF_A_COMMAND if name == "ack" else 0)

    def _connect(self, body: Any) -> None:
        """Answer CONNECT, one at a time, and one for each connection; later commands wait for its outcome."""
        if self.greeted:
            raise MalformedCommand("a connection begins with CONNECT once")
        self.intake.connect(True)
        self._begin("connect", body, 0)

    def greet(self, asked: Any, identity: ClientIdentity | None) -> None:
        """The client may go on."""
        self._cutter.limit = self.gateway.max_message_bytes + HEADROOM
        super().greet(asked, identity)

    def _begin(self, name: str, body: Any, size: int) -> None:
        """Answer beside what else comes; a refusal goes back under the request's number."""
        handler: Handler | None = getattr(self._answers, name, None)
        if handler is None and name not in NOT_OFFERED:
            raise MalformedCommand(f"a client does not say {name}")
        if handler is None:
            self.refuse(body.request_id, ServerError.NOT_ALLOWED, f"{name} is not offered")
            return
        self.openings.read(name, body)
        work, request = partial(self._answer, name, handler, body), getattr(body, "request_id", NO_REQUEST)
        self.ask(name, work, request, size, laborious=name in BRING_SCHEMAS and body.HasField("schema"))

    async def _answer(self, name: str, handler: Handler, body: Any) -> None:
        consumer = self.consumers.get(body.consumer_id) if name in _AUDITED else None
        try:
            check_text(body)
            if name in INTRODUCED:
                check_introduction(body)
            await handler(body)
            if consumer is not None:
                self.audit(name, consumer.tp.topic, consumer.asked.subscription)
        except SluiceError as error:
            if code_of(error) in _REFUSALS:
                self.audit(name, said_name(getattr(body, "topic", "")), getattr(body, "subscription", ""), error)
            if name == "connect":
                self.refuse(NO_REQUEST, code_of(error), str(error))
                self.end()
            elif not self._answers.refused(name, body.request_id, error):
                self.refuse(body.request_id, code_of(error), str(error))
        finally:
            self.openings.answered(name, body)
            if name == "connect":
                self.intake.connect(False)

    # -- what needs nobody else -----------------------------------------------------------------------------------

    def _send(self, asked: Any, frame: CommandFrame, reading: Reading) -> int:
        if reading.is_done(asked.producer_id):
            return 0
        producer = self._producer(asked.producer_id)
        if producer is None:
            return 1
        send = Send(asked, body_of(frame.rest))
        size = unpacked_bytes(send)
        if is_large(send, size):
            self._flush()
            self.intake.pending(size)
            self._large = LargeFrame(producer, send, size, self.gateway.max_message_bytes)
            return 0
        if self._sends and self._sends[-1][0] is producer:
            _, sends, before = self._sends[-1]
            sends.append(send)
            self._sends[-1] = (producer, sends, before + size)
        else:
            self._sends.append((producer, [send], size))
        self._taken_up += size
        self._messages += send.metadata.num_messages if send.metadata is not None else 1
        if self._taken_up > GROUP_BYTES or self._messages > PIECE_MESSAGES:
            self._flush()  # what they become counts before more are taken up
        return 0

    def _producer(self, number: int) -> WireProducer | None:
        """A producer that takes sends; None if it was closed from here, which its client learns by CLOSE_PRODUCER."""
        producer = self.producers.get(number)
        return producer if producer is not None and producer.ready and not producer.closed else None

    def _flush(self) -> None:
        """The sends that were read together go out together. Of rates they take what they are, whatever they say."""
        sends, self._sends, self._taken_up, self._messages = self._sends, [], 0, 0
        for producer, frames, size in sends:
            self.intake.pending(size)
            self._hand_over(producer, frames, size)

    def _hand_over(self, producer: WireProducer, frames: list[Send], size: int) -> None:
        producer.send(frames, size)
        self._pace(producer.tp, sum(frame.messages for frame in frames), sum(frame.size for frame in frames))

    def _decode_on(self, shared: bool) -> None:
        """Decode more of the large frame, if there is one. shared: others speak."""
        large = self._large
        if large is None or not large.go_on(self.gateway.ports.clock, shared=shared):
            return
        self._large = None
        if large.producer.ready and not large.producer.closed:
            self._hand_over(large.producer, [large.send], large.size)
        else:
            self.settled(large.size)

    def _pace(self, tp: TopicPartition, messages: int, size: int) -> None:
        """This many messages were taken. If that exceeds a rate, nothing more is read for a while."""
        wait = self.gateway.rates.published(Passed(tp.topic, tp.partition, self.role, messages, size))
        if wait and not self.closed:
            nothing = Passed(tp.topic, tp.partition, self.role, 0, 0)
            until = self.gateway.ports.clock.monotonic() + wait
            self._held_back[nothing] = max(self._held_back.get(nothing, 0), until)
            if not self.intake.throttled:
                self.intake.throttle(True)
                self.gateway.ports.spawn(self._wait_for_rate(), "rate")

    async def _wait_for_rate(self) -> None:
        clock, published = self.gateway.ports.clock, self.gateway.rates.published
        await held_back(clock, self._held_back, published, lambda: not self.closed)
        self.intake.throttle(False)

    def _flow(self, asked: Any) -> None:
        consumer = self.consumers.get(asked.consumer_id)
        if consumer is not None:
            consumer.flow(asked.permits)

    def _ack(self, asked: Any) -> None:
        consumer = self.consumers.get(asked.consumer_id)
        if asked.txn_least or asked.txn_most:
            self._acknowledged(asked, ServerError.NOT_ALLOWED, "transactions are not offered")
        elif consumer is None:
            self._acknowledged(asked, ServerError.CONSUMER_NOT_FOUND, "there is no such consumer")
        elif asked.ack_type == CUMULATIVE and consumer.asked.settings.type not in ONE_HAS_ALL:
            text = "a subscription that several consumers share has no cumulative acknowledgement"
            self._acknowledged(asked, ServerError.NOT_ALLOWED, text)
        elif len(asked.message_id) > MOST_IDS:
            self.spawn(self._confirm_many(consumer, asked), "ack", asked.ByteSize())
        else:
            unknown = consumer.acknowledge_sent(asked.message_id, cumulative=asked.ack_type == CUMULATIVE)
            if unknown or asked.HasField("request_id"):
                self.spawn(self._confirm(consumer, asked, [unknown]), "ack", asked.ByteSize())

    async def _confirm_many(self, consumer: WireConsumer, asked: Any) -> None:
        """More ids than clients gather: some at a time, and others have their turn between."""
        ids, cumulative = asked.message_id, asked.ack_type == CUMULATIVE
        unknown = (
            consumer.acknowledge_sent(ids[first : first + MOST_IDS], cumulative=cumulative)
            for first in range(0, len(ids), MOST_IDS)
            if not self.closed
        )
        async with self._many:
            await self._confirm(consumer, asked, unknown)

    async def _confirm(self, consumer: WireConsumer, asked: Any, unknown: Iterable[list[Any]]) -> None:
        """Confirm that an acknowledgement is durable. unknown: some at a time, what was not sent here."""
        unsure: list[int] = []
        try:
            for part in unknown:
                unsure += await consumer.acknowledge(part, cumulative=asked.ack_type == CUMULATIVE)
                if len(asked.message_id) > MOST_IDS:
                    await rest(self.gateway.ports.clock)
            if asked.HasField("request_id"):
                if not await consumer.stand_alone(unsure):
                    text = "of a batch of an earlier connection only a part is known"
                    raise CommandRefused(ServerError.SERVICE_NOT_READY, text)
                await consumer.confirmed()
        except SluiceError as error:
            self._acknowledged(asked, code_of(error), str(error))
        else:
            self._acknowledged(asked)

    def _acknowledged(self, asked: Any, error: int | None = None, text: str = "") -> None:
        if not asked.HasField("request_id"):
            return
        answer = command("ack_answer", consumer_id=asked.consumer_id, request_id=asked.request_id)
        if error is not None:
            answer.ack_answer.error, answer.ack_answer.message = error, text
        self.write(encode(answer))

    def _redeliver(self, asked: Any) -> None:
        consumer = self.consumers.get(asked.consumer_id)
        if consumer is None:
            return
        if asked.HasField("consumer_epoch"):
            consumer.epoch = asked.consumer_epoch
        self.spawn(consumer.redeliver(list(asked.message_ids)), "redeliver", asked.ByteSize())

    # -- life -----------------------------------------------------------------------------------------------------

    async def _keep_alive(self) -> None:
        """Ping a silent client; one that is silent for two spells counts as gone.

        To take what it was written is a sign of life as well, because meanwhile nothing is read from it. Nor is
        anything read while what came before waits for its turn, which says nothing of the client, and of the rest of a
        frame as little.
        """
        clock, unsent = self.gateway.ports.clock, 0
        while not self.closed:
            await clock.sleep(KEEP_ALIVE_MS)
            now, before, unsent = clock.monotonic(), unsent, self.link.unsent()
            waits = self._goes_on and not self.intake.choked
            if self.intake.throttled or waits or (self.intake.choked and unsent < before):
                self._heard = now
                self._begun = None if self._begun is None else now
            half = self._begun is not None and now - self._begun > FRAME_MS
            if now - self._heard > 2 * KEEP_ALIVE_MS or half or not self.greeted:
                self.end()
            elif now - self._heard > KEEP_ALIVE_MS // 2:
                self.write(_PING)

    def over(self) -> None:
        if self.closed:
            return
        super().over()
        self._read.clear()
        self._large = None
        self._cutter.clear()
        for task in (self._keeping, self._going_on):
            if task is not None:
                task.cancel()


def _parsed(data: memoryview) -> Any:
    """Return a command. Raises MalformedCommand."""
    if data[:2] == _ACK:
        acknowledged = parse(AckCommand, data)
        if acknowledged.type == _ACK[1]:
            return acknowledged
    return parse(Command, data)


INTRODUCED = ("producer", "subscribe")
"""Commands of which is kept what a client says of itself."""
_AUDITED = ("seek", "unsubscribe")
_REFUSALS = (ServerError.AUTHENTICATION, ServerError.AUTHORIZATION)
_ACK = b"\x08\x0a"
"""How the command of an ACK begins, whoever writes it: its type."""
_PING = encode(command("ping"))
_PONG = encode(command("pong"))
