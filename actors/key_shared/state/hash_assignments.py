"""Consumers join and leave (KS-34 to KS-36): their places are made, kept, handed over and given up.

A place is a consumer's share of the hashes, as its selector divides them. Without `grace_ms` it goes with the consumer.
With it a place outlives its consumer (GR-1 to GR-4):

* **Kept.** A consumer that leaves goes out of `members.by_number`, and its slot and its share stay. Its hashes still
  have that owner, which has no permits. So their messages wait, and no other hashes change hands. A consumer of the
  same name that comes meanwhile gets the same slot, hence the same hashes. Messages that the first one held wait in
  their order.
* **Handed over.** Another consumer gets a slot of its own, and the share passes to it unchanged. The old consumer's
  messages drain like those of any hash whose owner changed: keys pass one by one as they fall empty.
* **Unassigned.** A consumer may be attached without a place: it has handed its place over, or it waits for one because
  it comes and goes too often (`actors.dispatcher.delivery.damping`).

`layout` writes the ring of an owner down, so that the next owner begins with the same ring. There all places are kept
until their consumers are back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sluice.actors.key_shared.state import nacks, parking
from sluice.actors.key_shared.state.claims import claim, finish_claims
from sluice.actors.key_shared.state.dispatch_state import DispatchState
from sluice.actors.key_shared.state.history import tell_inactive
from sluice.actors.key_shared.state.members import AttachedConsumer, KeptPlace
from sluice.actors.key_shared.state.selectors import Range, ranges_of
from sluice.actors.key_shared.state.window import PENDING, REPLAY
from sluice.storage.format.position import Positions


class JoinAs(NamedTuple):
    """How a consumer comes in. into: the slot of a kept place that it takes. after: the number of the consumer whose
    place it takes over. unassigned: it gets no place. None of these: a new place. base: what its incarnations have in
    common; keeps_place: its place may be kept for it.
    """

    into: int | None = None
    after: int = 0
    unassigned: bool = False
    base: str = ""
    keeps_place: bool = True


NEW = JoinAs()


def join(
    core: DispatchState,
    name: str,
    *,
    now: int,
    ranges: Sequence[Range],
    priority: int,
    holding: Positions,
    finished: Positions,
    entry: JoinAs,
) -> int:
    core.at(now)
    others = len(core.members)
    member, cause, fresh = _enter(core, name, now, ranges, priority, entry)
    member.enter(entry.base, entry.keeps_place, ranges)
    if len(holding):
        parking.bring_back(core, np.unique(holding))
        core.parked.ask_back()
        core.members.claim(member, np.unique(holding))
        core.policy.brought(int(holding.max()))
        finish_claims(core, member, finished)
        claim(core, member)
        nacks.revoke(core)
    core.change_owners(now=now, cause=cause, handed_over=bool(entry.after))
    if fresh:
        core.policy.joined(member.slot, others, core.window, core.window.last_read)
    if core.settings.type == "failover" and core.tables.owner[1] != member.slot:
        tell_inactive(member, core.history.number)
    return member.number


def _enter(
    core: DispatchState, name: str, now: int, ranges: Sequence[Range], priority: int, entry: JoinAs
) -> tuple[AttachedConsumer, str, bool]:
    """Return the member, why owners may change, and whether others may hold earlier messages of its hashes."""
    members, selector = core.members, core.selector
    if entry.into is not None:
        kept, offered_to = core.kept.pop(entry.into), members.at(entry.into).to
        member = members.add(entry.into, name, priority, now)
        member.offer_place("" if offered_to == name else offered_to)
        member.note("assigned", tuple(ranges_of(core.tables.owner, member.slot)), core.history.number)
        return member, f"{name} is back", kept.restored
    slot = members.free_slot()
    if entry.after:
        before = members.by_number[entry.after]
        selector.replace(before.slot, slot)
        before.offer_place("")
        before.note("handed_over", (), core.history.number)
        core.kept.hand_over()
        return members.add(slot, name, priority, now), f"{name} took over from {before.name}", True
    if not entry.unassigned:
        selector.add(slot, name, ranges=ranges, priority=priority)
    return members.add(slot, name, priority, now), f"{name} joined", True


def give_place(core: DispatchState, member: AttachedConsumer, *, now: int) -> None:
    """A consumer without a place gets a place now. Raises Conflict if there is none, and then nothing has changed."""
    core.selector.add(member.slot, member.name, ranges=member.ranges, priority=member.priority)
    core.change_owners(now=now, cause=f"{member.name} joined")
    core.policy.joined(member.slot, len(core.members) - 1, core.window, core.window.last_read)


def retire(core: DispatchState, member: AttachedConsumer, *, now: int) -> None:
    core.selector.remove(member.slot)
    core.members.stop(member)
    core.change_owners(now=now, cause=f"{member.name} does not answer", gone=[member])


def leave(core: DispatchState, leaving: Mapping[AttachedConsumer, bool], *, now: int) -> None:
    """Remove consumers in one change. True: the place is kept."""
    core.at(now)
    placed = {slot for slot, _ in core.selector.layout()} if core.keeps_places else frozenset[int]()
    kept = {member.slot for member, keep in leaving.items() if keep and member.keeps_place} & placed
    slots = [member.slot for member in leaving]
    gone = [slot for slot in slots if slot not in kept]
    held = core.window.rows_in(PENDING)
    core.selector.remove(*gone)
    core.reinsert(held[np.isin(core.window.consumer[held], slots)], REPLAY, now)
    for member in leaving:
        if member.slot in kept:
            core.members.set_aside(member)
            core.kept.by_slot[member.slot] = KeptPlace()
        else:
            core.members.remove(member)
    core.change_owners(now=now, cause=_cause([*leaving], "left"), gone=[*leaving])
    for slot in gone:
        core.policy.left(slot, len(core.members) + len(core.kept))
    core.settle_limits()
    if not core.members:
        core.window.forget_sent()
    core.window.trim()


def give_up(core: DispatchState, slots: Sequence[int], *, now: int) -> None:
    """Stop keeping places: their hashes move as if their consumers had left, in one change."""
    gone = [core.members.at(slot) for slot in slots]
    core.selector.remove(*slots)
    for slot in slots:
        del core.kept.by_slot[slot]
        core.members.free(slot)
    core.change_owners(now=now, cause=_cause(gone, "did not come back"), gone=gone)
    for slot in slots:
        core.policy.left(slot, len(core.members) + len(core.kept))


def _cause(gone: Sequence[AttachedConsumer], what: str) -> str:
    others = f" and {len(gone) - 1} others" if len(gone) > 1 else ""
    return f"{gone[0].name}{others} {what}"


def has_place(core: DispatchState, slot: int) -> bool:
    """Return whether this slot has a share of the hashes."""
    return any(each == slot for each, _ in core.selector.layout())


def layout(core: DispatchState) -> list[list[Any]]:
    """Return every place for the record: name, base, to, keeps_place, and the share as its selector has it."""
    rows = []
    for slot, share in core.selector.layout():
        member = core.members.at(slot)
        rows.append([member.name, member.base, member.to, member.keeps_place, share])
    return rows


def restore(core: DispatchState, rows: Iterable[Sequence[Any]], *, now: int) -> None:
    """Begin with the places of an earlier owner, kept for their consumers. Only for a core without consumers."""
    for name, base, to, keeps_place, share in rows:
        slot = core.members.free_slot()
        core.selector.restore(slot, list(share))
        member = core.members.add(slot, str(name), 0, now)
        member.enter(str(base), bool(keeps_place), share if core.settings.selector == "sticky" else ())
        member.offer_place(str(to))
        core.members.set_aside(member)
        core.kept.by_slot[slot] = KeptPlace(restored=True)
    if core.kept:
        core.change_owners(now=now, cause="places are kept")


def successor(core: DispatchState) -> DispatchState:
    """Return an empty state that goes on with this one's numbers, history and totals, and with the places."""
    new = core.successor()
    if core.keeps_places:
        restore(new, layout(core), now=core.now)
    return new


