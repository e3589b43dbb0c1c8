"""Encodes rows as MESSAGE frames: a delivery is cut into pieces, and each piece is one frame.

A piece is a run of neighbouring rows of one client's batch with one redelivery count, because both clients count the
holes of a batch as messages that were not acknowledged. Its entry id is that of its first row; where a whole batch
goes to one consumer, that is the id in the producer's receipt. A row that came alone goes alone, and so does one of
Sluice's own producers: its id is then the same whenever it is delivered.

Clients that acknowledge single messages of a batch do count right, and look for the ids that they know: for them the
open rows of a batch go under its old id, with holes (`ack_set` says where) in place of done rows. A row that is only
elsewhere for now makes no hole, and the batch is cut there: its first message would come later under the same id, and
an acknowledgement of that id could mean either of the two frames.
"""

from __future__ import annotations

import base64
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.pulsar.codec.batch_encoder import bodies_of
from sluice.actors.pulsar.codec.fields import UNSIGNED, Views, joined, lengths_of
from sluice.actors.pulsar.codec.frame_cache import FrameCache
from sluice.actors.pulsar.codec.frames import U32, Buffer, encode_message, front, message_front
from sluice.actors.pulsar.codec.message_encoder import NATIVE, Addressee, encode_fronts, encode_pieces, repeat_bodies
from sluice.actors.pulsar.codec.protocol import Metadata, Single, command
from sluice.actors.pulsar.codec.send_decoder import OF_ONE
from sluice.actors.pulsar.codec.unread_batches import unread_messages
from sluice.actors.pulsar.codec.varints import Ints, ranges
from sluice.storage.format.position import entry_of, ledger_of

VECTORIZED_FROM = 32
"""From so many rows, or pieces, on vectorized encoding is faster than the loop."""
LARGE_BYTES = 16 * 1024
"""From so many bytes on a payload is not copied into its frame."""
REPEATED_FROM = 8
"""The least rows for which the cache of frames is asked: frames of single rows are not kept."""
_EMPTY = Single(payload_size=0, compacted_out=True).SerializeToString()
_HOLE = U32.pack(len(_EMPTY)) + _EMPTY
"""A message of a batch that is not shown any more."""


@dataclass(frozen=True, slots=True)
class EncodedFrames:
    """Rows of a part in frames, n of them; each has the rows first .. first+count-1 of the part; int64, n each.

    positions: of each one's entry, packed: that of its first row, but for those with holes. parts: the frames, one
    behind the other; a large payload is a part of its own, and not copied. indexes: of those with holes, by their
    number, each row's index in the batch; int64, ascending. mid_batch: one of them begins in the middle of its batch.
    unread: how many messages more than rows the batches have that pass through unread.
    """

    firsts: Ints
    counts: Ints
    positions: Ints
    parts: list[Buffer]
    indexes: dict[int, Ints] = field(default_factory=dict)
    mid_batch: bool = False
    unread: int = 0

    @property
    def size(self) -> int:
        """Bytes of all frames."""
        return sum(map(len, self.parts))

    @property
    def data(self) -> bytes:
        """The frames in one piece, a copy."""
        return b"".join(self.parts)

    @property
    def messages(self) -> int:
        """How many messages clients count, holes included."""
        holes = sum(int(each[-1]) + 1 - len(each) for each in self.indexes.values())
        return int(self.counts.sum()) + holes + self.unread


def first_rows(part: Received, *, holes: bool = False, counted: bool = True) -> Ints:
    """Return the first row of each piece of a part, int64, ascending. holes: neighbouring open rows of one batch are
    one piece, whatever is missing between them.
    counted: no piece has two redelivery counts.
    """
    count = len(part)
    if "batch_index" not in part.schema.names:
        return np.arange(count)
    index = _indexes(part)
    steps = np.diff(index)
    follows = (np.diff(part.positions) == steps) & (index[:-1] >= 0)
    follows &= steps > 0 if holes else steps == 1
    if not part.open.all():  # a piece is done or it is not, so that what is not done of a batch is sent
        follows &= part.open[1:] == part.open[:-1]
    for column in (part.redeliveries, part.deliver_at) if counted else (part.deliver_at,):
        if column.any():
            follows &= column[1:] == column[:-1]
    return np.concatenate([np.zeros(1, np.int64), np.flatnonzero(~follows) + 1])


def _in(starts: Ints, between: tuple[int, int] | None) -> npt.NDArray[np.bool_]:
    """Return which of these rows lie between the two, bool."""
    return np.ones(len(starts), bool) if between is None else (starts >= between[0]) & (starts < between[1])


