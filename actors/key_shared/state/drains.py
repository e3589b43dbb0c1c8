"""Statistics of draining: the most hashes at once, and how long each of them kept its messages waiting.

An operator asks for statistics a few times a second, and a hash drains for milliseconds, so a look at the present state
shows little. Therefore the peak is noted when hashes begin to drain. Each hash that ends leaves its length and the
attempts that it blocked (PIP-379), counted by the consumer that had to finish.

Lengths and attempts go into buckets, eight to each doubling; the largest is kept as it was.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.actors.key_shared.state.members import Members
from sluice.actors.key_shared.state.tables import HashTables
from sluice.actors.key_shared.state.window import HashIndex, Mask
from sluice.storage.format.hashing import HASH_RANGE

Numbers = npt.NDArray[np.int64]
_PER_DOUBLING = 8
_NOT = -1
CONSUMERS_KEPT = 256
"""The number of consumers that are remembered by name; the one that drained longest ago is forgotten first."""


@dataclass
class Spread:
    """Counts of values, all of them at least 0."""

    counts: Counter[int] = field(default_factory=Counter)
    most: int = 0

    def add(self, values: Numbers) -> None:
        """Count values, shape (n,), n > 0."""
        buckets = np.ceil(np.log2(values + 1) * _PER_DOUBLING).astype(np.int64)
        self.counts.update(buckets.tolist())
        self.most = max(self.most, int(values.max()))

    def median(self) -> int:
        """Return the upper end of the middle value's bucket, at most the largest value."""
        half, seen = sum(self.counts.values()) / 2, 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= half:
                return min(int(2.0 ** (bucket / _PER_DOUBLING)) - 1, self.most)
        return 0


@dataclass
class _Finished:
    hashes: int = 0
    millis: Spread = field(default_factory=Spread)
    attempts: Spread = field(default_factory=Spread)

    def add(self, millis: Numbers, attempts: Numbers) -> None:
        self.hashes += len(millis)
        self.millis.add(millis)
        self.attempts.add(attempts)


class Drains:
    """Follows the draining hashes of one subscription."""

    def __init__(self) -> None:
        self.peak = self.begun = self.cleared = 0
        """The most hashes at once; how many ever began to drain, and how many of them came free."""
        self.blocked = 0
        """How often a draining hash was refused, once a hash and pass, in total."""
        # It comes with the first hash that drains: an idle subscription has no use for half a megabyte.
        self._since: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._by_consumer: dict[str, _Finished] = {}

    def continue_from(self, before: Drains) -> None:
        """Go on with the totals and lengths; no hash drains any more."""
        self.peak, self.begun, self.cleared, self.blocked = before.peak, before.begun, before.cleared, before.blocked
        self._by_consumer = before._by_consumer

    def owners_changed(self, tables: HashTables, now: int) -> None:
        """Note the hashes that begin or stop to drain after a change of owners. now: milliseconds."""
        if not len(self._since):
            if not tables.draining:
                return
            self._since = np.full(HASH_RANGE, _NOT, np.int64)
        new = np.flatnonzero(tables.drains & (self._since == _NOT))
        self._since[~tables.drains] = _NOT
        self._since[new] = now
        self.begun += len(new)
        self.peak = max(self.peak, tables.draining)

    def block(self, tables: HashTables, hashes: HashIndex) -> None:
        """Count draining hashes that a pass refused; each comes once a pass."""
        tables.attempts[hashes] += 1
        self.blocked += len(hashes)

    def freed(self, tables: HashTables, members: Members, hashes: npt.NDArray[np.intp], now: int) -> None:
        """Count hashes that stopped draining because their pending messages were acknowledged or given back."""
        self.cleared += len(hashes)
        holders = tables.holders(hashes)
        for slot in np.unique(holders).tolist():
            member, mine = members.by_slot[slot], holders == slot
            name = "" if member is None else member.name
            self._finished(hashes[mine], tables.freed_attempts[mine], name, now)

    def returned(self, tables: HashTables, members: Members, before: Mask) -> None:
        """Count hashes as cleared that drained and belong to their holder again, as in Pulsar; no consumer learns of
        it.

        before: those that drained before the change of owners, bool, one a hash.
        """
        back = np.flatnonzero(before & ~tables.drains & (tables.pending > 0))
        self.cleared += len(back)
        for slot, count in zip(*np.unique(tables.holder[back], return_counts=True), strict=True):
            member = members.by_slot[int(slot)]
            if member is not None:
                member.count_drained(int(count))

    def _finished(self, hashes: npt.NDArray[np.intp], attempts: npt.NDArray[np.int32], name: str, now: int) -> None:
        """Note lengths and attempts of hashes that stopped draining because the consumer of this name finished.

        attempts: int32, one for each hash.
        """
        if not len(self._since):
            return
        began = self._since[hashes]
        known = began != _NOT
        self._since[hashes] = _NOT
        if not known.any():
            return
        drained = self._by_consumer.pop(name, None) or _Finished()
        self._by_consumer[name] = drained
        if len(self._by_consumer) > CONSUMERS_KEPT:
            del self._by_consumer[next(iter(self._by_consumer))]
        drained.add(np.maximum(now - began[known], 0), attempts[known].astype(np.int64))

    def stats(self) -> dict[str, Any]:
        """Return the part of the subscription's statistics about draining."""
        return {
            "drainingHashesClearedTotal": self.cleared,
            "drainingHashesPeak": self.peak,
            "drainingHashesBegunTotal": self.begun,
            "drainingHashesBlockedTotal": self.blocked,
            "drainingHashesByConsumer": {
                name: {
                    "hashes": drained.hashes,
                    "millisMedian": drained.millis.median(),
                    "millisMax": drained.millis.most,
                    "blockedAttemptsMedian": drained.attempts.median(),
                    "blockedAttemptsMax": drained.attempts.most,
                }
                for name, drained in self._by_consumer.items()
            },
        }
