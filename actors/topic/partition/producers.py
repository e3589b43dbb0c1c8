"""Deduplication of producers: each (producer, sequence) is stored once, in order, whatever the network repeats.

A producer numbers its messages 0, 1, 2, ... without gaps; a publish carries consecutive ones. Two marks a producer:
*pushed*, the highest sequence that was given a place, and *stored*, the highest that is confirmed. A publish is then
exactly one of these:

* wholly at or below stored: answered with the place it has (the last runs are remembered);
* the same as one that is pushed and not confirmed: it waits for the same outcome;
* beginning right behind pushed: it is stored now;
* beginning later: its predecessor is still under way (calls are not ordered), so it waits for its turn;
* overlapping in any other way: it waits until nothing is pending, and then only its missing tail is stored.

Invalid sequences are consumed by nobody: a refused publish leaves the marks as they are.

A session stands for one producer object. A newer incarnation of the name fences the older one; incarnations that
were replaced are remembered, so that their late calls cannot take the name back.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from sluice.actors.ledger.record import ProducerRecord, StoredRun, is_source
from sluice.actors.messages import Published, PublishMany
from sluice.actors.messages.limits import SEQUENCES
from sluice.actors.runtime.waiting import SharedFuture
from sluice.actors.runtime.wall_clock import heard_at
from sluice.storage.errors import Fenced, Invalid, ProducerFenced, SluiceError
from sluice.storage.format.frame import MAX_NAMES_BYTES, MAX_SEGMENTS

if TYPE_CHECKING:
    from sluice.actors.topic.partition.results import Results

REMEMBERED_RUNS = 16
REPLACED_INCARNATIONS = 8
MAX_NAME_BYTES = 1024
FORGET_MS = 6 * 3600 * 1000
"""A producer without a session that was silent for so long is forgotten, as Pulsar does."""
MOST_CLOSED = 10_000
"""The most producers without a session that are remembered, as with Pulsar; the longest silent go first."""
SPARE = 1_000
"""The excess at which some are forgotten, not one at a time: to find the oldest takes a look at all."""


def check_sequences(first: int, count: int) -> None:
    """Raise Invalid for sequences that no producer has."""
    if not 0 <= first <= SEQUENCES - count:
        raise Invalid(f"sequences are 0 to {SEQUENCES - 1}; {count} do not begin at {first}")


def check_segments(request: PublishMany) -> None:
    """Raise Invalid for a run whose segments no frame could hold."""
    names = request.producers
    columns = (request.sessions, request.first_sequences, request.counts, request.follows)
    named_once = len({*names}) == len(names) and all(len(column) == len(names) for column in columns)
    if not 1 < len(names) <= MAX_SEGMENTS or not named_once:
        raise Invalid(f"a run is of 2 to {MAX_SEGMENTS} producers, each named once, with the same columns for all")
    if min(request.counts) <= 0 or sum([len(name.encode()) for name in names]) > MAX_NAMES_BYTES:
        raise Invalid(f"each producer has messages, and their names have at most {MAX_NAMES_BYTES} bytes together")
    for first, count in zip(request.first_sequences, request.counts, strict=True):
        check_sequences(first, count)


@dataclass(frozen=True, slots=True)
class StoreNow:
    """Give it a place now."""


STORE_NOW = StoreNow()


@dataclass(frozen=True, slots=True)
class Stored:
    """A run that is confirmed already, at this place (ledger 0: the place is forgotten)."""

    published: Published


@dataclass(frozen=True, slots=True)
class Join:
    """The same messages are under way: wait for their outcome."""

    pending: Pending


@dataclass(frozen=True, slots=True)
class NotYet:
    """A run whose turn has not come: ask again when a run of this producer was pushed or confirmed."""

    predecessor: bool
    """True: an earlier sequence is missing, and may never come. False: something is pending, and will end."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The first `skip` messages are confirmed already: store only the others."""

    skip: int


