"""A client's producer on one partition: SEND frames in, receipts out in the order of the sends.

Clients' sequence numbers cannot be those of the topic: with batches by key they interleave. So rows are numbered here,
and the topic remembers how far that went under the producer's name, over reconnections too.

With the topic's `deduplication_enabled` the client's number is kept in that of the rows, so a frame that was stored
before is known after any reconnection. Numbers must then rise from frame to frame, as they do but for batches by key.

A receipt that overtakes an earlier send makes clients break the connection and send everything again. So what is
refused waits for its turn like everything else.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Awaitable, Callable

import numpy as np

from actors.consumer.payload import published_run
from actors.messages import Published
from actors.producer.producer import Entrance, Outgoing, PartitionProducer
from actors.pulsar.abreast import Sends
from actors.pulsar.columns import UNSIGNED
from actors.pulsar.fields import ServerError, command
from actors.pulsar.frames import encode
from actors.pulsar.gateway import Gateway
from actors.pulsar.refusals import Refused, code_of
from actors.pulsar.sends import Send, decode_sends, run_of
from actors.pulsar.topics import Place
from storage.errors import Conflict, Fenced, SluiceError
from storage.frame import Run
from storage.position import entry_of, ledger_of

SHIFT = 16
"""With deduplication the rows of a run end at the sequence that stands for the client's last number and all ones: a run
has at most 65,536 rows, so runs of different numbers never overlap, and the topic remembers the client's number."""
MOST_SEQUENCE = (1 << 46) - 1
_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,100}")


def sequence_of(send: Send) -> int:
    """A client's own number of a frame: of its last message, where it says that."""
    return int(max(send.command.sequence_id, send.command.highest_sequence_id))


def stored_name(name: str) -> str:
    """Under which name the topic remembers a client's producer; never that of one of Sluice's own."""
    plain = _PLAIN.fullmatch(name) and ".." not in name
    return f"pulsar.{name}" if plain else f"pulsar.{hashlib.sha256(name.encode()).hexdigest()}"


