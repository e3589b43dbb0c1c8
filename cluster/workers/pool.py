"""A pool of workers: calls a handler for every message of a subscription, in order of each key.

One thread looks after the workers. It starts them, asks how they stand, lets `Scaling` decide how many there should be,
and replaces those that died under their names: with the grace of the subscription no other key moves for that.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from actors.names import check_name
from cluster.bootstrap.connecting import connect
from cluster.workers.message_worker import Handler, WorkerReport
from cluster.workers.options import wanted_options
from cluster.workers.places import PlacedWorker, RayWorker, ThreadWorker, WorkerGone, lacking
from cluster.workers.scaling import Scaling
from storage.errors import Invalid, SluiceError, Unavailable

if TYPE_CHECKING:
    from cluster.client import Client

__all__ = ["PoolStatus", "Workers"]

LOOK_S = 0.1
"""The workers are asked so often how they stand."""
REPLACE_FIRST_S, REPLACE_MOST_S = 0.1, 30.0
"""A worker that dies again and again is replaced less and less often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """workers: state of each by name (`starting`, `running`, `stopping`). handled, failed: calls of the handler so far.

    oldest_age_ms: of the messages that wait at workers. failures: last tracebacks by key. overdue: keys by worker whose
    handler takes longer than it may. reason: why there are no more or fewer workers, or why one cannot start.
    """

    workers: dict[str, str]
    handled: int
    failed: int
    replaced: int
    oldest_age_ms: int
    failures: dict[str, str]
    overdue: dict[str, list[str]]
    reason: str


@dataclass(slots=True)
class _Member:
    """A worker of the pool under its name, which outlives the process or thread it has now."""

    placed: PlacedWorker | None = None
    report: WorkerReport | None = None
    stopping: bool = False
    deaths: int = 0
    """In a row, without a message handled between."""
    not_before: float = 0.0
    """When it may be started again."""
    reason: str = ""

    @property
    def state(self) -> str:
        if self.stopping:
            return "stopping"
        return "starting" if self.report is None else "running"


@dataclass(slots=True)
class _Totals:
    """Of workers that have ended."""

    handled: int = 0
    failed: int = 0
    replaced: int = 0
    failures: dict[str, str] = field(default_factory=dict)