def _begins_late(part: Received, starts: Ints) -> bool:
    """Return whether one of these rows is not the first of its batch."""
    return "batch_index" in part.schema.names and bool((_indexes(part)[starts] > 0).any())


def holes_in(part: Received, between: tuple[int, int]) -> Ints:
    """The positions of messages that are missing before and between these rows of their batches; int64, ascending."""
    if "batch_index" not in part.schema.names:
        return np.empty(0, np.int64)
    starts = first_rows(part, holes=True, counted=False)
    ends = np.append(starts[1:], len(part))
    wanted = part.open[starts] & _in(starts, between)
    starts, ends = starts[wanted], ends[wanted]
    firsts, lasts = part.positions[starts] - np.maximum(_indexes(part)[starts], 0), part.positions[ends - 1]
    inside = np.unique(ranges(firsts, lasts + 1 - firsts))
    return inside[~np.isin(inside, part.positions[ranges(starts, ends - starts)])]


def _indexes(part: Received) -> Ints:
    """Return each row's index in its client's batch, int64; -1 for a row that came alone."""
    column = part.column("batch_index")
    return np.asarray(column.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)


def encode_part(
    part: Received,
    to: Addressee,
    known: Container[int] | None = None,
    recent: FrameCache | None = None,
    *,
    waiting: frozenset[int] = frozenset(),
    vectorized_from: int = VECTORIZED_FROM,
    whole: bool = False,
    between: tuple[int, int] | None = None,
) -> EncodedFrames:
    """Return the frames of a part, without pieces that begin with a row that is done.

    between: only those of its pieces that begin in these rows. whole: batches are not cut where the redelivery count
    changes; a frame says the highest.
    known: of a client that acknowledges single messages of batches, the entries that it has: of others it is sent what
    is left of them with holes. None where the client is not known to do that. waiting: messages that are missing and
    are not done; they are no holes. recent: frames to be sent as they came, where there are so many pieces, or so many
    rows and nothing else: `vectorized_from`.
    """
    if known is not None and "batch_index" in part.schema.names:
        return _with_holes(part, to, known, waiting, between)
    if recent is not None and (len(part) < min(vectorized_from, REPEATED_FROM) or _is_large(part)):
        recent = None  # the cache has no frames of few rows, and large payloads would be copied out of it
    if recent is not None and between is None and (came := _as_it_came(part, to, recent)):
        return came
    starts = first_rows(part, counted=not whole)
    ends = starts + 1 if len(starts) == len(part) else np.append(starts[1:], len(part))
    if between is not None or not part.open.all():
        wanted = part.open[starts] & _in(starts, between)
        starts, ends = starts[wanted], ends[wanted]
    parts: list[Buffer] = []
    if recent is not None and len(starts) >= vectorized_from:
        parts += filter(None, [_repeated(part, starts, ends, to, recent)])
    parts = parts or _encoded(part, starts, ends, to)
    late = whole and _begins_late(part, starts)
    return EncodedFrames(
        starts, ends - starts, part.positions[starts], parts, mid_batch=late, unread=_unread(part, starts)
    )


def _unread(part: Received, starts: Ints) -> int:
    """How many messages clients make of those of these rows that are batches nobody reads here, beyond the rows."""
    names = part.schema.names
    if "pulsar" not in names:
        return 0
    if "batch_index" in names:
        if not part.column("batch_index").null_count:
            return 0
        starts = starts[_indexes(part)[starts] < 0]
    rests = part.column("pulsar")
    alone = rests if len(starts) == len(rests) else rests.take(pa.array(starts))
    return int(unread_messages(alone).sum()) - len(starts)


def _as_it_came(part: Received, to: Addressee, recent: FrameCache) -> EncodedFrames | None:
    """The same where nothing has to be looked at: all of it are frames to be sent as they came, and none is done."""
    columns = (part.redeliveries, part.deliver_at)
    if not part.open.all() or not all((column == column[0]).all() for column in columns):
        return None
    found = recent.whole(part.positions)
    starts, counts = found.starts, found.counts
    if int(counts.sum()) < len(part):
        return None
    if len(starts) >= VECTORIZED_FROM:
        data = joined(repeat_bodies(part, starts, starts + counts, to, found.bodies))
    else:
        data = _repeated_one_by_one(part, starts, starts + counts, to, found.views)
    return EncodedFrames(starts, counts, part.positions[starts], [data])