class WireProducer:
    """One producer of one connection.

    write: sends bytes to the client. fenced: told when another one has taken its place. settled: told with the number
    of bytes of each group of sends that has its outcome. alive: whether the client shows a sign of life soon. fails_by:
    Pulsar's code that makes this client fail a message.
    """

    def __init__(
        self,
        gateway: Gateway,
        place: Place,
        number: int,
        name: str,
        *,
        write: Callable[[bytes], None],
        fenced: Callable[[WireProducer], None],
        settled: Callable[[int], None],
        alive: Callable[[], Awaitable[bool]],
        fails_by: int = ServerError.NOT_ALLOWED,
        deduplicate: bool = False,
        entrance: Entrance,
    ) -> None:
        self._gateway = gateway
        self.place, self.number, self.name = place, number, name
        self._write, self._fenced, self._settled, self._alive = write, fenced, settled, alive
        self._fails_by = fails_by
        self._waiting: deque[Send | Sends] = deque()
        self.incarnation = gateway.fresh("gateway")
        self._part = PartitionProducer(
            gateway.ports,
            gateway.directory,
            place.topic,
            place.partition,
            stored_name(name),
            self.incarnation,
            entrance=entrance,
            published=self._published,
        )
        self._next = 0
        self._deduplicate, self._last = deduplicate, -1
        self.ready = self.closed = False
        self.told = False
        """Its client knows that it is there."""

    async def open(self) -> None:
        """Register at the partition's owner, which may take until others have left. Raises SluiceErrors."""
        try:
            await self._part.open()
        except Conflict as error:
            raise Refused(ServerError.PRODUCER_BUSY, str(error)) from None
        self._next = self._part.last_sequence + 1
        if self._deduplicate:
            self._last = self._part.last_sequence >> SHIFT
        self.ready = True

    @property
    def last_sequence_id(self) -> int:
        """The client's last number that is stored, -1 if that is not remembered: only with deduplication it is."""
        return self._last

    @property
    def topic_epoch(self) -> int | None:
        """What a client that has the topic to itself is told; None to others."""
        return self._part.topic_epoch

    def send(self, sends: list[Send], size: int) -> None:
        """Frames of one read. size: their bytes."""
        self._waiting.extend(sends)
        fresh = [send for send in sends if not self._stored_before(send)] if self._deduplicate else sends
        groups = decode_sends(fresh, now=self._gateway.ports.clock.now(), producer=self.name, first_sequence=self._next)
        for send in sends:
            send.settled = send.settled or send.error is not None
        left = size
        for number, group in enumerate(groups, 1):
            share = left if number == len(groups) else size // len(groups)
            left -= share
            first = self._numbered(sequence_of(group.sends[-1]), len(group.batch))
            done = self._outcome(group.sends, share)
            rows = np.arange(len(group.batch))
            self._part.send(Outgoing(group.batch, first, rows, done, only_end=self._deduplicate))
        if not groups:
            self._settled(size)
        self._answer()

    def takes(self, sends: Sends) -> bool:
        """Whether these frames may come to `send_abreast`: with deduplication only if none was sent before."""
        numbers = np.maximum(sends.sequence, sends.highest)
        known = np.concatenate([[self._last], numbers])
        return not self._deduplicate or bool((np.diff(known) > 0).all() and numbers[-1] <= MOST_SEQUENCE)

    def send_abreast(self, sends: Sends) -> None:
        """Frames of one read that were decoded together."""
        self._waiting.append(sends)
        first, count = self._first_of(sends), sends.table.num_rows
        batch = run_of(sends.table, now=self._gateway.ports.clock.now(), producer=self.name, first_sequence=first)

        def done(rows: np.ndarray, first: int, error: SluiceError | None) -> None:
            sends.settled, sends.first = True, first
            if error is not None:
                sends.error = (code_of(error), str(error))
            elif first >= 0 and sends.bodies is not None:
                self._gateway.recent.keep(first, sends.rows, sends.bodies)
            self._done(sends.size, error)

        self._part.send(Outgoing(batch, first, np.arange(count), done, only_end=self._deduplicate))

    def _published(self, run: Run, place: Published) -> None:
        """Who reads the partition here need not ask for what was published here."""
        if not place.duplicate and self._gateway.is_read(self.place.topic, self.place.partition):
            self._gateway.decoded.add(published_run(place.ledger, place.first_entry, run))

    def _first_of(self, sends: Sends) -> int:
        """The sequence of the first row at the topic."""
        if self._deduplicate:
            self._last = int(max(sends.sequence[-1], sends.highest[-1]))
        return self._numbered(self._last, sends.table.num_rows)

    def _numbered(self, last: int, count: int) -> int:
        """The sequence of the first of so many rows at the topic. last: the client's number of the last frame."""
        if self._deduplicate:
            return (last + 1 << SHIFT) - count
        first, self._next = self._next, self._next + count
        return first

    def _stored_before(self, send: Send) -> bool:
        """Whether the client sent it before. Then it has its receipt, behind those of what it sent earlier."""
        number = sequence_of(send)
        if number > MOST_SEQUENCE:
            send.error = (ServerError.NOT_ALLOWED, f"with deduplication a sequence id is at most {MOST_SEQUENCE}")
            return True
        send.settled = number <= self._last
        self._last = max(self._last, number)
        return send.settled

    def _outcome(self, sends: list[Send], size: int) -> Callable[[np.ndarray, int, SluiceError | None], None]:
        def done(rows: np.ndarray, first: int, error: SluiceError | None) -> None:
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
        """Sends of so many bytes have their outcome."""
        self._settled(size)
        self._answer()
        if isinstance(error, Fenced) and not self.closed:
            self._fenced(self)

    def _answer(self) -> None:
        """Receipts, and refusals, of all sends whose turn it is."""
        frames = []
        while self._waiting and self._waiting[0].settled:
            sends = self._waiting.popleft()
            frames.append(self._receipt(sends) if isinstance(sends, Send) else self._receipts(sends))
        if frames and not self.closed:
            self._write(b"".join(frames))

    def _receipts(self, sends: Sends) -> bytes:
        if sends.error is None:
            return sends.receipts(self.number, self.place.told)
        return b"".join(self._refusal(number, sends.error) for number in sends.sequence.tolist())

    def _refusal(self, sequence: int, error: tuple[int, str]) -> bytes:
        code, text = error
        if code == ServerError.NOT_ALLOWED:
            code = self._fails_by
        refusal = {"producer_id": self.number, "sequence_id": sequence, "error": code, "message": text}
        return encode(command("send_error", **refusal))

    def _receipt(self, send: Send) -> bytes:
        asked = send.command
        if send.error is not None:
            return self._refusal(asked.sequence_id, send.error)
        at = send.position
        told = {"ledger": ledger_of(at), "entry": entry_of(at)} if at >= 0 else {"ledger": UNSIGNED, "entry": UNSIGNED}
        answer = command(
            "send_receipt",
            producer_id=self.number,
            sequence_id=asked.sequence_id,
            message_id={**told, "partition": self.place.told},
        )
        if asked.HasField("highest_sequence_id"):
            answer.send_receipt.highest_sequence_id = asked.highest_sequence_id
        return encode(answer)

    async def flush(self) -> None:
        """Wait until every send has its outcome."""
        await self._part.flush()

    def give_way(self) -> None:
        """Another producer has the topic to itself from now on."""
        self._fenced(self)

    async def come_again(self) -> None:
        """Take nothing more, and send the client away when all that was taken has its outcome.

        One that is being opened stays: its client would wait for an answer that is never said.
        """
        if self.ready:
            self.ready = False
            await self.flush()
            if not self.closed:
                self._fenced(self)

    async def answers(self) -> bool:
        """See actors.pulsar.gateway.ProducerHere."""
        return not self.closed and await self._alive()

    def close(self) -> None:
        """Send no more; what is on its way may still be stored."""
        if not self.closed:
            self.closed = True
            self._part.close()
            self._gateway.ports.spawn(self._part.leave(), "leave")
