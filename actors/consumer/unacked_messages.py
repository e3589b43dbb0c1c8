"""Messages that a consumer holds: it has received them, and no owner has confirmed that they are acknowledged.

A new dispatcher asks for them (Attach.holding), so that a key whose messages are still being worked on here is not
given to anybody else (promise 2 across a change of owner).

What the user has acknowledged waits here until an owner of the subscription has confirmed it. Acknowledgements that
were lost with their session are reported once to a caller that waits for them. There is no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.actors.messages import NO_POSITIONS
from sluice.storage.errors import Fenced
from sluice.storage.format.batch import bytes_of, order_keys
from sluice.storage.format.checked_payload import NO_SUMS, Sums
from sluice.storage.format.position import Positions

NONE_OVERTOOK: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
LAST = np.iinfo(np.int64).max
UNKNOWN = -1
"""The part does not know how much of its last batch follows."""
JOIN_ROWS = 4_096
"""Pieces are joined up to this many rows; a piece of half of it stays alone."""
JOINED_BYTES = 1024 * 1024
"""A piece that is joined has at most so many bytes: large payloads would be copied for it."""
Piece = tuple[pa.RecordBatch, npt.NDArray[np.int64] | None]
"""Rows of one run, and the numbers of those that are meant; None: all of them."""


@dataclass(eq=False, slots=True)
class Received:
    """Messages of one run, as they came.

    rows: their stored columns (storage.format.batch), n rows. positions, dispatch: int64 (n,). redeliveries: uint8
    (n,). deliver_at: int64 (n,) milliseconds, 0 = at once. epoch, session: of the dispatcher that sent them. open:
    which rows are neither acknowledged nor given back. revoked: the session ended, they are others' now. shown: so many
    of the rows, from the first on, the application has seen. overtook: bool (n,), which the application had before an
    earlier message of their key came again. taken_back: bool (n,), which the dispatcher has asked back. follows: so
    many messages of the last one's batch, as a client sent it, follow it in the log; UNKNOWN at times. sums: uint32 (n,
    2), of the payloads in their run, if they are known.
    """

    rows: pa.RecordBatch
    partition: int
    positions: Positions
    dispatch: npt.NDArray[np.int64]
    redeliveries: npt.NDArray[np.uint8]
    deliver_at: npt.NDArray[np.int64]
    epoch: int
    session: int
    overtook: npt.NDArray[np.bool_] = field(default_factory=lambda: NONE_OVERTOOK)
    revoked: bool = False
    shown: int = 0
    taken_back: npt.NDArray[np.bool_] | None = None
    follows: int = 0
    sums: Sums = field(default_factory=lambda: NO_SUMS)
    open: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.open = np.ones(len(self.positions), bool)
        if not len(self.overtook):
            self.overtook = np.zeros(len(self.positions), bool)

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def size(self) -> int:
        """Return the approximate bytes of the rows."""
        return int(self.rows.nbytes)

    @property
    def kept(self) -> int:
        """Return the approximate bytes of memory that are kept for the rows."""
        return self.size

    @property
    def schema(self) -> pa.Schema:
        """Which columns the rows have."""
        return self.rows.schema

    def column(self, name: str) -> pa.Array:
        """One column of the rows."""
        return self.rows.column(name)

    def few(self, chosen: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Return the chosen rows (one or more, ascending)."""
        return self.rows.take(pa.array(chosen))

    def take(self, chosen: npt.NDArray[np.int64]) -> Received:
        """Return the chosen rows (ascending) as a part of their own, all of them open."""
        return Received(
            rows=self.rows.take(pa.array(chosen)),
            partition=self.partition,
            positions=self.positions[chosen],
            dispatch=self.dispatch[chosen],
            redeliveries=self.redeliveries[chosen],
            deliver_at=self.deliver_at[chosen],
            epoch=self.epoch,
            session=self.session,
            overtook=self.overtook[chosen],
            sums=self.sums[chosen] if len(self.sums) else NO_SUMS,
        )

    def release(self) -> None:
        """Drop the rows, which are not read any more; their positions, and that they are held, stay."""
        self.rows, self.sums = _none_of(self.schema), NO_SUMS

    def counts(self, rows: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.uint8]:
        """Redelivery counts of those rows (None = all) that are open: what `close` is about to return."""
        rows = np.flatnonzero(self.open) if rows is None else rows[self.open[rows]]
        return self.redeliveries[rows].astype(np.uint8)

    def as_shown(self, row: int) -> tuple[Received, int]:
        """The part and the row as which the application has this row."""
        return self, row

    def unseen(self, rows: npt.NDArray[np.int64]) -> int:
        """How many of these rows leave the application's queue when they are taken back."""
        return 0 if self.shown else len(rows)

    def take_back(self, rows: npt.NDArray[np.int64]) -> None:
        """Mark rows as taken back, or drop them if the application has not seen this part."""
        self.open[rows] = False
        if self.shown:
            if self.taken_back is None:
                self.taken_back = np.zeros(len(self), bool)
            self.taken_back[rows] = True
            return
        keep = np.ones(len(self), bool)
        keep[rows] = False
        self.follows = self.follows if keep[-1] else UNKNOWN
        self.rows = self.rows.filter(pa.array(keep))
        self.positions, self.dispatch = self.positions[keep], self.dispatch[keep]
        self.redeliveries, self.deliver_at = self.redeliveries[keep], self.deliver_at[keep]
        self.overtook, self.open = self.overtook[keep], self.open[keep]
        self.sums = self.sums[keep] if len(self.sums) else NO_SUMS

    def close(self, rows: npt.NDArray[np.int64] | None = None) -> Positions:
        """Mark rows (None = all) as done; returns the positions that were still open."""
        if rows is None:
            closing = self.positions if self.open.all() else self.positions[self.open]
            self.open[:] = False
            return closing
        rows = rows[self.open[rows]]
        self.open[rows] = False
        return self.positions[rows]


