"""A cache of recent frames, as their clients sent them.

Where a whole frame goes to one consumer, what follows the command is what its producer sent: checksum, metadata and
payload need not be made again; of a part of a frame, its messages need not. Nothing depends on this cache. A frame that
is not cached is encoded from the columns, which say the same; after a while they may say less, because messages were
erased, so no frame is kept for long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sluice.actors.pulsar.codec.batch_decoder import of_like_size
from sluice.actors.pulsar.codec.fields import Bytes
from sluice.actors.pulsar.codec.frames import CHECKSUMMED, U32
from sluice.actors.pulsar.codec.varints import Flags, Ints

MOST_BYTES = 32 * 1024 * 1024
"""The most bytes of frames that are kept; the oldest go first."""
_BEHIND_CHECKSUM = len(CHECKSUMMED) + 4


class CachedBodies(NamedTuple):
    """The bodies that followed the commands of n frames. column: binary, with other bodies of the same read. offsets:
    the row of each frame's body in it.
    """

    column: pa.Array
    offsets: Ints

    def take(self, numbers: Ints) -> pa.Array:
        """Return the bodies of some frames, binary."""
        return self.column.take(pa.array(self.offsets[numbers]))

    def views(self, numbers: Ints) -> list[memoryview]:
        """Return the same as views, which for a few costs less than Arrow's kernels."""
        _, bounds, data = self.column.buffers()
        at, view = self.offsets[numbers] + self.column.offset, memoryview(data)
        ends = np.frombuffer(bounds, np.int32)
        return [view[begin:end] for begin, end in zip(ends[at].tolist(), ends[at + 1].tolist(), strict=True)]

    @property
    def held(self) -> tuple[int, int]:
        """(The memory that they hold, by its address, and its bytes.)"""
        data = self.column.buffers()[2]
        return (0, 0) if data is None else (data.address, data.size)


class _CachedRange(NamedTuple):
    """Frames that lie one behind the other in the log, n of them.

    positions: of the first row of each, int64, ascending. counts: rows of each. since: when they came.
    """

    positions: Ints
    counts: Ints
    bodies: CachedBodies
    since: int


class Frames(NamedTuple):
    """n frames whose rows are all in a part.

    starts: the row with which each begins there. counts: its rows; int64. kept: where what follows their commands is,
    with the numbers there.
    """

    starts: Ints
    counts: Ints
    kept: list[tuple[CachedBodies, Ints]]

    @property
    def bodies(self) -> pa.Array:
        """The bodies of these frames: the bytes that follow each command, binary."""
        return pa.concat_arrays([_NOTHING, *(bodies.take(numbers) for bodies, numbers in self.kept)])

    @property
    def views(self) -> list[memoryview]:
        """The same, each as a view."""
        return [view for bodies, numbers in self.kept for view in bodies.views(numbers)]


_NOTHING = pa.array([], pa.binary())
_NONE: Ints = np.empty(0, np.int64)


