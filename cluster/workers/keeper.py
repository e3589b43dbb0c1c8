"""Keeps a pool: starts workers, asks how they stand, replaces those that died, scales, and rolls to another version.

A worker that died is replaced under its name: with the grace of the subscription no other key moves for that. A worker
that goes finishes what it handles and hands its keys over. A new version takes the place of an old one name by name:
the new worker is ready first, then the old one offers it all its keys (`Consumer.hand_over`), goes on until each has
passed over, and ends. So no hash moves, and no key waits for longer than the message that is under way.

Nothing here says what order means: the broker keeps that, whatever a keeper does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace

from sluice.cluster.workers.handler_worker import WorkerReport
from sluice.cluster.workers.options import WorkersOptions
from sluice.cluster.workers.places import PlacedWorker, Superseded, WorkerGone, WorkerPlaces
from sluice.cluster.workers.scaling import Scaling
from sluice.storage.errors import SluiceError

logger = logging.getLogger("sluice.pool")

LOOK_S = 0.1
"""Between two looks at the workers; one that ends is seen at once."""
REPLACE_FIRST_S, REPLACE_MOST_S = 0.1, 30.0
"""A worker that dies again and again is replaced less and less often."""
ROLL_WAIT_S = 60.0
"""So long a roll waits for room for a second worker; then the old one ends first, and its keys wait for the new one."""
CANNOT_BEGIN = (WorkerGone, SluiceError, TypeError, ValueError)
"""The last two are Ray's, of a handler or an option."""
MOST_DEATHS = 16
"""More are not counted: the longest wait is reached before."""
MOST_EVENTS = 100
MOST_EVENT = 300
"""Letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """workers: state of each by name (`starting`, `running`, `rolling`, `stopping`). handled, failed: calls of the
    handler so far. replaced: workers that died.

    oldest_age_ms: of the messages that wait at workers. failures: last tracebacks by key. overdue: keys by worker whose
    handler takes longer than it may. reason: why the number of workers stays as it is, or why one cannot start.
    versions: of the handler, by worker. where: the process of each. spares: processes that are ready for a name.
    events: when (ms since 1970) and what, the newest last.
    """

    workers: dict[str, str]
    handled: int
    failed: int
    replaced: int
    oldest_age_ms: int
    failures: dict[str, str]
    overdue: dict[str, list[str]]
    reason: str
    versions: dict[str, str] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)
    spares: int = 0
    events: list[tuple[int, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Deaths:
    """Workers in a row that did not stay, and when the next one may begin."""

    count: int = 0
    not_before: float = 0.0

    def add(self) -> None:
        """Count one more; the wait doubles with each, and the first is followed at once."""
        wait = min(REPLACE_FIRST_S * 2**self.count, REPLACE_MOST_S) if self.count else 0.0
        self.not_before = time.monotonic() + wait
        self.count = min(self.count + 1, MOST_DEATHS)


@dataclass(slots=True)
class _Member:
    """A worker of the pool under its name, which outlives the process or thread it has now."""

    placed: PlacedWorker | None = None
    successor: PlacedWorker | None = None
    """Has begun under the name while `placed` hands its keys over."""
    report: WorkerReport | None = None
    stopping: bool = False
    leaving: bool = False
    """The old one ends before the new one begins."""
    deaths: _Deaths = field(default_factory=_Deaths)
    """In a row, without a message handled between."""
    reason: str = ""

    @property
    def state(self) -> str:
        if self.stopping:
            return "stopping"
        if self.successor is not None or self.leaving:
            return "rolling"
        return "starting" if self.report is None else "running"


@dataclass(slots=True)
class _Totals:
    """The counts of workers that have ended."""

    handled: int = 0
    failed: int = 0
    replaced: int = 0
    failures: dict[str, str] = field(default_factory=dict)


class PoolKeeper:
    """`run` keeps the pool until `stop`. Everything else may be called by any thread meanwhile."""

    def __init__(self, options: WorkersOptions, version: str, places: WorkerPlaces) -> None:
        """version: of the handler that new workers have."""
        self._options, self._version, self._places = options, version, places
        self._scaling = Scaling(options.limits)
        self._members: dict[int, _Member] = {}
        self._totals = _Totals()
        self._reason = self._gave_up = ""
        self._events: deque[tuple[int, str]] = deque(maxlen=MOST_EVENTS)
        self._roll_since: float | None = None
        self._successors = _Deaths()
        self._no_successor_reason = ""
        self._lock = threading.Lock()
        """Guards what `status` reads."""
        self._stopping = threading.Event()
        self.fenced = False
        """Another keeper has the pool."""

    def stop(self) -> None:
        """Let `run` finish what is under way, hand over the keys, end all workers, and return."""
        self._stopping.set()

    def kill(self) -> None:
        """End all workers at once."""
        for member in list(self._members.values()):
            for placed in (member.placed, member.successor):
                if placed is not None:
                    placed.kill()

    def limit(self, min_workers: int, max_workers: int) -> None:
        """Keep this many workers from now on."""
        limits = self._scaling.limits
        if (limits.min_workers, limits.max_workers) != (min_workers, max_workers):
            self._scaling.limits = replace(limits, min_workers=min_workers, max_workers=max_workers)
            self._note(f"there are to be {min_workers} to {max_workers} workers")

    @property
    def gave_up(self) -> str:
        """Why the pool stops by itself; empty if it does not."""
        return self._gave_up

    def busy(self) -> list[str]:
        """Names of the workers that have not ended."""
        return [self._name(number) for number, member in list(self._members.items()) if member.placed is not None]

    def status(self) -> PoolStatus:
        """How the pool stands, as its workers said last."""
        with self._lock:
            members = {self._name(number): member for number, member in sorted(self._members.items())}
            reports = {name: one.report for name, one in members.items() if one.report}
            placed = {name: one.placed for name, one in members.items() if one.placed}
            failures = dict(self._totals.failures)
            for report in reports.values():
                failures |= report.failures
            reasons = [self._gave_up, self._reason, *(member.reason for member in members.values())]
            return PoolStatus(
                workers={name: member.state for name, member in members.items()},
                handled=self._totals.handled + sum(report.handled for report in reports.values()),
                failed=self._totals.failed + sum(report.failed for report in reports.values()),
                replaced=self._totals.replaced,
                oldest_age_ms=max((report.load.oldest for report in reports.values()), default=0),
                failures=failures,
                overdue={name: report.overdue for name, report in reports.items() if report.overdue},
                reason="; ".join(dict.fromkeys(filter(None, reasons))),
                versions={name: one.version for name, one in placed.items()},
                where={name: one.where for name, one in placed.items()},
                spares=self._places.spares(),
                events=list(self._events),
            )

    def tails(self) -> dict[str, str]:
        """The last lines that each worker has written, by name."""
        placed = [(self._name(number), member.placed) for number, member in sorted(self._members.items())]
        return {name: one.tail() for name, one in placed if one is not None}

    def run(self) -> None:
        """Keep the pool until `stop`. A keeper that was replaced leaves its workers as they are."""
        try:
            self._keep()
        except Superseded:
            self.fenced = True
            self._places.close()

    def _keep(self) -> None:
        for name, placed in self._places.adopt().items():
            number = name.removeprefix(f"{self._options.name}-")
            if number.isdecimal():
                self._members[int(number)] = _Member(placed)
                self._note(f"{name} goes on ({placed.where})")
        while not self._stopping.is_set():
            self._places.wait(LOOK_S, self._stopping, self._placed())
            self._look_at_all()
            if not self._stopping.is_set():
                self._scale()
                self._roll()
        self._places.close()
        if self.fenced:
            return
        self._stop_some(list(self._members))
        nothing_more = threading.Event()  # it has been told to stop; what it waits for is its workers' ends
        self._look_at_all()
        while self._members:
            self._places.wait(LOOK_S, nothing_more, self._placed())
            self._look_at_all()

    # -- in the keeper's thread -------------------------------------------------------------------------------------

    def _placed(self) -> list[PlacedWorker]:
        both = [placed for member in self._members.values() for placed in (member.placed, member.successor)]
        return [placed for placed in both if placed is not None]

    def _look_at_all(self) -> None:
        for number, member in list(self._members.items()):
            if member.successor is not None:
                self._look_at_successor(number, member)
            self._look(number, member)

    def _look(self, number: int, member: _Member) -> None:
        """See how one worker stands; start it if it has died or was never started."""
        if member.placed is None:
            if member.stopping:
                self._forget(number, member)
            elif time.monotonic() >= member.deaths.not_before:
                self._begin(number, member)
            return
        try:
            report = member.placed.report()
        except WorkerGone as error:
            self._died(number, member, str(error))
            return
        if report is None:
            member.reason = self._places.why_not_placed()
            return
        with self._lock:
            member.report, member.reason = report, ""
            if report.handled:
                member.deaths = _Deaths()
        if report.ended:
            member.placed.kill()
            self._ended(number, member, report)
        elif report.overdue and member.placed.ends_late:
            member.placed.kill()
            self._died(number, member, f"its handler took too long with {', '.join(report.overdue)}")
        elif report.handed_over and member.successor is not None:
            member.placed.stop()

    def _ended(self, number: int, member: _Member, report: WorkerReport) -> None:
        if report.gave_up:
            self._give_up(number, member, report)
        if member.stopping and member.successor is None:
            self._forget(number, member)
        elif member.successor is not None or member.leaving:
            self._succeeded(number, member)
        else:
            self._died(number, member, report.error)

    def _give_up(self, number: int, member: _Member, report: WorkerReport) -> None:
        with self._lock:
            self._gave_up, member.stopping = report.error, True
        self._note(f"{self._name(number)} gave up, and the pool stops")
        self._stopping.set()

    def _scale(self) -> None:
        active = {number: member for number, member in self._members.items() if not member.stopping}
        loads = [member.report.load for member in active.values() if member.report is not None]
        decision = self._scaling.decide(round(time.monotonic() * 1000), loads, len(active))
        with self._lock:
            self._reason = decision.reason
            for _ in range(decision.workers - len(active)):
                number = next(one for one in range(len(self._members) + 1) if one not in self._members)
                self._members[number] = _Member()
        if decision.workers != len(active):
            self._note(f"{len(active)} workers become {decision.workers}: {decision.reason}")
        self._stop_some(sorted(active)[decision.workers :])
        for number, member in list(self._members.items()):
            if member.placed is None:
                self._look(number, member)

    # -- another version --------------------------------------------------------------------------------------------

    def _roll(self) -> None:
        """Let one worker of another version pass on its name, if none does so already."""
        if any(member.successor is not None or member.leaving for member in self._members.values()):
            return
        old = self._of_another_version()
        if not old:
            self._roll_since = None
            return
        if time.monotonic() < self._successors.not_before:
            with self._lock:
                self._reason = self._no_successor_reason
            return
        self._roll_since = self._roll_since or time.monotonic()
        number, member = old[0]
        assert member.placed is not None
        try:
            ready = self._places.is_ready()
        except CANNOT_BEGIN as error:
            with self._lock:
                self._reason = f"a worker of version {self._version} cannot start: {error}"
            return
        late = time.monotonic() - self._roll_since > ROLL_WAIT_S
        if not (ready or late):
            with self._lock:
                self._reason = self._places.why_not_placed()
            return
        try:
            if not member.placed.hand_over():
                return
        except WorkerGone as error:
            self._died(number, member, str(error))
            return
        self._roll_since = None
        if ready:
            try:
                successor = self._places.start_worker(self._name(number))
            except CANNOT_BEGIN as error:
                self._no_successor(number, f"cannot start: {error}")
                return
            self._note(f"{self._name(number)} passes to version {self._version}")
            with self._lock:
                member.successor = successor
        else:
            self._note(f"{self._name(number)} ends, for there is no room for one of version {self._version} beside it")
            member.leaving = True
            member.placed.stop()

    def _of_another_version(self) -> list[tuple[int, _Member]]:
        return [
            (number, member)
            for number, member in sorted(self._members.items())
            if member.placed is not None
            and member.report is not None
            and member.placed.version != self._version
            and not member.stopping
        ]

    def _look_at_successor(self, number: int, member: _Member) -> None:
        assert member.successor is not None
        try:
            report = member.successor.report()
        except WorkerGone as error:
            self._lose_successor(number, member, f"died: {error}")
            return
        if report is not None and report.ended:
            self._add_up(report)
            if report.gave_up:
                self._give_up(number, member, report)
            self._lose_successor(number, member, f"ended: {_last_line(report.error)}")

    def _lose_successor(self, number: int, member: _Member, how: str) -> None:
        """Kill a successor that does not answer. It is not dead yet, and would stay with what it has of Ray."""
        assert member.successor is not None
        member.successor.kill()
        with self._lock:
            member.successor = None
        self._no_successor(number, how)

    def _no_successor(self, number: int, why: str) -> None:
        """The old one goes on; the next try comes later with each that fails."""
        self._no_successor_reason = f"the successor of {self._name(number)} {why}"
        self._successors.add()
        self._note(self._no_successor_reason)

    def _succeeded(self, number: int, member: _Member) -> None:
        self._successors = _Deaths()
        with self._lock:
            self._add_up(member.report)
            member.placed, member.successor = member.successor, None
            member.report, member.leaving, member.deaths = None, False, _Deaths()
        if member.stopping and member.placed is not None:
            member.placed.stop()

    # -- parts ------------------------------------------------------------------------------------------------------

    def _name(self, number: int) -> str:
        return f"{self._options.name}-{number}"

    def _note(self, what: str) -> None:
        self._events.append((round(time.time() * 1000), what[:MOST_EVENT]))

    def _begin(self, number: int, member: _Member) -> None:
        try:
            placed = self._places.start_worker(self._name(number))
        except CANNOT_BEGIN as error:
            self._wait_longer(member, f"{self._name(number)} cannot start: {error}")
            return
        with self._lock:
            member.placed = placed

    def _died(self, number: int, member: _Member, why: str) -> None:
        """Begin a dead worker again under its name, unless it was to stop or its successor goes on alone."""
        if not (member.stopping and not why):
            keys = ", ".join(member.report.under_way) if member.report is not None else ""
            self._note(f"{self._name(number)} died: {_last_line(why)}" + (f"; it had begun {keys}" if keys else ""))
        with self._lock:
            self._totals.replaced += not member.stopping
        if member.placed is not None:
            member.placed.kill()  # its worker has ended, and its process may not have
        if member.successor is not None:
            self._succeeded(number, member)
            return
        with self._lock:
            self._add_up(member.report)
            member.placed = member.report = None
            member.leaving = False
        self._wait_longer(member, f"{self._name(number)} died: {_last_line(why)}")
        if not member.stopping and time.monotonic() >= member.deaths.not_before:
            self._begin(number, member)

    def _wait_longer(self, member: _Member, reason: str) -> None:
        if reason != member.reason:
            logger.warning("%s", reason)
        with self._lock:
            member.deaths.add()
            member.reason = reason

    def _forget(self, number: int, member: _Member) -> None:
        with self._lock:
            self._add_up(member.report)
            del self._members[number]

    def _add_up(self, report: WorkerReport | None) -> None:
        if report is not None:
            self._totals.handled += report.handled
            self._totals.failed += report.failed
            self._totals.failures |= report.failures

    def _stop_some(self, numbers: list[int]) -> None:
        for number in numbers:
            member = self._members[number]
            with self._lock:
                member.stopping = True
            for placed in (member.placed, member.successor):
                if placed is not None:
                    placed.stop()


def _last_line(why: str) -> str:
    return why.strip().splitlines()[-1] if why.strip() else "it ended"