def _rows_of(piece: Piece) -> pa.RecordBatch:
    """Take rows out of a run. Neighbours that are at least half of it stay where they are."""
    rows, chosen = piece
    if chosen is None:
        return rows
    count = len(chosen)
    if 2 * count >= rows.num_rows and int(chosen[-1]) - int(chosen[0]) == count - 1:
        return rows.slice(int(chosen[0]), count)
    return rows.take(pa.array(chosen))


class LazyBatch(Received):
    """Messages that stay in their runs until somebody looks at them. Passing them on unchanged is not looking.

    pieces: the runs' rows, each with the numbers of those that are meant (int64), None for all of them. sizes: about
    how many bytes each of these runs takes; none where nobody has counted them.
    """

    __slots__ = ("_pieces", "_sizes")

    def __init__(self, pieces: Sequence[Piece], sizes: Sequence[int] = (), /, **columns: Any) -> None:
        super().__init__(rows=None, **columns)
        self._pieces = tuple(pieces)
        self._sizes = tuple(sizes)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return self._pieces

    def take_out(self) -> pa.RecordBatch:
        """Take the rows out of their runs; returns them."""
        if len(self._pieces) > 1 or self._pieces[0][1] is not None:
            taken = [_rows_of(piece) for piece in self._pieces]
            self.rows = taken[0] if len(taken) == 1 else pa.concat_batches(taken)
        return self._pieces[0][0]

    @property
    def rows(self) -> pa.RecordBatch:
        return self.take_out()

    @rows.setter
    def rows(self, rows: pa.RecordBatch) -> None:
        self._pieces, self._sizes = ((rows, None),), ()

    @property
    def size(self) -> int:
        """See Received; each row counts as much as the others of its run."""
        return sum(
            size if chosen is None else size * len(chosen) // max(rows.num_rows, 1)
            for (rows, chosen), size in zip(self._pieces, self.sizes, strict=True)
        )

    @property
    def kept(self) -> int:
        """See Received; what others have of the runs counts as well."""
        return sum(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each run, which take Arrow longer to count than a message takes otherwise here."""
        if not self._sizes:
            self._sizes = tuple([bytes_of(rows) for rows, _ in self._pieces])
        return self._sizes

    @property
    def schema(self) -> pa.Schema:
        return self._pieces[0][0].schema

    def column(self, name: str) -> pa.Array:
        """See Received; of the other columns nothing is taken out."""
        taken = [
            rows.column(name) if chosen is None else rows.column(name).take(pa.array(chosen))
            for rows, chosen in self._pieces
        ]
        return taken[0] if len(taken) == 1 else pa.concat_arrays(taken)

    def few(self, chosen: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """See Received; the others are not taken out."""
        ends = np.cumsum([rows.num_rows if which is None else len(which) for rows, which in self._pieces])
        taken = []
        for row, number in zip(chosen.tolist(), ends.searchsorted(chosen, side="right").tolist(), strict=True):
            rows, which = self._pieces[number]
            offset = row - (int(ends[number - 1]) if number else 0)
            taken.append(rows.slice(offset if which is None else int(which[offset]), 1))
        return pa.concat_batches(taken)


def join(pieces: Sequence[LazyBatch]) -> Sequence[LazyBatch]:
    """Join neighbouring small pieces of one session into larger ones; order and every column stay as they are."""
    if len(pieces) < 2:
        return pieces
    joined: list[LazyBatch] = []
    group: list[LazyBatch] = []
    count = size = 0
    for piece in pieces:
        few = count + len(piece) <= JOIN_ROWS and len(piece) <= JOIN_ROWS // 2
        fits = few and size + piece.size <= JOINED_BYTES
        if group and not (fits and piece.schema.equals(group[0].schema)):
            joined.append(_concatenate(group))
            group, count, size = [], 0, 0
        group.append(piece)
        count, size = count + len(piece), size + piece.size
    return [*joined, _concatenate(group)] if group else joined


def _concatenate(group: list[LazyBatch]) -> LazyBatch:
    if len(group) == 1:
        return group[0]
    first = group[0]
    return LazyBatch(
        [piece for part in group for piece in part.pieces],
        [size for part in group for size in part.sizes],
        partition=first.partition,
        positions=np.concatenate([piece.positions for piece in group]),
        dispatch=np.concatenate([piece.dispatch for piece in group]),
        redeliveries=np.concatenate([piece.redeliveries for piece in group]),
        deliver_at=np.concatenate([piece.deliver_at for piece in group]),
        epoch=first.epoch,
        session=first.session,
        overtook=np.concatenate([piece.overtook for piece in group]),
        follows=group[-1].follows,
        sums=np.concatenate([piece.sums for piece in group]) if all(len(piece.sums) for piece in group) else NO_SUMS,
    )


_NONE: dict[tuple[str, ...], pa.RecordBatch] = {}
"""No rows, by the names of their columns. Arrow takes longer to make a key of a schema than to compare two."""


def _none_of(schema: pa.Schema) -> pa.RecordBatch:
    """No rows. A slice of some without any would keep the memory of all of them."""
    names = tuple(schema.names)
    none = _NONE.get(names)
    if none is None or not none.schema.equals(schema):
        none = _NONE[names] = pa.record_batch([pa.nulls(0, field.type) for field in schema], schema=schema)
    return none


class FirstOfKeys:
    """The earliest position of each key, from messages given as (keys, positions). Messages without a key do
    not count.
    """

    def __init__(self, messages: Iterable[tuple[pa.Array, Positions]]) -> None:
        some = [pa.table({"key": keys, "at": at}) for keys, at in messages]
        every = pa.concat_tables(some).drop_null() if some else pa.table({"key": [], "at": []})
        firsts = every.group_by("key").aggregate([("at", "min")])
        self._keys, self._at = firsts.column("key"), firsts.column("at_min").to_numpy()
        self.lowest: int = min(self._at.tolist(), default=LAST)

    def precede(self, keys: pa.Array, positions: Positions) -> npt.NDArray[np.bool_]:
        """Which of these lie behind one of their key."""
        place = pc.index_in(keys, self._keys, skip_nulls=True).fill_null(len(self._at)).to_numpy()
        found: npt.NDArray[np.bool_] = np.append(self._at, LAST)[place] < positions
        return found


class UnackedMessageTracker:
    """Everything held of one partition."""

    def __init__(self) -> None:
        self._parts: dict[int, Received] = {}
        self._next = 0

    def add(self, part: Received) -> None:
        """Remember a part until it is done."""
        self._parts[self._next] = part
        self._next += 1

    def find(self, position: int) -> tuple[Received, int] | None:
        """The part that holds a position which is not done, and its row there; None if there is none."""
        for part in list(self._parts.values()):
            rows = np.flatnonzero((part.positions == position) & part.open)
            if len(rows):
                return part, int(rows[0])
        return None

    def prune(self) -> None:
        """Forget the parts that are done."""
        self._parts = {number: part for number, part in self._parts.items() if part.open.any()}

    def positions(self, *, before: int = 0) -> Positions:
        """Positions that are neither acknowledged nor given back, ascending. before: only what came in a session that
        was before this one.
        """
        self.prune()
        held = [part.positions[part.open] for part in self._parts.values() if not before or part.session != before]
        return np.unique(np.concatenate(held)) if held else np.empty(0, np.int64)

    def behind(self, firsts: FirstOfKeys, *, before: int) -> Positions:
        """Return the open positions, except those of session `before`, behind the first of their key in `firsts`."""
        found = [NO_POSITIONS]
        for part in self._parts.values():
            rows = np.flatnonzero(part.open & (part.positions > firsts.lowest))
            if len(rows) and part.session != before:
                found.append(part.positions[rows][firsts.precede(order_keys(part.few(rows)), part.positions[rows])])
        return np.unique(np.concatenate(found))

    def close(self) -> tuple[Positions, npt.NDArray[np.uint8]]:
        """Everything is given back; returns the positions, ascending, and the redelivery count of each."""
        counts = [part.counts() for part in self._parts.values()]
        held = [part.close() for part in self._parts.values()]
        self._parts.clear()
        positions, first = np.unique(np.concatenate([np.empty(0, np.int64), *held]), return_index=True)
        return positions, np.concatenate([np.empty(0, np.uint8), *counts])[first]

    def take_back(self, positions: Positions, *, shown_too: bool) -> tuple[Positions, Positions, int]:
        """The dispatcher asks for these. Returns what is given back, what of it the application has seen (both
        ascending), and how many messages left the queue unseen. shown_too False: what was shown stays.
        """
        back, seen, unseen = [NO_POSITIONS], [NO_POSITIONS], 0
        for part in list(self._parts.values()):
            rows = np.flatnonzero(part.open & np.isin(part.positions, positions))
            rows = rows if shown_too else rows[rows >= part.shown]
            if not len(rows):
                continue
            back.append(part.positions[rows])
            seen.append(part.positions[rows[rows < part.shown]])
            unseen += part.unseen(rows)
            part.take_back(rows)
        self.prune()
        return np.unique(np.concatenate(back)), np.unique(np.concatenate(seen)), unseen

    def revoke(self) -> None:
        """The session has ended: these messages may be with others."""
        for part in self._parts.values():
            part.revoked = True
            part.open[:] = False
        self._parts.clear()


class Acknowledgements:
    """The acknowledgements of one partition. said: how many were made. heard: how many of the first are durable or
    void. waiting: positions that no request takes along yet. unconfirmed: for each request that took some, its ack turn
    in this session, how many were made until then, and the positions. turn: the last ack turn of this session.
    """

    def __init__(self) -> None:
        self.said = self.heard = self.turn = 0
        self.waiting: list[tuple[int, Positions]] = []
        self.unconfirmed: list[tuple[int, int, Positions]] = []

    def __bool__(self) -> bool:
        return bool(self.waiting or self.unconfirmed)

    def add(self, positions: Positions) -> None:
        self.said += 1
        self.waiting.append((self.said, positions))

    def pop_waiting(self) -> tuple[int, Positions]:
        """All that wait, for a request to take along, and its ack turn."""
        if not self.waiting:
            return self.turn, NO_POSITIONS
        said = self.waiting[-1][0]
        positions = np.concatenate([done for _, done in self.waiting]) if len(self.waiting) > 1 else self.waiting[0][1]
        self.waiting = []
        self.turn += 1
        self.unconfirmed.append((self.turn, said, positions))
        return self.turn, positions

    def turn_with(self, said: int) -> int | None:
        """The ack turn that makes the first so many durable, None if no request has carried all of them."""
        return next((turn for turn, up_to, _ in self.unconfirmed if up_to >= said), None)

    def confirm(self, turn: int) -> None:
        """Everything up to this ack turn is durable."""
        while self.unconfirmed and self.unconfirmed[0][0] <= turn:
            self.heard = max(self.heard, self.unconfirmed.pop(0)[1])

    def say_again(self) -> None:
        """Prepare to repeat unconfirmed acknowledgements to another owner or session, with new ack turns."""
        self.waiting = [(said, positions) for _, said, positions in self.unconfirmed] + self.waiting
        self.unconfirmed.clear()
        self.turn = 0

    def void(self) -> bool:
        """Give these up, because no owner will confirm them. True if there were any."""
        lost = bool(self)
        self.heard = self.said
        self.waiting.clear()
        self.unconfirmed.clear()
        return lost

    def positions(self) -> Positions:
        """All that are not confirmed, in no order."""
        return np.concatenate([NO_POSITIONS, *(done for *_, done in [*self.unconfirmed, *self.waiting])])


@dataclass(eq=False, slots=True)
class LostAcks:
    """Losses on one partition. count: sessions that were lost with acknowledgements, and parts that were finished after
    the loss of their session. reported: how many of these were reported to a caller that waited until the end.
    """

    count: int = 0
    reported: int = 0


def report_losses(losses: list[LostAcks], since: list[int]) -> None:
    """Raises Fenced if there are more losses than `since`, which were reported before: those messages come again."""
    counts = [one.count for one in losses]
    for one, count in zip(losses, counts, strict=True):
        one.reported = count
    if counts != since:
        raise Fenced(
            "the session was lost before its acknowledgements were confirmed, as by a seek or a lease that ran out: "
            "those messages are not done"
        )