def kept_stats(core: DispatchState) -> dict[str, Any]:
    """Return statistics of kept places, and of how they ended."""
    owner = core.tables.owner
    kept = [
        {
            "consumerName": core.members.at(slot).name,
            "hashes": int((owner == slot).sum()),
            "until": kept.until or None,
            "handsOverTo": core.members.at(slot).to,
        }
        for slot, kept in core.kept.by_slot.items()
    ]
    return {
        "graceMillis": core.settings.grace_ms,
        "keptConsumers": kept,
        "keptHashes": sum(row["hashes"] for row in kept),
        "placesReturnedTotal": core.kept.returned,
        "handOversTotal": core.kept.handed_over,
        "hashesHandedOverTotal": core.history.hashes_handed_over,
    }


class HashRangeAssignments:
    """A view of the places for the part that assigns them (`actors.dispatcher.delivery.grace`); made for one look."""

    def __init__(self, core: DispatchState) -> None:
        self._core = core

    @property
    def keeps_places(self) -> bool:
        """Whether places outlive consumers here."""
        return self._core.keeps_places

    @property
    def kept(self) -> dict[int, KeptPlace]:
        """Return the kept places by slot; for reading only."""
        return self._core.kept.by_slot

    def keep(self, slot: int, over: int, until: int) -> None:
        """Keep a place until then (monotonic ms, and by the clock)."""
        self._core.kept.by_slot[slot].keep_until(over, until)

    def place(self, slot: int) -> AttachedConsumer:
        """Return the place of a present or former consumer."""
        return self._core.members.at(slot)

    def places(self) -> list[AttachedConsumer]:
        """Return the present and former consumers of all places, in the order of the ring."""
        return [self._core.members.at(slot) for slot, _ in self._core.selector.layout()]

    def get(self, consumer: int) -> AttachedConsumer | None:
        """Return the consumer of that number, if it has a place."""
        member = self._core.members.by_number.get(consumer)
        return member if member is not None and has_place(self._core, member.slot) else None

    def offer(self, place: AttachedConsumer, to: str) -> None:
        """Offer the place to the consumer that attaches under this name."""
        place.offer_place(to)

    def give_place(self, consumer: int, now: int) -> bool:
        """A consumer without a place gets a place; False if it is not here. Raises Conflict."""
        member = self._core.members.by_number.get(consumer)
        if member is None or has_place(self._core, member.slot):
            return False
        give_place(self._core, member, now=now)
        return True

    def hand_over_told(self, consumer: int) -> None:
        """Tell an unassigned consumer that another one has its place."""
        self._core.members.by_number[consumer].note("handed_over", (), self._core.history.number)

    def give_up(self, slots: Sequence[int], now: int) -> None:
        """Keep one or more places no longer."""
        give_up(self._core, slots, now=now)

    def layout(self) -> list[list[Any]]:
        """For the record."""
        return layout(self._core) if self._core.keeps_places else []

    def restore(self, rows: Iterable[Sequence[Any]], now: int) -> None:
        """Begin with the places of an earlier owner."""
        restore(self._core, rows, now=now)
