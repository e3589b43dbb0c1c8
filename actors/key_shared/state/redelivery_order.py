"""The sentinel's books for `nack_order=key`: the messages that are out, and how far each hash has come.

The messages that are out are a bag of positions. Changes are gathered, and counted when a delivery lies below the
highest position that was ever out of its hash. While no message is given back that never happens, and the changes are
counted only now and then so that they do not become too many. Positions are mostly consecutive, so they are counted by
their distance from the lowest, without a sort; positions far behind the others are counted separately.
"""

from __future__ import annotations

import numpy as np

from sluice.actors.key_shared.state.window import HashIndex, Mask, Reduced
from sluice.storage.format.hashing import HASH_RANGE
from sluice.storage.format.position import Positions

_UNSORTED = 100_000
"""The changes that are gathered before a count; most counts are never needed."""
_SPREAD = 4
"""The largest span of positions, as a multiple of the changes, at which positions are counted by distance."""


class Repeated:
    """The books for one subscription."""

    def __init__(self) -> None:
        self._next: Positions = np.zeros(HASH_RANGE, np.int64)
        """The lowest position of each hash that may go out; lowered by messages that come back."""
        self._top: Positions = np.full(HASH_RANGE, -1, np.int64)
        """Invariant: no message of a hash above this position is out."""
        self._out: Positions = np.zeros(0, np.int64)
        self._hashes: Reduced = np.zeros(0, np.uint16)
        self._changes: list[tuple[HashIndex, Positions, int]] = []
        self._unplaced: list[Positions] = []
        """The messages that are out and have no place in the order."""
        self._gathered = 0

    def sent(self, hashes: HashIndex, positions: Positions, placed: Mask | None) -> Mask:
        """Return which of the messages that go out now may not; `note_sent` follows."""
        wrong: Mask = positions < self._next[hashes]
        if (positions < self._top[hashes]).any():
            self._count()
            wrong |= positions < self._top[hashes]
        if placed is not None:
            wrong &= placed
            hashes, positions = hashes[placed], positions[placed]
        _raise(self._next, hashes, positions + 1)
        return wrong

    def note_sent(self, hashes: HashIndex, positions: Positions, placed: Mask | None) -> None:
        """Note that messages are out."""
        self._note(hashes, positions, 1)
        if placed is not None:
            self._unplaced.append(positions[~placed])
            hashes, positions = hashes[placed], positions[placed]
        _raise(self._top, hashes, positions)

    def given_back(self, hashes: HashIndex, positions: Positions, *, again: bool) -> None:
        """Note that messages are no longer out. again: they will be sent again, and then have a place."""
        if again:
            np.minimum.at(self._next, hashes, positions)
            if self._unplaced:
                self._unplaced = [np.setdiff1d(np.concatenate(self._unplaced), positions)]
        self._note(hashes, positions, -1)

    def wanted_again(self, hashes: HashIndex, positions: Positions) -> None:
        """Note messages that are not out, and will go out before later ones of their hash."""
        np.minimum.at(self._next, hashes, positions)

    def _note(self, hashes: HashIndex, positions: Positions, change: int) -> None:
        self._changes.append((hashes, positions, change))
        self._gathered += len(positions)
        if self._gathered > _UNSORTED + 2 * len(self._out):
            self._count()

    def _count(self) -> None:
        """Merge the gathered changes into the messages that are out."""
        changes = [(self._hashes, self._out, 1), *self._changes]
        # What is out for long lies far behind the rest, and is little.
        cut = min((int(at.min()) for _, at, sign in self._changes if sign > 0 and len(at)), default=0)
        hashes = np.concatenate([each[0] for each in changes]).astype(np.uint16)
        positions = np.concatenate([each[1] for each in changes])
        sent = np.concatenate([np.full(len(at), sign > 0) for _, at, sign in changes])
        early = positions < cut
        if early.any():
            late = ~early
            parts = [_left(hashes[which], positions[which], sent[which]) for which in (early, late)]
            self._hashes, self._out = (np.concatenate(column) for column in zip(*parts, strict=True))
        else:
            self._hashes, self._out = _left(hashes, positions, sent)
        self._changes, self._gathered = [], 0
        placed = np.ones(len(self._out), np.bool_)
        if self._unplaced:
            self._unplaced = [np.intersect1d(np.concatenate(self._unplaced), self._out)]
            placed = np.isin(self._out, self._unplaced[0], invert=True)
        self._top[:] = -1
        np.maximum.at(self._top, self._hashes[placed], self._out[placed])


def _raise(table: Positions, hashes: HashIndex, positions: Positions) -> None:
    """Raise the entries of these hashes to the highest of their positions, which mostly ascend."""
    if (positions < table[hashes]).any():
        np.maximum.at(table, hashes, positions)
        return
    table[hashes] = positions
    if (positions > table[hashes]).any():
        np.maximum.at(table, hashes, positions)


def _left(hashes: Reduced, positions: Positions, sent: Mask) -> tuple[Reduced, Positions]:
    """Return messages that were sent more often than they came back, with hashes; positions ascending, each once."""
    if not len(positions):
        return hashes, positions
    lowest = int(positions.min())
    spread = int(positions.max()) - lowest + 1
    if spread > _SPREAD * len(positions) + _UNSORTED:
        every, first, homes = np.unique(positions, return_index=True, return_inverse=True)
        some = np.bincount(homes, np.where(sent, 1, -1), minlength=len(every)) > 0
        return hashes[first[some]], every[some]
    distance = positions - lowest
    more = np.bincount(distance[sent], minlength=spread) > np.bincount(distance[~sent], minlength=spread)
    by_distance = np.zeros(spread, np.uint16)
    by_distance[distance] = hashes
    out = np.flatnonzero(more)
    return by_distance[out], out + lowest
