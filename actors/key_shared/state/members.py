"""The consumers of a subscription: which are here, their permits, and their unacknowledged messages.

A consumer is known by a number that is never used again, so that a late request of a consumer that left finds nobody
(KS-50); it is the number of its session as well. Inside it has a slot, a small number that is used again, because slots
index arrays.

Permits (KS-46, KS-48): a consumer tells how many messages it was ever ready to take. What it may get is that, minus
what was ever sent, and not more than its limit of unacknowledged messages leaves. At the limit it is blocked: permits
that arrive from then on are held back until half of the limit is acknowledged. The subscription has such a limit too
(KS-49); while it is blocked nothing is read forward, but redelivery goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sluice.actors.key_shared.state.window import Reduced
from sluice.actors.messages import NO_POSITIONS
from sluice.storage.errors import Overloaded
from sluice.storage.format.position import Positions

Counts = npt.NDArray[np.int64]
"""Numbers of messages by slot, shape (slots,), int64."""

_COLUMNS = ("numbers", "granted", "credited", "sent", "void", "unacked", "given_back", "last_sent")
_MAX_SLOTS = 0xFFFF
_MOST_PERMITS = 1 << 40
_MOST_GRANTED = 1 << 62


def _none() -> Positions:
    return NO_POSITIONS


@dataclass(slots=True, eq=False)
class AttachedConsumer:
    """A consumer that messages can be sent to, and the messages that it holds from before.

    claims: positions that it holds from before a change of owner and that were not read yet. finished: the claims that
    are done already (cleared, or acknowledged by another consumer): they keep their keys and are never sent again.
    revoked: positions that it must give back and does not know of yet. base: the part that the names of its
    incarnations have in common. to: the name of the consumer that takes its place over. keeps_place: its place may be
    kept for it (`hash_assignments`).
    """

    number: int
    slot: int
    name: str
    priority: int
    joined: int
    ranges: tuple[tuple[int, int], ...] = ()
    claims: Positions = field(default_factory=_none)
    finished: Positions = field(default_factory=_none)
    revoked: Positions = field(default_factory=_none)
    base: str = ""
    to: str = ""
    keeps_place: bool = True
    messages_acked: int = 0
    drained_total: int = 0
    events: list[tuple[str, tuple[tuple[int, int], ...], int]] = field(default_factory=list)
    drained: list[npt.NDArray[np.intp]] = field(default_factory=list)
    heard: dict[int, None] = field(default_factory=dict)
    """The numbers of all consumers of the subscription that may have news; see `Members.with_news`."""

    @property
    def has_news(self) -> bool:
        """Whether the consumer has anything to learn."""
        return bool(self.events or self.drained or len(self.revoked))

    def note(self, kind: str, ranges: tuple[tuple[int, int], ...], change: int) -> None:
        """Add an event for the consumer; change: the number of the last change of owners."""
        self.events.append((kind, ranges, change))
        self.heard[self.number] = None

    def note_drained(self, hashes: npt.NDArray[np.intp]) -> None:
        """Add hashes that the consumer held and that are free now, for the consumer to learn."""
        self.count_drained(len(hashes))
        self.drained.append(hashes)
        self.heard[self.number] = None

    def count_drained(self, count: int) -> None:
        """Count hashes that the consumer held and that are free now."""
        self.drained_total += count

    def claim(self, positions: Positions) -> None:
        """Note the positions (ascending) that the consumer holds from before a change of owner."""
        self.claims = positions

    def unclaim(self, positions: Positions | None = None) -> Positions:
        """Drop claims at these positions (None: all claims), and return the dropped ones."""
        given = self.claims if positions is None else np.intersect1d(self.claims, positions)
        if len(given):
            self.claims = np.setdiff1d(self.claims, given, assume_unique=True)
            self.finished = np.intersect1d(self.finished, self.claims)
        return given

    def finish(self, positions: Positions) -> None:
        """Note that claims at these positions are done."""
        self.finished = np.union1d(self.finished, positions)

    def ask_back(self, positions: Positions) -> None:
        """Ask the consumer to give these positions back."""
        self.revoked = np.union1d(self.revoked, positions)
        self.heard[self.number] = None

    def taken_revoked(self) -> Positions:
        """Take the positions to give back that the consumer does not know of; the caller must deliver them."""
        revoked, self.revoked = self.revoked, _none()
        return revoked

    def enter(self, base: str, keeps_place: bool, ranges: Sequence[tuple[int, int]]) -> None:
        """Set the fields that the consumer brings when it joins."""
        self.base, self.keeps_place = base, keeps_place
        self.ranges = tuple((int(low), int(high)) for low, high in ranges)

    def keep_place(self) -> None:
        """Allow that the consumer's place is kept for it."""
        self.keeps_place = True

    def offer_place(self, to: str) -> None:
        """Offer the place to the consumer that attaches under the name `to`; empty: to no consumer."""
        self.to = to

    def count_acked(self, count: int) -> None:
        """Count messages of the consumer that are done."""
        self.messages_acked += count


