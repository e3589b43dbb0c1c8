"""Consumers that come and go under load: who is alive, what is broken when, and what the history says of it.

A fault is due at a share of the messages delivered, so that it hits a run of any length in the same phase, or at a
time. `restart-consumer`: one leaves cleanly and comes back under its name. `kill-consumer`: one process gets SIGKILL
and is replaced. `join-consumer`: one more joins. Spare processes are started ahead, so that a replacement costs a
join and not the start of an interpreter.

What the history says about an end must be true for the judge: the death is noted before the signal is sent, so no
delivery to somebody else can come before it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from loadgen.consume import ConsumeJob, ConsumerProgress, seal_journals
from loadgen.history import DEATH, EVENTS, write_parquet
from storage.errors import Invalid, Unavailable

RESTART, KILL, JOIN = "restart-consumer", "kill-consumer", "join-consumer"
KINDS = (RESTART, KILL, JOIN)
AWAY_S = 0.3
"""How long a consumer that left cleanly stays away."""
_READY_S = 120.0
_STOP_S = 40.0
_LOOK_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class Fault:
    """Something to break: due when `share` of the messages are delivered, or `at_s` seconds after the start."""

    kind: str
    share: float = 0.0
    at_s: float = 0.0

    def due(self, share: float, seconds: float) -> bool:
        """Is it time?"""
        return seconds >= self.at_s if self.at_s else share >= self.share


def plan_by_share(restarts: int) -> list[Fault]:
    """`restarts` faults of each kind in turn, spread over the middle of the run."""
    return [Fault(KINDS[i % len(KINDS)], share=0.1 + 0.75 * (i + 0.5) / restarts) for i in range(restarts)]


def plan_by_time(kinds: Sequence[str], every_s: float, seconds: float, seed: int) -> list[Fault]:
    """One fault each `every_s` seconds, kinds drawn from the seed. Raises Invalid for an unknown kind."""
    for kind in kinds:
        if kind not in KINDS:
            raise Invalid(f"there is no fault {kind!r}; there are {', '.join(KINDS)}")
    count = int(seconds / every_s)
    drawn = np.random.default_rng([seed, 99]).integers(0, len(kinds), count)
    return [Fault(kinds[int(kind)], at_s=(turn + 1) * every_s) for turn, kind in enumerate(drawn)]


class Handle(Protocol):
    """One consumer process, somewhere. Each call may raise if the process is gone."""

    def ready(self, timeout_s: float) -> int:
        """Wait until the process is up; its process id."""

    def start(self, incarnation: str, consumer_name: str) -> None:
        """Join the subscription under this name and begin to work; returns at once."""

    def stop(self, timeout_s: float) -> None:
        """Leave cleanly and wait for it."""

    def end(self) -> None:
        """End the process if it still lives. Never raises."""


Spawn = Callable[[ConsumeJob], Handle]
"""Starts a process that waits to be told who it is."""


@dataclass
class Member:
    """One incarnation of a consumer."""

    handle: Handle
    incarnation: str
    name: str
    pid: int
    last: ConsumerProgress = field(default_factory=ConsumerProgress)


class Fleet:
    """The consumers of one flood: those that work, the spares, and the dead."""

    def __init__(self, job: ConsumeJob, spawn: Spawn, seed: int) -> None:
        self._job = job
        self._spawn = spawn
        self._rng = np.random.default_rng([seed, 7])
        self._started: list[Handle] = []
        self._spares: list[Handle] = []
        self._lives: dict[str, int] = {}
        self._events: list[dict[str, Any]] = []
        self._next = 0
        self.working: list[Member] = []
        self.gone: list[Member] = []
        self.history: list[dict[str, Any]] = []

    def begin(self, consumers: int, spares: int) -> None:
        """Start `consumers + spares` processes, and let the first `consumers` join when all of them are up."""
        handles = [self._process() for _ in range(consumers)]
        self._spares = [self._process() for _ in range(spares)]
        for handle in [*handles, *self._spares]:
            handle.ready(_READY_S)
        for handle in handles:
            self._join(handle, self._new_name())
        deadline = time.monotonic() + _READY_S
        while not all(member.last.joined for member in self.working):
            self.poll()
            if self.troubles() or time.monotonic() > deadline:
                raise Unavailable("; ".join(self.troubles()) or f"the consumers did not join within {_READY_S:.0f} s")
            time.sleep(_LOOK_EVERY_S)

    def inject(self, fault: Fault) -> None:
        """Break something now, and mend it; returns when it is mended. One fault at a time."""
        if fault.kind == JOIN:
            name = self._new_name()
            self._note(JOIN, name)
            self._join(self._spare(), name)
            return
        if not self.working:
            return
        self.poll()
        # One that has not joined yet has nothing to lose; it is taken only if there is nobody else.
        busy = [member for member in self.working if member.last.joined] or self.working
        victim = busy[int(self._rng.integers(len(busy)))]
        self.working.remove(victim)
        self.gone.append(victim)
        self._note(fault.kind, victim.name)
        if fault.kind == KILL:
            self._kill(victim)
            self._join(self._spare(), victim.name)
        else:
            self._stop(victim)
            time.sleep(AWAY_S)
            self._join(self._spare(), victim.name)

    def poll(self) -> None:
        """Look how far everybody is."""
        for member in [*self.working, *self.gone]:
            member.last = ConsumerProgress.read(self._job.progress / member.incarnation)

    @property
    def received(self) -> int:
        """Deliveries to all consumers so far, the gone ones included."""
        return sum(member.last.received for member in [*self.working, *self.gone])

    @property
    def redelivered(self) -> int:
        """Deliveries so far that the broker marked as redeliveries."""
        return sum(member.last.redelivered for member in [*self.working, *self.gone])

    def troubles(self) -> list[str]:
        """Consumers that stopped by themselves, and why."""
        return [
            f"consumer {member.incarnation} stopped: {member.last.error}"
            for member in [*self.working, *self.gone]
            if member.last.error
        ]

    def finish(self) -> None:
        """Everybody leaves cleanly; all histories become Parquet."""
        for member in self.working:
            self._stop(member)
        self.gone.extend(self.working)
        self.working = []
        for member in self.gone:
            seal_journals(self._job, member.incarnation)
        write_parquet(pa.Table.from_pylist(self._events, EVENTS), self._job.events / "driver.parquet")

    def close(self) -> None:
        """End every process that was started. Never raises."""
        for handle in self._started:
            handle.end()
        self._started = []

    def _new_name(self) -> str:
        self._next += 1
        return f"consumer-{self._next}"

    def _process(self) -> Handle:
        handle = self._spawn(self._job)
        self._started.append(handle)
        return handle

    def _spare(self) -> Handle:
        return self._spares.pop() if self._spares else self._process()

    def _join(self, handle: Handle, name: str) -> None:
        life = self._lives[name] = self._lives.get(name, 0) + 1
        incarnation = f"{name}.{life}"
        pid = handle.ready(_READY_S)
        handle.start(incarnation, name)
        self.working.append(Member(handle, incarnation, name, pid))

    def _stop(self, member: Member) -> None:
        with contextlib.suppress(Exception):
            member.handle.stop(_STOP_S)
        member.handle.end()

    def _kill(self, member: Member) -> None:
        at = self._job.clock.now()
        row = {"consumer": member.incarnation, "session": -1, "partition": -1, "event": DEATH, "at": at, "upto": 0}
        self._events.append(row)
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGKILL)

    def _note(self, kind: str, target: str) -> None:
        self.history.append({"at_us": self._job.clock.now(), "kind": kind, "target": target})
