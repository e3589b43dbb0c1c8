"""The state of one subscription on one partition, and the few transitions that every operation is made of.

`release` takes messages away from the consumers that hold them, `queue` and `unqueue` keep count of those that wait
with a known place in the order, `change_owners` follows a join or a leave. Each keeps window, hash tables, members
and sentinel in step, so the operations in `dispatch` cannot forget one of them.

`stir` says that something waiting might be able to go out now. As long as nothing of that kind happened, waiting
messages are not looked at again.
"""

from __future__ import annotations

import heapq

import numpy as np

from actors.key_shared.history import History, drained
from actors.key_shared.members import Member, Members
from actors.key_shared.policies import Unordered, held_elsewhere, make_policy
from actors.key_shared.selectors import (
    AutoSplit,
    ConsistentHashing,
    Nobody,
    Selector,
    SingleActive,
    Sticky,
    reduce_for,
)
from actors.key_shared.sentinel import Sentinel
from actors.key_shared.tables import NOTHING_HELD, HashTables
from actors.key_shared.window import (
    DEAD,
    DELIVERED,
    DONE,
    FRESH,
    HELD,
    LOOSE,
    PENDING,
    REMOVED,
    REPLAY,
    SENT,
    WAITING,
    Reduced,
    Rows,
    Window,
)
from actors.messages import NO_POSITIONS, SubscriptionSettings
from storage.errors import Invalid
from storage.hashing import HASH_RANGE, Hashes
from storage.position import EARLIEST, Positions

UNLIMITED = 2**31 - 1
DELAY_KEY_POLICIES = ("pass", "block_key", "reject")
TYPES = ("key_shared", "shared", "exclusive", "failover")


