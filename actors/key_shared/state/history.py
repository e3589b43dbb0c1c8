"""The history of assignments: a bounded list of changes of owners, and the news of them for each consumer.

Changes are numbered. An owner of the subscription that comes after another one begins above the numbers of the former
and may be told of its changes (`remember`). Between the last of them and the first of the new owner, the answer is who
owned a hash last: those consumers may still hold messages of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.actors.key_shared.state.members import AttachedConsumer, Members
from sluice.actors.key_shared.state.selectors import Range, difference, mask_ranges
from sluice.actors.key_shared.state.window import Reduced
from sluice.actors.messages import Event
from sluice.storage.format.hashing import HASH_RANGE

KEPT = 256
"""The number of changes that are remembered."""
_EVENTS_A_CONSUMER = 64
NOBODY = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of owners: number from 1, when (ms), why, and each stretch that moved with old and new name.

    consumers: how many there were after it; 0 if it was written before that was kept.
    """

    number: int
    at: int
    cause: str
    moved: tuple[tuple[int, int, str, str], ...]
    consumers: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the change for JSON."""
        return {
            "epoch": self.number,
            "at": self.at,
            "cause": self.cause,
            "consumers": self.consumers,
            "moved": [{"range": [low, high], "from": old, "to": new} for low, high, old, new in self.moved],
        }


class History:
    """The newest changes, enough to tell the owner of a hash at any time since the oldest of them."""

    def __init__(self, first: int = 0, changed: Callable[[], None] | None = None) -> None:
        """first: one less than the number of the first change. changed: called after every change."""
        self.changes: list[Change] = []
        self.number = first
        self.hashes_moved = 0
        """Hashes that changed from one consumer to another, ever; without those that were handed over."""
        self.hashes_handed_over = 0
        self._changed = changed

    def since(self, number: int) -> list[Change]:
        """Return the changes above a number, oldest first."""
        return [change for change in self.changes if change.number > number]

    def remember(self, earlier: Iterable[Change]) -> None:
        """Add changes from before this object, in any order; the newest are kept, each once."""
        known = {change.number: change for change in [*earlier, *self.changes]}
        self.changes = [known[number] for number in sorted(known)[-KEPT:]]

    def record(
        self,
        members: Members,
        before: Reduced,
        after: Reduced,
        *,
        now: int,
        cause: str,
        gone: Sequence[AttachedConsumer] = (),
        handed_over: bool = False,
    ) -> None:
        """Record a change and prepare news for its consumers; `gone` have just left. handed_over: it was agreed."""
        moved = difference(before, after)
        if not moved:
            return
        self.number += 1
        slots = {slot for _, _, old, new in moved for slot in (old, new)}
        left = {member.slot: member for member in gone}
        names = {slot: _name(members, slot, left) for slot in sorted(slots)}
        consumers = members.slots - members.by_slot.count(None)
        named = tuple((low, high, names[old], names[new]) for low, high, old, new in moved)
        self.changes.append(Change(self.number, now, cause, named, consumers))
        del self.changes[:-KEPT]
        count = sum(high - low + 1 for low, high, old, new in named if old and new)
        self.hashes_moved += count * (not handed_over)
        self.hashes_handed_over += count * handed_over
        if self._changed is not None:
            self._changed()
        by_change: dict[tuple[int, str], list[Range]] = {}
        for low, high, old, new in moved:
            by_change.setdefault((old, "revoked"), []).append((low, high))
            by_change.setdefault((new, "assigned"), []).append((low, high))
        for (slot, kind), ranges in by_change.items():
            member = members.by_slot[slot] if slot < members.slots else None
            if member is not None:
                member.note(kind, tuple(ranges), self.number)
                del member.events[:-_EVENTS_A_CONSUMER]

    def owner(self, hash: int, at: int) -> dict[str, Any]:
        """Return the owner of a hash at a time: its name ("" for no owner) and the change that made it so.

        Both are None if the history does not reach that far.
        """
        found: dict[str, Any] = {"owner": None, "epoch": None}
        for change in self.changes:
            for low, high, old, new in change.moved:
                if low <= hash <= high:
                    if change.at > at:
                        return found if found["owner"] is not None else {"owner": old, "epoch": None}
                    found = {"owner": new, "epoch": change.number}
        return found


def _name(members: Members, slot: int, left: Mapping[int, AttachedConsumer]) -> str:
    """Return the name in the history of the consumer in a slot; empty for a slot without one."""
    member = members.by_slot[slot] if slot < members.slots else None
    member = left.get(slot) if member is None else member
    return NOBODY if member is None else f"{member.name}#{member.number}"


def drained(members: Members, holders: Reduced, freed: npt.NDArray[np.intp]) -> None:
    """Count hashes that came free at their former holders, one holder for each, and prepare the news."""
    for slot in np.unique(holders):
        member = members.by_slot[int(slot)]
        if member is not None:
            member.note_drained(freed[holders == slot])
            if len(member.drained) > _EVENTS_A_CONSUMER:
                member.drained[:] = [np.unique(np.concatenate(member.drained))]


def tell_inactive(member: AttachedConsumer, number: int) -> None:
    """Add the news that a consumer of a Failover subscription joined behind the active one."""
    member.note("inactive", (), number)


def take_events(member: AttachedConsumer, number: int) -> list[Event]:
    """Take news that a consumer has not received: revoked, assigned, drained ranges, inactive; oldest first."""
    events = [Event(kind=kind, ranges=list(ranges), epoch=epoch) for kind, ranges, epoch in member.events]
    if member.drained:
        mask = np.zeros(HASH_RANGE, np.bool_)
        mask[np.concatenate(member.drained)] = True
        events.append(Event(kind="drained", ranges=mask_ranges(mask), epoch=number))
    member.events.clear()
    member.drained.clear()
    return events
