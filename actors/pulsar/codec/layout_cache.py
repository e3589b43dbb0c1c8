"""Vectorized protobuf for messages of equal layout, as one client mostly sends them: one step for each field.

One message of a size is walked field by field. Of the others of that size it is only looked whether what says how a
message is laid out stands in them as well, in the same places: tags, lengths of slices, and in how many bytes a number
is written. What differs then are values, and where they lie is known. Whatever is laid out in another way is read field
by field (actors.pulsar.codec.fields_reader). Either way finds the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from actors.pulsar.codec.fields_reader import MOST_FIELDS, Bytes, Fields, Slices, read_fields
from actors.pulsar.codec.varints import Flags, Ints, Words

LEAST = 16
"""So many messages of one size are worth being looked at together."""
FEW = 24
"""Up to so many that are like no others are read each by itself."""
MOST_LAYOUTS = 6
"""So many layouts are tried in one read."""
_MOST_BYTES = 2048
"""Longer messages are few."""
_WIDEST = 7
"""Bytes of a number that is read here."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the fields of a message stand, counted from its beginning.

    numbers: (tag, where it begins, its bytes). slices: (tag, where it begins, its length). Both in order, and a tag may
    be there twice. places, same, mask: eight bytes that begin there, and the bits of them in which other messages of
    this layout are the same.
    """

    numbers: list[tuple[int, int, int]]
    slices: list[tuple[int, int, int]]
    places: list[int]
    same: Words
    mask: Words

    def fits(self, source: Bytes, at: Ints) -> Flags:
        """Which of the messages that begin here, and are as long as it is, have this layout."""
        differ = np.zeros(len(at), np.uint64)
        for place, same, mask in zip(self.places, self.same, self.mask, strict=True):
            differ |= (source.words(at + place) ^ same) & mask
        fits: Flags = differ == 0
        return fits


Places = list[tuple[int, int, int]]


def layout_of(message: bytes, known: Collection[int]) -> Layout | None:
    """How a message is laid out; None if it is malformed, or has other fields than the known ones, see read_fields."""
    found = _walked(message, known)
    if found is None:
        return None
    numbers, slices, mask = found
    masks = np.frombuffer(mask, "<u8")
    told = np.flatnonzero(masks)
    same = np.frombuffer(message.ljust(len(mask), b"\0"), "<u8")
    return Layout(numbers, slices, (8 * told).tolist(), (same & masks)[told], masks[told])


def _walked(message: bytes, known: Collection[int]) -> tuple[Places, Places, bytearray] | None:
    """(Numbers and slices of a message, see Layout; of each byte the bits that say how it is laid out.)"""
    mask = bytearray(-(-len(message) // 8) * 8)
    numbers: Places = []
    slices: Places = []
    at, stop = 0, len(message)
    while at < stop:
        wide = message[at] > 127 and at + 1 < stop
        tag, begin = message[at] | (message[at + 1] << 8 if wide else 0), at + 1 + wide
        end = begin
        while end < stop and message[end] > 127:
            end += 1
        end += 1
        if tag not in known or end > stop or end - begin > _WIDEST or len(numbers) + len(slices) >= MOST_FIELDS:
            return None
        mask[at:begin] = b"\xff" * (begin - at)
        if tag & 7 == 2:
            mask[begin:end] = b"\xff" * (end - begin)
            size = _number(message, begin, end)
            slices.append((tag, end, size))
            end += size
        else:
            mask[begin:end] = b"\x80" * (end - begin)
            numbers.append((tag, begin, end - begin))
        at = end
    return (numbers, slices, mask) if at == stop else None


def read_alike(source: Bytes, at: Ints, stop: Ints, known: Collection[int], repeated: int = -1) -> Fields:
    """What actors.pulsar.codec.fields_reader.read_fields finds, sooner where many messages are alike."""
    count = len(at)
    size = np.where((stop > source.size) | (stop - at > _MOST_BYTES), 0, np.maximum(stop - at, 0))
    found, left = _nothing(count, known), np.ones(count, bool)
    for _ in range(MOST_LAYOUTS):
        many = np.bincount(size[left], minlength=1)
        most = int(many[1:].argmax()) + 1 if len(many) > 1 else 0
        if not most or many[most] < LEAST:
            break
        rows = np.flatnonzero(left & (size == most))
        begin = int(at[rows[0]])
        layout = layout_of(source.data[begin : begin + most].tobytes(), (*known, repeated))
        if layout is None:
            size[rows] = 0
            continue
        fits = layout.fits(source, at[rows])
        rows = rows[fits]
        left[rows] = False
        _put(found, layout, source, at[rows], rows, repeated)
    rows = np.flatnonzero(left)
    if len(rows) <= FEW:
        rows = _one_by_one(found, source, at, stop, rows, repeated)
    if len(rows) == count:
        return read_fields(source, at, stop, known, repeated)
    if len(rows):
        _merge(found, read_fields(source, at[rows], stop[rows], known, repeated), rows)
    return found


def _one_by_one(found: Fields, source: Bytes, at: Ints, stop: Ints, rows: Ints, repeated: int) -> Ints:
    """Read these messages each by itself; returns those that have to be read in another way."""
    left: list[int] = []
    several: list[list[tuple[int, int, int]]] = []
    known = (*found.value, repeated)
    for row in rows.tolist():
        begin, end = int(at[row]), int(stop[row])
        fits = begin <= end <= min(source.size, begin + _MOST_BYTES)
        message = source.slice(begin, end - begin) if fits else b""
        walked = _walked(message, known) if fits else None
        if walked is None:
            left.append(row)
            continue
        numbers, slices, _ = walked
        for tag, first, width in numbers:
            found.value[tag][row] = _number(message, first, first + width)
        times = 0
        for tag, first, size in slices:
            if tag != repeated:
                found.value[tag][row], found.at[tag][row] = size, begin + first
                continue
            several += [[]] if times == len(several) else []
            several[times].append((row, begin + first, size))
            times += 1
    found.several.extend(Slices(*np.array(each, np.int64).T) for each in several)
    return np.array(left, np.int64)


def _number(message: bytes, begin: int, end: int) -> int:
    """The number that is written in these bytes."""
    number = 0
    for byte in reversed(message[begin:end]):
        number = number << 7 | byte & 127
    return number


def _nothing(count: int, known: Collection[int]) -> Fields:
    slices = [tag for tag in known if tag & 7 == 2]
    value = dict(zip(known, np.full((len(known), count), -1, np.int64), strict=True))
    begins = dict(zip(slices, np.zeros((len(slices), count), np.int64), strict=True))
    return Fields(value, begins, np.zeros(count, bool), [])


def _put(found: Fields, layout: Layout, source: Bytes, at: Ints, rows: Ints, repeated: int) -> None:
    """What messages of this layout have. at, rows: where each of them begins, and its number."""
    place = slice(None) if len(rows) == len(found.odd) else rows
    for tag, begin, width in layout.numbers:
        found.value[tag][place] = source.numbers(at + begin, width)
    for tag, begin, size in layout.slices:
        if tag == repeated:
            found.several.append(Slices(rows, at + begin, np.full(len(rows), size)))
        else:
            found.value[tag][place] = size
            found.at[tag][place] = at + begin


def _merge(found: Fields, others: Fields, rows: Ints) -> None:
    """What was found of these messages in another way."""
    for mine, theirs in ((found.value, others.value), (found.at, others.at)):
        for tag, values in theirs.items():
            mine[tag][rows] = values
    found.odd[rows] = others.odd
    found.several.extend(Slices(rows[each.rows], each.at, each.size) for each in others.several)
