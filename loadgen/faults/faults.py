"""Consumers that come and go under load: which are alive, which faults come when, and their history.

A fault is due at a share of the messages delivered, so that it hits a run of any length in the same phase, or at a
time. The kinds are those of `loadgen.base.kinds`; this module does the consumers' own. Spare processes are started
ahead and are connected already, so that a replacement costs a join and nothing else.

A planned fault and one that a person asks for may come together, each from a thread of its own: whom they hit is
decided under a lock, what they wait for is not.

What the history says about an end must be true for the judge: the death is noted before the signal is sent, so no
delivery to another consumer can come before it.

A schedule is drawn from the seed alone, whom and how long included, so that the same seed breaks the same things at
the same times. What lasts (a frozen or slowed process) is taken back by a timer, and by `calm` at the latest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from sluice.loadgen.base.history import DEATH, EVENTS, EXPIRED, write_parquet
from sluice.loadgen.base.kinds import (
    ACT_KINDS,
    FLOOD_KINDS,
    FREEZE,
    FROZEN_S,
    HANG,
    JOIN,
    KILL,
    KINDS,
    RESTART,
    SLOW,
    check_kinds,
)
from sluice.loadgen.faults.slowdowns import SLOW_SHARE, Slowdown
from sluice.loadgen.load.consume import ConsumeJob, ConsumerProgress, seal_journals
from sluice.storage.errors import Unavailable

__all__ = ["FREEZE", "HANG", "JOIN", "KILL", "KINDS", "RESTART", "SLOW"]

PRESSED = "pressed"
"""The mark in rows of faults that a person asked for: they are outside the plan, and no effect is waited for."""
AWAY_S = 0.3
"""How long a consumer that left cleanly stays away."""
SPARES = 8
"""The most processes that are kept ready."""
MOST_MORE = 6
"""The most consumers that a run has for good beyond those that it began with."""
JOIN_S, HELP_S = 5.0, 2.0
"""How long a helper has to join, and then to receive a message, before the hanging consumer is killed."""
SURE_S = 5.0
"""A consumer that is stopped for no longer than this has its lease still."""
_LONGEST_STOP_S = 60.0
_TRIES = 3
_READY_S = 120.0
_STOP_S = 40.0
_LOOK_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class Fault:
    """A break that is due when `share` of the messages are delivered, or `at_s` seconds after the start.

    lot: the choice among the possible victims, 0 <= lot < 1. lasts_s: seconds until it is taken back, for kinds that
    last. target: the victim's name, if it is to be a certain one. holding: a victim of SIGKILL is stopped first, until
    it holds messages. pressed: a person asked for it.
    """

    kind: str
    share: float = 0.0
    at_s: float = 0.0
    lot: float = 0.0
    lasts_s: float = 0.0
    target: str = ""
    holding: bool = False
    pressed: bool = False

    @property
    def row(self) -> dict[str, Any]:
        """The row of the history, whichever victim it hits."""
        lasts = {"lasts_s": self.lasts_s} if self.lasts_s else {}
        return {"kind": self.kind, **lasts, **({PRESSED: True} if self.pressed else {})}

    def due(self, share: float, seconds: float) -> bool:
        return seconds >= self.at_s if self.at_s else share >= self.share


def plan_by_share(restarts: int, seed: int = 0) -> list[Fault]:
    """`restarts` faults of a flood's kinds in turn, spread over the middle of the run; victims from the seed."""
    lots = np.random.default_rng([seed, 7]).random(restarts)
    return [
        Fault(FLOOD_KINDS[i % len(FLOOD_KINDS)], share=0.1 + 0.75 * (i + 0.5) / restarts, lot=float(lots[i]))
        for i in range(restarts)
    ]


def plan_in_turn(restarts: int, seed: int = 0) -> list[Fault]:
    """`restarts` faults of the kinds of a flood in acts, due as soon as they may; victims from the seed."""
    lots = np.random.default_rng([seed, 7]).random(restarts)
    kinds = [ACT_KINDS[turn % len(ACT_KINDS)] for turn in range(restarts)]
    return [
        Fault(kind, lot=float(lot), lasts_s=FROZEN_S if kind == FREEZE else 0.0, holding=kind == KILL)
        for kind, lot in zip(kinds, lots, strict=True)
    ]


