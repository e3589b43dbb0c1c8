"""The actors that should run, found by what is asked for: by name, kind, address and process.

A controller has ten thousand of them. What it does twice a second must cost what it does, and a process that dies is
reported by thousands: nobody passes all of them to find a few.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.actors.controller.crash_loop_detector import CrashLoopDetector
from sluice.actors.controller.start_order import Start
from sluice.actors.ownership.fenced_record import process_of
from sluice.actors.ports import Address
from sluice.actors.runtime.waiting import Signal

NOWHERE = ""
SERVED = "served"
"""In the settings of a dispatcher: another one has served before, so what it serves is there, or was deleted."""


@dataclass(slots=True)
class Running:
    """One actor that should run. address is empty while it is being started.

    leaving: the address that it had and whether its process is frozen, until that one is ended. away: its machine
    cannot be reached, and it stays what it is. refuses: why it takes no new runs, if it said so.
    """

    kind: str
    name: str
    settings: dict[str, Any]
    address: Address = ""
    leaving: tuple[Address, bool] | None = None
    misses: int = 0
    away: bool = False
    idle_ms: int = 0
    """See messages.Alive."""
    closing: bool = False
    """Whether the actor was asked to close, and its answer is awaited."""
    closed: bool = False
    restarts: int = 0
    starting: Start | None = None
    looking: Signal | None = None
    problem: str = ""
    refuses: str = ""
    ends: CrashLoopDetector = field(default_factory=CrashLoopDetector)
    number: int = 0
    """Counts those that came to be wanted. In this order they are started and looked at."""


class RunningActors:
    """The table of them."""

    def __init__(self) -> None:
        self._entries: dict[str, Running] = {}
        self._kinds: dict[str, dict[str, Running]] = {}
        self._at: dict[Address, Running] = {}
        self._in: dict[str, list[Running]] = {}
        """By process, or NOWHERE, in order of their numbers."""
        self._idle: dict[str, Running] = {}
        """Entries that were idle at the last answer, by name."""
        self._numbers = 0
        self._frames: dict[str, int] = {}
        """By process, the newest kind of frame that it reads."""

    def enter(self, entry: Running) -> None:
        """Add an actor that should run. An entry of the same name is replaced, and its number kept."""
        if (before := self._entries.get(entry.name)) is not None:
            self.remove(before)
            entry.number = before.number
        else:
            self._numbers += 1
            entry.number = self._numbers
        self._entries[entry.name] = self._kinds.setdefault(entry.kind, {})[entry.name] = entry
        self._put(entry)
        self.was_idle(entry, entry.idle_ms)

    def remove(self, entry: Running) -> None:
        """Remove an actor that should not run any more."""
        if self.has(entry):
            del self._entries[entry.name], self._kinds[entry.kind][entry.name]
            self._take(entry)
            self._idle.pop(entry.name, None)

    def runs_at(self, entry: Running, address: Address) -> None:
        """Set the address of an entry; empty means that it does not run."""
        known = self.has(entry)
        if known:
            self._take(entry)
        entry.address = address
        if known:
            self._put(entry)

    def was_idle(self, entry: Running, idle_ms: int) -> None:
        """Set for how long an actor was idle (ms), as its answer to a ping says."""
        entry.idle_ms = idle_ms
        if idle_ms and self.has(entry):
            self._idle[entry.name] = entry
        else:
            self._idle.pop(entry.name, None)

    def reads(self, process: str, frames: int) -> None:
        """Set the newest kind of frame that a process reads, as one of its actors says."""
        if self._frames.get(process) != frames:
            self._frames = {name: kind for name, kind in self._frames.items() if name in self._in} | {process: frames}

    @property
    def frames(self) -> int:
        """The newest kind of frame that all processes read; 1 while one of them has not said."""
        return min([self._frames.get(process, 1) for process in self._in if process != NOWHERE], default=1)

    def _put(self, entry: Running) -> None:
        insort(self._in.setdefault(process_of(entry.address), []), entry, key=_number_of)
        if entry.address:
            self._at[entry.address] = entry

    def _take(self, entry: Running) -> None:
        process = process_of(entry.address)
        there = self._in[process]
        del there[bisect_left(there, entry.number, key=_number_of)]
        if not there:
            del self._in[process]
        self._at.pop(entry.address, None)

    # -- who there is ---------------------------------------------------------------------------------------------

    def has(self, entry: Running) -> bool:
        """Whether this very one should run."""
        return self._entries.get(entry.name) is entry

    def find(self, name: str) -> Running | None:
        """The one of a name."""
        return self._entries.get(name)

    def at(self, address: Address) -> Running | None:
        """The one that runs there."""
        return self._at.get(address)

    def all(self) -> list[Running]:
        """Every one, in order of kind and name."""
        return [entry for _, entry in sorted(self._entries.items())]

    def of_kind(self, kind: str) -> list[Running]:
        """Return the entries of a kind, in order of name."""
        return [entry for _, entry in sorted(self._kinds.get(kind, {}).items())]

    def inside(self, process: str) -> Sequence[Running]:
        """Return the entries in a process, or in NOWHERE. The caller must not change the sequence."""
        return self._in.get(process, ())

    def processes(self) -> list[Sequence[Running]]:
        """Return the entries that run, grouped by process. The caller must not change the sequences."""
        there = [entries for process, entries in self._in.items() if process != NOWHERE]
        return sorted(there, key=lambda entries: entries[0].number)

    def idle(self, kinds: Iterable[str], least_ms: int) -> list[Running]:
        """Return the running entries of these kinds that were idle for `least_ms` or longer, by kind and number."""
        found = [entry for entry in self._idle.values() if entry.idle_ms >= least_ms and entry.address]
        return sorted((one for one in found if one.kind in kinds), key=lambda one: (one.kind, one.number))


def key_of(kind: str, settings: dict[str, Any]) -> str:
    """The name of an actor: its kind and what it serves."""
    parts = (settings.get(name) for name in ("bookie", "machine", "topic", "partition", "subscription"))
    return "/".join([kind, *(str(part) for part in parts if part is not None)])


def _number_of(entry: Running) -> int:
    return entry.number
