"""The messages of many batches at once, as columns.

Where the messages begin is found by a short loop that looks only for their sizes. Then every field of all messages is
read abreast (actors.pulsar.columns). What is seldom goes the slow way, a frame at a time, by protobuf: properties,
null values, keys in base64, fields that are not known here, and everything that is malformed, which is refused there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from actors.pulsar.columns import Bytes, Ints
from storage.batch import MAX_KEY_BYTES, MAX_MESSAGE_BYTES

PROPERTIES, KEY, SIZE, EVENT_TIME, ORDERING_KEY, SEQUENCE = 0x0A, 0x12, 0x18, 0x28, 0x3A, 0x40
"""Tags (field and kind) of a message's own metadata that columns hold, and of its properties."""
MOST_FIELDS = 12


@dataclass(frozen=True, slots=True)
class Messages:
    """All messages of some batches, in order; n rows. event_time: None where none has one."""

    key: pa.Array
    payload: pa.Array
    ordering_key: pa.Array | None
    event_time: Ints | None
    sequence: Ints
    has_sequence: npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Fields:
    """What was found of each message: where its slices lie, and its numbers. size -1: it has none."""

    key_at: Ints
    key_size: Ints
    order_at: Ints
    order_size: Ints
    size: Ints
    sequence: Ints
    event_time: Ints
    odd: npt.NDArray[np.bool_]


def starts_of(payload: bytes, count: int) -> list[int] | None:
    """Where the messages of a batch begin; None if that is not plain."""
    starts, at, end = [], 0, len(payload)
    number = int.from_bytes
    for _ in range(count):
        place = at + 4
        stop = place + number(payload[at:place], "big")
        if stop > end or place >= end:
            return None
        starts.append(at)
        size = -1
        while place + 1 < stop:
            tag, value = payload[place], payload[place + 1]
            place += 2
            if value > 127:
                value, shift = value & 127, 7
                while True:
                    if place >= stop or shift > 28:
                        return None
                    byte = payload[place]
                    value |= (byte & 127) << shift
                    place += 1
                    if byte < 128:
                        break
                    shift += 7
            if tag == SIZE:
                size = value
                break
            if tag == PROPERTIES or tag & 7 not in (0, 2) or place > stop:
                return None
            if tag & 7:
                place += value
        at = stop + size
        if size < 0 or at > end:
            return None
    return starts if at == end else None


def read_messages(payload: bytes, begin: Ints, end: Ints) -> tuple[Messages | None, Ints]:
    """The messages that begin and end at these places; (None, the odd ones) if some have to go the slow way."""
    source = Bytes(payload)
    stop = begin + 4 + source.u32(begin)
    found = _read(source, begin + 4, stop)
    odd = found.odd | (found.size != end - stop) | (found.size > MAX_MESSAGE_BYTES)
    odd |= (found.key_size > MAX_KEY_BYTES) | (found.order_size > MAX_KEY_BYTES)
    if odd.any():
        return None, np.flatnonzero(odd)
    has_order = found.order_size >= 0
    messages = Messages(
        key=source.slices(found.key_at, np.maximum(found.key_size, 0), null=found.key_size < 0),
        payload=source.slices(stop, found.size),
        ordering_key=(
            source.slices(found.order_at, np.maximum(found.order_size, 0), null=~has_order) if has_order.any() else None
        ),
        event_time=found.event_time if found.event_time.any() else None,
        sequence=found.sequence,
        has_sequence=found.sequence >= 0,
    )
    return messages, np.empty(0, np.int64)


def _read(source: Bytes, at: Ints, stop: Ints) -> _Fields:
    count = len(at)
    nothing = np.full(count, -1, np.int64)
    found = _Fields(
        np.zeros(count, np.int64), nothing.copy(), np.zeros(count, np.int64), nothing.copy(), nothing.copy(),
        nothing.copy(), np.zeros(count, np.int64), stop > source.size,
    )  # fmt: skip
    live = np.flatnonzero(~found.odd & (at < stop))
    place = at.copy()
    for _ in range(MOST_FIELDS):
        if not len(live):
            return found
        here = place[live]
        tag = source.data[here]
        value, length = source.varints(here + 1)
        after = here + 1 + length
        sliced = (tag & 7) == 2
        behind = np.where(sliced, after + value, after)
        wrong = (length == 0) | (value < 0) | (value > 1 << 55) | (behind > stop[live])
        for number in np.unique(tag).tolist():
            rows = live[tag == number]
            values = value[tag == number]
            if number in (KEY, ORDERING_KEY):
                where, size = (found.key_at, found.key_size) if number == KEY else (found.order_at, found.order_size)
                where[rows], size[rows] = after[tag == number], values
            elif number == SIZE:
                found.size[rows] = values
            elif number == SEQUENCE:
                found.sequence[rows] = values
            elif number == EVENT_TIME:
                found.event_time[rows] = values
            else:
                found.odd[rows] = True
        found.odd[live[wrong]] = True
        place[live] = behind
        live = live[~found.odd[live] & (behind < stop[live])]
    found.odd[live] = True
    return found