def _repeated_one_by_one(part: Received, starts: Ints, ends: Ints, to: Addressee, bodies: list[memoryview]) -> bytes:
    """Return frames of the pieces of these rows, one behind the other. bodies: of each the bytes behind the command."""
    commands, parts = _MessageCommands(part, to), list[bytes | memoryview]()
    positions = part.positions[starts].tolist()
    for first, end, at, body in zip(starts.tolist(), ends.tolist(), positions, bodies, strict=True):
        parts += [front(commands.encoded(first, end, at), len(body)), body]
    return b"".join(parts)


def _encoded(part: Received, starts: Ints, ends: Ints, to: Addressee) -> list[Buffer]:
    """Return the frames of these pieces in parts; few of them, and large ones, become no column first."""
    if len(starts) >= VECTORIZED_FROM and not _is_large(part):
        return [joined(_made(part, starts, ends, to))]
    frames = encode_fronts(part, to) if len(starts) >= VECTORIZED_FROM and len(starts) == len(part) else None
    return _gathered(_one_by_one(part, starts, ends, to) if frames is None else frames)


def _is_large(part: Received) -> bool:
    """Return whether a copy of the rows costs more than a look at each of them."""
    return part.size >= len(part) * LARGE_BYTES


def _gathered(frames: Sequence[tuple[Buffer, Buffer]]) -> list[Buffer]:
    """Return frames, each as front and payload, in parts: what is small is joined with its neighbours."""
    parts: list[Buffer] = []
    small: list[Buffer] = []
    for front_of_it, payload in frames:
        small.append(front_of_it)
        if len(payload) < LARGE_BYTES:
            small.append(payload)
        else:
            parts += [b"".join(small), payload]
            small = []
    return [*parts, b"".join(small)] if small else parts


def _made(part: Received, starts: Ints, ends: Ints, to: Addressee) -> pa.Array:
    """Return the frames of these pieces, a binary column."""
    part, starts, ends = _only_these(part, starts, ends)
    frames = encode_pieces(part, starts, to) if len(starts) >= VECTORIZED_FROM else None
    return pa.array(map(b"".join, _one_by_one(part, starts, ends, to)), pa.binary()) if frames is None else frames


def _repeated(part: Received, starts: Ints, ends: Ints, to: Addressee, recent: FrameCache) -> bytes | None:
    """Return the same as bytes, where some frames are sent as they came; None if no frame is."""
    found, bodies = recent.find(part.positions[starts], ends - starts)
    if not found.any():
        return None
    frames = repeat_bodies(part, starts[found], ends[found], to, bodies)
    if found.all():
        return joined(frames)
    begin, stop = starts[~found], ends[~found]
    if len(begin) < VECTORIZED_FROM and (cut := _cut(part, begin, stop, to, recent)) is not None:
        return _woven(frames, np.flatnonzero(~found), cut)
    others = _made(part, begin, stop, to)
    order = np.empty(len(starts), np.int64)
    order[np.concatenate([np.flatnonzero(found), np.flatnonzero(~found)])] = np.arange(len(starts))
    return joined(pa.concat_arrays([frames, others]).take(pa.array(order)))


def _cut(part: Received, starts: Ints, ends: Ints, to: Addressee, recent: FrameCache) -> list[bytes] | None:
    """Frames of pieces that are parts of batches at hand, whose messages go as they came; None if one is not that."""
    positions, counts = part.positions[starts].tolist(), (ends - starts).tolist()
    payloads: list[memoryview] = []
    for at, count in zip(positions, counts, strict=True):
        payload = recent.inside(at, count)
        if payload is None:
            return None
        payloads.append(payload)
    cells = _Cells(part.few(starts), part.positions[starts], part.deliver_at[starts], columns=True)
    commands, frames = _MessageCommands(part, to), []
    for number, payload in enumerate(payloads):
        head = commands.encoded(int(starts[number]), int(ends[number]), positions[number])
        metadata = cells.head(number, counts[number])
        frames.append(encode_message(head, metadata.SerializeToString(), payload))
    return frames


def _woven(frames: pa.Array, numbers: Ints, others: list[bytes]) -> bytes:
    """Frames with some others between them. numbers: of each of the others its number among all of them, ascending."""
    data = memoryview(frames.buffers()[2])
    ends = np.append(0, np.cumsum(lengths_of(frames)))
    parts: list[bytes | memoryview] = []
    last = 0
    for at, other in zip(ends[numbers - np.arange(len(numbers))].tolist(), others, strict=True):
        parts += [data[last:at], other]
        last = at
    return b"".join([*parts, data[last : int(ends[-1])]])