class FrameCache:
    """The frames that came last, of all topics: a position is in one topic alone.

    monotonic: the time now, in ms. kept_ms: for so long each is kept.
    """

    def __init__(self, monotonic: Callable[[], int], kept_ms: int, most: int = MOST_BYTES) -> None:
        self._monotonic, self._kept_ms, self._most = monotonic, kept_ms, most
        self._bytes = 0
        self._held: dict[int, int] = {}
        """How many stretches hold a piece of memory, by its address: what was read at once counts once."""
        self._stretches: OrderedDict[int, _CachedRange] = OrderedDict()
        self._firsts: list[int] = []

    def keep(self, first: int, counts: Ints, bodies: CachedBodies) -> None:
        """Frames were stored, the first row of the first one at this position. counts: rows of each, int64.

        bodies: checksum, metadata and payload of each.
        """
        self._let_go_old()
        if first in self._stretches:
            return
        positions = first + np.cumsum(counts) - counts
        self._stretches[first] = _CachedRange(positions, counts, bodies, self._monotonic())
        insort(self._firsts, first)
        address, size = bodies.held
        held = self._held[address] = self._held.get(address, 0) + 1
        self._bytes += size if held == 1 else 0
        while self._bytes > self._most:
            self._let_go_oldest()

    def _let_go_old(self) -> None:
        before = self._monotonic() - self._kept_ms
        while self._stretches and next(iter(self._stretches.values())).since <= before:
            self._let_go_oldest()

    def _let_go_oldest(self) -> None:
        oldest, gone = self._stretches.popitem(last=False)
        del self._firsts[bisect_left(self._firsts, oldest)]
        self._free(*gone.bodies.held)

    def _free(self, address: int, size: int) -> None:
        self._held[address] -= 1
        if not self._held[address]:
            del self._held[address]
            self._bytes -= size

    def find(self, positions: Ints, counts: Ints) -> tuple[Flags, pa.Array]:
        """(Which of these pieces, n, are whole frames that are here; the bodies of those.)

        positions: of the first rows, int64. counts: rows of each. Pieces in another order than the log's are not found.
        """
        found = np.zeros(len(positions), bool)
        bodies = [_NOTHING, *(_matching(one, positions, counts, found) for one in self._around(positions))]
        return found, pa.concat_arrays(bodies)

    def _around(self, positions: Ints) -> list[_CachedRange]:
        """Return the stretches among which these may be; none if they do not ascend."""
        self._let_go_old()
        if not len(positions) or not bool((np.diff(positions) > 0).all()):
            return []
        first = bisect_right(self._firsts, int(positions[0])) - 1
        end = bisect_right(self._firsts, int(positions[-1]))
        return [self._stretches[start] for start in self._firsts[max(first, 0) : end]]

    def whole(self, positions: Ints) -> Frames:
        """Return the cached frames whose rows are all among these positions, int64.

        Of positions in another order than the log's there are none.
        """
        around = self._around(positions)
        if not around:
            return Frames(_NONE, _NONE, [])
        firsts, counts = (np.concatenate(column) for column in ([one[n] for one in around] for n in (0, 1)))
        starts = positions.searchsorted(firsts)
        ends, last = starts + counts, len(positions) - 1
        # Ascending, so all between first and last are there if the last one stands so far behind the first.
        fits = (positions[np.minimum(starts, last)] == firsts) & (ends <= last + 1)
        fits &= positions[np.minimum(ends - 1, last)] == firsts + counts - 1
        there = np.flatnonzero(fits)
        begins = np.cumsum([0, *(len(one.counts) for one in around)])
        kept = [
            (one.bodies, there[first:end] - begin)
            for one, begin, (first, end) in zip(
                around, begins.tolist(), pairwise(there.searchsorted(begins)), strict=False
            )
            if first < end
        ]
        return Frames(starts[there], counts[there], kept)

    def inside(self, position: int, count: int) -> memoryview | None:
        """Return `count` messages of a larger batch, from `position` on, as they came.

        None if the batch is not cached, or has messages of many sizes, which would have to be looked for.
        """
        self._let_go_old()
        number = bisect_right(self._firsts, position) - 1
        stretch = self._stretches[self._firsts[number]] if number >= 0 else None
        if stretch is None:
            return None
        frame = int(stretch.positions.searchsorted(position, side="right")) - 1
        first, rows = position - int(stretch.positions[frame]), int(stretch.counts[frame])
        if not count < rows or first + count > rows:
            return None
        body = memoryview(stretch.bodies.take(np.array([frame])).buffers()[2])
        payload = body[_BEHIND_CHECKSUM + 4 + U32.unpack_from(body, _BEHIND_CHECKSUM)[0] :]
        # What seemed alike was looked at when it came, or it would not be here.
        size = np.array([len(payload)])
        alike, begin = of_like_size(Bytes(bytes(payload)), size - size, size, np.array([rows]))
        if not len(alike):
            return None
        begin = np.append(begin, size)
        return payload[int(begin[first]) : int(begin[first + count])]


def _matching(stretch: _CachedRange, positions: Ints, counts: Ints, found: Flags) -> pa.Array:
    """Return the bodies of the pieces that are frames of a stretch, which are marked as found."""
    begin, end = positions.searchsorted([stretch.positions[0], stretch.positions[-1] + 1])
    at = stretch.positions.searchsorted(positions[begin:end])
    found[begin:end] = (stretch.positions[at] == positions[begin:end]) & (stretch.counts[at] == counts[begin:end])
    return stretch.bodies.take(at[found[begin:end]])
