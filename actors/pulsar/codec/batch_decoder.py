"""Decodes the messages of many frames at once, as columns.

A short loop that looks only at sizes finds where the messages begin. Then every field of all messages is read in one
step (actors.pulsar.codec.fields). Rare cases go the slow way, a frame at a time, by protobuf: null values, keys
in base64, unknown fields, and everything that is malformed, which is refused there.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.actors.pulsar.codec.fields import Bytes, Slices, read_fields
from sluice.actors.pulsar.codec.properties import KIND, Pairs
from sluice.actors.pulsar.codec.protocol import tags
from sluice.actors.pulsar.codec.varints import Ints
from sluice.storage.format.batch import MAX_KEY_BYTES, MAX_MESSAGE_BYTES

PROPERTIES, KEY, SIZE, EVENT_TIME, ORDERING_KEY, SEQUENCE = tags(
    "Single", "properties", "partition_key", "payload_size", "event_time", "ordering_key", "sequence_id"
)
"""The fields of a message's own metadata that columns hold, and its properties."""
FLAGS = tags("Single", "key_is_base64", "null_value", "null_partition_key")

ALIKE = 16
"""The least messages of the same sizes in a row that are worth being found in one step."""


@dataclass(slots=True)
class MessageSlices:
    """The places of n messages in the bytes read, and their numbers; int64, n each. A size or number of -1: none."""

    key_at: Ints
    key_size: Ints
    order_at: Ints
    order_size: Ints
    payload_at: Ints
    payload_size: Ints
    event_time: Ints
    sequence: Ints
    several: list[Slices]
    """Properties."""

    def odd(self) -> npt.NDArray[np.bool_]:
        """Mark the messages with a key or payload that is too long."""
        long = np.maximum(self.key_size, self.order_size) > MAX_KEY_BYTES
        return long | (self.payload_size > MAX_MESSAGE_BYTES)

    def take(self, rows: Ints) -> MessageSlices:
        """Select messages by row, in the order of `rows`. Allowed only without properties."""
        return MessageSlices(**{name: getattr(self, name)[rows] for name in self.__slots__[:-1]}, several=[])

    def put(self, rows: Ints, other: MessageSlices) -> None:
        """Take over what another one has, at these rows."""
        for name in self.__slots__[:-1]:
            getattr(self, name)[rows] = getattr(other, name)
        self.several += [Slices(rows[each.rows], each.at, each.size) for each in other.several]

    @staticmethod
    def nothing(count: int) -> MessageSlices:
        """Messages whose fields are not known yet."""
        none = np.full((8, count), -1, np.int64)
        return MessageSlices(none[0], none[1], none[2], none[3], none[4], none[5], none[6], none[7], [])