@dataclass(slots=True)
class Pending:
    """Messages that have a place and are not confirmed. outcome: of the run in which they are. before: how many
    messages of the run come before them.
    """

    first: int
    count: int
    outcome: SharedFuture[Published]
    before: int = 0

    async def published(self) -> Published:
        """Wait for the outcome of these messages. Raises what the run was refused with."""
        run = await self.outcome
        return Published(ledger=run.ledger, first_entry=run.first_entry + self.before, count=self.count)


@dataclass(slots=True)
class KnownProducer:
    """The state of one producer name."""

    session: int = 0
    incarnation: str = ""
    replaced: list[str] = field(default_factory=list)
    pushed: int = -1
    stored: int = -1
    seen: int = 0
    pending: OrderedDict[int, Pending] = field(default_factory=OrderedDict)
    recent: deque[StoredRun] = field(default_factory=partial(deque[StoredRun], maxlen=REMEMBERED_RUNS))
    """The latest runs that have their place."""

    def replaces(self, incarnation: str) -> None:
        """Note that this incarnation has given way; the latest such are remembered."""
        self.replaced.append(incarnation)
        del self.replaced[:-REPLACED_INCARNATIONS]

    def published(self, first: int, count: int) -> Published:
        """Return the place of stored sequences; ledger 0 when it is forgotten."""
        for run in self.recent:
            if run.first <= first and first + count <= run.first + run.count:
                entry = run.first_entry + first - run.first
                return Published(ledger=run.ledger, first_entry=entry, count=count, duplicate=True)
        return Published(ledger=0, first_entry=0, count=count, duplicate=True)