class Workers:
    """`start`, `status` and `stop`, or a context manager; or a decorator of the handler, which becomes the pool.

    The handler is a function or coroutine function of one Message, or a class that is made once in each worker and
    whose objects are called. A message is acknowledged when the handler has returned.
    """

    def __init__(
        self,
        topic: str,
        subscription: str,
        handler: Handler | None = None,
        *,
        client: Client | None = None,
        **options: Any,
    ) -> None:
        """client: for workers that are threads; else the pool connects by itself. options: see
        cluster.workers.options.WorkersOptions. Raises Invalid.
        """
        self._place = check_name("topic", topic), check_name("subscription", subscription)
        self._handler, self._client = handler, client
        self.options = wanted_options(options, subscription)
        self._own_client: Client | None = None
        self._scaling = Scaling(self.options.limits)
        self._members: dict[int, _Member] = {}
        self._totals = _Totals()
        self._reason = ""
        self._lock = threading.Lock()
        """Guards what `status` reads."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, handler: Handler) -> Workers:
        """As a decorator: this pool, with its handler."""
        self._handler = handler
        return self

    def start(self) -> None:
        """Start the workers; they receive as soon as they run. A pool starts once. Raises Invalid, SluiceError."""
        if self._handler is None:
            raise Invalid("a pool of workers needs a handler")
        if self._thread is not None:
            raise Invalid("this pool was started already; make another one")
        if self.options.ray_actor_options is not None:
            _check_ray()
        elif self._client is None:
            self._client = self._own_client = connect(**self.options.connect)
        self._thread = threading.Thread(target=self._look_after, name=self.options.name, daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 60.0) -> None:
        """Finish what is under way, hand over the keys, and end all workers.

        Raises Unavailable that names the keys whose handlers did not end in time.
        """
        if self._thread is None:
            return
        self._stopping.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            with self._lock:
                late = [self._name(number) for number, member in self._members.items() if member.placed is not None]
                for member in self._members.values():
                    if member.placed is not None:
                        member.placed.kill()
            raise Unavailable(f"after {timeout_s:g} s these workers are still busy: {', '.join(late)}")
        if self._own_client is not None:
            self._own_client.close()

    def status(self) -> PoolStatus:
        """How the pool stands, as its workers said last."""
        with self._lock:
            reports = {self._name(number): one.report for number, one in self._members.items() if one.report}
            failures = dict(self._totals.failures)
            for report in reports.values():
                failures |= report.failures
            reasons = [self._reason, *(member.reason for member in self._members.values())]
            return PoolStatus(
                workers={self._name(number): member.state for number, member in sorted(self._members.items())},
                handled=self._totals.handled + sum(report.handled for report in reports.values()),
                failed=self._totals.failed + sum(report.failed for report in reports.values()),
                replaced=self._totals.replaced,
                oldest_age_ms=max((report.load.oldest for report in reports.values()), default=0),
                failures=failures,
                overdue={name: report.overdue for name, report in reports.items() if report.overdue},
                reason="; ".join(dict.fromkeys(filter(None, reasons))),
            )

    def __enter__(self) -> Workers:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- in the pool's thread ---------------------------------------------------------------------------------------

    def _look_after(self) -> None:
        while not self._stopping.wait(LOOK_S):
            for number, member in list(self._members.items()):
                self._look(number, member)
            self._scale()
        self._stop_some(list(self._members))
        while self._members:
            for number, member in list(self._members.items()):
                self._look(number, member)
            time.sleep(LOOK_S)

    def _look(self, number: int, member: _Member) -> None:
        """Ask one worker how it stands; start it if it has died or was never started."""
        if member.placed is None:
            if member.stopping:
                self._forget(number, member)
            elif time.monotonic() >= member.not_before:
                self._begin(number, member)
            return
        try:
            report = member.placed.report()
        except WorkerGone as error:
            self._died(number, member, str(error))
            return
        if report is None:
            member.reason = self._why_not_placed()
            return
        with self._lock:
            member.report, member.reason = report, ""
            if report.handled:
                member.deaths = 0
        if report.ended and member.stopping:
            member.placed.kill()
            self._forget(number, member)
        elif report.ended:
            member.placed.kill()
            self._died(number, member, report.error)
        elif report.overdue and isinstance(member.placed, RayWorker):
            member.placed.kill()
            self._died(number, member, f"its handler took too long with {', '.join(report.overdue)}")

    def _scale(self) -> None:
        active = {number: member for number, member in self._members.items() if not member.stopping}
        loads = [member.report.load for member in active.values() if member.report is not None]
        decision = self._scaling.decide(round(time.monotonic() * 1000), loads, len(active))
        with self._lock:
            self._reason = decision.reason
            for _ in range(decision.workers - len(active)):
                number = next(one for one in range(len(self._members) + 1) if one not in self._members)
                self._members[number] = _Member()
        self._stop_some(sorted(active)[decision.workers :])
        for number, member in list(self._members.items()):
            if member.placed is None:
                self._look(number, member)

    # -- parts ------------------------------------------------------------------------------------------------------

    def _name(self, number: int) -> str:
        return f"{self.options.name}-{number}"

    def _begin(self, number: int, member: _Member) -> None:
        assert self._handler is not None
        place = (*self._place, self._name(number))
        try:
            if self.options.ray_actor_options is not None:
                member.placed = RayWorker(place, self._handler, self.options)
            else:
                assert self._client is not None
                member.placed = ThreadWorker(self._client, place, self._handler, self.options)
        except (SluiceError, TypeError, ValueError) as error:  # the last two are Ray's, of a handler or an option
            self._wait_longer(member, f"{place[-1]} cannot start: {error}")

    def _died(self, number: int, member: _Member, why: str) -> None:
        """It is begun again under its name, unless it was to stop."""
        last = why.strip().splitlines()[-1] if why.strip() else "it ended"
        with self._lock:
            self._add_up(member)
            self._totals.replaced += not member.stopping
            member.placed = member.report = None
        self._wait_longer(member, f"{self._name(number)} died: {last}")

    def _wait_longer(self, member: _Member, reason: str) -> None:
        wait = min(REPLACE_FIRST_S * 2**member.deaths, REPLACE_MOST_S) if member.deaths else 0.0
        with self._lock:
            member.deaths, member.reason = min(member.deaths + 1, 16), reason
            member.not_before = time.monotonic() + wait

    def _forget(self, number: int, member: _Member) -> None:
        with self._lock:
            self._add_up(member)
            del self._members[number]

    def _add_up(self, member: _Member) -> None:
        if member.report is not None:
            self._totals.handled += member.report.handled
            self._totals.failed += member.report.failed
            self._totals.failures |= member.report.failures

    def _stop_some(self, numbers: list[int]) -> None:
        for number in numbers:
            member = self._members[number]
            with self._lock:
                member.stopping = True
            if member.placed is not None:
                try:
                    member.placed.stop()
                except WorkerGone as error:
                    self._died(number, member, str(error))

    def _why_not_placed(self) -> str:
        if self.options.ray_actor_options is None:
            return ""
        import ray

        short = lacking(self.options.ray_actor_options, ray.available_resources())
        return f"Ray cannot place one more worker: {short}" if short else ""


def _check_ray() -> None:
    """Ray starts a cluster of its own for a program that is attached to none. Raises Invalid."""
    import ray

    if not ray.is_initialized():
        raise Invalid("ray_actor_options want a program that is attached to Ray: call ray.init first")