def of_like_size(source: Bytes, at: Ints, end: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """(Batches whose messages seem to be of one size, or the last of them one byte longer, where these messages begin).

    Numbers that go up need one byte more from some message on. The result is a guess: it was wrong if a message read
    there does not end where the next one begins.
    """
    each = (end - at) // np.maximum(counts, 1)
    alike = np.flatnonzero((counts > 0) & (each > 4))
    if not len(alike):
        return alike, alike
    many = counts[alike]
    shorter = many - ((end - at)[alike] - each[alike] * many)
    firsts = np.cumsum(many) - many
    index = np.arange(int(many.sum())) - np.repeat(firsts, many)
    begin = np.repeat(at[alike], many) + index * np.repeat(each[alike], many)
    if (shorter < many).any():
        begin += np.maximum(index - np.repeat(shorter, many), 0)
    heads = source.u32(begin)
    same = np.logical_and.reduceat((heads - np.repeat(heads[firsts], many)).view(np.uint64) <= 1, firsts)
    return (alike, begin) if same.all() else (alike[same], begin[np.repeat(same, many)])


def starts_of(payload: bytes, count: int) -> list[int] | None:
    """Return the places where the messages of a batch begin; None if the batch is not plain.

    Messages are walked one by one, but a run of messages of the same sizes is taken in one step.
    """
    found = walked(payload, 0, count)
    return found[0] if found is not None and found[1] == len(payload) else None


def walked(payload: bytes, at: int, count: int, most: int = sys.maxsize) -> tuple[list[int], int] | None:
    """(Where messages of a batch begin, where the last of them ends); None if the batch is not plain.

    at: where the first one begins. count: messages, at most. most: bytes after which no further message is walked.
    """
    starts: list[int] = []
    end, enough = len(payload), at + most
    look = 0  # from how many messages on it is tried whether the next ones are alike
    while len(starts) < count and (at < enough or not starts):
        if at >= end:
            return None
        found = _walked(payload, at, end)
        if found is None:
            return None
        behind, marks = found
        starts.append(at)
        if count - len(starts) >= ALIKE and len(starts) > look:
            size = behind - at
            more = _alike(payload, at, size, marks, min(count - len(starts), max(enough - behind, 0) // size))
            starts += range(behind, behind + more * size, size)
            behind += more * size
            look = len(starts) if more >= ALIKE else len(starts) + 4 * ALIKE
        at = behind
    return starts, at


def _walked(payload: bytes, at: int, end: int) -> tuple[int, list[int]] | None:
    """(Where the message that begins here ends, where tags and sizes stand that say so); None if that is not plain."""
    offset = at + 4
    stop = offset + int.from_bytes(payload[at:offset], "big")
    if stop > end:
        return None
    marks: list[int] = []
    while offset + 1 < stop:
        tag, value = payload[offset], payload[offset + 1]
        marks.append(offset)
        offset += 2
        if value > 127:
            value, shift = value & 127, 7
            while True:
                if offset >= stop or shift > 28:
                    return None
                byte = payload[offset]
                value |= (byte & 127) << shift
                offset += 1
                if byte < 128:
                    break
                shift += 7
        marks.append(offset)
        if tag == SIZE:
            return (stop + value, marks) if stop + value <= end else None
        if tag & 7 not in (0, 2) or offset > stop:
            return None
        if tag & 7:
            offset += value
    return None


def _alike(payload: bytes, at: int, size: int, marks: list[int], most: int) -> int:
    """Return how many of the messages that follow the one that begins here, `most` at most, have its sizes and tags.

    marks: begin and end of each tag with its number, behind the length; whatever else differs, they end where it says.
    """
    most = min(most, (len(payload) - at) // size - 1)
    if most < ALIKE:
        return 0
    columns = [0, 1, 2, 3]
    for begin, end in zip(marks[::2], marks[1::2], strict=True):
        columns += range(begin - at, end - at)
    first = np.frombuffer(payload, np.uint8, size, at)[columns]
    found, look = 0, 4 * ALIKE
    while found < most:  # further ones are looked at only behind those that are alike, else each look costs the whole
        look = min(2 * look, most - found)
        begin = at + (found + 1) * size
        rows = np.frombuffer(payload, np.uint8, look * size, begin).reshape(look, size)[:, columns]
        differ = np.flatnonzero((rows != first).any(axis=1))
        if len(differ):
            return found + int(differ[0])
        found += look
    return most


def find_messages(source: Bytes, begin: Ints, end: Ints) -> tuple[MessageSlices, npt.NDArray[np.bool_]]:
    """Return the messages of batches that begin and end at these places, and which of them have to go the slow way."""
    stop = begin + 4 + source.u32(begin)
    read = read_fields(source, begin + 4, stop, (KEY, SIZE, EVENT_TIME, ORDERING_KEY, SEQUENCE, *FLAGS), PROPERTIES)
    odd = read.odd
    for flag in FLAGS:
        odd |= read.value[flag] > 0
    size = read.value[SIZE]
    found = MessageSlices(
        key_at=read.at[KEY],
        key_size=read.value[KEY],
        order_at=read.at[ORDERING_KEY],
        order_size=read.value[ORDERING_KEY],
        payload_at=stop,
        payload_size=size,
        event_time=read.value[EVENT_TIME],
        sequence=read.value[SEQUENCE],
        several=read.several,
    )
    return found, odd | (size != end - stop) | found.odd()


@dataclass(frozen=True, slots=True)
class Heads:
    """The fields that n frames have once for all of their messages. counts: messages of a frame; alone: its one message
    is in no batch. sequence: of its first message. rests: what no column holds, binary. kinds: which rest it has.
    first: index that the first message of each has in its batch; others than 0 are of a part of a batch.
    """

    counts: Ints
    alone: npt.NDArray[np.bool_]
    sequence: Ints
    publish_time: Ints
    deliver_at: Ints
    rests: pa.Array
    kinds: Ints
    first: int = 0


def table_of(source: Bytes, found: MessageSlices, heads: Heads, pairs: Pairs | None) -> pa.RecordBatch:
    """Return the rows of frames, in order. pairs: their properties."""
    counts, total = heads.counts, len(found.key_at)
    index = np.arange(heads.first, heads.first + total) - np.repeat(np.cumsum(counts) - counts, counts)
    sequence = np.where(found.sequence >= 0, found.sequence, np.repeat(heads.sequence, counts) + index)
    columns = {
        "key": _slices(source, found.key_at, found.key_size),
        "payload": source.slices(found.payload_at, found.payload_size),
        "publish_time": pa.array(np.repeat(heads.publish_time, counts)),
        "ordering_key": _slices(source, found.order_at, found.order_size),
        "properties": pa.nulls(total, KIND) if pairs is None else pairs.column(total),
        "event_time": _times(found.event_time),
        "deliver_at": pa.array(np.repeat(heads.deliver_at, counts)),
        "sequence_id": pa.array(sequence),
        "batch_index": pa.array(index.astype(np.int32), mask=np.repeat(heads.alone, counts)),
        "pulsar": heads.rests.take(pa.array(np.repeat(heads.kinds, counts))),
    }
    return pa.RecordBatch.from_pydict(columns)


def _times(given: Ints) -> pa.Array:
    """Null where there is none."""
    none = given <= 0
    return pa.nulls(len(given), pa.int64()) if none.all() else pa.array(given, mask=none)


def _slices(source: Bytes, at: Ints, size: Ints) -> pa.Array:
    """Return a column of bytes, null where the size is -1."""
    null = size < 0
    if null.all():
        return pa.nulls(len(at), pa.binary())
    return source.slices(np.where(null, 0, at), np.maximum(size, 0), null=null)
