"""The parked messages, in columns outside of the window: one message of their key failed too often.

Exact keys are parked, but only hashes are known at once. So a hash is *closed* while a key of it is parked, or while a
message of it has failed and its key was not read yet. Messages behind the failed one of a closed hash come here, first
as UNKNOWN. When its key was read a message is PARKED, or goes back because it has another key. A key is parked until
its failed message is done, or until an operator lets it go.

**Limits.** The numbers of PARKED keys and bytes are limited. Messages above a limit are BLOCKED, and so are all
messages under `dead_letter_policy=block`. BLOCKED messages and unread UNKNOWN ones count as waiting, so reading forward
stops when they reach the look-ahead limit (KS-40). Nothing is dropped at a limit.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from sluice.actors.key_shared.state.window import DONE, Mask, PositionTable
from sluice.actors.messages import NO_POSITIONS, SubscriptionSettings
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import Positions

UNKNOWN, PARKED, BLOCKED = range(1, 4)
"""States of a parked message; DONE is 0, as in every table by position."""
MOST_KEYS = 10_000
MOST_NAME_BYTES = 1 << 20
"""The most keys, and bytes of keys, that the subscription's record takes; a failed message beyond blocks its hash."""
_NEAR = 1 << 16
_SMALLEST = 16
_NO_HASHES: Hashes = np.empty(0, np.uint32)
_NOBODY: Mask = np.zeros(0, np.bool_)


@dataclass(slots=True)
class ParkedKey:
    """A key that is parked or blocked. key: None for a message without a key, which is alone. hash: masked. since: ms.
    failed: the position of the first message that failed; earlier messages go on. decided: an operator has decided, and
    the key is released when that is durable.
    """

    number: int
    key: bytes | None
    hash: int
    since: int
    failed: int
    decided: bool = False

    def fail_at(self, position: int) -> None:
        """Note another failed message of the key."""
        self.failed = min(self.failed, position)

    def decide(self) -> None:
        """Note that an operator has decided, and releases the key when that is durable."""
        self.decided = True


class ParkedTable(PositionTable):
    """A table with one row a parked message. key_number: of its `ParkedKey`. size: its bytes. Both: 0 while UNKNOWN."""

    columns = (*PositionTable.columns, "key_number", "size")

    def __init__(self) -> None:
        super().__init__(4, rows=_SMALLEST)
        self.key_number: npt.NDArray[np.uint16] = np.zeros(self.capacity, np.uint16)
        self.size: npt.NDArray[np.int64] = np.zeros(self.capacity, np.int64)

    def put(self, positions: Positions, masked: Hashes) -> None:
        """Add messages as UNKNOWN: positions strictly ascending, and none of them is here now."""
        self._put(UNKNOWN, positions, {"masked_hash": masked, "key_number": 0, "size": 0})


_NO_MESSAGES = ParkedTable()
"""The table of every subscription that never parked a message. Invariant: it stays empty."""


