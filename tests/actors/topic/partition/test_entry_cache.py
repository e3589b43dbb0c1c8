"""The tail cache: bounded in bytes, the oldest leave first."""

from __future__ import annotations

import gc
import random
import tracemalloc

import pytest

from sluice.actors.ledger.writer import Append, PendingRun
from sluice.actors.ports.wire import Blob
from sluice.actors.topic.partition.entry_cache import RUN_BYTES, CachedRun, CacheRoom, EntryCache, cache_run
from sluice.storage.format.frame import Header


def cached(run: int, size: int, ledger: int = 1) -> CachedRun:
    header = Header(ledger, run, run, 1, 1, -1, "p", run, False, 0, 0)
    return CachedRun(header, Blob(b"1234"), Blob(bytes(size)), size)


def appended(run: int, size: int) -> CachedRun:
    """As the log keeps one that came in a request of its own, with numbers as large as they become."""
    request = memoryview(bytes(200 + size))
    blob = Blob(request[200:])
    header = Header(
        1_000_000, 1_000 + run, 5_000 + run, 1, 1_000, 4_000 + run, "producer", run + 300, False, 300, 1 << 31
    )
    return cache_run(Append(PendingRun(run, run, 1), header, b"", blob, blob), 1_700_000_000_000 + run)


def test_the_oldest_runs_give_way() -> None:
    limit = 4 * (RUN_BYTES + 1000)
    cache = EntryCache(limit)
    for run in range(10):
        cache.put(cached(run, 1000))
        assert cache.bytes <= limit
    assert [run for run in range(10) if cache.get(1, run)] == [6, 7, 8, 9]


def test_a_run_above_the_limit_drives_nothing_out() -> None:
    cache = EntryCache(limit=RUN_BYTES + 2000)
    cache.put(cached(0, 1000))
    cache.put(cached(1, 5000))
    assert cache.get(1, 0) is not None
    assert cache.get(1, 1) is None


def test_putting_again_counts_once_and_deletion_leaves_no_bytes() -> None:
    cache = EntryCache(limit=10_000)
    cache.put(cached(0, 1000))
    cache.put(cached(0, 1000))
    cache.put(cached(0, 1000, ledger=2))
    assert len(cache) == 2
    cache.drop_ledgers([1, 2])
    assert (len(cache), cache.bytes) == (0, 0)


def test_the_caches_of_a_process_share_a_limit() -> None:
    """Whatever they put in which order; the one that holds the most gives way, and the others keep what they have."""
    rng = random.Random(1)
    room = CacheRoom(40 * (RUN_BYTES + 1000))
    caches = [EntryCache(30 * (RUN_BYTES + 1000), room) for _ in range(4)]
    for run in range(10):
        caches[3].put(cached(run, 1000, ledger=4))
    for run in range(2_000):
        which = rng.randrange(3)
        caches[which].put(cached(run, rng.choice([10, 1000, 9000]), ledger=which + 1))
        if not run % 7:
            caches[rng.randrange(3)].drop(1, rng.randrange(run + 1))
        assert room.bytes == sum(cache.bytes for cache in caches) <= 40 * (RUN_BYTES + 1000)
    assert len(caches[3]) == 10
    assert all(len(cache) for cache in caches)


def test_a_cache_that_was_closed_holds_and_keeps_nothing() -> None:
    room = CacheRoom()
    cache, other = EntryCache(10_000, room), EntryCache(10_000, room)
    for each in (cache, other):
        each.put(cached(0, 1000))
    for _ in range(2):
        cache.close()
        cache.put(cached(1, 1000))
        assert (len(cache), cache.bytes, room.bytes) == (0, 0, other.bytes)


def test_unused_run_is_forgotten_at_the_second_look() -> None:
    room = CacheRoom()
    cache, other = EntryCache(10_000, room), EntryCache(10_000, room)
    cache.put(cached(0, 1000))
    cache.put(cached(1, 1000))
    cache.forget_unused()
    assert cache.get(1, 0) is not None
    cache.forget_unused()
    assert (len(cache), cache.get(1, 2)) == (2, None)
    cache.forget_unused()
    assert (len(cache), cache.bytes, room.bytes, len(other)) == (0, 0, 0, 0)
    cache.put(cached(2, 1000))
    assert (len(cache), cache.get(1, 2) is not None, other.get(1, 2)) == (1, True, None)


@pytest.mark.parametrize("size", [100, 5_000])
def test_a_run_weighs_what_it_takes_in_memory(size: int) -> None:
    """Within a fifth: a limit in bytes of payload alone was passed four times over by single messages."""
    cache, count = EntryCache(1 << 30), 2_000
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for run in range(count):
            cache.put(appended(run, size))
        took = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.8 * took < cache.bytes < 1.25 * took