def _only_these(part: Received, starts: Ints, ends: Ints) -> tuple[Received, Ints, Ints]:
    """(A part that is these pieces alone, where they begin and end in it.)"""
    counts = ends - starts
    if len(part) == int(counts.sum()):
        return part, starts, ends
    behind = np.cumsum(counts)
    return part.take(ranges(starts, counts)), behind - counts, behind


def _with_holes(
    part: Received, to: Addressee, known: Container[int], waiting: frozenset[int], between: tuple[int, int] | None
) -> EncodedFrames:
    """Do as encode_part does, for parts with holes: a batch without its entry at the client goes under its old id."""
    starts, indexes = first_rows(part, holes=True, counted=False), _indexes(part)
    within = _in(starts, between)
    firsts: list[int] = []
    ends: list[int] = []
    entries: list[int] = []
    with_holes: dict[int, Ints] = {}
    last = -1
    for first, end, wanted in zip(starts.tolist(), [*starts[1:].tolist(), len(part)], within.tolist(), strict=True):
        if not (wanted and part.open[first]):
            continue
        index, at = indexes[first:end], int(part.positions[first])
        left = max(int(index[0]), 0)
        cuts = [0, end - first]
        if int(index[-1]) > max(end - first - 1, 0):  # it begins late, or has holes
            inside = range(at - left, int(part.positions[end - 1]))
            if at - left not in known and at - left > last and waiting.isdisjoint(inside):
                with_holes[len(firsts)] = index
                at -= left
            else:
                cuts[1:1] = (np.flatnonzero(np.diff(index) != 1) + 1).tolist()
        last = int(part.positions[first]) - left
        firsts += [first + cut for cut in cuts[:-1]]
        ends += [first + cut for cut in cuts[1:]]
        entries += [at, *part.positions[firsts[len(entries) + 1 :]].tolist()]
    begin, stop = np.array(firsts, np.int64), np.array(ends, np.int64)
    data = _gathered(_one_by_one(part, begin, stop, to, with_holes))
    late = np.array([first for number, first in enumerate(firsts) if number not in with_holes], np.int64)
    mid_batch = _begins_late(part, late)
    positions, unread = np.array(entries, np.int64), _unread(part, begin)
    return EncodedFrames(begin, stop - begin, positions, data, with_holes, mid_batch, unread)


