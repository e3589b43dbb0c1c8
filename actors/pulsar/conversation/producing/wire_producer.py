"""A client's producer on one partition: SEND frames in, receipts out in the order of the sends.

Clients' sequence numbers cannot be those of the topic: with batches by key they interleave. So rows are numbered here,
and the topic remembers how far that went under the producer's name, over reconnections too.

With the topic's `deduplication_enabled` the client's number is kept in that of the rows
(actors.pulsar.conversation.producing.sequence_spans), so a frame that was stored before is known after any
reconnection. Numbers must then rise from frame to frame, as they do but for batches by key. So nothing is stored behind
a frame that was refused: its number would then be below the topic's mark, and the frame, if it came again mended, would
pass for a duplicate. What follows it is dropped, and the client is told to open the producer again (CLOSE_PRODUCER). It
then sends everything that has no answer, in order, and with it the refused one or not, as it likes.

A receipt that overtakes an earlier send makes clients break the connection and send everything again. So what is
refused waits for its turn like everything else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Protocol

import numpy as np

from sluice.actors.consumer.payload import published_run
from sluice.actors.messages import Published
from sluice.actors.producer.batches import Outgoing, places
from sluice.actors.producer.producer import Entrance, PartitionProducer, ProducerConfig
from sluice.actors.producer.waves import Outcome
from sluice.actors.pulsar.codec.fields import UNSIGNED
from sluice.actors.pulsar.codec.frames import encode
from sluice.actors.pulsar.codec.protocol import MalformedCommand, ServerError, command
from sluice.actors.pulsar.codec.send_decoder import Group, Send, decode_sends, refuse
from sluice.actors.pulsar.codec.vectorized_decoder import Answered, Sends
from sluice.actors.pulsar.conversation.gateway.gateway import Gateway
from sluice.actors.pulsar.conversation.producing.sequence_spans import (
    MOST_SEQUENCE,
    Numbers,
    end_of,
    last_complete,
    span_of,
)
from sluice.actors.pulsar.refusals import CommandRefused, code_of
from sluice.actors.pulsar.topic_names import TopicPartition
from sluice.storage.errors import Conflict, Fenced, SluiceError
from sluice.storage.format.batch import StoredBatch
from sluice.storage.format.frame import Run
from sluice.storage.format.position import entry_of, ledger_of

_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,100}")


def stored_name(name: str) -> str:
    """The name under which the topic remembers a client's producer; never the name of a producer of Sluice's own."""
    plain = _PLAIN.fullmatch(name) and ".." not in name
    return f"pulsar.{name}" if plain else f"pulsar.{hashlib.sha256(name.encode()).hexdigest()}"


class ProducerSession(Protocol):
    """The connection of a producer, as the producer sees it. fails_by: Pulsar's code that makes this client fail a
    message.
    """

    fails_by: int

    def confirm(self, answered: Answered) -> None:
        """Send the receipts of these frames, soon: with those of others."""

    def answer(self, data: bytes) -> None:
        """Send bytes to the client, behind all receipts so far."""

    def settled(self, size: int) -> None:
        """Sends with this number of bytes have their outcome."""

    def fenced(self, producer: WireProducer) -> None:
        """Another one has taken its place."""

    async def answers(self) -> bool:
        """Return whether the client shows a sign of life soon."""


class Joint(Protocol):
    """Frames of this producer and of others, whose receipts go out without it."""

    settled: bool


class WireProducer:
    """A producer on a connection."""

    def __init__(
        self,
        gateway: Gateway,
        session: ProducerSession,
        tp: TopicPartition,
        number: int,
        name: str,
        *,
        entrance: Entrance,
        deduplicate: bool = False,
    ) -> None:
        self._gateway, self._session = gateway, session
        self.tp, self.number, self.name = tp, number, name
        self._waiting: list[Send | Sends | Joint] = []
        self.incarnation = gateway.fresh("gateway")
        self.part = PartitionProducer(
            gateway.ports,
            gateway.directory,
            ProducerConfig(tp.topic, tp.partition, stored_name(name), self.incarnation, entrance=entrance),
            self._published,
            gateway.waves,
        )
        self._next = 0
        self._deduplicate, self._numbers = deduplicate, Numbers()
        self._refused = False
        """With deduplication: a frame was refused, and behind it nothing is taken."""
        self.ready = self.closed = False
        self.announced = False
        """Whether its client knows that it is there."""

    async def open(self) -> None:
        """Register at the partition's owner, which may take until others have left. Raises SluiceErrors."""
        try:
            await self.part.open()
        except Conflict as error:
            raise CommandRefused(ServerError.PRODUCER_BUSY, str(error)) from None
        if self.closed:  # meanwhile, when it had no place yet that it could leave
            self._gateway.ports.spawn(self.part.leave(), "leave")
        self._next = self.part.last_sequence + 1
        self._numbers = Numbers(self.part.last_sequence)
        self.ready = True

    @property
    def last_sequence_id(self) -> int:
        """The client's last number that is stored, -1 if that is not remembered: only with deduplication it is."""
        return last_complete(self.part.last_sequence) if self._deduplicate else -1

    @property
    def topic_epoch(self) -> int | None:
        """The topic epoch for a client with exclusive access; None for others."""
        return self.part.topic_epoch

    def send(self, sends: list[Send], size: int) -> None:
        """Frames of one read. size: their bytes."""
        if self._refused:
            self._session.settled(size)
            return
        taken, groups = self._without_duplicates(sends) if self._deduplicate else (sends, self._decoded(sends))
        self._waiting.extend(taken)
        for send in taken:
            send.settled = send.settled or send.error is not None
        left = size
        for number, group in enumerate(groups, 1):
            share = left if number == len(groups) else size // len(groups)
            left -= share
            first = self._numbered(group.sends[-1].span[1], len(group.batch))
            self.part.send(self._outgoing(group, first, share))
        if not groups:
            self._session.settled(size)
        self.answer()

    def _outgoing(self, group: Group, first: int, size: int) -> Outgoing:
        """Return frames that are published together. first: the sequence of their first row at the topic."""

        def divide() -> list[Outgoing]:
            sends, batch = group.sends, group.batch
            middle = len(sends) // 2
            rows, part = sum(send.rows for send in sends[:middle]), size * middle // len(sends)
            ahead, behind = (
                Group(sends[:middle], batch.slice(0, rows)),
                Group(sends[middle:], batch.slice(rows, len(batch))),
            )
            first_ahead = sends[middle - 1].span[1] + 1 - rows if self._deduplicate else first
            return [self._outgoing(ahead, first_ahead, part), self._outgoing(behind, first + rows, size - part)]

        return Outgoing(
            group.batch,
            first,
            places(len(group.batch)),
            self._outcome(group.sends, size),
            only_end=self._has_only_end(group),
            divide=divide if len(group.sends) > 1 else None,
        )

    def _decoded(self, sends: list[Send]) -> list[Group]:
        now, largest = self._gateway.ports.clock.now(), self._gateway.max_message_bytes
        return decode_sends(sends, now=now, producer=self.name, largest=largest)

    def _without_duplicates(self, sends: list[Send]) -> tuple[list[Send], list[Group]]:
        """(The frames that are taken, the runs of those that are new.) A frame that is refused is the last one."""
        taken: list[Send] = []
        new: list[int] = []
        for number, send in enumerate(sends):
            taken.append(send)
            try:
                if self._is_new(send):
                    new.append(number)
            except MalformedCommand as error:
                refuse(send, error)
                self._stop_taking()
                break
        groups = self._decoded([sends[number] for number in new])
        wrong = next((number for number in new if sends[number].error is not None), None)
        if wrong is not None:
            self._stop_taking()
            taken = taken[: wrong + 1]
            groups = self._decoded([sends[number] for number in new if number < wrong])
        return taken, groups

    def _stop_taking(self) -> None:
        """A frame is refused: what comes behind it is dropped until the client opens the producer again."""
        self._refused, self.ready = True, False

    def _is_new(self, send: Send) -> bool:
        """Return whether a frame must be stored. A stored frame gets its receipt, after those of earlier frames.

        Raises MalformedCommand.
        """
        first, last = send.span = span_of(send)
        if self._numbers.cover(first, last):
            send.settled = True
            return False
        if last <= self._numbers.last:
            text = f"with deduplication sequence ids rise; {send.command.sequence_id} comes too late and is not stored"
            send.error = (ServerError.NOT_ALLOWED, text)
            return False
        if first <= self._numbers.last and last - send.metadata.num_messages < self._numbers.last:
            raise MalformedCommand("chunks of another message are stored under this sequence id")
        self._numbers.add(first, last)
        return True

    def _has_only_end(self, group: Group) -> bool:
        """See Outgoing. A chunk has its own place below the end."""
        return self._deduplicate and not group.sends[-1].metadata.num_chunks > 1

    def takes(self, sends: Sends) -> bool:
        """Whether these frames may come to `send_vectorized`: with deduplication only if none was sent before."""
        if not self._deduplicate:
            return True
        numbers = np.maximum(sends.sequence, sends.highest)
        known = np.concatenate([[self._numbers.sequence], numbers])
        return bool((np.diff(known) > 0).all() and numbers[-1] <= MOST_SEQUENCE)

    def may_join(self) -> bool:
        """Return whether its frames may be sent together with those of others: nothing of it is under way."""
        return not (self._deduplicate or self._waiting) and self.part.is_free()

    def join(self, joint: Joint, count: int) -> int:
        """Send this number of rows with those of others; returns the sequence of the first at the topic."""
        self._waiting.append(joint)
        self.part.send_jointly()
        return self._numbered(-1, count)

    def send_alone(self, joint: Joint, sends: Sends, first: int, outcome: Outcome | None) -> None:
        """Go on alone with its frames of a joint attempt, which had this outcome. first: the sequence of their first
        row.
        """
        self._waiting[self._waiting.index(joint)] = sends
        batch = sends.run(self.name, self._gateway.ports.clock.now)
        self.part.publish_alone([self._outgoing_vectorized(sends, batch, first)], outcome)

    def send_vectorized(self, sends: Sends) -> None:
        """Frames of one read that were decoded together."""
        self._waiting.append(sends)
        first = self._first_of(sends)
        batch = sends.run(self.name, self._gateway.ports.clock.now)
        self.part.send(self._outgoing_vectorized(sends, batch, first))

    def _outgoing_vectorized(self, sends: Sends, batch: StoredBatch, first: int) -> Outgoing:
        """Return the same as `_outgoing`."""

        def done(rows: np.ndarray, first: int, error: SluiceError | None) -> None:
            sends.settled, sends.first = True, first
            if self._deduplicate and self._is_dropped(sends, error):
                self._session.settled(sends.size)
                return
            if error is not None:
                sends.error = (code_of(error), str(error))
            elif first >= 0 and sends.bodies is not None:
                self._gateway.recent.keep(first, sends.rows, sends.bodies)
            self._done(sends.size, error)

        def divide() -> list[Outgoing]:
            ahead, behind = sends.halves()
            at, rows = self._waiting.index(sends), ahead.table.num_rows
            self._waiting[at] = behind
            self._waiting.insert(at, ahead)
            last = max(int(ahead.sequence[-1]), int(ahead.highest[-1]))
            first_ahead = end_of(last) + 1 - rows if self._deduplicate else first
            return [
                self._outgoing_vectorized(ahead, batch.slice(0, rows), first_ahead),
                self._outgoing_vectorized(behind, batch.slice(rows, len(batch)), first + rows),
            ]

        return Outgoing(
            batch,
            first,
            places(len(batch)),
            done,
            sends.size,
            only_end=self._deduplicate,
            divide=divide if len(sends) > 1 else None,
        )

    def _published(self, run: Run, at: Published, batch: StoredBatch) -> None:
        """Readers of the partition at this gateway need not ask for runs that were published here."""
        if not at.duplicate and self._gateway.is_read(self.tp.topic, self.tp.partition):
            self._gateway.decoded.add(published_run(at.ledger, at.first_entry, run, batch))

    def _first_of(self, sends: Sends) -> int:
        """Return the sequence of the first row at the topic."""
        if self._deduplicate:
            self._numbers.add_all(sends.sequence, np.maximum(sends.sequence, sends.highest))
        return self._numbered(self._numbers.last, sends.table.num_rows)

    def _numbered(self, last: int, count: int) -> int:
        """Return the topic's sequence number of the first row. last: with deduplication, the number of the last row."""
        if self._deduplicate:
            return last + 1 - count
        first, self._next = self._next, self._next + count
        return first

    def _is_dropped(self, sends: Send | Sends, error: SluiceError | None) -> bool:
        """With deduplication: whether frames that have their outcome wait for no answer any more, because they were
        sent behind some that the topic refused. sends: the last of those that have this outcome.
        """
        if error is None or isinstance(error, Fenced):
            return not any(sends is one for one in self._waiting) if self._refused else False
        if not any(sends is one for one in self._waiting):
            return True
        self._stop_taking()
        while self._waiting[-1] is not sends:
            self._waiting.pop()
        self.part.close()
        return False

    def _outcome(self, sends: list[Send], size: int) -> Callable[[np.ndarray, int, SluiceError | None], None]:
        def done(rows: np.ndarray, first: int, error: SluiceError | None) -> None:
            if self._deduplicate and self._is_dropped(sends[-1], error):
                self._session.settled(size)
                return
            for send in sends:
                send.settled = True
                if error is not None:
                    send.error = (code_of(error), str(error))
                elif first >= 0:
                    send.position = first
                    first += send.rows
            self._done(size, error)

        return done

    def _done(self, size: int, error: SluiceError | None) -> None:
        """Sends with this number of bytes have their outcome."""
        self._session.settled(size)
        self.answer()
        if error is not None and isinstance(error, Fenced) and not self.closed:
            self._session.fenced(self)

    def answer(self) -> None:
        """Send the receipts, and refusals, of all sends whose turn it is."""
        while self._waiting and self._waiting[0].settled:
            sends = self._waiting.pop(0)
            if self.closed:
                continue
            if isinstance(sends, Send):
                self._session.answer(self._receipt(sends))
            elif isinstance(sends, Sends) and sends.error is not None:
                self._session.answer(self._refusals(sends))
            elif isinstance(sends, Sends):
                self._session.confirm((self.number, self.tp.wire_partition, sends))
        if self._refused and not self._waiting and not self.closed:
            self._session.fenced(self)

    def _refusals(self, sends: Sends) -> bytes:
        assert sends.error is not None
        return b"".join(self._refusal(number, sends.error) for number in sends.sequence.tolist())

    def _refusal(self, sequence: int, error: tuple[int, str]) -> bytes:
        code, text = error
        if code == ServerError.NOT_ALLOWED:
            code = self._session.fails_by
        refusal = {"producer_id": self.number, "sequence_id": sequence, "error": code, "message": text}
        return encode(command("send_error", **refusal))

    def _receipt(self, send: Send) -> bytes:
        asked = send.command
        if send.error is not None:
            return self._refusal(asked.sequence_id, send.error)
        at = send.position
        ids = {"ledger": ledger_of(at), "entry": entry_of(at)} if at >= 0 else {"ledger": UNSIGNED, "entry": UNSIGNED}
        answer = command(
            "send_receipt",
            producer_id=self.number,
            sequence_id=asked.sequence_id,
            message_id={**ids, "partition": self.tp.wire_partition},
        )
        if asked.HasField("highest_sequence_id"):
            answer.send_receipt.highest_sequence_id = asked.highest_sequence_id
        return encode(answer)

    async def flush(self) -> None:
        """Wait until every send is settled."""
        await self.part.flush()

    def give_way(self) -> None:
        """Another producer has the topic to itself from now on."""
        self._session.fenced(self)

    async def come_again(self) -> None:
        """Take nothing more, and send the client away when every send that was taken is settled.

        A producer that is being opened stays: its client would wait for an answer that never comes.
        """
        if self.ready:
            self.ready = False
            await self.flush()
            if not self.closed:
                self._session.fenced(self)

    async def answers(self) -> bool:
        return not self.closed and await self._session.answers()

    def close(self) -> None:
        """Stop sending; messages on their way may still be stored."""
        if not self.closed:
            self.closed = True
            self.part.close()
            self._gateway.ports.spawn(self.part.leave(), "leave")