class Producers:
    """All producers of one partition, without any I/O. Sessions are unique over all owners through the epoch.

    results: makes what is stored of runs that have no sequences of a producer, but positions of messages.
    """

    def __init__(self, results: Callable[[], Results]) -> None:
        self._make_results = results
        self.known_results: Results | None = None
        """None: no result came to this partition yet."""
        self._known: dict[str, KnownProducer] = {}
        self._sessions = 0
        self._crowded = MOST_CLOSED + SPARE
        """With so many it is time to look whether some are to be forgotten."""

    @property
    def results(self) -> Results:
        """The results of all sources."""
        if self.known_results is None:
            self.known_results = self._make_results()
        return self.known_results

    def open(self, name: str, incarnation: str, epoch: int, now: int) -> KnownProducer:
        """Register an incarnation; the same one keeps its session.

        Raises Fenced for one that was replaced, Invalid for a name that does not fit a frame's header.
        """
        if not 0 < len(name.encode()) <= MAX_NAME_BYTES:
            raise Invalid(f"a producer's name has 1 to {MAX_NAME_BYTES} bytes")
        if (producer := self._known.get(name)) is None:
            if len(self._known) >= self._crowded:
                self._forget_closed()
            producer = self._known[name] = KnownProducer()
        producer.seen = now
        if producer.incarnation == incarnation and producer.session:
            return producer
        if incarnation in producer.replaced:
            raise ProducerFenced(f"producer {name!r} was opened again by a newer instance")
        if producer.session:
            producer.replaces(producer.incarnation)
        self._sessions += 1
        producer.session = epoch << 24 | self._sessions
        producer.incarnation = incarnation
        return producer

    def end(self, name: str, incarnation: str) -> None:
        """Note that this incarnation has stopped writing."""
        producer = self._known.get(name)
        if producer is not None and producer.session and producer.incarnation == incarnation:
            producer.replaces(incarnation)
            producer.session, producer.incarnation = 0, ""

    def end_others(self, name: str) -> None:
        """End all producers but this one."""
        for other, producer in self._known.items():
            if other != name:
                self.end(other, producer.incarnation)

    def is_replaced(self, name: str, incarnation: str) -> bool:
        """Return whether this incarnation has given way to another producer."""
        producer = self._known.get(name)
        return producer is not None and incarnation in producer.replaced

    @staticmethod
    def believe(producer: KnownProducer, follows: int, *, given_up: bool) -> None:
        """A producer says that it was answered up to a sequence. Nobody else may know it where runs were given up, or
        where the producer was forgotten: it was silent for long, or its topic was deleted and made again.
        """
        if (given_up or producer.pushed < 0) and not producer.pending and follows > producer.stored:
            producer.stored = producer.pushed = follows

    def find(self, name: str, session: int) -> KnownProducer:
        """Return the producer of a session. Raises Fenced if the session is not the name's newest of this owner."""
        producer = self._known.get(name)
        if producer is None or producer.session != session:
            raise Fenced(f"the session of producer {name!r} ended; open it again")
        return producer

    @staticmethod
    def judge(
        producer: KnownProducer, first: int, count: int, follows: int | None = None
    ) -> StoreNow | Stored | Join | NotYet | Tail:
        """Decides about sequences first .. first+count-1.

        follows: the producer will never send anything between it and `first` (again).
        """
        last = first + count - 1
        if last <= producer.stored:
            return Stored(producer.published(first, count))
        if first == producer.pushed + 1:
            return STORE_NOW
        if first > producer.pushed:
            return STORE_NOW if follows is not None and follows <= producer.pushed else NotYet(predecessor=True)
        pending = producer.pending.get(first)
        if pending is not None and pending.count == count:
            return Join(pending)
        if producer.pending:
            return NotYet(predecessor=False)
        return Tail(producer.stored + 1 - first)

    @staticmethod
    def push(producer: KnownProducer, pending: Pending, now: int) -> None:
        """Note that messages were given a place."""
        producer.pending[pending.first] = pending
        producer.pushed = pending.first + pending.count - 1
        producer.seen = now

    def confirm(
        self, name: str, first: int, count: int, ledger: int, first_entry: int
    ) -> SharedFuture[Published] | None:
        """Confirm messages at their place; returns the future of their run's outcome, if it has one."""
        if is_source(name):
            return self.results.confirm(name, first)
        if (producer := self._known.get(name)) is None:
            producer = self._known[name] = KnownProducer()
        if (last := first + count - 1) > producer.stored:
            producer.stored = last
        if producer.pushed < producer.stored:
            producer.pushed = producer.stored
        producer.recent.append(StoredRun(first, count, ledger, first_entry))
        pending = producer.pending.pop(first, None)
        return None if pending is None else pending.outcome

    def replay(self, name: str, first: int, count: int, ledger: int, first_entry: int, now: int) -> None:
        """Note a confirmed run that was found in the log while taking over; runs come in the order of the log."""
        self.confirm(name, first, count, ledger, first_entry)
        self._known[name].seen = now

    def restore(self, saved: dict[str, ProducerRecord], now: int) -> None:
        """Take over what the record says."""
        for name, record in saved.items():
            seen = heard_at(record.seen, now, FORGET_MS)
            producer = KnownProducer(pushed=record.highest, stored=record.highest, seen=seen)
            producer.recent.extend(record.recent)
            self._known[name] = producer

    def snapshot(self, now: int) -> dict[str, ProducerRecord]:
        """Return the confirmed state for the record; producers that were silent for long are forgotten."""
        for name in [name for name, producer in self._known.items() if self._forgettable(producer, now)]:
            del self._known[name]
        if len(self._known) > MOST_CLOSED:
            self._forget_closed()
        return {
            name: ProducerRecord(producer.stored, tuple(producer.recent), producer.seen)
            for name, producer in sorted(self._known.items())
            if producer.stored >= 0
        }

    def _forget_closed(self) -> None:
        """Leave no more than MOST_CLOSED without a session. One that comes again says what it was answered."""
        closed = [name for name, one in self._known.items() if not one.session and not one.pending]
        for name in sorted(closed, key=lambda name: self._known[name].seen)[: max(len(closed) - MOST_CLOSED, 0)]:
            del self._known[name]
        self._crowded = max(len(self._known), MOST_CLOSED) + SPARE

    @staticmethod
    def _forgettable(producer: KnownProducer, now: int) -> bool:
        return not producer.pending and now - producer.seen > FORGET_MS

    def fail(self, error: SluiceError) -> None:
        """Tell all that wait for an outcome that it is not known here: the owner stops."""
        if self.known_results is not None:
            self.known_results.fail(error)
        for producer in self._known.values():
            for pending in producer.pending.values():
                pending.outcome.set_exception(error)

    def __len__(self) -> int:
        return len(self._known)
