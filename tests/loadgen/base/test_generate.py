"""The flood's messages: the same from the same seed, skewed, numbered without gaps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.loadgen.base.generate import (
    Chunk,
    Workload,
    generate,
    number_properties,
    number_rows,
    payloads,
    read_key_seq,
    running_count,
)
from sluice.storage.errors import Invalid

SMALL = Workload(messages=5_000, size=40, keys=200, skew=1.0, tasks=3, seed=7, batch=700)


def everything(workload: Workload) -> list[tuple[int, Chunk]]:
    return [(task, chunk) for task in range(workload.tasks) for chunk in generate(workload, task)]


def test_counts_add_up_and_chunks_follow_each_other() -> None:
    assert SMALL.shares().sum() == SMALL.messages
    for task in range(SMALL.tasks):
        chunks = list(generate(SMALL, task))
        assert sum(chunk.rows.num_rows for chunk in chunks) == SMALL.shares()[task]
        assert [chunk.first_row for chunk in chunks] == list(range(0, int(SMALL.shares()[task]), SMALL.batch))


def test_every_key_is_numbered_without_gaps_in_one_task() -> None:
    seen: dict[bytes, list[int]] = {}
    owner: dict[bytes, int] = {}
    for task, chunk in everything(SMALL):
        for key, seq in zip(chunk.rows.column("key").to_pylist(), chunk.key_seq.tolist(), strict=True):
            seen.setdefault(key, []).append(seq)
            assert owner.setdefault(key, task) == task
    assert all(numbers == list(range(len(numbers))) for numbers in seen.values())


def test_payload_carries_its_numbers_and_has_its_size() -> None:
    rows: list[int] = []
    for task, chunk in everything(SMALL):
        assert read_key_seq(chunk.rows).tolist() == chunk.key_seq.tolist()
        data = chunk.rows.column("payload").to_pylist()
        assert {len(payload) for payload in data} == {SMALL.size}
        numbers = [int.from_bytes(payload[8:16], "little") for payload in data]
        assert numbers == number_rows(task, chunk.first_row, len(data)).tolist()
        rows += numbers
    assert len(set(rows)) == SMALL.messages


def test_same_seed_same_messages_other_seed_others() -> None:
    first, again, other = (everything(w) for w in (SMALL, SMALL, replace(SMALL, seed=8)))
    assert all(a[1].rows.equals(b[1].rows) for a, b in zip(first, again, strict=True))
    assert not all(a[1].rows.equals(b[1].rows) for a, b in zip(first, other, strict=True))


def test_skew_is_zipfs_law() -> None:
    workload = replace(SMALL, messages=100_000, keys=50, skew=1.0)
    counts = Counter(key for _, chunk in everything(workload) for key in chunk.rows.column("key").to_pylist())
    harmonic = sum(1 / rank for rank in range(1, 51))
    for rank in (1, 2, 5, 10):
        expected = workload.messages / rank / harmonic
        assert counts[b"key-%02d" % (rank - 1)] == pytest.approx(expected, rel=0.06)


def test_without_skew_keys_are_alike() -> None:
    workload = replace(SMALL, messages=60_000, keys=30, skew=0.0)
    counts = Counter(key for _, chunk in everything(workload) for key in chunk.rows.column("key").to_pylist())
    assert min(counts.values()) > 0.9 * 2_000
    assert max(counts.values()) < 1.1 * 2_000


def test_tasks_are_loaded_alike() -> None:
    shares = Workload(messages=1_000_000, size=100, keys=10_000, skew=1.0, tasks=4, seed=1).shares()
    assert shares.max() / shares.min() < 1.7


def test_more_tasks_than_keys_leaves_tasks_idle() -> None:
    workload = replace(SMALL, keys=2, tasks=5)
    assert sorted(workload.shares() > 0).count(True) == 2
    assert sum(chunk.rows.num_rows for _, chunk in everything(workload)) == SMALL.messages


def test_delays_have_the_asked_share_and_range() -> None:
    workload = replace(SMALL, messages=40_000, delayed=0.25)
    delays = np.concatenate([chunk.delay_ms for _, chunk in everything(workload)])
    late = delays[delays > 0]
    assert len(late) / len(delays) == pytest.approx(0.25, abs=0.02)
    assert late.min() >= 1_000
    assert late.max() <= 60_000


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"messages": 0}, "messages"),
        ({"keys": 0}, "keys"),
        ({"size": 15}, "bytes"),
        ({"skew": -1.0}, "skew"),
        ({"delayed": 1.5}, "delayed"),
    ],
)
def test_impossible_workloads_are_refused_by_name(change: dict[str, float], word: str) -> None:
    with pytest.raises(Invalid, match=word):
        replace(SMALL, **change).check()  # type: ignore[arg-type]


@given(st.lists(st.integers(-2, 4)))
def test_running_count_agrees_with_a_plain_model(values: list[int]) -> None:
    seen: Counter[int] = Counter()
    expected = []
    for value in values:
        expected.append(seen[value])
        seen[value] += 1
    assert running_count(np.array(values, np.int64)).tolist() == expected


def test_numbers_are_read_from_a_slice() -> None:
    key_seq = np.arange(50, dtype=np.int64)
    rows = pa.record_batch({"payload": payloads(key_seq, key_seq, 20, np.random.default_rng(1))})
    assert read_key_seq(rows.slice(7, 11)).tolist() == list(range(7, 18))
    tagged = pa.record_batch({"payload": pa.array([b"{}"] * 50), "properties": number_properties(key_seq)})
    assert read_key_seq(tagged.slice(7, 11)).tolist() == list(range(7, 18))


def test_foreign_messages_are_refused() -> None:
    with pytest.raises(Invalid, match="too short"):
        read_key_seq(pa.record_batch({"payload": pa.array([b"x" * 20, b"short"])}))
    other = pa.array([[("else", "1")]], pa.map_(pa.string(), pa.string()))
    with pytest.raises(Invalid, match="no number"):
        read_key_seq(pa.record_batch({"payload": pa.array([b"{}"]), "properties": other}))