class ParkedMessages:
    """The parked messages of one subscription, their keys, and how many there ever were."""

    def __init__(self, settings: SubscriptionSettings) -> None:
        self.on = settings.dead_letter_policy != "skip"
        self.parks = settings.dead_letter_policy == "park"
        self._keys_most = settings.park_max_keys if self.parks else 0
        self._bytes_most = settings.park_max_bytes if self.parks else 0
        self.table = _NO_MESSAGES
        self.keys: dict[int, ParkedKey] = {}
        """By number, in the order in which they failed."""
        self._names: dict[bytes, int] = {}
        self._name_bytes = 0
        self.bytes = 0
        """The bytes of the PARKED messages."""
        self.stale = self.asks_back = False
        """stale: the closed hashes may have changed. asks_back: a consumer may hold messages behind a failed one."""
        self.examined = False
        """Whether some row of the window was here, and went back because it has another key."""
        self.parked_total = self.redriven_total = 0
        """How many keys were ever parked, and how many messages operators redrove."""
        self._closed = _NO_HASHES
        self._from = NO_POSITIONS
        self._near = _NOBODY
        self._free: list[int] = []  # numbers below the highest that no key has; a heap
        self._may_park = _NOBODY
        self._may_park_stale = False

    def continue_from(self, before: ParkedMessages) -> None:
        """Go on with the totals; everything else is new."""
        self.parked_total, self.redriven_total = before.parked_total, before.redriven_total

    def look_again(self) -> None:
        """Note that the closed hashes may have changed."""
        self.stale = True

    def ask_back(self) -> None:
        """Note that a consumer may hold messages behind the failed message of a closed hash."""
        self.asks_back = True

    def asked_back(self) -> None:
        """Note that consumers were asked for them."""
        self.asks_back = False

    def note_examined(self) -> None:
        """Note that a message goes back into the window because it has another key."""
        self.examined = True

    def count_parked(self, keys: int) -> None:
        """Count keys that were parked."""
        self.parked_total += keys

    def count_redriven(self, messages: int) -> None:
        """Count messages that operators redrove."""
        self.redriven_total += messages

    # -- keys -------------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether the record has no room for another key."""
        return len(self.keys) >= MOST_KEYS or self._name_bytes >= MOST_NAME_BYTES

    def find(self, key: bytes) -> ParkedKey | None:
        """Return a parked or blocked key by its name, or None."""
        number = self._names.get(key)
        return None if number is None else self.keys[number]

    def open(self, key: bytes | None, masked: int, since: int, failed: int) -> ParkedKey | None:
        """Open the key of a failed message, or note another failure of it; None if there is no room for its name."""
        self.stale = True
        known = None if key is None else self.find(key)
        if known is not None:
            known.fail_at(failed)
            return known
        if self.full:
            return None
        number = heapq.heappop(self._free) if self._free else len(self.keys)
        self.keys[number] = ParkedKey(number, key, masked, since, failed)
        if key is not None:
            self._names[key] = number
            self._name_bytes += len(key)
        if number >= len(self._may_park):
            grown = np.zeros(max(2 * len(self._may_park), _SMALLEST), np.bool_)
            grown[: len(self._may_park)] = self._may_park
            self._may_park = grown
        self._may_park[number] = len(self.keys) <= self._keys_most
        return self.keys[number]

    def close_key(self, number: int) -> None:
        """Remove a key that is no longer parked; the caller moves its rows."""
        gone = self.keys.pop(number)
        if gone.key is not None:
            del self._names[gone.key]
            self._name_bytes -= len(gone.key)
        heapq.heappush(self._free, number)
        self.stale = self._may_park_stale = True

    def may_park(self, number: int) -> bool:
        """Return whether this key is among those that are parked; else it is blocked."""
        return bool(self._allowed()[number])

    def _allowed(self) -> Mask:
        """Return which keys are parked, by number: the first ones to fail, up to the limit."""
        if self._may_park_stale:
            self._may_park_stale = False
            self._may_park[:] = False
            self._may_park[list(islice(self.keys, self._keys_most))] = True
        return self._may_park

    def numbers_failed_at(self, positions: Positions) -> list[int]:
        """Return the keys whose failed message is among these."""
        if not self.keys:
            return []
        failed = np.fromiter((each.failed for each in self.keys.values()), np.int64, len(self.keys))
        hits = np.isin(failed, positions).tolist()
        return [each.number for each, hit in zip(self.keys.values(), hits, strict=True) if hit and not each.decided]

    # -- hashes -----------------------------------------------------------------------------------------------------

    def close(self, dead: Positions, dead_hashes: Hashes) -> None:
        """Set the closed hashes: those of parked keys, and those of failed messages that wait to be read."""
        self.stale = False
        count = len(self.keys)
        hashes = np.fromiter((each.hash for each in self.keys.values()), np.uint32, count)
        failed = np.fromiter((each.failed for each in self.keys.values()), np.int64, count)
        hashes, failed = np.concatenate([hashes, dead_hashes]), np.concatenate([failed, dead])
        order = np.lexsort((failed, hashes))
        hashes, failed = hashes[order], failed[order]
        first = np.ones(len(hashes), np.bool_)
        first[1:] = hashes[1:] != hashes[:-1]
        self._closed, self._from = hashes[first], failed[first]
        self._near = np.zeros(_NEAR, np.bool_)
        self._near[self._closed & np.uint32(_NEAR - 1)] = True

    @property
    def closes_any(self) -> bool:
        """Whether any hash is closed."""
        return len(self._closed) > 0

    def closed(self, hashes: Hashes, positions: Positions) -> npt.NDArray[np.intp]:
        """Return which of these messages (indices) lie behind a failed one of their closed hash."""
        near = np.flatnonzero(self._near[hashes & np.uint32(_NEAR - 1)])
        if not len(near):
            return near
        wanted = hashes[near]
        at = np.minimum(np.searchsorted(self._closed, wanted), len(self._closed) - 1)
        behind: npt.NDArray[np.intp] = near[(self._closed[at] == wanted) & (positions[near] >= self._from[at])]
        return behind

    # -- messages ---------------------------------------------------------------------------------------------------

    @property
    def live(self) -> int:
        """The number of messages that are here."""
        return self.table.live

    @property
    def counted(self) -> int:
        """The number of messages that count as waiting."""
        return self.table.count[UNKNOWN] + self.table.count[BLOCKED]

    def contains(self, positions: Positions) -> Mask:
        """Return which of these positions are here."""
        if not self.live:
            return np.zeros(len(positions), np.bool_)
        found: Mask = np.isin(positions, self.table.position[self.table.find(positions)])
        return found

    def add(self, positions: Positions, hashes: Hashes) -> None:
        """Add messages (ascending, none of them here) as UNKNOWN."""
        if self.table is _NO_MESSAGES:
            self.table = ParkedTable()
        self.table.put(positions, hashes)

    def known(self, positions: Positions, numbers: npt.NDArray[np.uint16], sizes: npt.NDArray[np.int64]) -> None:
        """Set the key numbers and sizes (bytes) of UNKNOWN messages (ascending); park or block each by the limits."""
        table = self.table
        rows = table.find(positions)
        table.key_number[rows], table.size[rows] = numbers, sizes
        parks = self._allowed()[numbers]
        parks &= self.bytes + np.cumsum(np.where(parks, sizes, 0)) <= self._bytes_most
        table.move(rows[parks], int(np.count_nonzero(parks)), UNKNOWN, PARKED)
        table.move(rows[~parks], int(np.count_nonzero(~parks)), UNKNOWN, BLOCKED)
        self.bytes += int(sizes[parks].sum())

    def positions_of(self, numbers: list[int]) -> Positions:
        """Return the messages of these keys, and messages of their hashes whose keys were not read yet."""
        table = self.table
        rows = table.rows_live()
        unknown = table.state[rows] == UNKNOWN
        mine = ~unknown & np.isin(table.key_number[rows], numbers)
        mine |= unknown & np.isin(table.masked_hash[rows], [self.keys[number].hash for number in numbers])
        positions: Positions = table.position[rows[mine]]
        return positions

    def pop(self, positions: Positions) -> tuple[Positions, Hashes]:
        """Remove those of these messages that are here; return them with their hashes, ascending."""
        table = self.table
        rows = table.find(positions)
        taken = table.position[rows].copy(), table.masked_hash[rows].copy()
        state = table.state[rows]
        self.bytes -= int(table.size[rows[state == PARKED]].sum())
        for before in (UNKNOWN, PARKED, BLOCKED):
            table.move(rows[state == before], int(np.count_nonzero(state == before)), before, DONE)
        table.trim()
        return taken

    def settle(self) -> None:
        """Park messages that were blocked at a limit, the earliest first: there is room again."""
        table = self.table
        rows = table.rows_in(PARKED, BLOCKED)
        allowed = self._allowed()[table.key_number[rows]]
        sizes = np.where(allowed, table.size[rows], 0)
        parks = allowed & (np.cumsum(sizes) <= self._bytes_most)
        table.state[rows] = np.where(parks, PARKED, BLOCKED)
        table.count[PARKED], table.count[BLOCKED] = int(np.count_nonzero(parks)), int(np.count_nonzero(~parks))
        self.bytes = int(sizes[parks].sum())
