"""Fields of many messages are read at once as they are of each one alone, and as protobuf reads them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.pulsar.codec.fields import Bytes, Fields, read_fields
from sluice.actors.pulsar.codec.protocol import Single

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


def read(given: list[bytes]) -> Fields:
    ends = np.cumsum([len(one) for one in given])
    return read_fields(Bytes(b"".join(given)), ends - [len(one) for one in given], ends, KNOWN, PAIR)


def told(found: Fields, count: int) -> list[object]:
    """Return what was found in each message, None for an odd one; slices as (place, size)."""
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
def test_neighbours_do_not_change_what_is_found(order: list[int], kinds: list[bytes]) -> None:
    every = [kinds[kind] for kind in order]
    begins = np.cumsum([0, *(len(one) for one in every[:-1])]).tolist()
    alone: list[object] = []
    for one, begin in zip(every, begins, strict=True):
        (found,) = told(read([one]), 1)
        alone.append(_moved(found, begin))
    assert told(read(every), len(every)) == alone


@given(st.integers(0, 1 << 55), st.binary(max_size=200), st.integers(0, 300))
def test_values_are_those_of_protobuf(ledger: int, key: bytes, partition: int) -> None:
    one = Single(partition_key=key, payload_size=partition, event_time=ledger)
    data = one.SerializeToString()
    at = np.zeros(1, np.int64)
    found = read_fields(Bytes(data), at, at + len(data), (0x12, 0x18, 0x28))
    assert not found.odd[0]
    begin, size = int(found.at[0x12][0]), int(found.value[0x12][0])
    assert data[begin : begin + size] == key
    assert (int(found.value[0x18][0]), int(found.value[0x28][0])) == (partition, ledger)


def test_a_message_behind_the_end_is_odd() -> None:
    one = field(NUMBER, 5)
    source = Bytes(one * 16)
    at = np.arange(0, 16 * len(one), len(one))
    at = np.append(at, at[-1])
    stop = at + len(one)
    stop[-1] += 1
    assert read_fields(source, at, stop, KNOWN).odd.tolist() == [False] * 16 + [True]


@pytest.mark.parametrize("end", [b"", b"\x08", b"\x08\x80", b"\x12\x02a", b"\x98\x01", b"\x98", b"\x20\x01"])
def test_cut_off_or_unknown_field_is_odd(end: bytes) -> None:
    assert read([field(NUMBER, 300) + end]).odd.tolist() == [bool(end)]


def _moved(found: object, begin: int) -> object:
    """Move what was found in a message alone by `begin` bytes, as if it lay behind others."""
    if found is None:
        return None
    assert isinstance(found, tuple)
    values, at, several = found
    return values, None if at is None else at + begin, [(place + begin, size) for place, size in several]
