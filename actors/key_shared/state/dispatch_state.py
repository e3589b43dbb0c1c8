"""The state of one subscription on one partition, and the few transitions from which operations are made.

Each part of the state is an object that alone writes its fields (a test); here they are joined. `release` takes
messages away from the consumers that hold them, `queue` and `unqueue` keep count of those that wait with a known place
in the order, `change_owners` follows a join or a leave. Each keeps window, hash tables, members and sentinel in step,
so no operation can forget one of them.

`recheck` is set when a waiting message might be able to go out. While it is not set, a pass skips the waiting messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sluice.actors.key_shared.state.assignments import DispatchCounters
from sluice.actors.key_shared.state.drains import Drains
from sluice.actors.key_shared.state.given_back import CarriedRedeliveries, Delays
from sluice.actors.key_shared.state.history import History, drained
from sluice.actors.key_shared.state.members import AttachedConsumer, Members, StickyAssignments
from sluice.actors.key_shared.state.parked_messages import ParkedMessages
from sluice.actors.key_shared.state.policies import Policy, Unordered, make_policy
from sluice.actors.key_shared.state.selectors import SingleActive, make_selector
from sluice.actors.key_shared.state.sentinel import Sentinel
from sluice.actors.key_shared.state.tables import NOTHING_HELD, HashTables
from sluice.actors.key_shared.state.window import (
    DEAD,
    DONE,
    DUE,
    FRESH,
    HELD,
    PENDING,
    REMOVED,
    REPLAY,
    REVOKED,
    UNORDERED,
    WAITING,
    Reduced,
    Rows,
    Window,
)
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.messages.settings import check_choices, keeps_places
from sluice.storage.format.hashing import HASH_RANGE, Hashes, reduce_hash

UNLIMITED = 2**31 - 1


def _policy(settings: SubscriptionSettings) -> Policy:
    """Return the policy that keeps the order of keys, by the type of the subscription."""
    if settings.type in ("exclusive", "failover"):
        return make_policy("draining_hashes")
    if settings.type == "shared" or settings.allow_out_of_order_delivery:
        return Unordered()
    return make_policy(settings.policy, remember_unacked_keys=settings.remember_unacked_keys)


class DispatchState:
    """The whole state; the modules describe each part."""

    def __init__(
        self,
        settings: SubscriptionSettings,
        partition: int = 0,
        *,
        first_consumer: int = 1,
        history: History | None = None,
    ) -> None:
        check_choices(settings)
        self.settings, self.partition = settings, partition
        self.window = Window()
        self.parked = ParkedMessages(settings)
        limited = settings.type in ("key_shared", "shared")
        self.members = Members(
            settings.max_unacked_messages_per_consumer if limited else 0,
            settings.max_unacked_messages_per_subscription if limited else 0,
            first_consumer,
        )
        self.selector = make_selector(settings, partition)
        self.shared = settings.type == "shared"
        self.policy = _policy(settings)
        ordered = settings.type == "key_shared" and not settings.allow_out_of_order_delivery
        self.holds_keys = settings.delay_key_policy == "block_key" and ordered
        self.nack_ordered = settings.nack_order == "key" and self.policy.strict
        """Whether a message that is given back keeps its place among the messages of its key (`nacks`)."""
        self.holding = (HELD, WAITING) if self.nack_ordered else (HELD,)
        """The states in which a row holds back the later ones of its hash until some time."""
        self.tables = HashTables(
            tracking=self.policy.strict, holding=self.holds_keys or self.nack_ordered, revoking=self.nack_ordered
        )
        self.sentinel = Sentinel(strict=self.policy.strict, name=self.members.describe, repeated=self.nack_ordered)
        self.history = history or History()
        self.keeps_places = settings.grace_ms > 0 and keeps_places(settings)
        self.kept = StickyAssignments()
        self.carried = CarriedRedeliveries()
        self.delays = Delays()
        self.drains = Drains()
        self.counters = DispatchCounters()
        self.recheck = False
        self._done_unsent = False
        self.now = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        self.__dict__.update(state)
        self.sentinel.describe_by(self.members.describe)

    def successor(self) -> DispatchState:
        """Return an empty state that goes on with the numbers, the history and the totals of this one."""
        new = DispatchState(
            self.settings, self.partition, first_consumer=self.members.next_number, history=self.history
        )
        new.counters.continue_from(self.counters)
        new.members.continue_from(self.members)
        new.tables.continue_from(self.tables)
        new.drains.continue_from(self.drains)
        new.sentinel.continue_from(self.sentinel)
        new.parked.continue_from(self.parked)
        new.kept.continue_from(self.kept)
        return new

    def at(self, now: int) -> None:
        """Set the time to `now`, in milliseconds."""
        if not self.now:
            self.counters.waits.gates.own_since(now)
        self.now = now

    def look_again(self) -> None:
        """Make the next pass try the waiting messages."""
        self.recheck = True

    def taken_recheck(self) -> bool:
        """Return whether to try the waiting messages, and reset that: the caller tries them."""
        recheck, self.recheck = self.recheck, False
        return recheck

    def note_done_unsent(self) -> None:
        """Note that messages are done that were perhaps never sent."""
        self._done_unsent = True

    def taken_done_unsent(self) -> bool:
        """Return whether there were such messages since the last call."""
        found, self._done_unsent = self._done_unsent, False
        return found

    def reduce(self, masked: Hashes) -> Reduced:
        """Return masked hashes (KS-1) reduced to the range of this subscription's selector (KS-2, KS-3)."""
        return reduce_hash(masked, size=self.selector.size, start=self.selector.start)

    # -- limits -----------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Messages that were read and wait to be sent (again): what look-ahead limits (KS-40)."""
        count = self.window.count
        waiting = count[FRESH] + count[REPLAY] + count[UNORDERED] + self.held_for_decision
        if self.nack_ordered and count[REPLAY]:
            waiting -= int(np.count_nonzero(self.window.unreached(self.window.rows_in(REPLAY))))
        return waiting

    @property
    def due_waiting(self) -> int:
        """Delayed messages that were due and wait to be sent: what look-ahead limits of them."""
        return self.window.count[UNORDERED] + self.held_for_decision

    @property
    def held_for_decision(self) -> int:
        """Messages that wait for an operator's decision, or to be looked at, and are not parked (`parked_messages`)."""
        return self.parked.counted + self.window.count[DEAD] if self.parked.on else 0

    def look_ahead_limit(self) -> int:
        """Return how many messages may wait to be sent before reading forward stops (KS-40)."""
        return look_ahead_limit(self.settings, len(self.members))

    def settle_limits(self) -> None:
        """Block or release the subscription. Messages that wait out a delay count: Pulsar's client still holds them."""
        count = self.window.count
        self.members.settle_subscription(count[PENDING] + count[WAITING])

    # -- transitions ------------------------------------------------------------------------------------------------

    def queue(self, rows: Rows) -> None:
        """Count rows that wait with a known place in the order."""
        self.tables.queued(self.window.hash[rows])

    def unqueue(self, rows: Rows) -> None:
        """Reverse `queue`."""
        self.tables.unqueued(self.window.hash[rows])

    def move_waiting(self, rows: Rows, before: int, after: int) -> None:
        """Change the state of rows that no consumer holds, and the tables by hash with it."""
        if len(rows) == 0:
            return
        self.window.move(rows, len(rows), before, after)
        if before == REPLAY:
            self.unqueue(rows)
        elif before in self.holding:
            self._unhold(self.window.hash[rows])
        if after == REPLAY:
            self.queue(rows)
        elif after in self.holding:
            self._hold_keys(rows)

    def hold(self, rows: Rows) -> None:
        """Delay FRESH rows: they hold back later rows of their hash until `due`."""
        self.window.move(rows, len(rows), FRESH, HELD)
        self._hold_keys(rows)

    def _hold_keys(self, rows: Rows) -> None:
        np.minimum.at(self.tables.held_from, self.window.hash[rows], self.window.position[rows])

    def _unhold(self, hashes: Reduced) -> None:
        """Find out which of these hashes still have rows that hold them back."""
        affected = np.zeros(HASH_RANGE, np.bool_)
        affected[hashes] = True
        self.tables.held_from[affected] = NOTHING_HELD
        rows = self.window.rows_in(*self.holding)
        self._hold_keys(rows[affected[self.window.hash[rows]]])
        self.recheck = True

    def release(self, rows: Rows, into: int) -> None:
        """Take PENDING rows from their consumers, each exactly once (KS-20, KS-21)."""
        if len(rows) == 0:
            return
        window, members = self.window, self.members
        hashes = window.hash[rows].astype(np.intp)
        self.sentinel.given_back(hashes, window.position[rows] if self.nack_ordered else None, again=into != DONE)
        if self.tables.revoked_messages:
            self._no_more_revoked(rows)
        freed = self.tables.released(hashes)
        if len(freed):
            self.drains.freed(self.tables, members, freed, self.now)
            drained(members, self.tables.holders(freed), freed)
            self.recheck = True
        if self.policy.remembers():
            self.recheck = True
        if members.count_released(window.consumer[rows]):
            self.recheck = True
        window.move(rows, len(rows), PENDING, into)
        if into == REPLAY:
            self.queue(rows)
        elif into in self.holding:
            self._hold_keys(rows)
        self.settle_limits()

    def _no_more_revoked(self, rows: Rows) -> None:
        """Stop asking rows back that leave their consumers."""
        rows = rows[(self.window.flags[rows] & REVOKED) != 0]
        if len(rows):
            self.window.flags[rows] &= np.uint8(0xFF ^ REVOKED)
            self.tables.no_more_revoked(self.window.hash[rows])
            self.recheck = True

    def reinsert(self, rows: Rows, into: int, now: int) -> Rows:
        """Release rows to be sent again; those removed meanwhile are dropped instead (KS-45). Returns the rest."""
        gone = (self.window.flags[rows] & REMOVED) != 0
        if gone.any():
            self.release(rows[gone], DONE)
            rows = rows[~gone]
        self.release(rows, into)
        if self.nack_ordered:
            self.window.flags[rows] &= np.uint8(0xFF ^ DUE)  # a delayed message has a place from now on
        self.window.since[rows] = now
        self.recheck = True
        return rows

    def change_owners(
        self, *, now: int, cause: str, gone: Sequence[AttachedConsumer] = (), handed_over: bool = False
    ) -> None:
        """Follow a change of membership. gone: who left. handed_over: the hashes change hands as agreed."""
        before, drained_before = self.tables.owner, self.tables.drains if self.tables.draining else None
        self.tables.set_owners(self.selector.owners())
        self.drains.owners_changed(self.tables, now)
        if drained_before is not None:
            self.drains.returned(self.tables, self.members, drained_before)
        after = self.tables.owner
        self.history.record(self.members, before, after, now=now, cause=cause, gone=gone, handed_over=handed_over)
        self.recheck = True
        single = isinstance(self.selector, SingleActive) and not self.selector.exclusive
        if single and not (before == self.tables.owner).all():
            # The consumer that is no longer the active one gets no time to finish: as in Pulsar, what it holds is
            # sent to the new one, and may be seen twice.
            held = self.window.rows_in(PENDING)
            self.reinsert(held[self.window.consumer[held] != self.tables.owner[1]], REPLAY, now)
            self.tables.recount()

    def drop(self, rows: Rows) -> None:
        """Mark rows that are not PENDING as done; keeps the counts."""
        window = self.window
        state = window.state[rows]
        if self.parked.on and window.count[DEAD] > 0 and (state == DEAD).any():
            self.parked.look_again()
        for before in (FRESH, REPLAY, UNORDERED, WAITING, DEAD, HELD):
            if window.count[before]:
                self.move_waiting(rows[state == before], before, DONE)
        self.recheck = True
        self.settle_limits()


def look_ahead_limit(settings: SubscriptionSettings, consumers: int) -> int:
    """Limit of waiting messages for this many consumers (KS-40)."""
    each, whole = settings.look_ahead_per_consumer, settings.look_ahead_per_subscription
    limit = whole
    if each > 0:
        limit = each * consumers
        if whole > 0:
            limit = min(limit, whole)
    if limit > 0:
        return limit
    unacked_all = settings.max_unacked_messages_per_subscription
    unacked_each = settings.max_unacked_messages_per_consumer
    return min(
        unacked_all if unacked_all > 0 else UNLIMITED, consumers * unacked_each if unacked_each > 0 else UNLIMITED
    )