def _words(index: Ints) -> list[int]:
    """Return a set of indexes as 64-bit words, signed as the protocol has them."""
    bits = np.zeros((int(index[-1]) // 64 + 1) * 64, np.uint8)
    bits[index] = 1
    words: list[int] = np.packbits(bits, bitorder="little").view("<i8").tolist()
    return words


def _one_by_one(
    part: Received, starts: Ints, ends: Ints, to: Addressee, indexes: Mapping[int, Ints] = MappingProxyType({})
) -> list[tuple[bytes, Buffer]]:
    """Return the frames of these pieces, each in two parts: the bytes before the payload, and the payload."""
    bodies = bodies_of(part.rows) if len(part) >= VECTORIZED_FROM and len(starts) * 2 <= len(part) else None
    cells = _Cells(part.rows, part.positions, part.deliver_at, columns=bodies is not None)
    commands, frames = _MessageCommands(part, to), list[tuple[bytes, Buffer]]()
    sums = part.sums.tolist()
    for number, (first, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        index = indexes.get(number)
        position = int(part.positions[first]) - (0 if index is None else int(index[0]))
        head = commands.encoded(first, end, position, () if index is None else _words(index))
        known: Sequence[int] = ()
        if index is not None:
            metadata, payload = cells.batch(first, index)
        elif cells.cell("batch_index", first) is None:
            metadata, payload = cells.single(first)
            known = sums[first] if sums else ()
        elif bodies is not None and not bodies.odd[first:end].any():
            metadata, payload = cells.head(first, end - first), bodies.slice(first, end)
        else:
            metadata, payload = cells.batch(first, np.arange(end - first))
        frames.append((message_front(head, metadata.SerializeToString(), payload, known), payload))
    return frames


class _MessageCommands:
    """The commands of the frames of a part: one object is reused, and only the fields that differ are set again."""

    def __init__(self, part: Received, to: Addressee) -> None:
        self._counts = part.redeliveries if part.redeliveries.any() else None
        message_id = {"ledger": 0, "entry": 0, "partition": to.partition}
        self._command = command("message", consumer_id=to.consumer_id, message_id=message_id)
        self._message = self._command.message
        self._id = self._message.message_id
        if to.epoch is not None:
            self._message.consumer_epoch = to.epoch

    def encoded(self, first: int, end: int, position: int, ack_set: Sequence[int] = ()) -> bytes:
        """Return the command of the frame of these rows."""
        self._id.ledger, self._id.entry = ledger_of(position), entry_of(position)
        if self._counts is not None:
            self._message.ClearField("redelivery_count")
            if count := int(self._counts[first:end].max()):
                self._message.redelivery_count = count
        self._message.ClearField("ack_set")
        self._message.ack_set.extend(ack_set)
        encoded: bytes = self._command.SerializeToString()
        return encoded


class _Cells:
    """The columns of some rows as Python objects, and what frames are made of. columns: only a few cells are wanted."""

    def __init__(self, rows: pa.RecordBatch, positions: Ints, due: Ints, *, columns: bool) -> None:
        self._cells: dict[str, Any] = {
            name: rows.column(name) if columns else rows.column(name).to_pylist()
            for name in rows.schema.names
            if name != "payload"
        }
        self._cells["payload"] = Views(rows.column("payload"))
        self._due = due
        self._positions = positions

    def cell(self, name: str, row: int) -> Any:
        """Return one value; None where there is no such column."""
        column = self._cells.get(name)
        if column is None:
            return None
        value = column[row]
        return value.as_py() if isinstance(value, pa.Scalar) else value

    def _metadata(self, row: int) -> Any:
        """Return a message's metadata: the fields that no column holds, completed from the columns."""
        rest = self.cell("pulsar", row)
        metadata = Metadata() if rest is None else Metadata.FromString(rest)
        if not metadata.HasField("producer_name"):
            metadata.producer_name = NATIVE
        number = self.cell("sequence_id", row)
        metadata.sequence_id = entry_of(int(self._positions[row])) if number is None else number & UNSIGNED
        metadata.publish_time = self.cell("publish_time", row)
        if self._due[row]:
            metadata.deliver_at_time = int(self._due[row])
        return metadata

    def single(self, row: int) -> tuple[Any, Buffer]:
        """Return a message that travels alone."""
        metadata = self._metadata(row)
        self._fill(metadata, metadata, row)
        return metadata, self.cell("payload", row)

    def head(self, first: int, count: int, before: int = 0) -> Any:
        """The metadata of rows that travel as a batch of so many messages. before: holes before the first row."""
        metadata = self._metadata(first)
        metadata.num_messages = count
        metadata.sequence_id = (metadata.sequence_id - before) & UNSIGNED
        key = self.cell("key", first)
        flagged = metadata.key_is_base64
        for name in OF_ONE:
            metadata.ClearField(name)
        if key is not None:
            metadata.partition_key = _key(key, metadata, flagged=flagged)
        return metadata

    def batch(self, first: int, index: Ints) -> tuple[Any, Buffer]:
        """Return rows that travel as a batch, message by message. index: of each, its place in that batch."""
        parts = []
        for row, (before, at) in enumerate(pairwise([-1, *index.tolist()]), first):
            parts += [_HOLE] * (at - before - 1)
            flags = self._metadata(row)
            payload = self.cell("payload", row)
            single = Single(payload_size=len(payload), **{name: True for name in OF_ONE if getattr(flags, name)})
            number = self.cell("sequence_id", row)
            if number is not None:
                single.sequence_id = number & UNSIGNED
            self._fill(single, flags, row)
            encoded = single.SerializeToString()
            parts += [U32.pack(len(encoded)), encoded, payload]
        return self.head(first, int(index[-1]) + 1, int(index[0])), b"".join(parts)

    def _fill(self, one: Any, flags: Any, row: int) -> None:
        """The fields that a single message and one of a batch have alike."""
        key, order, event = (self.cell(name, row) for name in ("key", "ordering_key", "event_time"))
        if key is not None:
            one.partition_key = _key(key, one, flagged=flags.key_is_base64)
        if order is not None:
            one.ordering_key = order
        if event:
            one.event_time = event & UNSIGNED
        for name, value in self.cell("properties", row) or ():
            text = value or ""  # columns of Sluice's own may have nulls
            one.properties.add(key=name.encode(), value=text.encode())


def _key(key: bytes, one: Any, *, flagged: bool) -> bytes:
    """Return the key as it travels: base64 if it came so, or is no text and therefore must."""
    if not flagged:
        try:
            key.decode()
        except UnicodeDecodeError:
            flagged = True
    if flagged:
        one.key_is_base64 = True
        return base64.b64encode(key)
    return key
