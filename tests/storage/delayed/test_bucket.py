"""Bucket objects: what is written is read back, and whatever else is there is refused by name (BS-3)."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.storage.delayed.bucket import (
    MAX_STEPS,
    BucketBuilder,
    SealedBucket,
    cut_points,
    decode_header,
    decode_segments,
    restore_bitmaps,
)
from sluice.storage.delayed.entries import Entries
from sluice.storage.delayed.index import PositionIndex
from sluice.storage.delayed.segment import decode_segment, encode_segment
from sluice.storage.errors import Corrupt, Invalid
from sluice.storage.format.position import position

OWNER = "orders/0/billing"


def some_entries(count: int, seed: int = 1, ledgers: int = 3, times: int = 100_000) -> Entries:
    rng = np.random.default_rng(seed)
    places = (rng.integers(1, ledgers + 1, count) << 32) + np.arange(count)
    hashes = rng.integers(0, 1 << 31, count).astype(np.uint32)
    return Entries(rng.integers(1, times, count), places.astype(np.int64), hashes).sorted()


def build(entries: Entries, slices: int = 1, **rule: int) -> SealedBucket:
    builder = BucketBuilder(OWNER, 7, 3, **{"step_ms": 1000, "max_entries": 50, **rule})  # type: ignore[arg-type]
    for part in np.array_split(np.arange(len(entries)), slices):
        builder.append(entries.take(part))
    sealed = builder.finish()
    assert sealed is not None
    return sealed


def same(left: Entries, right: Entries) -> bool:
    return bool(
        np.array_equal(left.deliver_at, right.deliver_at)
        and np.array_equal(left.positions, right.positions)
        and np.array_equal(left.hashes, right.hashes)
    )


def test_bs_3_a_bucket_reads_back_as_it_was_written() -> None:
    entries = some_entries(1000)
    sealed = build(entries)
    header = decode_header(sealed.data[: sealed.header.data_start], "b", OWNER)
    assert (header.count, header.start, header.end) == (1000, entries.positions.min(), entries.positions.max())
    start, length = header.table.byte_range(0, len(header.table))
    data = sealed.data[header.data_start + start :][:length]
    assert same(decode_segments(data, header.table, 0, len(header.table), "b"), entries)
    start, length = header.table.byte_range(2, 4)
    two = decode_segments(sealed.data[header.data_start + start :][:length], header.table, 2, 4, "b")
    assert len(two) == int(header.table.count[2:4].sum())
    assert header.table.bound(2) == (int(two.deliver_at[0]), int(two.positions[0]))


def test_the_bitmaps_of_the_header_restore_the_index() -> None:
    entries = some_entries(500)
    header = build(entries).header
    for first in (0, 3):
        index = PositionIndex()
        for ledger, bitmap in restore_bitmaps(header, first):
            index.merge(ledger, bitmap)
        skipped = int(header.table.count[:first].sum())
        assert len(index) == 500 - skipped
        assert index.contains(entries.positions[skipped:]).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 60), max_size=60), st.integers(1, 20), st.integers(-1, 7), st.integers(1, 5))
def test_bd_12_the_cut_is_the_same_in_one_piece_and_in_parts(
    times: list[int], step: int, most: int, slices: int
) -> None:
    column = np.sort(np.array(times, np.int64))
    expected: list[int] = []
    start = 0
    while start < column.size:
        end = start + 1
        while end < column.size and column[end] <= column[start] + step - 1 and not 0 < most <= end - start:
            end += 1
        expected.append(end)
        start = end
    assert cut_points(column, step, most, last=True) == expected
    if column.size:
        entries = Entries(column, position(1, 0) + np.arange(column.size), np.zeros(column.size, np.uint32))
        counts = build(entries, slices, step_ms=step, max_entries=most).header.table.count
        assert np.cumsum(counts).tolist() == expected


def test_the_step_grows_when_due_times_lie_far_apart() -> None:
    times = np.arange(1, 20_001, dtype=np.int64) * 3_600_000
    entries = Entries(times, position(1, 0) + np.arange(times.size), np.zeros(times.size, np.uint32))
    span = int(times[-1] - times[0])
    assert len(build(entries, span=span, step_ms=300_000, max_entries=-1).header.table) <= MAX_STEPS + 1


def test_an_empty_builder_makes_no_object() -> None:
    assert BucketBuilder(OWNER, 1, 1, step_ms=1, max_entries=1).finish() is None
    with pytest.raises(Invalid, match="must be positive"):
        BucketBuilder(OWNER, 1, 1, step_ms=0, max_entries=1)


def test_a_segment_allocates_nothing_on_the_word_of_its_head() -> None:
    data = bytearray(encode_segment(some_entries(10)))
    data[4:8] = ((1 << 32) - 1).to_bytes(4, "little")
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt, match="bytes of columns, not"):
            decode_segment(data, "segment 1 of bucket b")
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    data[2] = 1
    with pytest.raises(Corrupt, match="unknown format"):
        decode_segment(data, "segment 1 of bucket b")


def test_an_object_of_another_subscription_is_refused() -> None:
    with pytest.raises(Corrupt, match="bucket b belongs to orders/0/billing, not to orders/0/audit"):
        decode_header(build(some_entries(10)).data, "b", "orders/0/audit")


def test_a_foreign_version_is_refused() -> None:
    data = bytearray(build(some_entries(10)).data)
    data[4] = 9
    with pytest.raises(Corrupt, match="bucket b has format version 9"):
        decode_header(data, "b", OWNER)


def test_every_flipped_byte_of_the_header_is_seen() -> None:
    sealed = build(some_entries(30))
    for at in range(sealed.header.data_start):
        data = bytearray(sealed.data)
        data[at] ^= 0x40
        with pytest.raises(Corrupt, match="b"):
            decode_header(data, "b", OWNER)


def test_every_flipped_byte_of_a_segment_is_seen() -> None:
    sealed = build(some_entries(30))
    table = sealed.header.table
    for at in range(sealed.header.data_start, len(sealed.data)):
        data = bytearray(sealed.data)
        data[at] ^= 0x40
        with pytest.raises(Corrupt, match="of bucket b does not fit"):
            decode_segments(data[sealed.header.data_start :], table, 0, len(table), "b")


def test_every_cut_is_seen() -> None:
    sealed = build(some_entries(30))
    table, start = sealed.header.table, sealed.header.data_start
    for size in range(start):
        with pytest.raises(Corrupt):
            decode_header(sealed.data[:size], "b", OWNER)
    for size in range(start, len(sealed.data)):
        with pytest.raises(Corrupt, match="bucket b is cut off"):
            decode_segments(sealed.data[start:size], table, 0, len(table), "b")