def plan_by_time(kinds: Sequence[str], every_s: float, seconds: float, seed: int) -> list[Fault]:
    """Return one fault each `every_s` seconds; kinds, victims and lengths are drawn from the seed.

    Each kind comes once before one comes again, in an order that is drawn again each time, so that a short run has
    something of everything. Raises Invalid for an unknown kind.
    """
    check_kinds(kinds)
    rng = np.random.default_rng([seed, 99])
    faults: list[Fault] = []
    order: list[int] = []
    for turn in range(int(seconds / every_s)):
        order = order or rng.permutation(len(kinds)).tolist()
        kind = KINDS[kinds[order.pop()]]
        shortest, longest = kind.seconds
        # Two draws whatever the kind: another list of kinds does not change the rest of the schedule's numbers.
        lot, length = rng.random(2).tolist()
        lasts = round(shortest + length**2 * (longest - shortest), 3)
        faults.append(Fault(kind.name, at_s=(turn + 1) * every_s, lot=lot, lasts_s=lasts))
    return faults


def processes_needed(faults: Sequence[Fault]) -> int:
    """How many new processes a plan will take at least."""
    takes = {KILL: 1, JOIN: 1, HANG: 2}
    return sum(takes.get(fault.kind, int(fault.kind == RESTART and not fault.target)) for fault in faults)


class Handle(Protocol):
    """One consumer process, somewhere. Each call may raise if the process is gone."""

    def ready(self, timeout_s: float) -> int:
        """Wait until the process is up; its process id."""

    def start(self, incarnation: str, consumer_name: str, receiver_queue_size: int) -> None:
        """Join the subscription under this name and begin to work; returns at once."""

    def stop(self, timeout_s: float) -> None:
        """Leave cleanly and wait for it."""

    def end(self) -> None:
        """End the process if it still lives. Never raises."""


Spawn = Callable[[ConsumeJob], Handle]
"""Starts a process that waits to be told who it is."""

Until = Callable[[str], dict[str, int]]
"""Waits until a stopped consumer is ready for its end; tells how many it `held`, and how many waited `behind` it."""


@dataclass
class ConsumerProcess:
    """One incarnation of a consumer."""

    handle: Handle
    incarnation: str
    name: str
    pid: int
    queue: int
    last: ConsumerProgress = field(default_factory=ConsumerProgress)


