"""The producers that may write to a partition: Pulsar's access modes, decided where the partition is owned.

The partition's *epoch* counts how often a producer has had it to itself; it stands in the partition's record, and so
does the producer that has it now. A producer that had it, and comes back after another one, learns by that number that
its time is over. A number that was never given is refused: the owner would otherwise store it, and go on counting from
it.

Of two producers with one name the first one stays, unless the second one is the same client on a new connection.

A gateway is the *home* of its producers: a home can be asked whether a producer is still there, and one that does not
answer has lost it. A producer of Sluice's own has no home. While it has the partition to itself, or waits for it, it
asks for that again and again; one that has not asked for `HEARD_MS` has lost it. A producer that shares the partition
and has no home keeps no other one from having it to itself; from then on it is refused as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sluice.actors.ledger.record import Exclusivity, Holder
from sluice.actors.messages import OpenProducer
from sluice.storage.errors import Conflict, ProducerFenced

HEARD_MS = 10_000
"""A producer that waits for its turn, or has the partition and no home, is there for so long after it asked."""
PUT_OUT = 64
MAX_EPOCH = 1 << 48
"""An epoch above this was never counted up to. Earlier versions took what a client claimed, up to 2**64-1."""


@dataclass(frozen=True, slots=True)
class Admit:
    """The outcome that a producer may write."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The outcome that a producer must wait for its turn."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Other producers hold the topic: ask their homes whether they still serve them."""

    holders: list[Holder]


@dataclass(slots=True)
class Access:
    """The producers that are open, and those that wait. No I/O; times are milliseconds."""

    epoch: int = -1
    holder: Holder | None = None
    _present: dict[str, Holder] = field(default_factory=dict)
    _heard: int = 0
    """When the holder asked last."""
    _line: dict[str, int] = field(default_factory=dict)
    _put_out: list[str] = field(default_factory=list)

    def restore(self, saved: Exclusivity, now: int) -> None:
        """Take over the state in the record; if that has an impossible epoch, counting starts again. The holder has
        time to ask the new owner.
        """
        if saved.epoch > MAX_EPOCH:
            saved = Exclusivity()
        self.epoch, self.holder, self._heard = saved.epoch, saved.holder, now
        if saved.holder is not None:
            self._present[saved.holder.incarnation] = saved.holder

    @property
    def durable(self) -> Exclusivity:
        """The durable part, for the record."""
        return Exclusivity(self.epoch, self.holder)

    @property
    def present(self) -> list[Holder]:
        """The open producers."""
        return list(self._present.values())

    def is_heard(self, holder: Holder, now: int) -> bool:
        """Return whether a producer without a home is still there."""
        return holder is self.holder and now < self._heard + HEARD_MS

    def judge(self, request: OpenProducer, now: int, *, asked: bool) -> Admit | Wait | Ask:
        """Decides about a producer that wants to write. asked: those that hold the topic were asked just now.

        Raises Conflict if the partition is somebody else's, ProducerFenced if it was this producer's and is not any
        more, or cannot be.
        """
        me = request.incarnation
        if me in self._put_out:
            raise ProducerFenced(f"producer {request.producer!r} was replaced by an exclusive one")
        self._line = {who: until for who, until in self._line.items() if until > now}
        if request.access == "shared":
            return self._judge_shared(request, asked=asked)
        if request.topic_epoch is not None and request.topic_epoch < self.epoch:
            raise ProducerFenced(f"Topic epoch {request.topic_epoch} is over; it is {self.epoch}")
        if request.topic_epoch is not None and request.topic_epoch > self.epoch:
            raise ProducerFenced(f"Topic epoch {request.topic_epoch} was never given; it is {self.epoch}")
        if self._is_holder(request) or request.access == "exclusive_with_fencing":
            return Admit()
        others = [other for other in self._present.values() if other.name != request.producer or other is self.holder]
        if request.access == "wait_for_exclusive":
            self._line[me] = now + HEARD_MS
            if not others and next(iter(self._line)) == me:
                return Admit()
            return Ask(others) if others and not asked else Wait()
        if others and not asked:
            return Ask(others)
        if others or self._line:
            raise ProducerFenced("Topic has existing producers")
        return Admit()

    def in_line(self, incarnation: str) -> bool:
        """Return whether a producer waits, and knows it."""
        return incarnation in self._line

    def _judge_shared(self, request: OpenProducer, *, asked: bool) -> Admit | Ask:
        if self.holder is None and not self._line:
            return self._judge_name(request, asked=asked)
        if self.holder is not None and not asked:
            return Ask([self.holder])
        raise Conflict("Topic has an existing exclusive producer")

    def _judge_name(self, request: OpenProducer, *, asked: bool) -> Admit | Ask:
        twins = [other for other in self._present.values() if other.name == request.producer]
        twins = [other for other in twins if other.incarnation != request.incarnation]
        if not twins or not request.home or request.again:
            return Admit()
        if not asked:
            return Ask(twins)
        raise Conflict("a producer with this name is already connected to the topic")

    def _is_holder(self, request: OpenProducer) -> bool:
        """Return whether it has the partition, perhaps from an earlier connection: only the holder knows the epoch."""
        holder = self.holder
        if holder is None:
            return False
        again = holder.name == request.producer and request.topic_epoch == self.epoch
        return holder.incarnation == request.incarnation or again

    def enter(self, request: OpenProducer, now: int) -> list[Holder]:
        """Note a producer that was admitted; returns those that are not admitted any more."""
        me = Holder(request.producer, request.incarnation, request.home)
        if request.access == "shared":
            self._present = {who: other for who, other in self._present.items() if other.name != me.name}
            if request.home:
                self._present[me.incarnation] = me
            return []
        if not self._is_holder(request) and request.topic_epoch is None:
            self.epoch += 1
        self._line.pop(me.incarnation, None)
        if request.access == "exclusive_with_fencing":
            self._put_out_all(self._line)
            self._line.clear()
        ended = [other for other in self._present.values() if other.incarnation != me.incarnation]
        self._put_out_all(other.incarnation for other in ended)
        self._present, self.holder, self._heard = {me.incarnation: me}, me, now
        return ended

    def _put_out_all(self, incarnations: Iterable[str]) -> None:
        self._put_out.extend(incarnations)
        del self._put_out[:-PUT_OUT]

    def leave(self, incarnation: str) -> bool:
        """Remove a producer that leaves or stops waiting, for good. Return whether it was open."""
        held = self.holder is not None and self.holder.incarnation == incarnation
        if held or incarnation in self._line:
            self._put_out_all([incarnation])  # what it asked may still be under way
        return self.withdraw(incarnation)

    def withdraw(self, incarnation: str) -> bool:
        """Undo that a producer came; it may ask again. Returns whether it was open."""
        if self.holder is not None and self.holder.incarnation == incarnation:
            self.holder = None
        there = self._present.pop(incarnation, None) is not None
        return self._line.pop(incarnation, None) is not None or there
