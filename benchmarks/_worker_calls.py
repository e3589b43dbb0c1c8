"""The calls of a pool's handlers, as the handlers wrote them down, and what follows from them.

A handler writes when a call begins and when it ends, each with one `write`, so that a SIGKILL takes nothing of it. A
call without an end lasted until its process was killed.

What must hold: every message was called for; the first calls of a key come in order; where a message comes again its
key goes on from there; no call of a key began before the last one had ended; and a message was called for again only if
the worker that had it before was killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

CALL = np.dtype([("key", "<i4"), ("number", "<i4"), ("begin", "<i8"), ("end", "<i8")])
"""key, number: of the message. begin, end: ns of the machine's monotonic clock; no end yet: 0."""
FOR_EVER = np.iinfo(np.int64).max

Calls = npt.NDArray[Any]
"""Rows of CALL with the process of each, `pid`."""


class CallRecorder:
    """A recorder in a handler: `begin`, then `end`. One file for each worker, named by its process."""

    def __init__(self, folder: str, node: str = "") -> None:
        name = f"{os.getpid()}-{time.monotonic_ns()}-{node or 'here'}"
        self._file = os.open(Path(folder, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def begin(self, key: int, number: int) -> tuple[int, int, int]:
        """A call begins; returns what `end` wants."""
        call = (key, number, time.monotonic_ns())
        os.write(self._file, np.array([(*call, 0)], CALL).tobytes())
        return call

    def end(self, call: tuple[int, int, int]) -> None:
        os.write(self._file, np.array([(*call, time.monotonic_ns())], CALL).tobytes())


def nodes_of(folder: Path) -> set[str]:
    """Return the nodes on whose workers a handler wrote something."""
    return {path.name.split("-")[2] for path in folder.iterdir()}


def written(folder: Path, deaths: Mapping[int, int]) -> Calls:
    """All calls. deaths: when a process was killed, ns, by process."""
    found = []
    for path in sorted(folder.iterdir()):
        rows = np.frombuffer(path.read_bytes()[: path.stat().st_size // CALL.itemsize * CALL.itemsize], CALL)
        rows = rows[np.lexsort((rows["end"], rows["number"], rows["key"], rows["begin"]))]
        begun = np.flatnonzero(rows["end"] == 0)
        behind = np.minimum(begun + 1, len(rows) - 1)
        same = (rows["begin"][behind] == rows["begin"][begun]) & (rows["key"][behind] == rows["key"][begun])
        pid = int(path.name.split("-")[0])
        calls = np.empty(len(begun), np.dtype([*CALL.descr, ("pid", "<i8")]))
        for name in ("key", "number", "begin"):
            calls[name] = rows[name][begun]
        calls["end"] = np.where(same & (behind > begun), rows["end"][behind], deaths.get(pid, FOR_EVER))
        calls["pid"] = pid
        found.append(calls)
    return np.concatenate(found)


def judged(calls: Calls, deaths: Mapping[int, int], keys: int, messages: int) -> dict[str, int]:
    """Count the calls and their defects: `lost`, `out_of_order`, `beside_another` and `again_unexplained` are to be 0.

    Message n has key n % keys and is number n // keys of that key. again: calls for a message that was called for
    before.
    """
    calls = calls[np.lexsort((calls["begin"], calls["key"]))]
    same_key = calls["key"][1:] == calls["key"][:-1]
    beside = same_key & (calls["begin"][1:] < calls["end"][:-1])
    jumps = same_key & (calls["number"][1:] > calls["number"][:-1] + 1)
    first = np.concatenate(([True], ~same_key))
    late_start = first & (calls["number"] != 0)
    by_message = calls[np.lexsort((calls["begin"], calls["number"], calls["key"]))]
    again = (by_message["key"][1:] == by_message["key"][:-1]) & (by_message["number"][1:] == by_message["number"][:-1])
    died = np.array([deaths.get(int(pid), FOR_EVER) for pid in by_message["pid"][:-1][again]], np.int64)
    explained = died <= by_message["begin"][1:][again]
    handled = len(np.unique(calls["key"].astype(np.int64) + calls["number"].astype(np.int64) * keys))
    return {
        "calls": len(calls),
        "again": int(again.sum()),
        "again_unexplained": int((~explained).sum()),
        "lost": messages - handled,
        "out_of_order": int(jumps.sum() + late_start.sum()),
        "beside_another": int(beside.sum()),
        "without_end": int((calls["end"] == FOR_EVER).sum()),
    }


def results_judged(stored: list[npt.NDArray[np.int64]], keys: int, messages: int) -> dict[str, int]:
    """Counts of what is in an output, all but `results` to be 0. stored: by partition, the message that each result was
    made of, in order.
    """
    found = np.concatenate(stored) if stored else np.empty(0, np.int64)
    wrong = 0
    for part in stored:
        by_key = part[np.argsort(part % keys, kind="stable")]
        same = by_key[1:] % keys == by_key[:-1] % keys
        wrong += int((same & (by_key[1:] <= by_key[:-1])).sum())
    known = np.unique(found)
    return {
        "results": len(found),
        "results_twice": len(found) - len(known),
        "results_missing": messages - len(known),
        "results_out_of_order": wrong,
    }
