"""Memory samples: who is asked, what is left out, and what counts as growth."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa

from sluice.loadgen.base.history import HistoryClock
from sluice.loadgen.samples.memory import MEMORY, WARM_US, MemorySampler, by_role, lines, own, resident, summarise
from sluice.storage.errors import Unavailable

MB = 1_000_000


def samples(role: str, process: str, megabytes: list[float], every_s: float = 1.0) -> pa.Table:
    rows = [
        {"at": int(i * every_s * 1e6), "role": role, "process": process, "bytes": int(size * MB)}
        for i, size in enumerate(megabytes)
    ]
    return pa.Table.from_pylist(rows, MEMORY)


def test_memory_taken_while_warming_up_is_no_growth() -> None:
    warming = [*np.linspace(80, 200, 60), *([200.0] * 140)]
    (told,) = summarise(samples("broker", "broker-0", [float(size) for size in warming]))
    assert told == {
        "role": "broker",
        "process": "broker-0",
        "seconds": 199.0,
        "warm_mb": 200.0,
        "end_mb": 200.0,
        "peak_mb": 200.0,
        "growth_mb": 0.0,
    }


def test_a_leak_is_growth_and_a_single_peak_is_not() -> None:
    leak = [100.0 + i for i in range(300)]
    peak = [100.0] * 300
    peak[200] = 900.0
    (leaking,) = summarise(samples("consumer", "c-1", leak))
    (steady,) = summarise(samples("consumer", "c-2", peak))
    assert 195 < leaking["growth_mb"] < 215
    assert (steady["growth_mb"], steady["peak_mb"]) == (0.0, 900.0)


def test_a_short_life_is_warm_after_its_half() -> None:
    (line,) = lines(samples("consumer", "c-1.2", [100.0, 150.0, 200.0, 200.0, 200.0]))
    assert line.warm_at == 2 * MB
    assert line.end() - line.warm() == 0
    (long,) = lines(samples("consumer", "c-1.1", [1.0] * 200))
    assert long.warm_at == WARM_US


def test_missing_samples_are_bridged() -> None:
    gap = [{"at": at * MB, "role": "bookie", "process": "b", "bytes": at * MB} for at in (0, 10, 190, 200)]
    (line,) = lines(pa.Table.from_pylist(gap, MEMORY))
    assert line.warm() == 10 * MB
    assert lines(samples("bookie", "b", [5.0])) == []
    assert summarise(MEMORY.empty_table()) == []


def test_roles_come_in_order_with_the_worst_of_each() -> None:
    table = pa.concat_tables(
        [
            samples("consumer", "c-2", [100.0, 100.0, 130.0, 130.0]),
            samples("consumer", "c-1", [300.0, 300.0, 300.0, 300.0]),
            samples("broker", "b-0", [50.0, 50.0, 60.0, 60.0]),
        ]
    )
    told = by_role(summarise(table))
    assert [(row["role"], row["processes"], row["peak_mb"]) for row in told] == [
        ("broker", 1, 60.0),
        ("consumer", 2, 300.0),
    ]


def test_unreachable_source_is_left_out() -> None:
    def away() -> list[tuple[str, str, int]]:
        raise Unavailable("the controller is just being replaced")

    sampler = MemorySampler([away, own], HistoryClock.start())
    sampler.start()
    table = sampler.stop()
    assert table.schema == MEMORY
    assert set(table.column("process").to_pylist()) == {"driver"}
    assert min(table.column("bytes").to_pylist()) > 0
    assert sampler.stop().num_rows == table.num_rows


SHARED = """
import mmap, os
from sluice.loadgen.samples.memory import resident

MB = 1_000_000
before = resident(os.getpid())
with mmap.mmap(-1, 40 * MB) as common:  # an anonymous map is shared with children
    common.write(b"x" * len(common))
    shared = resident(os.getpid()) - before
    # Not from the allocator, which may have enough that was resident already.
    with mmap.mmap(-1, 60 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as own:
        own.write(b"x" * len(own))
        print(shared < 20 * MB, resident(os.getpid()) - before > 50 * MB)
"""


def test_shared_memory_and_ended_processes_count_nothing() -> None:
    """The sizes are measured in a process of its own, whose memory nothing else takes meanwhile."""
    told = subprocess.run([sys.executable, "-c", SHARED], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["True", "True"]
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    assert resident(child.pid) == 0
