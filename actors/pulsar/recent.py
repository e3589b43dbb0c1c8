"""Frames that were stored a moment ago, as their clients sent them.

Where a whole frame goes to one consumer, what follows the command is what its producer sent: checksum, metadata and
payload need not be made anew. Nothing hangs on this memory. What it does not have, or has no more, is encoded from the
columns, which say the same.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from actors.pulsar.cells import Ints

MOST_BYTES = 32 * 1024 * 1024
"""So many bytes of frames are kept; the oldest go first."""


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """Frames that lie one behind the other in the log, n of them.

    positions: of the first row of each, int64, ascending. counts: rows of each. bodies: what followed the commands.
    """

    positions: Ints
    counts: Ints
    bodies: pa.Array


class Recent:
    """The frames that came last, of all topics: a position is in one topic alone."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._bytes = 0
        self._stretches: OrderedDict[int, _Stretch] = OrderedDict()
        self._firsts: list[int] = []

    def keep(self, first: int, counts: Ints, bodies: pa.Array) -> None:
        """Frames were stored, the first row of the first one at this position. counts: rows of each, int64.

        bodies: binary, no slice: checksum, metadata and payload of each.
        """
        if first in self._stretches:
            return
        self._stretches[first] = _Stretch(first + np.cumsum(counts) - counts, counts, bodies)
        insort(self._firsts, first)
        self._bytes += bodies.nbytes
        while self._bytes > self._most:
            oldest, gone = self._stretches.popitem(last=False)
            del self._firsts[bisect_left(self._firsts, oldest)]
            self._bytes -= gone.bodies.nbytes

    def find(self, positions: Ints, counts: Ints) -> tuple[npt.NDArray[np.bool_], pa.Array]:
        """(Which of these pieces, n, are whole frames that are here; the bodies of those.)

        positions: of the first rows, int64. counts: rows of each. Pieces in another order than the log's are not found.
        """
        found = np.zeros(len(positions), bool)
        bodies = [pa.array([], pa.binary())]
        if len(positions) and bool((np.diff(positions) > 0).all()):
            first = bisect_right(self._firsts, int(positions[0])) - 1
            end = bisect_right(self._firsts, int(positions[-1]))
            for start in self._firsts[max(first, 0) : end]:
                bodies.append(_matching(self._stretches[start], positions, counts, found))
        return found, pa.concat_arrays(bodies)


def _matching(stretch: _Stretch, positions: Ints, counts: Ints, found: npt.NDArray[np.bool_]) -> pa.Array:
    """The bodies of the pieces that are frames of a stretch, which are marked as found."""
    begin, end = positions.searchsorted([stretch.positions[0], stretch.positions[-1] + 1])
    places = stretch.positions.searchsorted(positions[begin:end])
    found[begin:end] = (stretch.positions[places] == positions[begin:end]) & (
        stretch.counts[places] == counts[begin:end]
    )
    return stretch.bodies.take(pa.array(places[found[begin:end]]))