class Fleet:
    """The consumers of one flood: those that work, the spares, and the dead."""

    def __init__(self, job: ConsumeJob, spawn: Spawn) -> None:
        self._job = job
        self._spawn = spawn
        self._started: list[Handle] = []
        self._spares: list[Handle] = []
        self._queue = job.receiver_queue_size
        self._changing = threading.RLock()
        self._generations: dict[str, int] = {}
        self._events: list[dict[str, Any]] = []
        self._next = self._most = self._ahead = self._kept = 0
        self._episodes: list[Slowdown] = []
        self.working: list[ConsumerProcess] = []
        self.gone: list[ConsumerProcess] = []
        self.history: list[dict[str, Any]] = []
        self.passed_over: list[str] = []

    def start(self, consumers: int, spares: int, kept: int = 0) -> None:
        """Start `consumers + spares` processes, and let the first `consumers` join when all of them are up.

        kept: so many spares are there from then on, for what is not planned (`keep_spares`).
        """
        handles = [self._process() for _ in range(consumers)]
        self._spares = [self._process() for _ in range(min(spares, SPARES))]
        self._ahead = spares - len(self._spares)
        self._most = consumers + MOST_MORE
        for handle in [*handles, *self._spares]:
            handle.ready(_READY_S)
        for handle in handles:
            self._join(handle, self._new_name())
        self.await_joined()
        self.keep_spares(kept)

    def prepare(self, spares: int, queue: int) -> None:
        """Prepare this number of processes for later joins; returns when they are up.

        queue: receiver_queue_size of everybody who joins from now on. That of a flood would hold more than comes under
        a fixed rate, and nobody's would ever be full.
        """
        self._queue = queue
        self._spares += [self._process() for _ in range(min(spares, SPARES) - len(self._spares))]
        for handle in list(self._spares):
            handle.ready(_READY_S)

    def keep_spares(self, count: int) -> None:
        """Keep `count` processes ready from now on, for unplanned needs; `poll` replaces those that were taken.

        Returns at once: they make themselves ready.
        """
        self._kept = count
        self._spares += [self._process() for _ in range(count - len(self._spares))]

    def await_joined(self) -> None:
        """Wait until all consumers have joined. Raises Unavailable if one cannot."""
        deadline = time.monotonic() + _READY_S
        self.poll()
        while not all(member.last.joined for member in self.working):
            self.poll()
            if self.troubles() or time.monotonic() > deadline:
                raise Unavailable("; ".join(self.troubles()) or f"the consumers did not join within {_READY_S:.0f} s")
            time.sleep(_LOOK_EVERY_S)

    def inject(self, fault: Fault, until: Until | None = None) -> None:
        """Break something now, and mend it; returns when it is mended, or will be by a timer.

        until: a victim of SIGKILL is stopped first and killed when this returns.
        """
        if fault.kind == JOIN:
            self._add(fault)
        elif fault.kind in (KILL, HANG):
            self._kill(fault) if until is None else self._stop_and_kill(fault, until)
        elif fault.kind == RESTART:
            self._leave_and_return(fault)
        else:
            self._hold_up(fault)

    def _add(self, fault: Fault) -> None:
        with self._changing:
            if len(self.working) >= self._most:
                self.passed_over.append(f"{JOIN}: {len(self.working)} consumers are enough")
                return
            name = self._new_name()
        self._note(fault, name)
        self._join(self._spare(), name)

    def _hold_up(self, fault: Fault) -> None:
        with self._changing:
            victim = self._victim(fault)
            if victim is not None:
                self._note(fault, victim.name, incarnation=victim.incarnation)
                share = SLOW_SHARE if fault.kind == SLOW else 0.0
                self._episodes.append(Slowdown([victim.pid], fault.lasts_s, share))

    def _leave_and_return(self, fault: Fault) -> None:
        with self._changing:
            victim = self._victim(fault)
            if victim is None:
                return
            self._note(fault, victim.name)
            self._part(victim)
        if fault.target and not fault.pressed:
            self._return(victim)
            self.await_joined()
        else:
            self._return(victim, self._spare())

    def _kill(self, fault: Fault) -> None:
        with self._changing:
            victim = self._victim(fault)
            if victim is None:
                return
            self._note(fault, victim.name, incarnation=victim.incarnation)
            dead = self.strike([victim.pid])
        self.replace(dead)

    def _stop_and_kill(self, fault: Fault, until: Until) -> None:
        began, since = time.monotonic(), self._job.clock.now()
        with self._changing:
            victim = self._victim(fault)
            if victim is None:
                return
            stopped = Slowdown([victim.pid], _LONGEST_STOP_S)
            self._episodes.append(stopped)
        more: dict[str, Any] = dict(until(victim.name))
        helper = None
        if fault.kind == HANG:
            more["helper"] = self._new_name()
            helper = self._join(self._spare(), more["helper"])
            self._await_help(helper)
            more["hung_s"] = round(time.monotonic() - began, 3)
        with self._changing:
            self._note(fault, victim.name, incarnation=victim.incarnation, **more)
            if time.monotonic() - began > SURE_S:
                # The lease may have run out, and only this row says so: the consumer did nothing since it was stopped.
                self._events.append(_event(victim.incarnation, EXPIRED, since))
            dead = self.strike([victim.pid])
        stopped.end()
        self.replace(dead)  # nobody, if it went with its node meanwhile: then its replacement has been seen to
        if helper is not None:
            self._thank(helper)

    def _thank(self, helper: ConsumerProcess) -> None:
        """Let a helper leave cleanly if there are more consumers than may join for good; else it stays."""
        with self._changing:
            if len(self.working) <= self._most or helper not in self.working:
                return
            self._part(helper)
        self._stop(helper)

    def _await_help(self, helper: ConsumerProcess) -> None:
        """Wait until one who joins is in, JOIN_S at most, and has received something, HELP_S at most from then on."""
        deadline = time.monotonic() + JOIN_S
        inside = False
        while time.monotonic() < deadline and not helper.last.received:
            self.poll()
            if helper.last.joined and not inside:
                inside, deadline = True, time.monotonic() + HELP_S
            time.sleep(_LOOK_EVERY_S)

    def strike(self, pids: Sequence[int]) -> list[ConsumerProcess]:
        """SIGKILL any processes; the consumers among them count as dead from now on, and are returned."""
        with self._changing:
            dead = [member for member in self.working if member.pid in pids]
            at = self._job.clock.now()
            for member in dead:
                self._events.append(_event(member.incarnation, DEATH, at))
                self._part(member)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return dead

    def replace(self, dead: Sequence[ConsumerProcess]) -> None:
        """Let other consumers join under the names of the dead."""
        for member in dead:
            self._join(self._spare(), member.name)

    def _part(self, member: ConsumerProcess) -> None:
        self.working.remove(member)
        self.gone.append(member)

    def _return(self, member: ConsumerProcess, handle: Handle | None = None) -> None:
        """Let a consumer leave cleanly, and come back later under its name, in the given process or in its old one."""
        with contextlib.suppress(Exception):
            member.handle.stop(_STOP_S)
        if handle is not None:
            member.handle.end()
        time.sleep(AWAY_S)
        self._join(handle or member.handle, member.name)

    def calm(self) -> None:
        """Take back everything that still lasts."""
        for episode in self._episodes:
            episode.end()
        self._episodes = []

    def _victim(self, fault: Fault) -> ConsumerProcess | None:
        """The victim: a consumer that works. None while half of the consumers are joining or already suffer.

        Otherwise a machine on which a join takes longer than the time between two faults ends without consumers.
        """
        self.poll()
        suffering = [pid for episode in self._episodes if not episode.over for pid in episode.pids]
        able = [member for member in self.working if member.pid not in suffering]
        able = [member for member in able if fault.target in ("", member.name)]
        able = [member for member in able if member.last.joined]
        if not able or (len(able) * 2 < len(self.working) and not fault.target):
            self.passed_over.append(f"{fault.kind}: {len(able)} of {len(self.working)} consumers work just now")
            return None
        if fault.kind == HANG:
            # A long queue takes too long to fill.
            shortest = min(member.queue for member in able)
            able = [member for member in able if member.queue == shortest]
        return able[int(fault.lot * len(able))]

    def poll(self) -> None:
        """Look how far everybody is."""
        for member in [*self.working, *self.gone]:
            member.last = ConsumerProgress.read(self._job.progress / member.incarnation)
        # A process that makes itself ready takes time from those that join just now.
        if len(self._spares) < self._kept and all(member.last.joined for member in self.working):
            self._spares.insert(0, self._process())

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
        """Let all consumers leave cleanly; all histories become Parquet."""
        self.calm()
        for member in self.working:
            self._stop(member)
        self.gone.extend(self.working)
        self.working = []
        for member in self.gone:
            seal_journals(self._job, member.incarnation)
        write_parquet(pa.Table.from_pylist(self._events, EVENTS), self._job.events / "driver.parquet")

    def close(self) -> None:
        """End every process that was started. Never raises."""
        self.calm()
        for handle in self._started:
            handle.end()
        self._started = []

    def _new_name(self) -> str:
        with self._changing:
            self._next += 1
            return f"consumer-{self._next}"

    def _process(self) -> Handle:
        handle = self._spawn(self._job)
        self._started.append(handle)
        return handle

    def _spare(self) -> Handle:
        with self._changing:
            if self._ahead:
                self._ahead -= 1
                self._spares.insert(0, self._process())
            return self._spares.pop() if self._spares else self._process()

    def _join(self, handle: Handle, name: str) -> ConsumerProcess:
        for left in reversed(range(_TRIES)):
            with self._changing:
                generation = self._generations[name] = self._generations.get(name, 0) + 1
            incarnation = f"{name}.{generation}"
            try:
                pid = handle.ready(_READY_S)
                handle.start(incarnation, name, self._queue)
                break
            except Exception:
                # A spare may have been in what was killed last. Whatever Ray calls that: another one is started. One
                # that only did not answer may have joined: in the history it is another consumer, and it dies.
                self._events.append(_event(incarnation, DEATH, self._job.clock.now()))
                self.gone.append(ConsumerProcess(handle, incarnation, name, 0, self._queue))
                handle.end()
                if not left:
                    raise
                handle = self._process()
        joined = ConsumerProcess(handle, incarnation, name, pid, self._queue)
        self.working.append(joined)
        return joined

    def _stop(self, member: ConsumerProcess) -> None:
        with contextlib.suppress(Exception):
            member.handle.stop(_STOP_S)
        member.handle.end()

    def _note(self, fault: Fault, target: str, **more: Any) -> None:
        self.note({**fault.row, "target": target, **more})

    def note(self, what: dict[str, Any]) -> dict[str, Any]:
        """Record what was done, with the time; returns its row of the history."""
        self.history.append(row := {"at_us": self._job.clock.now(), **what})
        return row


def _event(incarnation: str, event: str, at: int) -> dict[str, Any]:
    """A row of EVENTS about all sessions of a consumer."""
    return {"consumer": incarnation, "session": -1, "partition": -1, "event": event, "at": at, "upto": 0}
