"""The tail cache: bounded in bytes, the oldest leave first."""

from __future__ import annotations

from actors.topic.tail import CachedRun, RunCache
from actors.wire import Blob
from storage.frame import Header


def cached(run: int, size: int, ledger: int = 1) -> CachedRun:
    header = Header(ledger, run, run, 1, 1, -1, "p", run, False, 0, 0)
    return CachedRun(header, Blob(b"1234"), Blob(bytes(size)), size)


def test_the_oldest_runs_give_way() -> None:
    cache = RunCache(limit=4 * 1256)
    for run in range(10):
        cache.put(cached(run, 1000))
        assert cache.bytes <= 4 * 1256
    assert [run for run in range(10) if cache.get(1, run)] == [6, 7, 8, 9]


def test_a_run_above_the_limit_drives_nothing_out() -> None:
    cache = RunCache(limit=2000)
    cache.put(cached(0, 1000))
    cache.put(cached(1, 5000))
    assert cache.get(1, 0) is not None
    assert cache.get(1, 1) is None


def test_putting_again_counts_once_and_deletion_leaves_no_bytes() -> None:
    cache = RunCache(limit=10_000)
    cache.put(cached(0, 1000))
    cache.put(cached(0, 1000))
    cache.put(cached(0, 1000, ledger=2))
    assert len(cache) == 2
    cache.drop_ledgers([1, 2])
    assert (len(cache), cache.bytes) == (0, 0)
