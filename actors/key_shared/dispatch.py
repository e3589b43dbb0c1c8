"""The decisions of one subscription on one partition: what may be read, what goes to whom, what is done.

A plain synchronous object. It knows positions and hashes, never payloads; it does no I/O and has no clock (`now` is
milliseconds). The dispatcher actor feeds it and carries out what `route` says. The parts:

    dispatch_state   the state that several operations need, and its transitions
    window           the messages that are read and not done, by column, each in one state
    tables           owner, holder, pending and replayed by hash; draining is derived from them
    members          consumers, permits, limits
    selectors        who owns which hash
    policies         the one gate in which the four ways of keeping order differ
    dispatch_pass    one pass of the dispatch
    assignments      the messages that it sends to each consumer, by column
    hash_assignments consumers join and leave, and their hashes move
    window_ends      messages come: read forward, due, or named by a consumer that holds them; messages are done
    claims           messages that consumers hold from before a change of owner
    nacks            messages are given back, and keep their place with nack_order=key
    given_back       their counts before they are read, and when they may go out again
    parking          keys that wait for a decision
    parked_messages  the messages of these keys, in a table of their own
    sentinel         checks every delivery against the promises, from its own books
    explain          the same gates with reasons
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from sluice.actors.key_shared.observe import explain, heaviest, snapshots, stats, what_if
from sluice.actors.key_shared.observe.check import check
from sluice.actors.key_shared.observe.heaviest import Heaviest
from sluice.actors.key_shared.observe.waiting import WaitingMessages, positions_of, waiting
from sluice.actors.key_shared.state import hash_assignments, nacks, parking, window_ends
from sluice.actors.key_shared.state.assignments import Assignments
from sluice.actors.key_shared.state.dispatch_pass import reads_not_because, route, would_send
from sluice.actors.key_shared.state.dispatch_state import DispatchState
from sluice.actors.key_shared.state.hash_assignments import NEW, HashRangeAssignments, JoinAs
from sluice.actors.key_shared.state.history import History, take_events
from sluice.actors.key_shared.state.members import AttachedConsumer
from sluice.actors.key_shared.state.selectors import Range
from sluice.actors.key_shared.state.tables import HashTables
from sluice.actors.key_shared.state.window import DEAD, FRESH, NO_SLOT, PENDING, Mask, Reduced
from sluice.actors.key_shared.state.window_ends import acknowledge, acknowledge_all, remove
from sluice.actors.messages import NO_POSITIONS, Event, SubscriptionSettings
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import Positions
from sluice.storage.format.redeliveries import Redeliveries


class KeySharedDispatcher:
    """The decisions of one subscription. resets: how often it started over; earlier decisions are void then."""

    def __init__(
        self,
        settings: SubscriptionSettings,
        *,
        partition: int = 0,
        first_consumer: int = 1,
        history: History | None = None,
    ) -> None:
        """partition: which one of the topic. first_consumer: number of the first to join. history: goes on with it."""
        self._state = DispatchState(settings, partition, first_consumer=first_consumer, history=history)
        self.resets = 0
        self._reports: list[tuple[Positions, int | None]] = []

    @property
    def _core(self) -> DispatchState:
        """Everything that is known, with all reports brought in."""
        if self._reports:
            reports, self._reports = self._reports, []
            acknowledge_all(self._state, reports)
        return self._state

    @property
    def tables(self) -> HashTables:
        """The tables by hash; for reading only."""
        return self._core.tables

    def reset(self) -> None:
        """Forget every message and consumer, because the cursor moved; numbers, history and totals go on."""
        self._state, self._reports = hash_assignments.successor(self._state), []
        self.resets += 1

    def snapshot(self) -> bytes:
        """Return the whole state, with all reports brought in, as bytes for `restored`."""
        return snapshots.freeze(self._core)

    @classmethod
    def restored(cls, snapshot: bytes) -> KeySharedDispatcher:
        """Return decisions that go on from a snapshot. Raises Corrupt."""
        made = cls(SubscriptionSettings())
        made._go_on_with(snapshots.thaw(snapshot))
        return made

    def _go_on_with(self, state: DispatchState) -> None:
        self._state = state

    # -- membership -------------------------------------------------------------------------------------------------

    def join(
        self,
        name: str,
        *,
        now: int,
        ranges: Sequence[Range] = (),
        priority: int = 0,
        holding: Positions = NO_POSITIONS,
        finished: Positions = NO_POSITIONS,
        entry: JoinAs = NEW,
    ) -> int:
        """Let a consumer join (KS-34); returns its number.

        holding: positions that it holds from before a change of owner. finished: those of them that are done by now,
        which are never sent again. entry: which place it gets. Raises Conflict or Invalid; then nothing has changed.
        """
        return hash_assignments.join(
            self._core,
            name,
            now=now,
            ranges=ranges,
            priority=priority,
            holding=holding,
            finished=finished,
            entry=entry,
        )

    @property
    def ordered(self) -> bool:
        """Whether a key is at one consumer at a time."""
        return self._core.policy.ordered

    def claims_of(self, consumer: int) -> Positions:
        """Return positions that a consumer holds from before a change of owner, not read since (int64, ascending)."""
        member = self._core.members.by_number.get(consumer)
        return NO_POSITIONS if member is None else member.claims

    def bring(self, consumer: int, positions: Positions, hashes: Hashes) -> None:
        """Set the masked hashes (uint32) of a consumer's claims (`claims_of`) before they are read: they keep their
        keys.

        positions: all of them that the topic still has. What cannot be this consumer's, because another one holds its
        hash by now, waits until it is read; what is done and gone from the topic is claimed no longer.
        """
        core = self._core
        member = core.members.by_number.get(consumer)
        if member is not None:
            window_ends.bring(core, member, positions, hashes)

    def holds(self, positions: Positions) -> Mask:
        """Return which positions (int64, ascending) are in the window or parked."""
        core = self._core
        there: Mask = np.isin(positions, core.window.position[core.window.find(positions)])
        return there | core.parked.contains(positions)

    def knows(self, consumer: int, positions: Positions) -> Mask:
        """Return which positions (int64, ascending) this owner knows, or a consumer brought from an earlier owner.

        A delayed message is at hand as soon as it is due, however far the reading forward has come.
        """
        core = self._core
        known: Mask = np.isin(positions, core.window.position[core.window.find(positions)])
        member = core.members.by_number.get(consumer)
        if member is not None and len(member.claims):
            known |= np.isin(positions, member.claims)
        return known

    def rivals(self, ranges: Sequence[Range]) -> list[int]:
        """Return numbers of the consumers that exclude one with these ranges."""
        return [self._core.members.at(slot).number for slot in self._core.selector.rivals(ranges)]

    def retire(self, consumer: int, *, now: int) -> None:
        """Take a consumer's place; it gets nothing more, and keeps its messages until it leaves."""
        core = self._core
        member = core.members.by_number.get(consumer)
        if member is not None:
            hash_assignments.retire(core, member, now=now)

    def leave(self, consumer: int, *, now: int, keep: bool = False) -> None:
        """Remove a consumer that left, for any reason; its messages wait in order for the others (KS-35, KS-36).

        keep: its place is kept, if the subscription keeps places, and waits for it with what it held.
        """
        self.leave_all({consumer: keep}, now=now)

    def leave_all(self, leaving: Mapping[int, bool], *, now: int) -> None:
        """Remove consumers in one change of owners; see `leave`. leaving: whether the place of each is kept."""
        members = self._core.members.by_number
        known = {members[number]: keep for number, keep in leaving.items() if number in members}
        if known:
            hash_assignments.leave(self._core, known, now=now)

    @property
    def ring(self) -> HashRangeAssignments:
        """The places of consumers, for the part that assigns them."""
        return HashRangeAssignments(self._core)

    # -- the log ----------------------------------------------------------------------------------------------------

    def room(self) -> int:
        """Return how many messages may be read forward now; 0 = none (KS-39, KS-40, KS-42, KS-49)."""
        core = self._core
        if not core.members or core.members.all_blocked:
            return 0
        permits = core.members.allowed - core.window.count[FRESH]
        ahead = core.look_ahead_limit() - core.waiting
        return max(min(permits, ahead), 0)

    def due_room(self) -> int:
        """Return how many delayed messages may be handed to `due` now; 0 = none.

        They take the way of redelivery, so messages that wait for a draining hash do not use up their room, and a
        blocked subscription does not stop them (KS-49); only what was due before and still waits does.
        """
        core = self._core
        return max(min(core.members.allowed, core.look_ahead_limit() - core.due_waiting), 0)

    @property
    def nack_ordered(self) -> bool:
        """Whether returned messages keep their place, so that consumers must give back later ones."""
        return self._core.nack_ordered

    @property
    def holds_keys(self) -> bool:
        """`append` wants the delayed messages too, because they hold back their keys (`delay_key_policy=block_key`)."""
        return self._core.holds_keys

    def append(self, positions: Positions, hashes: Hashes, *, delayed: Mask | None = None, appended: int = 0) -> None:
        """Add messages that were read forward: int64 positions, ascending, above all read before; masked hashes uint32.

        Without those that are acknowledged, and without the delayed ones, unless `holds_keys`: then with them, and
        `delayed` (bool) says which are not due. Later messages of their hashes wait until `due` brings them.
        appended: when the topic confirmed them (ms, 0 if unknown); waits are counted, and nothing is decided by it.
        Raises InvariantViolation if the positions do not follow.
        """
        window_ends.append(self._core, positions, hashes, delayed, appended)

    def reach(self, position: int) -> None:
        """Note that the log was read up to here; messages that did not come to `append` are done or delayed."""
        if self._core.window.reach(position) and self._core.nack_ordered:
            self._core.look_again()

    def due(self, positions: Positions, hashes: Hashes, *, now: int | None = None) -> None:
        """Let delayed messages that are due wait to be sent, without a place in the order (KS-60, KS-64).

        Those that held back their keys have kept their place. Positions that are here already are ignored; any order.
        now: ms; None: when anything was decided last.
        """
        if now is not None:
            self._state.at(now)
        window_ends.due(self._core, positions, hashes)

    # -- consumers --------------------------------------------------------------------------------------------------

    def grant(self, consumer: int, total: int) -> bool:
        """Raise to `total` how many messages a consumer was ever ready to take (KS-46); a smaller number is late.

        Returns whether these are more than before.
        """
        # Permits and reports may come in either order: a blocked consumer's permits are kept until it is released.
        core = self._state
        member = core.members.by_number.get(consumer)
        if member is None:
            return False
        before = int(core.members.granted[member.slot])
        if core.members.grant(member, total):
            core.look_again()
        return int(core.members.granted[member.slot]) > before

    def acknowledge(self, positions: Positions, consumer: int | None = None) -> Positions:
        """Mark messages as done, also those that another consumer holds (KS-57).

        Return those that were here, ascending, each once.
        """
        return acknowledge(self._core, positions, consumer)

    def acknowledge_soon(self, positions: Positions, consumer: int | None = None, *, now: int | None = None) -> None:
        """Do as `acknowledge` does, but gather reports, and apply them before anything else is decided or read.

        now: when it is reported (ms); None: when anything was decided last.
        """
        if now is not None:
            self._state.at(now)
        if len(positions):
            self._reports.append((positions, consumer))

    def taken_done_unsent(self) -> bool:
        """Return whether messages that were never sent were acknowledged since the last call, and order counts."""
        return self._core.taken_done_unsent()

    def negative_acknowledge(self, consumer: int, positions: Positions, **how: Unpack[nacks.NackOptions]) -> int:
        """Give messages (int64, ascending) back for redelivery; returns how many (KS-59, KS-60).

        Foreign and acknowledged positions are ignored.
        """
        core = self._core
        member = core.members.by_number.get(consumer)
        return 0 if member is None else nacks.negative_acknowledge(core, member, positions, **how)

    def redeliver_all(
        self, consumer: int, seen: Positions, *, unseen: int, now: int, counts: npt.NDArray[np.uint8] | None = None
    ) -> int:
        """Give back all that a consumer was sent, in order; returns how many messages (KS-59).

        seen: the messages that it is known to have had (int64, ascending); only their redelivery count rises. counts:
        uint8, the count with which it had each. unseen: the number of messages that were sent and never arrived; their
        permits are free again.
        """
        core = self._core
        member = core.members.by_number.get(consumer)
        return 0 if member is None else nacks.redeliver_all(core, member, seen, counts, unseen=unseen, now=now)

    def never_arrived(self, consumer: int, count: int) -> None:
        """Free the permits of `count` messages that were routed to a consumer and never sent, and are elsewhere now."""
        member = self._core.members.by_number.get(consumer)
        if member is not None and count:
            self._core.members.take_back(member, count)
            self._core.look_again()

    def remember(self, rows: Redeliveries, now: int) -> None:
        """Take over the redelivery counts of an earlier owner; for a new object."""
        self._state.carried.begin_with(rows)
        self._state.at(now)

    @property
    def not_durable(self) -> int:
        """How many messages found no room in the last `redeliveries`."""
        return self._state.carried.not_durable

    def redeliveries(self) -> bytes:
        """Return counts and delays for the next owner, as bytes (`storage.format.redeliveries`), bounded (`nacks`)."""
        return nacks.snapshot(self._core)

    def clock_was_set(self, by: int) -> None:
        """Move the ends of redelivery delays by so many ms, as the clock of every `now` was: the rest of each stays."""
        nacks.clock_was_set(self._core, by)

    def delays_redeliveries(self) -> bool:
        """Return whether any message waits for the end of a redelivery delay."""
        return nacks.delays(self._core)

    def has_dead_letters(self) -> bool:
        """Return whether a message was redelivered more than max_redeliver_count times: it becomes a dead letter."""
        return self._core.window.count[DEAD] > 0 and not self._core.parked.on

    def dead_letters(self) -> Positions:
        """Return positions that were redelivered more than max_redeliver_count times, ascending.

        They stay here, and are sent to nobody, until they are acknowledged.
        """
        core = self._core
        return NO_POSITIONS if core.parked.on else core.window.position[core.window.rows_in(DEAD)]

    @property
    def parking(self) -> parking.Parking:
        """The keys that are parked or blocked (`dead_letter_policy`)."""
        return parking.Parking(self._core)

    def remove(self, positions: Positions | None = None, up_to: int | None = None) -> None:
        """Skip, expire or clear: these positions, or all up to `up_to` inclusive, or everything.

        What a connected consumer holds stays with it, and keeps its hash draining, until it acknowledges or leaves;
        then it is dropped and not sent again (KS-45). In an unordered subscription it goes at once.
        """
        remove(self._core, positions, up_to)

    def mark_deleted(self, position: int) -> None:
        """Note that everything up to `position` is acknowledged; recently joined consumers may be released (LS-6)."""
        core = self._state  # No policy asks the rows here, so reports may wait on.
        core.carried.forget_up_to(position)
        if core.policy.marked(position):
            core.look_again()

    # -- output -----------------------------------------------------------------------------------------------------

    def route(self, now: int) -> Assignments:
        """Send everything that can go out now. Cheap when nothing can.

        Raises InvariantViolation if the sentinel finds a promise broken.
        """
        sent = route(self._core, now)
        self._core.counters.waits.gates.next(reads_not_because(self._core))
        return sent

    def wakeup(self, now: int) -> int | None:
        """Return when time alone may let something out (end of a redelivery delay), ms; None: never."""
        at = self._core.delays.next
        return None if at is None else max(at, now)

    # -- observation ------------------------------------------------------------------------------------------------

    def idle(self) -> bool:
        """Return whether nothing is pending, waiting or dead: all that was read is done."""
        return self._core.window.live == 0 and self._core.parked.live == 0

    def stalled(self) -> bool:
        """Return, as a watchdog, whether a consumer has permits, and a message that may go to it was not sent."""
        return not self.idle() and would_send(self._core) > 0

    def check(self) -> None:
        """Count everything again; InvariantViolation on any difference."""
        check(self._core)

    def stats(self, now: int) -> dict[str, Any]:
        """Return statistics of the subscription and its consumers, with Pulsar's names."""
        return stats.stats(self._core, now)

    def explain(
        self,
        *,
        key_hash: int | None = None,
        hash: int | None = None,
        position: int | None = None,
        now: int,
    ) -> dict[str, Any]:
        """Explain why it is not delivered. key_hash: masked hash of a key; hash: as the selector sees it; or a
        position.
        """
        return explain.explain(self._core, key_hash=key_hash, hash=hash, position=position, now=now)

    def due_reasons(self) -> list[dict[str, Any]]:
        """Return why a delayed message that is due is not taken out of the delayed index; in the form of `explain`."""
        return explain.due_reasons(self._core)

    def blocked_keys(self, top: int, now: int) -> list[dict[str, Any]]:
        """Return the hashes that wait the longest, oldest first."""
        return explain.blocked_keys(self._core, top, now)

    def reads_not_because(self) -> str:
        """Return the gate that keeps the next messages from being read; `not_read` if none does."""
        return reads_not_because(self._core)

    def waiting(self) -> WaitingMessages:
        """Return the messages that were never sent, each with the gate that holds it."""
        return waiting(self._core)

    def positions_of(self, key_hash: int) -> Positions:
        """Return positions of the messages of a masked hash that are not done (int64, ascending)."""
        return positions_of(self._core, key_hash)

    def pending(self, consumer: int) -> Positions:
        """Return positions that this consumer holds, ascending."""
        core = self._core
        member = core.members.by_number.get(consumer)
        rows = core.window.rows_in(PENDING)
        slot = NO_SLOT if member is None else member.slot
        held: Positions = core.window.position[rows[core.window.consumer[rows] == slot]]
        return held

    def what_if(self, add: int = 0, remove: Sequence[str] = ()) -> dict[str, Any]:
        """Return how many hashes would move if `add` consumers joined and the named ones left."""
        return what_if.what_if(self._core, add, remove)

    @property
    def history(self) -> History:
        """Changes of owners; for reading, and for keeping them elsewhere."""
        return self._state.history

    def assignments(self) -> list[dict[str, Any]]:
        """Return the changes of owners, oldest first, bounded."""
        return [change.as_dict() for change in self._core.history.changes]

    def owner(self, hash: int, at: int | None = None) -> dict[str, Any]:
        """Return the owner of a hash, now or at a time (ms)."""
        core = self._core
        if at is not None:
            return core.history.owner(hash, at)
        slot = int(core.tables.owner[hash])
        if slot == NO_SLOT:
            return {"owner": "", "epoch": core.history.number}
        return {"owner": explain.owner_name(core, slot), "epoch": core.history.number}

    def untold(self) -> list[int]:
        """Return numbers of the consumers for which `take_events` or `take_revoked` has news."""
        return self._core.members.with_news()

    def take_events(self, consumer: int) -> list[Event]:
        """Take the news that a consumer has not received: revoked, assigned, drained ranges."""
        member = self._core.members.by_number.get(consumer)
        return [] if member is None else take_events(member, self._core.history.number)

    def take_revoked(self, consumer: int) -> Positions:
        """Take the messages that a consumer must give back and was not asked for yet (int64, ascending)."""
        member = self._core.members.by_number.get(consumer)
        return NO_POSITIONS if member is None else nacks.take_revoked(self._core, member)

    def overtook(self, positions: Positions) -> Positions:
        """Return which of these the application had before an earlier message of their key came again; ascending."""
        return nacks.overtook(self._core, positions)

    def reduce(self, masked: Hashes) -> Reduced:
        """Return masked hashes as this subscription's selector sees them, uint16."""
        return self._core.reduce(masked)

    def heaviest(self, fewest: int = 1) -> Heaviest | None:
        """Return the key that has more than half of the unfinished messages; None: no key has."""
        core = self._core
        return heaviest.heaviest(core.window, list(core.members), fewest)

    def held_keys(self) -> tuple[Hashes, Positions]:
        """Return masked hashes and positions of held messages, uint32 and int64 (n,), positions ascending."""
        return heaviest.held_keys(self._core.window)

    def consumers(self) -> list[AttachedConsumer]:
        """Return the connected consumers in order of joining; for reading only."""
        return list(self._core.members)
