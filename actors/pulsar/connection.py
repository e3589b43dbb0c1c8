"""One client's connection: what it asks, in the order of Pulsar's protocol, and what it is answered.

What needs nobody else (SEND, FLOW, ACK, PING) is done as it is read. What has to ask the cluster runs beside that, and
answers when it can; clients do not use a producer or consumer before they were told that it is there. A request that is
not offered is refused at once with Pulsar's code, because silence costs a client its time-out of 30 s.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container
from typing import Any

import numpy as np

from actors.pulsar.abreast import read_sends, sends_in
from actors.pulsar.answers import Answers
from actors.pulsar.consuming import WireConsumer
from actors.pulsar.fields import (
    FIELD_OF,
    NOT_OFFERED,
    AckCommand,
    Command,
    Malformed,
    ServerError,
    check_text,
    command,
    parse,
)
from actors.pulsar.frames import HEADROOM, Cut, Cutter, Frame, body_of, encode
from actors.pulsar.gateway import Gateway, Link
from actors.pulsar.producing import WireProducer
from actors.pulsar.refusals import Refused, code_of
from actors.pulsar.sends import Send
from actors.pulsar.session import NO_REQUEST, Session
from storage.errors import SluiceError

KEEP_ALIVE_MS = 30_000
CUMULATIVE = 1

Handler = Callable[[Any], Awaitable[None]]


class Connection(Session):
    """The conversation with one client."""

    def __init__(self, gateway: Gateway, link: Link) -> None:
        super().__init__(gateway, link)
        self._cutter = Cutter(gateway.max_message_bytes + HEADROOM)
        self._answers = Answers(self)
        self._heard = gateway.ports.clock.monotonic()
        self._sends: list[tuple[WireProducer, list[Send], int]] = []
        self._immediate: dict[str, Callable[[Any], None]] = {
            "ping": lambda _: self.write(_PONG),
            "pong": lambda _: None,
            "flow": self._flow,
            "ack": self._ack,
            "redeliver": self._redeliver,
        }
        gateway.ports.spawn(self._keep_alive(), "keep-alive")

    # -- in -------------------------------------------------------------------------------------------------------

    def data(self, chunk: bytes | memoryview) -> None:
        """These bytes were read, and may be written over afterwards.

        Never raises: a client that breaks the protocol is told and closed.
        """
        if self.closed:
            return
        self._heard = self.gateway.ports.clock.monotonic()
        if not self._sign.is_set():
            self._sign.set()
        try:
            self._frames(self._cutter.feed(chunk))
        except (Malformed, UnicodeDecodeError) as error:
            self.gateway.ports.log("protocol", peer=self.link.peer, error=str(error))
            self._flush()
            self.refuse(NO_REQUEST, ServerError.UNSUPPORTED_VERSION, str(error))
            self.end()
            return
        self._flush()

    def _frames(self, cut: Cut) -> None:
        """What was read, in order; neighbouring SENDs together."""
        number = 0
        if len(cut) >= self.gateway.abreast_from and self.greeted:
            sends = sends_in(cut)
            begins = np.flatnonzero(np.diff(sends, prepend=False, append=False)).reshape(-1, 2).tolist()
            for first, end in begins:
                if end - first >= self.gateway.abreast_from:
                    for before in range(number, first):
                        self._frame(cut[before])
                    self._abreast(cut, first, end)
                    number = end
        for left in range(number, len(cut)):
            self._frame(cut[left])

    def _abreast(self, cut: Cut, first: int, end: int) -> None:
        """SENDs number first .. end-1. Each producer's go out in their order, decoded together or one by one."""
        self._flush()
        read = read_sends(cut, first, end) or {}
        done: dict[int, None] = {}
        for number, sends in read.items():
            producer = self._producer(number)
            if producer is not None and sends is not None and producer.takes(sends):
                done[number] = None
                self.pending(sends.size)
                producer.send_abreast(sends)
        if not read or len(done) < len(read):
            self._one_by_one(cut, first, end, done)

    def _one_by_one(self, cut: Cut, first: int, end: int, done: Container[int]) -> None:
        """Those of the producers that are not decoded abreast."""
        for frame in (cut[number] for number in range(first, end)):
            asked = parse(Command, frame.command).send
            if asked.producer_id not in done:
                self._send(asked, frame)

    def _frame(self, frame: Frame) -> None:
        asked = _parsed(frame.command)
        name = FIELD_OF.get(asked.type, "")
        if not self.greeted and name != "connect":
            raise Malformed("the first command of a connection is CONNECT")
        if name == "send":
            self._send(asked.send, frame)
            return
        self._flush()
        if not name or not asked.HasField(name):
            raise Malformed(f"there is no command {asked.type}, or it is empty")
        body = getattr(asked, name)
        if name in self._immediate:
            self._immediate[name](body)
        else:
            self._begin(name, body)

    def _begin(self, name: str, body: Any) -> None:
        """Answer beside what else comes; a refusal goes back under the request's number."""
        handler: Handler | None = getattr(self._answers, name, None)
        if handler is None and name not in NOT_OFFERED:
            raise Malformed(f"a client does not say {name}")
        if handler is None:
            self.refuse(body.request_id, ServerError.NOT_ALLOWED, f"{name} is not offered")
            return
        self.begin(self._answer(name, handler, body), name)

    async def _answer(self, name: str, handler: Handler, body: Any) -> None:
        try:
            check_text(body)
            await handler(body)
        except SluiceError as error:
            if name == "connect":
                self.refuse(NO_REQUEST, code_of(error), str(error))
                self.end()
            elif not self._answers.refused(name, body.request_id, error):
                self.refuse(body.request_id, code_of(error), str(error))

    # -- what needs nobody else -----------------------------------------------------------------------------------

    def _send(self, asked: Any, frame: Frame) -> None:
        producer = self._producer(asked.producer_id)
        if producer is None:
            return
        size = len(frame.rest)
        send = Send(asked, body_of(frame.rest))
        if self._sends and self._sends[-1][0] is producer:
            _, sends, before = self._sends[-1]
            sends.append(send)
            self._sends[-1] = (producer, sends, before + size)
        else:
            self._sends.append((producer, [send], size))

    def _producer(self, number: int) -> WireProducer | None:
        """A producer that takes sends; None if it was closed from here, which its client learns by CLOSE_PRODUCER."""
        producer = self.producers.get(number)
        return producer if producer is not None and producer.ready and not producer.closed else None

    def _flush(self) -> None:
        """The sends that were read together go out together."""
        sends, self._sends = self._sends, []
        for producer, frames, size in sends:
            self.pending(size)
            producer.send(frames, size)

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
        else:
            unknown = consumer.acknowledge_sent(asked.message_id, cumulative=asked.ack_type == CUMULATIVE)
            if unknown or asked.HasField("request_id"):
                self.begin(self._confirm(consumer, asked, unknown), "ack")

    async def _confirm(self, consumer: WireConsumer, asked: Any, unknown: list[Any]) -> None:
        """Say of an acknowledgement that it is durable."""
        try:
            unsure = await consumer.acknowledge(unknown, cumulative=asked.ack_type == CUMULATIVE)
            if asked.HasField("request_id"):
                if not await consumer.stand_alone(unsure):
                    text = "of a batch of an earlier connection only a part is known"
                    raise Refused(ServerError.SERVICE_NOT_READY, text)
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
        self.begin(consumer.redeliver(list(asked.message_ids)), "redeliver")

    # -- life -----------------------------------------------------------------------------------------------------

    async def _keep_alive(self) -> None:
        """Ask a silent client whether it is there; one that says nothing for two spells is not."""
        clock = self.gateway.ports.clock
        while not self.closed:
            await clock.sleep(KEEP_ALIVE_MS)
            silent = clock.monotonic() - self._heard
            if silent > 2 * KEEP_ALIVE_MS or not self.greeted:
                self.end()
            elif silent > KEEP_ALIVE_MS // 2:
                self.write(_PING)


def _parsed(data: memoryview) -> Any:
    """A command. Raises Malformed."""
    if data[:2] == _ACK:
        acknowledged = parse(AckCommand, data)
        if acknowledged.type == _ACK[1]:
            return acknowledged
    return parse(Command, data)


_ACK = b"\x08\x0a"
"""How the command of an ACK begins, whoever writes it: its type."""
_PING = encode(command("ping"))
_PONG = encode(command("pong"))
