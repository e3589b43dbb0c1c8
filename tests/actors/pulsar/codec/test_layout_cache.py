"""Messages that are laid out alike are read as they are field by field, and so are those between them that are not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.pulsar.codec.fields_reader import Bytes, Fields, read_fields
from actors.pulsar.codec.layout_cache import LEAST, layout_of, read_alike

NUMBER, NAME, WIDE, PAIR = 0x08, 0x12, 0x0198, 0x1A
KNOWN = (NUMBER, NAME, WIDE)


def varint(value: int) -> bytes:
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def field(tag: int, value: int | bytes) -> bytes:
    written = bytes([tag & 0xFF, tag >> 8]) if tag > 0xFF else bytes([tag])
    return written + (varint(value) if isinstance(value, int) else varint(len(value)) + value)


numbers = st.integers(0, 200) | st.integers(0, (1 << 64) - 1)
fields = (
    st.tuples(st.sampled_from([NUMBER, WIDE]), numbers)
    | st.tuples(st.sampled_from([NAME, PAIR]), st.binary(max_size=3) | st.binary(min_size=130, max_size=131))
    | st.tuples(st.sampled_from([0x20, 0x2A, 0x0398]), st.just(1))
)
messages = st.lists(fields, max_size=4).map(lambda given: b"".join(field(tag, value) for tag, value in given))
broken = st.binary(max_size=12)


def read(given: list[bytes], how: Callable[..., Fields]) -> Fields:
    ends = np.cumsum([len(one) for one in given])
    return how(Bytes(b"".join(given)), ends - [len(one) for one in given], ends, KNOWN, PAIR)


def told(found: Fields, count: int) -> list[object]:
    """Of each message what was found, None of an odd one; its slices as (place, size)."""
    several: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for each in found.several:
        for row, at, size in zip(each.rows.tolist(), each.at.tolist(), each.size.tolist(), strict=True):
            several[row].append((at, size))
    return [
        None
        if found.odd[row]
        else (
            {tag: int(found.value[tag][row]) for tag in KNOWN},
            int(found.at[NAME][row]) if found.value[NAME][row] >= 0 else None,
            several[row],
        )
        for row in range(count)
    ]


@given(
    st.lists(st.sampled_from(range(4)), min_size=1, max_size=200), st.lists(messages | broken, min_size=4, max_size=4)
)
def test_the_same_is_found_as_field_by_field(order: list[int], kinds: list[bytes]) -> None:
    every = [kinds[kind] for kind in order]
    assert told(read(every, read_alike), len(every)) == told(read(every, read_fields), len(every))


@given(st.data(), st.lists(fields, min_size=1, max_size=3))
def test_values_may_differ_in_one_layout(data: st.DataObject, kind: list[tuple[int, int | bytes]]) -> None:
    """Whatever stands in the places of values: numbers of as many bytes, or of others; slices as long, or of others."""
    every = [b"".join(field(tag, value) for tag, value in kind)] * LEAST
    for _ in range(data.draw(st.integers(1, 2 * LEAST))):
        changed = bytearray(every[0])
        if changed:
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
        every.insert(data.draw(st.integers(0, len(every))), bytes(changed))
    assert told(read(every, read_alike), len(every)) == told(read(every, read_fields), len(every))


def test_a_message_behind_the_end_is_odd() -> None:
    one = field(NUMBER, 5)
    source = Bytes(one * LEAST)
    at = np.arange(0, LEAST * len(one), len(one))
    at = np.append(at, at[-1])
    stop = at + len(one)
    stop[-1] += 1
    assert read_alike(source, at, stop, KNOWN).odd.tolist() == [False] * LEAST + [True]


@pytest.mark.parametrize("end", [b"", b"\x08", b"\x08\x80", b"\x12\x02a", b"\x98\x01", b"\x98", b"\x20\x01"])
def test_what_is_cut_off_has_no_layout(end: bytes) -> None:
    assert (layout_of(field(NUMBER, 300) + end, KNOWN) is None) == bool(end)
