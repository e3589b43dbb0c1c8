"""The state of one subscription on one partition, and the few transitions from which operations are made.

`release` takes messages away from the consumers that hold them, `queue` and `unqueue` keep count of those that wait
with a known place in the order, `change_owners` follows a join or a leave. Each keeps window, hash tables, members
and sentinel in step, so the operations in `dispatch` cannot forget one of them.

`recheck` says that something waiting might be able to go out now. As long as nothing of that kind happened, waiting
messages are not looked at again.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from actors.key_shared.carried_redeliveries import CarriedRedeliveries
from actors.key_shared.drains import Drains
from actors.key_shared.history import History, drained
from actors.key_shared.members import AttachedConsumer, KeptPlace, Members
from actors.key_shared.parked_messages import ParkedMessages
from actors.key_shared.policies import Policy, Unordered, held_elsewhere, make_policy
from actors.key_shared.position_table import DONE, Rows
from actors.key_shared.selectors import SingleActive, make_selector, reduce_for
from actors.key_shared.sentinel import Sentinel
from actors.key_shared.tables import NOTHING_HELD, HashTables
from actors.key_shared.window import (
    DEAD,
    DELIVERED,
    DUE,
    EXAMINED,
    FRESH,
    HELD,
    MAX_REDELIVERIES,
    PENDING,
    REMOVED,
    REPLAY,
    REVOKED,
    SENT,
    UNORDERED,
    WAITING,
    Mask,
    Reduced,
    Window,
)
from actors.messages import SubscriptionSettings
from actors.messages.settings import keeps_places
from storage.errors import Invalid
from storage.hashing import HASH_RANGE, Hashes
from storage.position import EARLIEST, Positions

_WOKEN_AT_ONCE = 1_000
"""Messages that are looked at together when the first of them may go out."""
UNLIMITED = 2**31 - 1
DELAY_KEY_POLICIES = ("pass", "block_key", "reject")
TYPES = ("key_shared", "shared", "exclusive", "failover")


def _check(settings: SubscriptionSettings) -> None:
    """Raises Invalid if the settings name something that there is not."""
    if settings.type not in TYPES:
        raise Invalid(f"type is {', '.join(TYPES)}, not {settings.type!r}")
    if settings.delay_key_policy not in DELAY_KEY_POLICIES:
        raise Invalid(f"delay_key_policy is {', '.join(DELAY_KEY_POLICIES)}, not {settings.delay_key_policy!r}")


def _policy(settings: SubscriptionSettings) -> Policy:
    """The policy that keeps the order of keys, by the type of the subscription."""
    if settings.type in ("exclusive", "failover"):
        return make_policy("draining_hashes")
    if settings.type == "shared" or settings.allow_out_of_order_delivery:
        return Unordered()
    return make_policy(settings.policy, remember_unacked_keys=settings.remember_unacked_keys)


class Core:
    """The whole state; the modules describe each part."""

    def __init__(
        self,
        settings: SubscriptionSettings,
        partition: int = 0,
        *,
        first_consumer: int = 1,
        history: History | None = None,
    ) -> None:
        _check(settings)
        self.settings, self.partition = settings, partition
        self.window = Window()
        self.lot = ParkedMessages(settings)
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
        """What is given back keeps its place among the messages of its key (`revocation`)."""
        self.holding = (HELD, WAITING) if self.nack_ordered else (HELD,)
        """States in which a row holds back the later ones of its hash until some time."""
        self.tables = HashTables(
            tracking=self.policy.strict, holding=self.holds_keys or self.nack_ordered, revoking=self.nack_ordered
        )
        self.sentinel = Sentinel(strict=self.policy.strict, name=self.describe, repeated=self.nack_ordered)
        self.revoked = self.revoked_total = 0
        self.overtaken = False
        """Some row was ever OVERTOOK."""
        self.history = history or History()
        self.keeps_places = settings.grace_ms > 0 and keeps_places(settings)
        self.kept: dict[int, KeptPlace] = {}  # by slot
        self.last_read = self.reached = self.mark_delete = EARLIEST
        self.recheck = False
        self.later: list[tuple[int, int, Positions]] = []
        self.carried = CarriedRedeliveries()
        self.not_durable = self.waits = self.held_back = 0
        self.next_dispatch = self.turn = self.now = 0
        self.drained_total = self.places_returned = self.hand_overs = 0
        self.drains = Drains()
        self.claiming = False

    def successor(self) -> Core:
        """An empty state that goes on with the numbers, the history and the totals of this one."""
        new = Core(self.settings, self.partition, first_consumer=self.members.next_number, history=self.history)
        new.next_dispatch = self.next_dispatch
        new.members.sent_to_leavers = self.members.sent_total
        new.revoked_total = self.revoked_total
        new.lot.goes_on_from(self.lot)
        new.places_returned, new.hand_overs = self.places_returned, self.hand_overs
        return new

    def reduce(self, masked: Hashes) -> Reduced:
        """Masked hashes as this subscription's selector sees them."""
        return reduce_for(self.selector, masked)

    def describe(self, slot: int) -> str:
        """A consumer's name and number, unique among equal names."""
        member = self.members.by_slot[slot] if slot < self.members.slots else None
        return f"consumer {member.name!r} #{member.number}" if member else "nobody"

    # -- limits -----------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Messages that were read and wait to be sent (again): what look-ahead limits (KS-40)."""
        count = self.window.count
        waiting = count[FRESH] + count[REPLAY] + count[UNORDERED] + self.held_for_decision
        if self.nack_ordered and count[REPLAY]:
            waiting -= int(np.count_nonzero(self.unreached(self.window.rows_in(REPLAY))))
        return waiting

    @property
    def held_for_decision(self) -> int:
        """Messages that wait for an operator's decision, or to be looked at, and are not parked (`parked_messages`)."""
        return self.lot.counted + self.window.count[DEAD] if self.lot.on else 0

    def unreached(self, rows: Rows) -> Mask:
        """Which rows wait because the log was not read up to them: consumers held them from an earlier owner and
        gave them back, and nobody knows yet what of their keys lies before them. Only with `nack_order=key`.
        """
        unreached: Mask = self.window.position[rows] > max(self.last_read, self.reached)
        if unreached.any():
            unreached &= self.window.state[rows] == REPLAY
        return unreached

    def look_ahead_limit(self) -> int:
        """How many messages may wait to be sent before reading forward stops (KS-40)."""
        return look_ahead_limit(self.settings, len(self.members))

    def settle_limits(self) -> None:
        """Block or release the subscription. Messages that wait out a delay count: Pulsar's client still holds them."""
        count = self.window.count
        self.members.settle_subscription(count[PENDING] + count[WAITING])

    # -- transitions ------------------------------------------------------------------------------------------------

    def queue(self, rows: Rows) -> None:
        """These rows wait with a known place in the order."""
        self.tables.queued(self.window.hash[rows])

    def unqueue(self, rows: Rows) -> None:
        """The reverse of `queue`."""
        self.tables.unqueued(self.window.hash[rows])

    def move_waiting(self, rows: Rows, before: int, after: int) -> None:
        """Rows that no consumer holds change their state, and the tables by hash with them."""
        if len(rows) == 0:
            return
        self.window.move(rows, len(rows), before, after)
        if before == REPLAY:
            self.unqueue(rows)
        elif before in self.holding:
            self.unhold(self.window.hash[rows])
        if after == REPLAY:
            self.queue(rows)
        elif after in self.holding:
            self._hold_keys(rows)

    def hold(self, rows: Rows) -> None:
        """FRESH rows are delayed, and hold back what comes after them of their hash until `due`."""
        self.window.move(rows, len(rows), FRESH, HELD)
        self._hold_keys(rows)

    def _hold_keys(self, rows: Rows) -> None:
        np.minimum.at(self.tables.held_from, self.window.hash[rows], self.window.position[rows])

    def unhold(self, hashes: Reduced) -> None:
        """Rows of these hashes may be held no longer; find out which still are."""
        affected = np.zeros(HASH_RANGE, np.bool_)
        affected[hashes] = True
        self.tables.held_from[affected] = NOTHING_HELD
        rows = self.window.rows_in(*self.holding)
        self._hold_keys(rows[affected[self.window.hash[rows]]])
        self.recheck = True

    def release(self, rows: Rows, into: int) -> None:
        """PENDING rows leave their consumers, each record exactly once (KS-20, KS-21)."""
        if len(rows) == 0:
            return
        window, members = self.window, self.members
        hashes = window.hash[rows].astype(np.intp)
        self.sentinel.given_back(hashes, window.position[rows] if self.nack_ordered else None, again=into != DONE)
        if self.revoked:
            self._no_more_revoked(rows)
        freed = self.tables.released(hashes)
        if len(freed):
            self.drained_total += len(freed)
            self._finish(freed)
            drained(members, self.tables.holder, freed)
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
        """Rows that leave their consumers are not asked back any more."""
        rows = rows[(self.window.flags[rows] & REVOKED) != 0]
        if len(rows):
            self.window.flags[rows] &= np.uint8(0xFF ^ REVOKED)
            np.subtract.at(self.tables.revoked, self.window.hash[rows], np.int32(1))
            self.revoked -= len(rows)
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
        self, *, now: int, cause: str, gone: AttachedConsumer | None = None, handed_over: bool = False
    ) -> None:
        """Follow a change of membership. handed_over: the hashes change hands as agreed."""
        before, drained_before = self.tables.owner, self.tables.drains if self.tables.draining else None
        self.tables.set_owners(self.selector.owners())
        self.drains.owners_changed(self.tables, now)
        if drained_before is not None:
            self._count_returned(drained_before)
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

    def _finish(self, freed: npt.NDArray[np.intp]) -> None:
        holders = self.tables.holder[freed]
        for slot in np.unique(holders).tolist():
            member, mine = self.members.by_slot[slot], holders == slot
            name = "" if member is None else member.name
            self.drains.finished(freed[mine], self.tables.freed_attempts[mine], name, self.now)

    def _count_returned(self, before: Mask) -> None:
        """Hashes that drained and belong to their holder again are cleared too, as in Pulsar; nobody is told."""
        tables = self.tables
        back = np.flatnonzero(before & ~tables.drains & (tables.pending > 0))
        self.drained_total += len(back)
        for slot, count in zip(*np.unique(tables.holder[back], return_counts=True), strict=True):
            member = self.members.by_slot[int(slot)]
            if member is not None:
                member.drained_total += int(count)

    def drop(self, rows: Rows) -> None:
        """Rows that are not PENDING are done; keeps the counts."""
        window = self.window
        state = window.state[rows]
        self.lot.stale |= self.lot.on and window.count[DEAD] > 0 and bool((state == DEAD).any())
        for before in (FRESH, REPLAY, UNORDERED, WAITING, DEAD, HELD):
            if window.count[before]:
                self.move_waiting(rows[state == before], before, DONE)
        self.recheck = True
        self.settle_limits()

    def count_redelivery(self, rows: Rows, seen: npt.NDArray[np.uint8] | None) -> None:
        """Rows that were just given back come again for one more time, or are dead letters.

        seen: the count that the consumer had with each, if it told; said twice, a hand-back counts once.
        """
        if len(rows):
            self.window.redelivery[rows] = raised(self.window.redelivery[rows], seen)
            self.window.redelivered = True
            self.send_to_dead_letters(rows)

    def send_to_dead_letters(self, rows: Rows) -> None:
        """Of rows that wait, those redelivered too often go to the dead letters instead."""
        most = self.settings.max_redeliver_count
        if most <= 0:
            return
        window = self.window
        rows = rows[window.redelivery[rows] > most]
        if len(rows) == 0:
            return
        state = window.state[rows]
        for before in (FRESH, REPLAY, UNORDERED, WAITING):
            self.move_waiting(rows[state == before], before, DEAD)
        if self.lot.on:
            self.lot.stale = True
            if self.lot.examined:  # it may be of the key that was another one
                alike = np.isin(window.masked_hash[window.head : window.tail], window.masked_hash[rows])
                window.flags[window.head : window.tail][alike] &= np.uint8(0xFF ^ EXAMINED)
        self.settle_limits()

    # -- claims -----------------------------------------------------------------------------------------------------

    def claim(self, member: AttachedConsumer) -> None:
        """Give a consumer the messages that it holds from before a change of owner, as far as they were read.

        A row stays unclaimed if it, or a message of its hash, is already with another consumer: claiming it would
        put one key at two consumers. It is then sent again in its turn, which is a duplicate and allowed. What is done
        already is never sent again; as long as the consumer holds it, it keeps its key there (KS-45).
        """
        window, tables = self.window, self.tables
        rows = window.find(member.claims)
        if len(rows) == 0:
            return
        found, state = window.position[rows], window.state[rows]
        over = np.isin(found, member.finished)
        member.claims = np.setdiff1d(member.claims, found, assume_unique=True)
        member.finished = np.setdiff1d(member.finished, found, assume_unique=True)
        mine = (state != PENDING) & (state != DEAD)
        if self.policy.ordered:
            mine &= ~held_elsewhere(window, window.hash[rows], np.full(len(rows), member.slot, np.uint16))
        self.drop(rows[over & ~mine & (state != PENDING)])
        rows, over = rows[mine], over[mine]
        if len(rows) == 0:
            return
        state = window.state[rows]
        for before in (FRESH, REPLAY, UNORDERED, WAITING, HELD):
            self.move_waiting(rows[state == before], before, PENDING)
        hashes = window.hash[rows]
        slots = np.full(len(rows), member.slot, np.uint16)
        self.sentinel.take(slots, hashes, window.position[rows], (window.flags[rows] & DUE) == 0)
        window.consumer[rows] = member.slot
        window.since[rows] = self.now
        window.flags[rows] |= DELIVERED | SENT
        window.flags[rows[over]] |= REMOVED
        tables.sent(hashes, slots)
        tables.recount()
        self.members.count_claimed(member.slot, len(rows))
        self.settle_limits()

    def claim_all(self) -> None:
        """After rows were added: claim them for those that hold them."""
        if not self.claiming:
            return
        for member in self.members:
            if len(member.claims):
                self.claim(member)
        self.claiming = any(len(member.claims) for member in self.members)

    def finish_claims(self, member: AttachedConsumer, positions: Positions) -> None:
        """Some of its claims are done; they keep their keys in an ordered subscription, and nothing elsewhere."""
        if len(positions) == 0:
            return
        if self.policy.ordered:
            member.finished = np.union1d(member.finished, positions)
        else:
            self.unclaim(member, positions)

    def unclaim(self, member: AttachedConsumer, positions: Positions | None) -> Positions:
        """A consumer drops these (None: all) of the unread messages that it claims; returns which."""
        given = member.claims if positions is None else np.intersect1d(member.claims, positions)
        if len(given):
            member.claims = np.setdiff1d(member.claims, given, assume_unique=True)
            member.finished = np.intersect1d(member.finished, member.claims)
        return given

    # -- time -------------------------------------------------------------------------------------------------------

    def wait(self, rows: Rows, until: npt.NDArray[np.int64]) -> None:
        """WAITING rows may be sent again at these times (ms, one a row). Their `since` is that time."""
        self.window.since[rows] = until
        order = np.argsort(until, kind="stable")
        for start in range(0, len(rows), _WOKEN_AT_ONCE):
            some = order[start : start + _WOKEN_AT_ONCE]
            self._call_at(int(until[some[0]]), rows[some])

    def _call_at(self, when: int, rows: Rows) -> None:
        self.waits += 1
        heapq.heappush(self.later, (when, self.waits, np.sort(self.window.position[rows])))

    def wake(self, now: int) -> None:
        """Rows whose delay is over wait to be sent from now on, unless they were given back again meanwhile."""
        while self.later and self.later[0][0] <= now:
            rows = self.window.find(heapq.heappop(self.later)[2])
            rows = rows[self.window.state[rows] == WAITING]
            over = self.window.since[rows] <= now
            if not over.all():
                self._call_at(int(self.window.since[rows[~over]].min()), rows[~over])
            self.move_waiting(rows[over], WAITING, REPLAY if self.nack_ordered else UNORDERED)
            self.recheck = True
            self.settle_limits()


def raised(counts: npt.NDArray[np.uint8], seen: npt.NDArray[np.uint8] | None) -> npt.NDArray[np.uint8]:
    """One more than the count that the consumer saw, or than the known one. A repetition changes nothing."""
    more: npt.NDArray[np.uint8]
    if seen is None:
        more = counts + (counts < MAX_REDELIVERIES).astype(np.uint8)
    else:
        more = np.maximum(counts, seen + (seen < MAX_REDELIVERIES).astype(np.uint8))
    return more


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
