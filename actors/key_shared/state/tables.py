"""The state of each of the 65,536 hashes.

    owner[h]      slot of the consumer that should get messages of h now, NO_SLOT for nobody
    holder[h]     slot of the consumer to which a message of h was sent last; only where pending > 0
    pending[h]    messages of h that are sent and not acknowledged
    replayed[h]   messages of h that wait to be sent and whose place in the order is known
    held_from[h]  lowest position of a message of h that holds its key back until some time: a delayed one, or with
                  `nack_order=key` one that was given back with a delay
    revoked[h]    messages of h that were asked back of their consumer (`nacks`)

**A hash is draining exactly when pending > 0 and holder != owner.** PIP-379 keeps a map of draining hashes, fills it
when ranges change and empties it as acknowledgements arrive; most of the defects found in it later (KS-30, KS-31)
were an entry that should have been removed, or came too late. Here draining is derived, so a join or a leave computes
the owners again, and nothing can go stale. Between two such moments nothing is sent of a draining hash, so the set can
only shrink: a hash leaves it when its last pending message is released. So `drains` keeps the answer as of the last
change of owners, minus the hashes that were freed since, and `check` compares it with the definition.

A broker has a table for each partition of each subscription, and most of them are idle. So an array takes memory only
where it was written to. Equal tables of owners are one object, and so are the tables of subscriptions in which nothing
drains.

Columns that messages touch take memory only for the hashes that were used (`HashGroups`): with a thousand partitions a
partition has few keys, and a page of each column for each of its hashes would be most of a partition's memory. So
hashes come in groups of GROUP neighbours, and a group gets its rows at the first use of one of its hashes. With more
than MOST_GROUPS groups, or as soon as MANY hashes come at a time, every hash has its own row, and a look-up costs
nothing.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import google_crc32c
import numpy as np
import numpy.typing as npt

from sluice.actors.key_shared.state.window import NO_SLOT, HashIndex, Mask, Reduced
from sluice.storage.format.hashing import HASH_RANGE
from sluice.storage.format.lazy_zeros import untouched
from sluice.storage.format.position import Positions

_BITS = 5
GROUP = 1 << _BITS
MOST_GROUPS = 254
MANY = 256
FEW = 16
"""The most hashes that are looked up one by one, which takes less than looking into a table at once."""
_NONE = 255
"""The place of a group that has no rows."""


class HashGroups:
    """The columns. columns: an array for each type, all 0 at first; they are others whenever `rows` made room."""

    def __init__(self, *dtypes: type[Any]) -> None:
        self._dtypes = dtypes
        self._known: dict[int, int] | None = {}
        """How far behind its hashes the rows of each group are that has some, in the order of the rows; None if every
        hash has its own row.
        """
        self._places: npt.NDArray[np.uint8] | None = None
        """The place of each group among those that have rows, _NONE if it has none; made when more than FEW hashes come
        at a time.
        """
        self.columns: list[npt.NDArray[Any]] = [np.zeros(0, dtype) for dtype in dtypes]

    def rows(self, hashes: HashIndex) -> HashIndex:
        """Return the rows of these hashes in the columns."""
        if self._known is None:
            return hashes
        if len(hashes) <= FEW:
            return self._rows_of_few(hashes, self._known)
        if len(hashes) >= MANY:
            self._widen()
            return hashes
        if self._places is None:
            self._places = np.full(HASH_RANGE // GROUP, _NONE, np.uint8)
            self._places[list(self._known)] = np.arange(len(self._known))
        groups = hashes >> _BITS
        places = self._places[groups]
        if np.maximum.reduce(places) == _NONE:
            new = np.unique(groups[places == _NONE]).astype(np.intp)
            if len(self._known) + len(new) > MOST_GROUPS:
                self._widen()
                return hashes
            self._add(new, self._known)
            places = self._places[groups]
        rows: HashIndex = hashes + ((places - groups) << _BITS)
        return rows

    def _rows_of_few(self, hashes: HashIndex, known: dict[int, int]) -> HashIndex:
        rows = []
        for one in hashes.tolist():
            group = one >> _BITS
            if group not in known:
                if len(known) == MOST_GROUPS:
                    self._widen()
                    return hashes
                self._add(np.array([group]), known)
            rows.append(one + known[group])
        return np.array(rows, np.intp)

    def whole(self, column: int) -> npt.NDArray[Any]:
        """Return a column with a row for each hash, shape (65536,); not to be written to."""
        if self._known is None:
            return self.columns[column]
        every = np.zeros(HASH_RANGE, self._dtypes[column])
        hashes = self._hashes()
        every[hashes] = self.columns[column][: len(hashes)]
        every.setflags(write=False)
        return every

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(column.nbytes for column in self.columns) + (0 if self._places is None else self._places.nbytes)

    def _hashes(self) -> npt.NDArray[np.intp]:
        """Return the hashes that have rows, in the order of the rows."""
        groups = np.array(list(self._known or ()), np.intp)
        return ((groups << _BITS)[:, None] | np.arange(GROUP)).ravel()

    def _widen(self) -> None:
        """Give every hash its own row from now on."""
        hashes, columns = self._hashes(), untouched(HASH_RANGE, *self._dtypes)
        for new, old in zip(columns, self.columns, strict=True):
            new[hashes] = old[: len(hashes)]
        self.columns, self._known, self._places = columns, None, None

    def _add(self, groups: npt.NDArray[np.intp], known: dict[int, int]) -> None:
        """Add rows for these groups."""
        for place, group in enumerate(groups.tolist(), len(known)):
            known[group] = (place - group) << _BITS
        if self._places is not None:
            self._places[groups] = np.arange(len(known) - len(groups), len(known))
        room = len(self.columns[0])
        if len(known) * GROUP > room:
            more = max(room, len(known) * GROUP - room)
            self.columns = [np.concatenate([old, np.zeros(more, old.dtype)]) for old in self.columns]


NOTHING_HELD = np.iinfo(np.int64).max
_ONE = np.int32(1)
_HOLDER, _PENDING, _REPLAYED = range(3)
_MANY = 256
_NO_HASHES: npt.NDArray[np.intp] = np.empty(0, np.intp)
_NONE_DRAIN: Mask = np.zeros(HASH_RANGE, np.bool_)
_NONE_DRAIN.setflags(write=False)
_owners: WeakValueDictionary[int, Reduced] = WeakValueDictionary()
"""Tables of owners that are in use, by checksum."""


def shared_owners(owner: Reduced) -> Reduced:
    """Return this table, or an equal one that another part of the process has; not to be written to."""
    owner.setflags(write=False)
    checksum = google_crc32c.value(owner.tobytes())
    known = _owners.get(checksum)
    if known is not None and np.array_equal(known, owner):
        return known
    _owners[checksum] = owner
    return owner


_NOBODY = shared_owners(np.full(HASH_RANGE, NO_SLOT, np.uint16))
"""The table of a subscription without consumers."""


def distinct(hashes: HashIndex) -> npt.NDArray[np.intp]:
    """Return each of these hashes once, ascending. Sorting many takes far longer than a mark for each."""
    if len(hashes) < _MANY:
        return np.unique(hashes).astype(np.intp)
    found = np.zeros(HASH_RANGE, np.bool_)
    found[hashes] = True
    return np.flatnonzero(found)


class HashTables:
    """The arrays above, each of shape (65536,), and the counters of the draining statistics.

    tracking False: the policy allows a hash at several consumers, `holder` is only the latest, and nothing drains.
    holding: messages may hold back their keys; only then there is a `held_from`. revoking: only then a `revoked`.
    """

    def __init__(self, *, tracking: bool = True, holding: bool = False, revoking: bool = False) -> None:
        self.tracking = tracking
        self.owner = _NOBODY
        self._out = HashGroups(np.uint16, np.int32, np.int32)
        """`holder`, `pending` and `replayed`.

        Invariant: `pending` and `replayed` count the rows of the window that are PENDING and REPLAY, by hash.
        """
        self.attempts: npt.NDArray[np.int32]
        (self.attempts,) = untouched(HASH_RANGE, np.int32)
        self.drains: Mask = _NONE_DRAIN
        self.held_from: Positions = np.full(HASH_RANGE if holding else 0, NOTHING_HELD, np.int64)
        self.revoked: npt.NDArray[np.int32] = np.zeros(HASH_RANGE if revoking else 0, np.int32)
        self.draining = 0
        """Invariant: the number of hashes in `drains`, the set that `draining_mask` defines."""
        self.revoked_messages = self.revoked_total = 0
        """How many messages are asked back, and how many ever were."""
        self.freed_attempts: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        """How often each of the hashes that `released` freed last was blocked; same order."""
        self.holes = True
        self._used = False
        """Whether a message was ever sent."""

    def continue_from(self, before: HashTables) -> None:
        """Go on with the total."""
        self.revoked_total = before.revoked_total

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays; it does not depend on how many hashes drain."""
        arrays = (self.owner, self.attempts, self.drains, self.held_from, self.revoked)
        return self._out.nbytes + sum(int(array.nbytes) for array in arrays)

    @property
    def holder(self) -> Reduced:
        """See above; not to be written to."""
        return self._out.whole(_HOLDER)

    def holders(self, hashes: HashIndex) -> Reduced:
        """Return the holder of each of these hashes."""
        rows = self._out.rows(hashes)
        holders: Reduced = self._out.columns[_HOLDER][rows]
        return holders

    @property
    def pending(self) -> npt.NDArray[np.int32]:
        """See above; not to be written to."""
        return self._out.whole(_PENDING)

    @property
    def replayed(self) -> npt.NDArray[np.int32]:
        """See above; not to be written to."""
        return self._out.whole(_REPLAYED)

    def draining_mask(self) -> Mask:
        """Return which hashes are draining, by the definition; bool, shape (65536,)."""
        if not self.tracking:
            return np.zeros(HASH_RANGE, np.bool_)
        mask: Mask = (self.pending > 0) & (self.holder != self.owner)
        return mask

    def set_owners(self, owner: Reduced) -> None:
        """Set the owners after a join or a leave. A hash that came back to its holder is then no longer draining."""
        self.owner = shared_owners(owner)
        self.holes = bool((owner[1:] == NO_SLOT).any())
        self.recount()

    def recount(self) -> None:
        """Find the draining hashes again, and forget blocked attempts of others (KS-27)."""
        if not self._used:
            return
        drains = self.draining_mask()
        self.draining = int(drains.sum())
        self.drains = drains if self.draining else _NONE_DRAIN
        self.attempts[(self.attempts > 0) & ~self.drains] = 0

    def sent(self, hashes: HashIndex, slots: Reduced) -> None:
        """Count messages of these hashes that went to these slots."""
        self._used = True
        rows = self._out.rows(hashes)
        holder, pending, _ = self._out.columns
        np.add.at(pending, rows, _ONE)
        holder[rows] = slots

    def released(self, hashes: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Count messages of these hashes that are no longer pending; returns the draining hashes that this freed.

        These are unique.
        """
        rows = self._out.rows(hashes)
        pending = self._out.columns[_PENDING]
        np.subtract.at(pending, rows, _ONE)
        if self.draining == 0:
            return _NO_HASHES
        freed = distinct(hashes[self.drains[hashes] & (pending[rows] == 0)])
        self.drains[freed] = False
        self.draining -= len(freed)
        self.freed_attempts = self.attempts[freed]
        self.attempts[freed] = 0
        return freed

    def revoke(self, hashes: HashIndex) -> None:
        """Count messages of these hashes that are asked back."""
        np.add.at(self.revoked, hashes, _ONE)
        self.revoked_messages += len(hashes)
        self.revoked_total += len(hashes)

    def no_more_revoked(self, hashes: HashIndex) -> None:
        """Reverse `revoke`."""
        np.subtract.at(self.revoked, hashes, _ONE)
        self.revoked_messages -= len(hashes)

    def queued(self, hashes: HashIndex) -> None:
        """Count messages with a known place in the order that wait to be sent."""
        rows = self._out.rows(hashes)
        np.add.at(self._out.columns[_REPLAYED], rows, _ONE)

    def unqueued(self, hashes: HashIndex) -> None:
        """Reverse `queued`."""
        rows = self._out.rows(hashes)
        np.subtract.at(self._out.columns[_REPLAYED], rows, _ONE)

    def any_replayed(self, hashes: HashIndex) -> Mask:
        """Return which of these hashes have messages waiting for replay, bool, one a hash."""
        rows = self._out.rows(hashes)
        waits: Mask = self._out.columns[_REPLAYED][rows] > 0
        return waits
