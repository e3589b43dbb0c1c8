"""Samples the memory of every process of a running flood, so that a leak shows as a climbing line.

A broker that holds a backlog in memory, a dispatcher that never forgets, a client that keeps what it sent: none of
this breaks a promise in a short run, and all of it ends a long one. So the memory of each process is part of the
report. What counts is not how high a line is (an interpreter with Arrow and Ray takes 80 MB before it does anything)
but whether it still climbs once everything is warm.

A process's memory is what is resident and its own: libraries and the node's shared memory are left out. A process that
reads or writes payloads touches page after page of the shared memory, and all of them are resident in it; counted
there, the store's fixed size would look like a leak of every process. The shared memory has a line of its own, which
shows the part in use: the payloads of messages that were published and are not delivered yet.

A process is warm a minute after its first sample, or after half of its samples if it lived shorter than two minutes;
its growth is the median of its last samples minus the median of those just after it was warm. Medians, because an
allocator gives memory back when it likes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from sluice.loadgen.base.history import HistoryClock, Int64s
from sluice.loadgen.faults.faults import Fleet
from sluice.loadgen.samples.sampling import Sampling
from sluice.storage.errors import SluiceError

MEMORY = pa.schema(
    [
        pa.field("at", pa.int64()),
        pa.field("role", pa.string()),
        pa.field("process", pa.string()),
        pa.field("bytes", pa.int64()),
    ]
)
"""One row a process and moment: resident bytes of its own, at in microseconds (HistoryClock)."""

SHARED = "shared memory"
ROLES = ("broker", "bookie", "controller", "consumer", "producer", "spark", "flood", SHARED)
"""In the order of the report. broker: owners of topics and dispatchers. spark: the Java process. flood: the command."""
WARM_US = 60_000_000
_WINDOW = 0.1

Source = Callable[[], list[tuple[str, str, int]]]
"""Gives (role, process, bytes) of what runs now. May raise SluiceError, psutil.Error."""


@dataclass
class MemorySampler(Sampling):
    """Asks its sources once a second, in a thread. A source that does not answer is left out of that sample."""

    name, schema, every_s = "memory", MEMORY, 1.0

    sources: Sequence[Source]
    clock: HistoryClock
    rows: list[dict[str, Any]] = field(default_factory=list)

    def sample(self) -> None:
        for source in self.sources:
            at = self.clock.now()
            with contextlib.suppress(SluiceError, psutil.Error):
                self.rows += [
                    {"at": at, "role": role, "process": process, "bytes": count} for role, process, count in source()
                ]


def consumers(fleet: Fleet) -> Source:
    """The consumers that work, each incarnation a process of its own."""

    def ask() -> list[tuple[str, str, int]]:
        return [
            ("consumer", member.incarnation, size) for member in list(fleet.working) if (size := resident(member.pid))
        ]

    return ask


def spark() -> list[tuple[str, str, int]]:
    """Spark's Java process, and its Python workers, which publish; empty without a session in this process."""
    from pyspark import SparkContext

    java = getattr(SparkContext._gateway, "proc", None)
    if java is None:
        return []
    found = [("spark", "java", resident(java.pid))]
    workers = [one for one in psutil.Process(java.pid).children(recursive=True) if _is_worker(one)]
    found += [("producer", f"worker-{one.pid}", resident(one.pid)) for one in workers]
    return [row for row in found if row[2]]


def _is_worker(process: psutil.Process) -> bool:
    """Whether this is a Python worker of Spark: a child of the Python process that Spark starts them with."""
    with contextlib.suppress(psutil.Error):
        parent = process.parent()
        return "pyspark.daemon" in process.cmdline() and parent is not None and "pyspark.daemon" in parent.cmdline()
    return False


def own() -> list[tuple[str, str, int]]:
    """This process, which starts, watches and judges."""
    return [("flood", "driver", resident(psutil.Process().pid))]


def resident(pid: int) -> int:
    """Resident bytes of a process of this machine that are its own, 0 if it is gone."""
    with contextlib.suppress(psutil.Error):
        memory = psutil.Process(pid).memory_info()
        return int(memory.rss - getattr(memory, "shared", 0))  # Linux tells what is shared
    return 0


@dataclass(frozen=True, slots=True)
class Line:
    """One process's memory over time. at (us) and size (bytes): int64, same length, ascending times."""

    role: str
    process: str
    at: Int64s
    size: Int64s

    @property
    def warm_at(self) -> int:
        """The time from which on the growth counts (us)."""
        first, last = int(self.at[0]), int(self.at[-1])
        return first + min(WARM_US, (last - first) // 2)

    @property
    def peak(self) -> int:
        """The most that it ever took, bytes."""
        return int(self.size.max())

    def warm(self) -> int:
        """Bytes when it was warm: the median of a tenth of its time from there."""
        return self._median(self.warm_at, self.warm_at + self._window())

    def end(self) -> int:
        """Bytes at its end: the median of the last tenth of its time."""
        return self._median(int(self.at[-1]) - self._window(), int(self.at[-1]))

    def _window(self) -> int:
        return int((self.at[-1] - self.at[0]) * _WINDOW)

    def _median(self, start: int, end: int) -> int:
        inside = (self.at >= start) & (self.at <= end)
        # Samples may be missing while a process stands still; the one before is what is known then.
        chosen = self.size[inside] if inside.any() else self.size[self.at <= start][-1:]
        return int(np.median(chosen))


def lines(samples: pa.Table) -> list[Line]:
    """The lines of all processes, by role and name; a process that was seen only once makes no line."""
    found = []
    table = samples.sort_by([("role", "ascending"), ("process", "ascending"), ("at", "ascending")])
    names = list(zip(table.column("role").to_pylist(), table.column("process").to_pylist(), strict=True))
    at, size = table.column("at").to_numpy(), table.column("bytes").to_numpy()
    cuts = [0, *(i for i in range(1, len(names)) if names[i] != names[i - 1]), len(names)]
    for start, end in pairwise(cuts):
        if end - start > 1:
            found.append(Line(*names[start], at[start:end], size[start:end]))
    return sorted(found, key=lambda line: (_rank(line.role), line.process))


def _rank(role: str) -> int:
    return ROLES.index(role) if role in ROLES else len(ROLES)


def summarise(samples: pa.Table) -> list[dict[str, Any]]:
    """Return an entry a process for the report: megabytes when warm, at the end, at the peak; growth since warm."""
    return [
        {
            "role": line.role,
            "process": line.process,
            "seconds": round((int(line.at[-1]) - int(line.at[0])) / 1e6, 1),
            "warm_mb": _mb(line.warm()),
            "end_mb": _mb(line.end()),
            "peak_mb": _mb(line.peak),
            "growth_mb": _mb(line.end() - line.warm()),
        }
        for line in lines(samples)
    ]


def by_role(summaries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry a role from the entries of `summarise`: the number of processes, and the most that any took
    and grew.
    """
    rows = []
    for role in dict.fromkeys(entry["role"] for entry in summaries):
        mine = [entry for entry in summaries if entry["role"] == role]
        most = {name: max(entry[name] for entry in mine) for name in ("warm_mb", "end_mb", "peak_mb", "growth_mb")}
        rows.append({"role": role, "processes": len(mine), **most})
    return rows


def _mb(count: int) -> float:
    return round(count / 1e6, 1)