class Core:
    """Everything that is known; see the modules for each part."""

    def __init__(self, settings: SubscriptionSettings, first_dispatch: int = 0, history: History | None = None) -> None:
        if settings.type not in TYPES:
            raise Invalid(f"type is {', '.join(TYPES)}, not {settings.type!r}")
        if settings.delay_key_policy not in DELAY_KEY_POLICIES:
            raise Invalid(f"delay_key_policy is {', '.join(DELAY_KEY_POLICIES)}, not {settings.delay_key_policy!r}")
        self.settings = settings
        self.window = Window()
        limited = settings.type in ("key_shared", "shared")
        self.members = Members(
            settings.max_unacked_messages_per_consumer if limited else 0,
            settings.max_unacked_messages_per_subscription if limited else 0,
        )
        self.selector = _make_selector(settings)
        policy = make_policy(settings.policy, remember_unacked_keys=settings.remember_unacked_keys)
        self.shared = settings.type == "shared"
        unordered = self.shared or (settings.type == "key_shared" and settings.allow_out_of_order_delivery)
        self.policy = Unordered() if unordered else policy
        if settings.type in ("exclusive", "failover"):
            self.policy = make_policy("draining_hashes")
        self.holds_keys = settings.delay_key_policy == "block_key" and settings.type == "key_shared" and not unordered
        self.tables = HashTables(tracking=self.policy.strict, holding=self.holds_keys)
        self.sentinel = Sentinel(strict=self.policy.strict, name=self.describe)
        self.history = history or History()
        self.last_read = EARLIEST
        self.mark_delete = EARLIEST
        self.stir = False
        self.later: list[tuple[int, int, Positions]] = []
        self.waits = 0
        self.next_dispatch = first_dispatch
        self.turn = 0
        self.now = 0
        self.drained_total = 0
        self.claiming = False

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
        return count[FRESH] + count[REPLAY] + count[LOOSE]

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
        """Rows that are with nobody change their state; what is known by hash follows."""
        if len(rows) == 0:
            return
        self.window.move(rows, len(rows), before, after)
        if before == REPLAY:
            self.unqueue(rows)
        elif before == HELD:
            self.unhold(self.window.hash[rows])
        if after == REPLAY:
            self.queue(rows)

    def hold(self, rows: Rows) -> None:
        """FRESH rows are delayed, and hold back what comes after them of their hash until `due`."""
        self.window.move(rows, len(rows), FRESH, HELD)
        np.minimum.at(self.tables.held_from, self.window.hash[rows], self.window.position[rows])

    def unhold(self, hashes: Reduced) -> None:
        """Rows of these hashes are held no more; look again which are."""
        affected = np.zeros(HASH_RANGE, np.bool_)
        affected[hashes] = True
        self.tables.held_from[affected] = NOTHING_HELD
        rows = self.window.rows_in(HELD)
        rows = rows[affected[self.window.hash[rows]]]
        np.minimum.at(self.tables.held_from, self.window.hash[rows], self.window.position[rows])
        self.stir = True

    def release(self, rows: Rows, into: int) -> None:
        """PENDING rows leave their consumers, each record exactly once (KS-20, KS-21)."""
        if len(rows) == 0:
            return
        window, members = self.window, self.members
        hashes = window.hash[rows].astype(np.intp)
        self.sentinel.given_back(hashes)
        freed = self.tables.released(hashes)
        if len(freed):
            self.drained_total += len(freed)
            drained(members, self.tables.holder, freed)
            self.stir = True
        if self.policy.remembers():
            self.stir = True
        if members.count_released(window.consumer[rows]):
            self.stir = True
        window.move(rows, len(rows), PENDING, into)
        if into == REPLAY:
            self.queue(rows)
        self.settle_limits()

    def hand_back(self, rows: Rows, into: int, now: int) -> Rows:
        """Release rows to be sent again; those removed meanwhile are dropped instead (KS-45). Returns the rest."""
        gone = (self.window.flags[rows] & REMOVED) != 0
        if gone.any():
            self.release(rows[gone], DONE)
            rows = rows[~gone]
        self.release(rows, into)
        self.window.since[rows] = now
        self.stir = True
        return rows

    def change_owners(self, *, now: int, cause: str, gone: Member | None = None) -> None:
        """Follow a change of membership."""
        before = self.tables.owner
        self.tables.set_owners(self.selector.owners())
        self.history.record(self.members, before, self.tables.owner, now=now, cause=cause, gone=gone)
        self.stir = True
        if isinstance(self.selector, SingleActive) and not (before == self.tables.owner).all():
            # The consumer that is no longer the active one gets no time to finish: as in Pulsar, what it holds is
            # sent to the new one, and may be seen twice.
            held = self.window.rows_in(PENDING)
            self.hand_back(held[self.window.consumer[held] != self.tables.owner[1]], REPLAY, now)
            self.tables.recount()

    def drop(self, rows: Rows) -> None:
        """Rows that are not PENDING are done; keeps the counts."""
        window = self.window
        state = window.state[rows]
        for before in (FRESH, REPLAY, LOOSE, WAITING, DEAD, HELD):
            if window.count[before]:
                self.move_waiting(rows[state == before], before, DONE)
        self.stir = True
        self.settle_limits()

    def bury(self, rows: Rows) -> None:
        """Of rows just given back, those redelivered too often go to the dead letters instead."""
        most = self.settings.max_redeliver_count
        if most <= 0:
            return
        window = self.window
        rows = rows[window.redelivery[rows] > most]
        if len(rows) == 0:
            return
        self.move_waiting(rows, int(window.state[rows[0]]), DEAD)
        self.settle_limits()

    # -- claims -----------------------------------------------------------------------------------------------------

    def claim(self, member: Member) -> None:
        """Give a consumer what it already holds from before a change of owner, as far as it was read by now.

        A row stays unclaimed if it, or a message of its hash, is already with another consumer: claiming it would
        put one key at two consumers. It is then sent again in its turn, which is a duplicate and allowed.
        """
        window, tables = self.window, self.tables
        rows = window.find(member.claims)
        if len(rows) == 0:
            return
        member.claims = np.setdiff1d(member.claims, window.position[rows], assume_unique=True)
        state = window.state[rows]
        rows = rows[(state != PENDING) & (state != DEAD)]
        if self.policy.ordered:
            mine = np.full(len(rows), member.slot, np.uint16)
            rows = rows[~held_elsewhere(window, window.hash[rows], mine)]
        if len(rows) == 0:
            return
        state = window.state[rows]
        for before in (FRESH, REPLAY, LOOSE, WAITING, HELD):
            self.move_waiting(rows[state == before], before, PENDING)
        hashes = window.hash[rows]
        slots = np.full(len(rows), member.slot, np.uint16)
        self.sentinel.take(slots, hashes, window.position[rows])
        window.consumer[rows] = member.slot
        window.flags[rows] |= DELIVERED | SENT
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

    def unclaim(self, member: Member, positions: Positions | None) -> int:
        """A consumer no longer holds these (None: anything) of what it claims and was not read; returns how many."""
        before = len(member.claims)
        member.claims = NO_POSITIONS if positions is None else np.setdiff1d(member.claims, positions)
        return before - len(member.claims)

    # -- time -------------------------------------------------------------------------------------------------------

    def wait(self, rows: Rows, until: int) -> None:
        """WAITING rows may be sent again at `until` (ms)."""
        if len(rows):
            self.waits += 1
            heapq.heappush(self.later, (until, self.waits, self.window.position[rows]))

    def wake(self, now: int) -> None:
        """Rows whose delay is over wait to be sent from now on."""
        while self.later and self.later[0][0] <= now:
            rows = self.window.find(heapq.heappop(self.later)[2])
            rows = rows[self.window.state[rows] == WAITING]
            self.window.move(rows, len(rows), WAITING, LOOSE)
            self.stir = True
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


def _make_selector(settings: SubscriptionSettings) -> Selector:
    if settings.type == "shared":
        return Nobody()
    if settings.type != "key_shared":
        return SingleActive(exclusive=settings.type == "exclusive")
    if settings.selector == "consistent_hashing":
        return ConsistentHashing(settings.replica_points)
    if settings.selector == "auto_split":
        return AutoSplit()
    if settings.selector == "sticky":
        return Sticky()
    raise Invalid(f"selector is consistent_hashing, auto_split or sticky, not {settings.selector!r}")