@dataclass(slots=True, eq=False)
class KeptPlace:
    """A place without a consumer. restored: kept from an earlier owner. over: when it is given up (monotonic ms), None
    while that time is not counted yet. until: the same by the wall clock, for people.
    """

    restored: bool = False
    over: int | None = None
    until: int = 0

    def keep_until(self, over: int, until: int) -> None:
        """Set when the place is given up; see the fields."""
        self.over, self.until = over, until


class StickyAssignments:
    """The places without a consumer, by slot, and how many ever were returned to, or handed over."""

    def __init__(self) -> None:
        self.by_slot: dict[int, KeptPlace] = {}
        self.returned = self.handed_over = 0

    def __len__(self) -> int:
        return len(self.by_slot)

    def __contains__(self, slot: int) -> bool:
        return slot in self.by_slot

    def pop(self, slot: int) -> KeptPlace:
        """Remove and return a place: a consumer is at it again."""
        kept = self.by_slot.pop(slot)
        self.returned += not kept.restored
        return kept

    def hand_over(self) -> None:
        """Count a place that went from one consumer to another."""
        self.handed_over += 1

    def continue_from(self, before: StickyAssignments) -> None:
        """Go on with the totals."""
        self.returned, self.handed_over = before.returned, before.handed_over


class Members:
    """All connected consumers, with their counters by slot. first_number: the number of the first consumer."""

    def __init__(self, max_unacked_each: int, max_unacked_all: int, first_number: int = 1) -> None:
        self.max_unacked_each = max_unacked_each
        self.max_unacked_all = max_unacked_all
        self.by_number: dict[int, AttachedConsumer] = {}
        self.by_slot: list[AttachedConsumer | None] = []
        self.numbers: Counts = np.zeros(0, np.int64)
        self.granted: Counts = np.zeros(0, np.int64)
        self.credited: Counts = np.zeros(0, np.int64)
        self.sent: Counts = np.zeros(0, np.int64)
        self.void: Counts = np.zeros(0, np.int64)
        """Messages that were routed and never arrived: `sent` is without them, and the total with them."""
        self.unacked: Counts = np.zeros(0, np.int64)
        """Invariant: the number of rows that are PENDING at each slot."""
        self.given_back: Counts = np.zeros(0, np.int64)
        self.last_sent: Counts = np.zeros(0, np.int64)
        self.blocked: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.starved: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.all_blocked = False
        self.next_number = first_number
        self.sent_to_leavers = self.given_back_by_leavers = self.acked_by_leavers = 0
        self._allowance: Counts | None = None
        """The last count; None once anything that it depends on has changed."""
        self._allowed = 0
        self._claiming = False
        self._heard: dict[int, None] = {}

    def continue_from(self, before: Members) -> None:
        """Go on with the totals; the consumers of these totals are no longer here."""
        self.sent_to_leavers, self.given_back_by_leavers = before.sent_total, before.given_back_total
        self.acked_by_leavers = before.acked_total

    def describe(self, slot: int) -> str:
        """A consumer's name and number, unique among equal names."""
        member = self.by_slot[slot] if slot < self.slots else None
        return f"consumer {member.name!r} #{member.number}" if member else "nobody"

    def __len__(self) -> int:
        return len(self.by_number)

    def __iter__(self) -> Iterator[AttachedConsumer]:
        """Iterate in order of joining."""
        return iter(self.by_number.values())

    @property
    def slots(self) -> int:
        """Length of the arrays by slot."""
        return len(self.by_slot)

    def claim(self, member: AttachedConsumer, positions: Positions) -> None:
        """Note the positions (ascending) that a consumer holds from before a change of owner."""
        member.claim(positions)
        self._claiming = True

    def claiming(self) -> list[AttachedConsumer]:
        """Return the consumers with claims. Mostly there are none, and then no consumer is looked at."""
        if not self._claiming:
            return []
        found = [member for member in self if len(member.claims)]
        self._claiming = bool(found)
        return found

    def with_news(self) -> list[int]:
        """Return the numbers of the consumers that have news, in order of joining; the others cost nothing."""
        for number in [number for number in self._heard if not self._has_news(number)]:
            del self._heard[number]
        return sorted(self._heard)

    def _has_news(self, number: int) -> bool:
        member = self.by_number.get(number)
        return member is not None and member.has_news

    def free_slot(self) -> int:
        """Return the slot that the next consumer will get."""
        slot = self.by_slot.index(None) if None in self.by_slot else len(self.by_slot)
        if slot >= _MAX_SLOTS:
            raise Overloaded(f"a subscription takes at most {_MAX_SLOTS} consumers on one partition")
        return slot

    def add(self, slot: int, name: str, priority: int, now: int) -> AttachedConsumer:
        """Add a consumer in a slot that is free, or kept for it."""
        self.touch()
        if slot == len(self.by_slot):
            self.by_slot.append(None)
            for column in (*_COLUMNS, "blocked", "starved"):
                old = getattr(self, column)
                grown = np.zeros(len(old) + 1, old.dtype)
                grown[:-1] = old
                setattr(self, column, grown)
        member = AttachedConsumer(self.next_number, slot, name, priority, now, heard=self._heard)
        self.next_number += 1
        self.by_slot[slot] = member
        self.numbers[slot] = member.number
        self.by_number[member.number] = member
        return member

    def remove(self, member: AttachedConsumer) -> None:
        """Forget a consumer; its pending messages must be released before."""
        self.touch()
        del self.by_number[member.number]
        slot = member.slot
        self.sent_to_leavers += self.sent_ever(slot)
        self.given_back_by_leavers += int(self.given_back[slot])
        self.acked_by_leavers += member.messages_acked
        self.by_slot[slot] = None
        for column in _COLUMNS:
            getattr(self, column)[slot] = 0
        self.blocked[slot] = self.starved[slot] = False

    def set_aside(self, member: AttachedConsumer) -> None:
        """Forget a consumer, but keep its slot for it until `free`."""
        self.remove(member)
        self.by_slot[member.slot] = member
        member.claims, member.finished, member.revoked = _none(), _none(), _none()

    def free(self, slot: int) -> None:
        """Give up a slot that was set aside."""
        self.by_slot[slot] = None

    def at(self, slot: int) -> AttachedConsumer:
        """Return the consumer in a taken slot."""
        member = self.by_slot[slot]
        if member is None:
            raise LookupError(f"slot {slot} is free")
        return member

    def grant(self, member: AttachedConsumer, total: int) -> bool:
        """Raise the cumulative permits; True if a message that waited for permits may go out now."""
        slot, total = member.slot, min(total, _MOST_GRANTED)
        if total <= self.granted[slot]:
            return False
        self.touch()
        self.granted[slot] = total
        if self.blocked[slot]:
            return False
        self.credited[slot] = total
        return bool(self.starved[slot])

    def allowance(self) -> Counts:
        """Return how many messages each slot may get now (KS-44); for reading only, until anything changes."""
        if self._allowance is None:
            self._allowance = self.count_allowance()
            self._allowed = int(np.add.reduce(self._allowance))
        return self._allowance

    @property
    def allowed(self) -> int:
        """How many messages all consumers may get now."""
        self.allowance()
        return self._allowed

    def touch(self) -> None:
        """Drop the counted allowance: an input of it has changed."""
        self._allowance = None

    def count_allowance(self) -> Counts:
        """Count the allowance from the columns."""
        permits: Counts = self.credited - self.sent
        if self.max_unacked_each > 0:
            np.minimum(permits, self.max_unacked_each - self.unacked, out=permits)
        np.maximum(permits, 0, out=permits)
        np.minimum(permits, _MOST_PERMITS, out=permits)
        permits.flags.writeable = False
        return permits

    def permits(self, slot: int) -> int:
        """Return the credited permits of one slot that are not used, regardless of its limit (availablePermits)."""
        return max(int(self.credited[slot] - self.sent[slot]), 0)

    def count_sent(self, counts: Counts) -> None:
        """Count messages that went out, by slot."""
        self.touch()
        self.sent += counts
        self.unacked += counts
        if self.max_unacked_each > 0:
            self.blocked |= self.unacked >= self.max_unacked_each

    @property
    def sent_total(self) -> int:
        """Messages that were sent, also to consumers that have left."""
        return self.sent_to_leavers + int(self.sent.sum()) + int(self.void.sum())

    def sent_ever(self, slot: int) -> int:
        """Return how many messages were sent to the consumer in a slot."""
        return int(self.sent[slot]) + int(self.void[slot])

    @property
    def acked_total(self) -> int:
        """Messages that consumers acknowledged, also those that have left."""
        return self.acked_by_leavers + sum(member.messages_acked for member in self)

    @property
    def given_back_total(self) -> int:
        """Messages that came back unacknowledged, also from consumers that have left."""
        return self.given_back_by_leavers + int(self.given_back.sum())

    def stop(self, member: AttachedConsumer) -> None:
        """Take all permits from a consumer."""
        self.touch()
        self.granted[member.slot] = self.credited[member.slot] = self.sent[member.slot]

    def note_starved(self, slots: npt.NDArray[np.bool_]) -> None:
        """Mark slots for which there were more messages than permits; bool, one a slot."""
        self.starved |= slots

    def take_back(self, member: AttachedConsumer, count: int) -> None:
        """Free the permits of messages that were routed to a consumer and never arrived."""
        self.touch()
        self.sent[member.slot] -= count
        self.void[member.slot] += count

    def count_claimed(self, slot: int, count: int) -> None:
        """Count messages that a consumer holds from before a change of owner; they cost no permits of this session."""
        self.touch()
        self.unacked[slot] += count
        if self.max_unacked_each > 0:
            self.blocked |= self.unacked >= self.max_unacked_each

    def count_released(self, slots: Reduced) -> bool:
        """Count messages that are no longer pending; True if a consumer that was short of permits got room.

        A blocked consumer is checked after every decrease, from any cause (#22657).
        """
        self.touch()
        if len(slots) == 1 or bool((slots == slots[0]).all()):
            self.unacked[slots[0]] -= len(slots)
        else:
            self.unacked -= np.bincount(slots, minlength=self.slots)
        if self.max_unacked_each <= 0:
            return False
        if np.count_nonzero(self.blocked):
            free = self.blocked & (self.unacked <= self.max_unacked_each // 2)
            self.blocked &= ~free
            self.credited[free] = self.granted[free]
        return bool(np.count_nonzero(self.starved)) and bool((self.starved & (self.credited > self.sent)).any())

    def settle_subscription(self, held: int) -> bool:
        """Block or release the subscription by its unacknowledged messages (KS-49). Return whether it is blocked."""
        if self.max_unacked_all > 0:
            if held >= self.max_unacked_all:
                self.all_blocked = True
            elif held < self.max_unacked_all / 2:
                self.all_blocked = False
        return self.all_blocked
