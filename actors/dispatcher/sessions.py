"""The consumers' sessions at one dispatcher: leases, turns, outboxes and the confirmation of acknowledgements.

A session stands for one consumer incarnation under one dispatcher epoch. It is a lease: it ends when nothing was
heard for so long. A Poll's turn is answered once; a repetition of the turn brings the same delivery again, so a
lost reply neither loses messages nor delivers them a second time.

Acknowledgement turns are confirmed in order: `received` is the highest turn up to which all have arrived, `durable`
the highest up to which the cursor that holds them is on disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from actors.messages import Delivery, Event, Part
from actors.ports import Task
from actors.signal import Signal
from storage.errors import Fenced

EPOCH_SESSIONS = 1 << 24
"""Session numbers of different epochs never meet: a late request of an old session is always refused."""

REMEMBERED_ENDED = 10_000
"""So many incarnations whose sessions ended are remembered, to know late copies of their first requests."""

REMEMBERED_BACK = 1_000
"""So many hand-backs of a session are remembered, to know late copies of them."""


@dataclass(eq=False, slots=True)
class Session:
    """One attached consumer. number: the decision core's name for it."""

    session: int
    number: int
    name: str
    incarnation: str
    connected_since: int
    ranges: list[tuple[int, int]] = field(default_factory=list)
    turn: int = 0
    answered: Delivery | None = None
    outbox: list[Part] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    ready: Signal = field(default_factory=Signal)
    heard: Signal = field(default_factory=Signal)
    early: dict[int, None] = field(default_factory=dict)
    received: int = 0
    durable: int = 0
    last_acked: int = 0
    last_consumed: int = 0
    messages_out: int = 0
    messages_acked: int = 0
    messages_redelivered: int = 0
    consumer_epoch: int = 0
    handed_back: dict[int, None] = field(default_factory=dict)
    watch: Task | None = None

    def arrived(self, ack_turn: int) -> bool:
        """Note an acknowledgement turn; False if it had arrived before."""
        if ack_turn <= self.received or ack_turn in self.early:
            return False
        self.early[ack_turn] = None
        while self.received + 1 in self.early:
            self.received += 1
            del self.early[self.received]
        return True

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
        """Begin a consumer epoch: what the consumer has not taken, behind this turn, is void; returns how much.

        An answer of before that is still on its way carries the earlier epoch, and the consumer drops it.
        """
        self.consumer_epoch = consumer_epoch
        parts, self.outbox = self.outbox, []
        if self.turn > turn and self.answered is not None:
            parts = [*self.answered.parts, *parts]
            self.events = [*self.answered.events, *self.events]
            self.answered = None
        return sum(len(part.rows) for part in parts)

    def deliver(self) -> Delivery:
        """Answer the present turn with what is in the outbox."""
        self.answered = Delivery(
            turn=self.turn,
            parts=self.outbox,
            confirmed=self.durable,
            events=self.events,
            consumer_epoch=self.consumer_epoch,
        )
        self.outbox, self.events = [], []
        self.ready.clear()
        return self.answered


class Sessions:
    """All sessions of one dispatcher, by session number and by incarnation."""

    def __init__(self, epoch: int) -> None:
        self._by_session: dict[int, Session] = {}
        self._by_incarnation: dict[str, Session] = {}
        self._by_number: dict[int, Session] = {}
        self._retired: dict[str, Session] = {}
        self._ended: dict[str, None] = {}
        self._next = epoch * EPOCH_SESSIONS + 1

    def __len__(self) -> int:
        return len(self._by_session)

    def all(self) -> list[Session]:
        """Every session, oldest first."""
        return list(self._by_session.values())

    def open(self, number: int, name: str, incarnation: str, now: int) -> Session:
        """A new session for a consumer that the core knows as `number`."""
        session = Session(self._next, number, name, incarnation, now)
        self._next += 1
        self._by_session[session.session] = session
        self._by_incarnation[incarnation] = session
        self._by_number[number] = session
        return session

    def close(self, session: Session) -> None:
        """The session is over; its waiting poll is answered with Fenced."""
        self._by_session.pop(session.session, None)
        self._by_incarnation.pop(session.incarnation, None)
        self._by_number.pop(session.number, None)
        self._ended[session.incarnation] = None
        while len(self._ended) > REMEMBERED_ENDED:
            del self._ended[next(iter(self._ended))]
        session.ready.set()
        session.heard.set()
        if session.watch is not None:
            session.watch.cancel()

    def get(self, session: int) -> Session:
        """The open session of that number. Raises Fenced if it is over (S21)."""
        found = self._by_session.get(session)
        if found is None:
            raise Fenced(f"session {session} is over")
        return found

    def is_open(self, session: Session) -> bool:
        """Whether this very session still stands (to be asked again after every await)."""
        return self._by_session.get(session.session) is session

    def of_incarnation(self, incarnation: str) -> Session | None:
        """The open session of a consumer incarnation."""
        return self._by_incarnation.get(incarnation)

    def retire(self, session: Session) -> None:
        """The session is over, but its consumer may still hold something; see `membership`."""
        self.close(session)
        self._retired[session.incarnation] = session

    def forget_retired(self, incarnation: str) -> Session | None:
        """It holds nothing any more."""
        return self._retired.pop(incarnation, None)

    def has_ended(self, incarnation: str) -> bool:
        """This incarnation had a session here, and it is over."""
        return incarnation in self._ended

    def of_number(self, number: int) -> Session | None:
        """The open session of the core's consumer number."""
        return self._by_number.get(number)
