"""The consumers' sessions at one dispatcher: leases, turns, outboxes and the confirmation of acknowledgements.

A session stands for one consumer incarnation under one dispatcher epoch. It is a lease: it ends when nothing was
heard for the time of the lease. A Poll's turn is answered once; a repetition of the turn brings the same delivery
again, so a lost reply neither loses messages nor delivers them a second time.

Acknowledgement turns are confirmed in order: `received` is the highest turn up to which all have arrived and are
noted, `durable` the highest up to which the cursor that holds them is on disk.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import msgspec
import numpy as np

from sluice.actors.messages import MOVES, Delivery, Event, Part, Revocation
from sluice.actors.messages.limits import MAX_ANSWER_BYTES
from sluice.actors.ports import Address, Ports, Task
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import Conflict, Fenced
from sluice.storage.format.position import Positions, positions_of

EPOCH_SESSIONS = 1 << 24
"""Session numbers of different epochs never meet: a late request of an old session is always refused."""

REMEMBERED_BACK = 1_000
"""The number of hand-backs of a session that are remembered, to know late copies of them."""


@dataclass(eq=False, slots=True)
class Session:
    """An attached consumer. number: its own, on the wire and in the decision core alike."""

    number: int
    name: str
    incarnation: str
    turn: int = 0
    answered: Delivery | None = None
    _polls: int = 0
    """The number of requests of a turn that wait for its answer; a repetition comes beside the one before it."""
    outbox: list[Part] = field(default_factory=list)
    _outbox_bytes: int = 0
    """Invariant: the bytes of the payloads in the outbox, at most MAX_ANSWER_BYTES."""
    events: list[Event] = field(default_factory=list)
    ready: Signal = field(default_factory=Signal)
    lives: Signal = field(default_factory=Signal)
    """Set when a question (`ask`) was answered, and when the session is over."""
    _asked: int = 0
    """The turn whose answer asks whether the consumer lives; 0 while no question is open."""
    early: dict[int, bool] = field(default_factory=dict)
    """The acknowledgement turns that have arrived, and whether everything in each is noted.

    Invariant: all are above `received`, and `received` + 1 is not noted.
    """
    received: int = 0
    """Invariant: never falls. All turns up to here have arrived and are noted."""
    durable: int = 0
    """Invariant: never falls. The cursor on disk holds all turns up to here."""
    last_acked: int = 0
    consumer_epoch: int = 0
    handed_back: dict[int, None] = field(default_factory=dict)
    watch: Task | None = None
    revocation: Revocation | None = None
    knows_end: bool = False
    read_compacted: bool = False
    """Whether the consumer wants only the last message of each key, as far as the topic was compacted."""
    moves: bool = True
    """Whether the consumer wants to know which hashes it has."""
    _behind: dict[int, Session] = field(default_factory=dict)
    """See `Sessions.behind`."""

    def arrived(self, ack_turn: int) -> bool:
        """Note an acknowledgement turn, which counts once it is `settled`; False if it had arrived before."""
        if ack_turn <= self.received or ack_turn in self.early:
            return False
        self.early[ack_turn] = False
        return True

    def settle(self, ack_turn: int) -> None:
        """Note that everything in an acknowledgement turn is recorded."""
        self.early[ack_turn] = True
        while self.early.get(self.received + 1, False):
            self.received += 1
            del self.early[self.received]
        if self.received > self.durable:
            self._behind[self.number] = self

    def confirm(self, ack_turn: int) -> None:
        """Note that everything up to this acknowledgement turn is durable."""
        self.durable = max(self.durable, ack_turn)
        if self.durable >= self.received:
            self._behind.pop(self.number, None)

    def acknowledged(self, now: int) -> None:
        """Note when the consumer last reported messages that are done."""
        self.last_acked = now

    def watched_by(self, watch: Task | None) -> None:
        """Set the task that ends the session when its process has ended; None: that task is over."""
        self.watch = watch

    def begin_turn(self, turn: int) -> None:
        """Begin the turn of a Poll. Raises Conflict if a later one came before it."""
        if turn < self.turn:
            raise Conflict(f"turn {turn} is over, the session is at {self.turn}")
        if turn > self.turn:
            self.turn, self.answered = turn, None
            if 0 < self._asked < turn:
                self._asked = 0
                self.lives.set()

    async def something(self, ports: Ports, milliseconds: int) -> None:
        """Wait until there is something to answer the present turn with, at most this many milliseconds."""
        if self.waiting:
            return
        self.ready.clear()
        self._polls += 1
        try:
            await self.ready.wait(ports, milliseconds, about=True)
        finally:
            self._polls -= 1

    def waits_in(self, turn: int) -> bool:
        """Return whether a poll of that turn waits for messages."""
        return turn == self.turn and self.answered is None and self._polls > 0

    def ask(self) -> None:
        """Ask whether the consumer lives, by answering the poll that waits or comes next at once.

        Only a turn that follows that answer proves it: any other request may have been under way for long, and come
        from a consumer that has died since.
        """
        self.lives.clear()
        self._asked = self.turn + (self.turn == 0 or self.answered is not None)
        self.ready.set()

    def push(self, parts: list[Part]) -> None:
        """Add messages to the outbox. A payload without room is left out: the consumer asks the topic for it."""
        for part in parts:
            size = 0 if part.blob is None else part.blob.size
            fits = self._outbox_bytes + size <= MAX_ANSWER_BYTES
            self._outbox_bytes += size if fits else 0
            self.outbox.append(part if fits else msgspec.structs.replace(part, blob=None))
        self.ready.set()

    def keep(self, held: Positions) -> int:
        """Drop everything from the outbox except `held` (ascending). Return the number of messages dropped."""
        before = sum(len(part.rows) for part in self.outbox)
        self.outbox = [left for part in self.outbox if len((left := _held_of(part, held)).rows)]
        self._outbox_bytes = sum(0 if part.blob is None else part.blob.size for part in self.outbox)
        return before - sum(len(part.rows) for part in self.outbox)

    def tell(self, events: list[Event]) -> None:
        """Add events for the consumer, without those that it does not want to know."""
        wanted = events if self.moves else [event for event in events if event.kind not in MOVES]
        if wanted:
            self.events += wanted
            self.ready.set()

    def tell_end(self) -> None:
        """Report once that everything is done and nothing comes any more."""
        if not self.knows_end:
            self.knows_end = True
            self.tell([Event(kind="end_of_topic")])

    def revoke(self, positions: Positions) -> None:
        """Ask the consumer to give these positions back."""
        if not len(positions):
            return
        before = self.revocation or Revocation(number=0)
        self.revocation = Revocation(number=before.number + 1, positions=np.union1d(before.positions, positions))
        self.ready.set()

    @property
    def waiting(self) -> bool:
        """Whether there is something to answer a Poll with."""
        revoked = self.revocation is not None and len(self.revocation.positions)
        return bool(self.outbox or self.events or revoked or 0 < self._asked == self.turn)

    def first_time(self, number: int) -> bool:
        """Note a numbered hand-back; False if it is a copy of one that was seen, or too old to be remembered."""
        if number in self.handed_back or (self.handed_back and number < max(self.handed_back) - REMEMBERED_BACK):
            return False
        self.handed_back[number] = None
        if len(self.handed_back) > 2 * REMEMBERED_BACK:
            lowest = max(self.handed_back) - REMEMBERED_BACK
            self.handed_back = {seen: None for seen in self.handed_back if seen >= lowest}
        return True

    def void(self, consumer_epoch: int, turn: int) -> int:
        """Begin a consumer epoch: messages after this turn that the consumer has not taken are void; returns how many.

        An earlier answer that is still on its way carries the earlier epoch, and the consumer drops it.
        """
        self.consumer_epoch = consumer_epoch
        parts, self.outbox, self._outbox_bytes = self.outbox, [], 0
        if self.turn > turn and self.answered is not None:
            parts = [*self.answered.parts, *parts]
            self.events = [*self.answered.events, *self.events]
            self.answered = None
        self._revocation_told()
        return sum(len(part.rows) for part in parts)

    def deliver(self, *, by_index: bool = False) -> Delivery:
        """Answer the present turn with what is in the outbox. by_index: see messages.Delivery."""
        self.answered = Delivery(
            turn=self.turn,
            parts=self.outbox,
            confirmed=self.durable,
            events=self.events,
            consumer_epoch=self.consumer_epoch,
            revocation=self.revocation,
            by_index=by_index,
        )
        self.outbox, self.events, self._outbox_bytes = [], [], 0
        self._revocation_told()
        self.ready.clear()
        return self.answered

    def _revocation_told(self) -> None:
        """Note that the revocation was sent, or everything came back; the number stays."""
        if self.revocation is not None:
            self.revocation = Revocation(number=self.revocation.number)


def _held_of(part: Part, held: Positions) -> Part:
    """Return the rows of a part that are among these positions (ascending)."""
    here = np.isin(positions_of(part.ledger, part.rows.astype(np.int64) + part.first_entry), held)
    if here.all():
        return part
    rows, counts = part.rows[here], part.redeliveries
    overtook = part.overtook[np.isin(part.overtook, rows)]
    counts = counts[here] if len(counts) else counts
    return msgspec.structs.replace(part, rows=rows, redeliveries=counts, overtook=overtook)


def first_session(epoch: int, owner: Address) -> int:
    """Return the number of the first session of an owner, at a place of its own within its epoch.

    A subscription that is deleted and made again begins with the same epochs. It must not give a consumer that outlived
    the deletion the number that the consumer already has.
    """
    return epoch * EPOCH_SESSIONS + 1 + zlib.crc32(owner.encode()) % (EPOCH_SESSIONS // 2)


class Sessions:
    """The open sessions of one dispatcher by number. Their consumers are in `membership`."""

    def __init__(self) -> None:
        self._open: dict[int, Session] = {}
        self._behind: dict[int, Session] = {}
        """Invariant: the open sessions with `received` above `durable`."""
        self._unswept = False

    def any(self) -> bool:
        """Return whether any consumer is attached."""
        return len(self) > 0

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[Session]:
        """Return every session, oldest first."""
        return list(self._open.values())

    def behind(self) -> list[Session]:
        """Return the sessions with acknowledgements that have arrived and are not durable."""
        return list(self._behind.values())

    @property
    def read_compacted(self) -> bool:
        """Whether there are sessions, and all of them want a compacted log."""
        return self.any() and all(session.read_compacted for session in self._open.values())

    @property
    def unswept(self) -> bool:
        """Whether all want a compacted log, and messages that were read before they came may not be in it any more."""
        return self._unswept and self.read_compacted

    def swept(self) -> None:
        """Note that those messages have been removed."""
        self._unswept = False

    def open(
        self, number: int, name: str, incarnation: str, *, read_compacted: bool = False, moves: bool = True
    ) -> Session:
        """Open a session for a consumer that has just got this number. read_compacted, moves: see messages.Attach."""
        self._unswept = self._unswept or not self._open
        session = self._open[number] = Session(
            number, name, incarnation, read_compacted=read_compacted, moves=moves, _behind=self._behind
        )
        return session

    def close(self, session: Session) -> None:
        """Close a session; its waiting poll is answered with Fenced."""
        self._open.pop(session.number, None)
        self._behind.pop(session.number, None)
        session.ready.set()
        session.lives.set()
        if session.watch is not None:
            session.watch.cancel()

    def get(self, number: int) -> Session:
        """Return the open session of that number. Raises Fenced if it is over (S21)."""
        found = self._open.get(number)
        if found is None:
            raise Fenced(f"session {number} is over")
        return found

    def find(self, number: int) -> Session | None:
        """Return the open session of that number, or None if it is over."""
        return self._open.get(number)

    def is_open(self, session: Session) -> bool:
        """Return whether this session is still open (ask again after every await)."""
        return self._open.get(session.number) is session
