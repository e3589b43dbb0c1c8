"""A body from outside: whatever it says of itself, nothing is read beyond its end and nothing large is inflated."""

from __future__ import annotations

import contextlib
import random
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from sluice.storage.errors import Corrupt, Invalid
from sluice.storage.format.batch import (
    LAST_TIME,
    MAX_INFLATED_BYTES,
    check_published,
    decode_body,
    encode_body,
    has_keyed_delay,
    make_batch,
    schema_of,
)
from sluice.storage.format.frame import make_run
from sluice.storage.format.inflated import inflated_bytes

COUNT = 5
SHAPE = 7


def rows(count: int = COUNT) -> pa.RecordBatch:
    """Stored rows with every optional column."""
    table = pa.record_batch(
        {
            "key": [b"k%d" % n for n in range(count)],
            "payload": [b"x" * n for n in range(count)],
            "ordering_key": [b"o"] * count,
            "properties": pa.array([[("a", "b")]] * count, pa.map_(pa.string(), pa.string())),
            "event_time": list(range(count)),
        }
    )
    return make_batch(table, now=1, producer="p").rows


def body_of(batch: pa.RecordBatch, compression: str | None = None) -> bytes:
    return bytes(encode_body(batch, compression))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_damaged_bodies_are_refused_or_hold_their_own_bytes(compression: str | None) -> None:
    """Up to four bytes are others, and up to 40 are cut off, which half of the bodies are."""
    body, chance = body_of(rows(), compression), random.Random(1)
    for _ in range(3000):
        data = bytearray(body[: len(body) - chance.choice((0, chance.randrange(41)))])
        for _ in range(chance.randrange(5)):
            data[chance.randrange(len(data))] = chance.choice((0, 255, chance.randrange(256)))
        with contextlib.suppress(Corrupt):
            found = decode_body(bytes(data), SHAPE, COUNT)
            assert found.num_rows == COUNT
            found.to_pylist()


def test_offsets_beyond_the_buffer_are_refused() -> None:
    batch = make_batch(pa.record_batch({"key": [b"a"] * 3, "payload": [b"x"] * 3}), now=1, producer="p").rows
    body = bytearray(body_of(batch))
    at = body.rfind(np.arange(4, dtype=np.int32).tobytes())
    body[at + 4 : at + 8] = np.int32(1 << 30).tobytes()
    with pytest.raises(Corrupt, match="not an Arrow record batch"):
        decode_body(bytes(body), 0, 3)


def test_nulls_are_refused_where_there_are_none() -> None:
    schema = pa.schema([field.with_nullable(True) for field in schema_of(0)])
    holes = pa.record_batch([[b"k"], pa.array([None], pa.binary()), [1]], schema=schema)
    with pytest.raises(Corrupt, match="'payload' of the body has nulls"):
        decode_body(body_of(holes), 0, 1)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_small_body_that_inflates_is_refused_before_it_does(compression: str) -> None:
    size = MAX_INFLATED_BYTES + 1
    bomb = pa.record_batch([[None], [bytes(size)], [1]], schema=schema_of(0))
    body = body_of(bomb, compression)
    assert len(body) < size // 100
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt, match="the limit is"):
            decode_body(body, 0, 1)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert pa.total_allocated_bytes() == before
    with pytest.raises(Invalid, match="without compression"):
        make_run(make_batch(pa.record_batch({"payload": [bytes(4_000_000)] * 70}), now=1, producer="p"), compression)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_the_size_before_inflating_is_the_size_after_it(compression: str) -> None:
    batch = rows(2000)
    assert inflated_bytes(memoryview(body_of(batch))) == 0
    inflated = inflated_bytes(memoryview(body_of(batch, compression)))
    assert abs(inflated - batch.nbytes) < 64 * 20
    assert decode_body(body_of(batch, compression), SHAPE, 2000).equals(batch)


def test_published_batch_over_a_limit_is_refused() -> None:
    hashes = np.zeros(1, np.uint32)

    def one(key: bytes = b"k", payload: bytes = b"", time: int = 1) -> pa.RecordBatch:
        return pa.record_batch([[key], [payload], [time]], schema=schema_of(0))

    check_published(one(), np.array([LAST_TIME]), hashes)
    wrong = [
        (one(key=b"k" * 1025), None, hashes),
        (one(payload=bytes(5 * 1024 * 1024 + 1)), None, hashes),
        (one(time=-1), None, hashes),
        (one(time=LAST_TIME + 1), None, hashes),
        (pa.record_batch([[b"k"] * 2, [b""] * 2, [1, -1]], schema=schema_of(0)), None, np.zeros(2, np.uint32)),
        (
            pa.record_batch([[b"k"] * 2, [b""] * 2, [LAST_TIME + 1, 1]], schema=schema_of(0)),
            None,
            np.zeros(2, np.uint32),
        ),
        (one(), np.array([-1]), hashes),
        (one(), np.array([LAST_TIME + 1]), hashes),
        (one(), None, np.array([1 << 31], np.uint32)),
    ]
    for batch, deliver_at, column in wrong:
        with pytest.raises(Invalid):
            check_published(batch, deliver_at, column)


@pytest.mark.parametrize("column", ["publish_time", "deliver_at"])
def test_times_behind_the_year_9999_are_refused(column: str) -> None:
    data = pa.record_batch({"payload": [b"x"], column: [LAST_TIME + 1]})
    with pytest.raises(Invalid, match="year 9999"):
        make_batch(data, now=1, producer="p")


def test_a_message_with_a_key_and_a_delay_is_found() -> None:
    batch = pa.record_batch([[b"k", None], [b"", b""], [1, 1]], schema=schema_of(0))
    assert has_keyed_delay(batch, np.array([5, 0]))
    assert not has_keyed_delay(batch, np.array([0, 5]))
    assert not has_keyed_delay(batch, None)
