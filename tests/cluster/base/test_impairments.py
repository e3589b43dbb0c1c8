"""The impairments that a chaos run asks a process for: each begins, is felt, and ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sluice.cluster.base.impairments import CLOCK_JUMP, IMPAIRMENTS, SLOW_DISK, Impairments
from sluice.cluster.base.real import RealClock
from sluice.cluster.host.disk import FileDisk
from sluice.loadgen.base.kinds import IMPAIRMENT_KINDS
from sluice.storage.errors import Invalid

LONG_S = 3_600.0


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """How long syncs have waited, seconds; nobody really does. Afterwards nothing is impaired."""
    found: list[float] = []
    monkeypatch.setattr("sluice.cluster.base.impairments.time", SimpleNamespace(sleep=found.append))
    yield found
    for kind in IMPAIRMENT_KINDS:
        IMPAIRMENTS.end(kind)


async def test_each_sync_of_a_slow_disk_takes_longer(tmp_path: Path, slept: list[float]) -> None:
    disk = FileDisk(tmp_path)
    await disk.append("log", [b"before"], sync=True)
    IMPAIRMENTS.start(SLOW_DISK, 200, LONG_S)
    await disk.append("log", [b"not synced"], sync=False)
    await disk.append("log", [b"synced"], sync=True)
    await disk.rewrite("log", 0, b"BEFORE")
    assert (slept, IMPAIRMENTS.felt[SLOW_DISK]) == ([0.2, 0.2], 2)
    IMPAIRMENTS.end(SLOW_DISK)
    await disk.append("log", [b"after"], sync=True)
    assert (len(slept), IMPAIRMENTS.felt[SLOW_DISK]) == (2, 2)
    disk.close()


async def test_a_clock_leaps_for_who_looks_at_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock, on which leases hang, goes on as before."""
    at = SimpleNamespace(time_ns=lambda: 5_000_000_000, clock_gettime_ns=lambda _: 7_000_000_000)
    monkeypatch.setattr("sluice.cluster.base.real.time", at)
    clock = RealClock()
    try:
        for leap in (60_000, -3_600_000):
            IMPAIRMENTS.start(CLOCK_JUMP, leap, LONG_S)
            assert (clock.now(), clock.monotonic()) == (5_000 + leap, 7_000)
            assert IMPAIRMENTS.felt[CLOCK_JUMP] == 1
    finally:
        IMPAIRMENTS.end(CLOCK_JUMP)
    assert (clock.now(), IMPAIRMENTS.felt[CLOCK_JUMP]) == (5_000, 1)


async def test_an_impairment_ends_by_itself_and_the_newest_counts(slept: list[float]) -> None:
    mine = Impairments()
    mine.start(SLOW_DISK, 100, 0.0)
    mine.start(SLOW_DISK, 300, LONG_S)
    await asyncio.sleep(0.01)
    mine.before_sync()
    assert slept == [0.3], "the timer of the first one has not ended the second"
    mine.start(SLOW_DISK, 300, 0.0)
    await asyncio.sleep(0.01)
    mine.before_sync()
    assert len(slept) == 1
    mine.end(SLOW_DISK)


async def test_every_kind_that_a_chaos_run_asks_for_is_known() -> None:
    mine = Impairments()
    for kind in IMPAIRMENT_KINDS:
        mine.start(kind, 1, LONG_S)
        mine.end(kind)
    with pytest.raises(Invalid, match="'fire'"):
        mine.start("fire", 1, 1.0)
