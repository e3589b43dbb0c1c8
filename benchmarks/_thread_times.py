"""Which threads of some processes take the processor time of a message, and how often they wait for something."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

MOST = 14
"""Threads that a table names."""


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """The processor time of a thread so far. is_main: the thread is the first of its process. waits: how often it gave
    up the processor to wait.
    """

    process: str
    is_main: bool
    seconds: float
    waits: int


def thread_times(processes: Sequence[psutil.Process]) -> dict[int, ThreadTime]:
    found = {}
    for process in processes:
        for folder in Path(f"/proc/{process.pid}/task").glob("*"):
            with contextlib.suppress(OSError, psutil.Error):  # it has ended
                ran = int((folder / "schedstat").read_text().split()[0]) / 1e9
                status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
                waits = int(status["voluntary_ctxt_switches"])
                is_main = folder.name == str(process.pid)
                found[int(folder.name)] = ThreadTime(_role(process), is_main, ran, waits)
    return found


def table(before: dict[int, ThreadTime], after: dict[int, ThreadTime], messages: int) -> list[str]:
    """Lines: what the busiest threads took for each message, and how often each of them waited."""
    none = ThreadTime("", False, 0.0, 0)
    rows = []
    for number, thread in after.items():
        earlier = before.get(number, none)
        took = (thread.seconds - earlier.seconds) * 1e6 / messages
        rows.append((took, (thread.waits - earlier.waits) / messages, thread))
    rows.sort(key=lambda row: -row[0])
    lines = [f"  {'process':16}{'thread':>10}{'us':>10}{'waits':>10}"]
    for took, waits, thread in rows[:MOST]:
        lines.append(f"  {thread.process:16}{'main' if thread.is_main else 'other':>10}{took:>10.0f}{waits:>10.1f}")
    return [*lines, f"  {'the others':16}{'':>10}{sum(row[0] for row in rows[MOST:]):>10.0f}"]


def _role(process: psutil.Process) -> str:
    """A bookie is known by its journal; of the others the system knows a name."""
    name = str(process.name())
    with contextlib.suppress(psutil.Error):
        if any("/journal-" in file.path for file in process.open_files()):
            return "bookie" if name.startswith("ray::") else "all in one"
    return name
