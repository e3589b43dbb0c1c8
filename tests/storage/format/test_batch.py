"""Batches that a producer may send, and the shape in which they are stored."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from sluice.storage.errors import Corrupt, Invalid
from sluice.storage.format.batch import (
    MAX_KEY_BYTES,
    bytes_of,
    decode_body,
    encode_body,
    joined,
    make_batch,
    schema_of,
    shape_of,
)
from sluice.storage.format.hashing import masked_hash


def test_loose_columns_become_the_stored_shape() -> None:
    """Strings, chunked tables, dictionaries and timestamps are taken; the columns come out in one order."""
    table = pa.concat_tables(
        [
            pa.table(
                {
                    "payload": ["one"],
                    "key": pa.array(["a"]).dictionary_encode(),
                    "publish_time": pa.array([datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)]),
                }
            )
        ]
        * 2
    )
    batch = make_batch(table, now=5, producer="p")
    assert batch.rows.schema == schema_of(0)
    assert batch.rows["publish_time"].to_pylist() == [1000, 1000]
    assert batch.rows["key"].to_pylist() == [b"a", b"a"]
    assert batch.deliver_at is None
    assert batch.hashes.tolist() == [masked_hash(b"a")] * 2


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_timestamps_of_shorter_units_become_milliseconds(unit: str) -> None:
    """No message comes early for that, and an event before 1970 stays before it."""
    late, early = datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
    zoned = pa.timestamp(unit, "UTC")
    rows = pa.record_batch(
        {
            "payload": ["x", "y", "z"],
            "publish_time": pa.array([late, late, None], zoned),
            "event_time": pa.array([late, early, None], zoned),
            "deliver_at": pa.array([late, None, None], zoned),
        }
    )
    batch = make_batch(rows, now=5, producer="p")
    assert batch.rows["publish_time"].to_pylist() == [1704067200123, 1704067200123, 5]
    assert batch.rows["event_time"].to_pylist() == [1704067200123, -1, None]
    assert batch.deliver_at is not None
    assert batch.deliver_at.tolist() == [1704067200124, 0, 0]


@pytest.mark.parametrize("column", ["publish_time", "event_time", "deliver_at"])
def test_a_timestamp_beyond_all_milliseconds_is_refused(column: str) -> None:
    rows = pa.record_batch({"payload": ["x"], column: pa.array([1 << 62], pa.timestamp("s"))})
    with pytest.raises(Invalid, match=column):
        make_batch(rows, now=5, producer="p")


def test_the_ordering_key_wins_and_a_missing_key_is_made_up() -> None:
    """KS-4: ordering key, else key, else producer, dash and sequence; the stored key stays null."""
    rows = pa.record_batch(
        {
            "key": pa.array(["k", "k", None]),
            "ordering_key": pa.array(["o", None, None]),
            "payload": ["", "", ""],
        }
    )
    batch = make_batch(rows, now=5, producer="p", first_sequence=40)
    assert batch.hashes.tolist() == [masked_hash(b"o"), masked_hash(b"k"), masked_hash(b"p-42")]
    assert batch.rows["key"].to_pylist() == [b"k", b"k", None]


def test_optional_columns_are_stored_only_when_used() -> None:
    """A column of nulls is none; the shape tells which are there."""
    rows = pa.record_batch(
        {
            "payload": ["x"],
            "event_time": pa.array([None], pa.int64()),
            "properties": pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())),
        }
    )
    batch = make_batch(rows, now=1, producer="p")
    assert batch.rows.schema.names == ["key", "payload", "publish_time", "properties"]
    assert schema_of(shape_of(batch.rows.schema)).names == batch.rows.schema.names


def test_due_times_of_zero_are_no_delay() -> None:
    """deliver_at travels only when a row uses it."""
    rows = pa.record_batch({"payload": ["x", "y"], "deliver_at": [0, 0]})
    assert make_batch(rows, now=1, producer="p").deliver_at is None
    rows = pa.record_batch({"payload": ["x", "y"], "deliver_at": [0, 9]})
    due = make_batch(rows, now=1, producer="p").deliver_at
    assert due is not None
    assert due.tolist() == [0, 9]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"key": ["a"]}, "'payload' is missing"),
        ({"payload": ["a"], "colour": ["red"]}, "unknown column 'colour'"),
        ({"payload": pa.array([None], pa.binary())}, "'payload' has nulls"),
        ({"payload": [1.5]}, "'payload' has type double"),
        ({"payload": ["a"], "deliver_at": [-1]}, "negative time"),
        ({"payload": ["a"], "deliver_at": ["soon"]}, "'deliver_at' has type string"),
        ({"payload": ["a"], "key": ["k" * (MAX_KEY_BYTES + 1)]}, "'key' holds 1025 bytes"),
        ({"payload": pa.array([], pa.binary())}, "the batch is empty"),
    ],
)
def test_unstorable_column_is_refused_by_name(columns: dict[str, object], words: str) -> None:
    """Each message is one clear line."""
    with pytest.raises(Invalid, match=words):
        make_batch(pa.record_batch(columns), now=1, producer="p")


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_body_comes_back_as_it_was(compression: str | None) -> None:
    """Also compressed."""
    rows = pa.record_batch({"key": ["a", None] * 50, "payload": ["x" * 30] * 100})
    stored = make_batch(rows, now=1, producer="p").rows
    body = encode_body(stored, compression)
    assert decode_body(body, 0, 100).equals(stored)
    with pytest.raises(Corrupt):
        decode_body(body, 0, 99)
    with pytest.raises(Corrupt):
        decode_body(body.slice(0, body.size // 2), 0, 100)
    with pytest.raises(Invalid):
        encode_body(stored, "rar")


def test_rows_keep_their_times_and_hashes_when_taken() -> None:
    """take and slice cut all columns alike."""
    rows = pa.record_batch({"key": list("abcd"), "payload": list("wxyz"), "deliver_at": [0, 0, 7, 8]})
    batch = make_batch(rows, now=1, producer="p")
    taken = batch.take(np.array([3, 0]))
    assert taken.rows["payload"].to_pylist() == [b"z", b"w"]
    assert taken.deliver_at is not None
    assert taken.deliver_at.tolist() == [8, 0]
    assert taken.hashes.tolist() == [masked_hash(b"d"), masked_hash(b"a")]
    assert batch.take(np.array([0, 1])).deliver_at is None
    part = batch.slice(1, 3)
    assert part.rows["payload"].to_pylist() == [b"x", b"y"]
    assert part.deliver_at is not None
    assert part.deliver_at.tolist() == [0, 7]
    assert batch.slice(0, 2).deliver_at is None


def test_neighbouring_slices_are_joined_without_a_copy() -> None:
    rows = pa.record_batch({"key": list("abcdef"), "payload": list("uvwxyz"), "deliver_at": [0, 0, 7, 8, 0, 9]})
    batch = make_batch(rows, now=1, producer="p")
    whole = joined([batch.slice(1, 2), batch.slice(2, 5).slice(0, 2), batch.slice(4, 6)])
    assert whole.rows.equals(batch.rows.slice(1, 5))
    assert whole.rows.column("payload").buffers()[2].address == batch.rows.column("payload").buffers()[2].address
    assert whole.deliver_at is not None
    assert whole.deliver_at.tolist() == [0, 7, 8, 0, 9]
    assert whole.hashes.tolist() == batch.hashes[1:].tolist()
    parts = [batch.slice(3, 4), batch.slice(4, 6), batch.slice(0, 1), batch]
    apart = joined(parts)
    assert apart.rows["payload"].to_pylist() == [b"x", b"y", b"z", b"u", *(b"%c" % one for one in b"uvwxyz")]
    assert apart.deliver_at is not None
    assert apart.deliver_at.tolist() == [8, 0, 9, 0, 0, 0, 7, 8, 0, 9]


def test_small_rows_count_about_what_they_take() -> None:
    """A slice of few counts with the others, one of many does not."""
    few = make_batch(pa.record_batch({"payload": [b"x" * 100] * 3}), now=1, producer="p").rows
    many = make_batch(pa.record_batch({"payload": [b"x" * 100] * 1_000}), now=1, producer="p").rows
    assert few.nbytes // 2 < bytes_of(few.slice(1, 1)) < 2 * few.nbytes
    assert bytes_of(many) == many.nbytes
    assert bytes_of(many.slice(1, 2)) == many.slice(1, 2).nbytes
    assert bytes_of(few.slice(1, 0)) == 0
