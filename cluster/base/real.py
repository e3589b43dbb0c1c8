"""The real clock, randomness, background tasks and log behind the ports, and the ports of an actor of this process."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from sluice.actors.ports import Address, InCommon, Meta, Net, Objects, Places, Ports, Watch
from sluice.cluster.base.impairments import IMPAIRMENTS
from sluice.cluster.base.log_filter import FewOfEachKind
from sluice.cluster.base.log_parts import WARNINGS, logger_of

logger = logging.getLogger("sluice")
MOST_TROUBLES = 4
TROUBLE_MS = 30_000
BACKGROUND_NICE = 10
"""Of the thread that encodes and decodes megabytes, as the operating system counts it."""
T = TypeVar("T")


class _ContextOfThread(threading.local):
    """One context for all tasks and timers of the actors on a thread, which keep nothing in it: else each has a copy of
    its own. Two event loops may not be in one at the same time.
    """

    def __init__(self) -> None:
        self.context = contextvars.copy_context()


SHARED_CONTEXT = _ContextOfThread()
COUNTS_SUSPENSION = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
"""The clock that goes on while the machine is suspended: Linux has one of its own, and macOS no other one."""


class RealClock:
    """The clock of this machine."""

    def now(self) -> int:
        """Wall clock in milliseconds since 1970."""
        now = time.time_ns() // 1_000_000
        return IMPAIRMENTS.wall_clock(now) if IMPAIRMENTS.clock_leapt else now

    def monotonic(self) -> int:
        """Milliseconds since some moment before this process. The time of a suspension counts: the leases of a machine
        that sleeps are over for everybody else.
        """
        if COUNTS_SUSPENSION is None:
            return time.monotonic_ns() // 1_000_000
        return time.clock_gettime_ns(COUNTS_SUSPENSION) // 1_000_000

    async def sleep(self, milliseconds: int) -> None:
        await asyncio.sleep(milliseconds / 1000)

    def timer(self, milliseconds: int, call: Callable[[], object]) -> asyncio.TimerHandle:
        """Run a function on the event loop after so long."""
        return asyncio.get_running_loop().call_later(milliseconds / 1000, call, context=SHARED_CONTEXT.context)


class Tasks:
    """The background tasks of one actor; ends with it.

    failed: told the name and the error of each task that ends with one.
    """

    def __init__(self, owner: str, failed: Callable[[str, Exception], None] | None = None) -> None:
        self._owner = owner
        self._failed = failed
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._over = False

    def __call__(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name, context=SHARED_CONTEXT.context)
        self._tasks[task] = None
        task.add_done_callback(self._ended, context=SHARED_CONTEXT.context)
        if self._over:
            task.cancel()
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        name = f"{self._owner}:{task.get_name()}"
        logger_of(self._owner).error("%s failed: %r", name, error, exc_info=error)
        if self._failed is not None and isinstance(error, Exception):
            self._failed(name, error)

    def cancel_all(self) -> None:
        """End every task of this actor; what is spawned from now on does not even begin."""
        self._over = True
        for task in list(self._tasks):
            task.cancel()

    async def ended(self) -> None:
        """Wait until no task of this actor is left; see `cancel_all`."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))


class StructuredLog:
    """Logs one line for each event with the logger of the actor's part: actor, event, fields."""

    def __init__(self, actor: str) -> None:
        self._actor, self._logger = actor, logger_of(actor)

    def __call__(self, event: str, **fields: object) -> None:
        """Log at INFO, and at WARNING what `log_parts` says in words."""
        words = WARNINGS.get(event)
        level = logging.INFO if words is None else logging.WARNING
        if self._logger.isEnabledFor(level):
            line = f"%s {event} %s" if words is None else f"%s: {words}: %s"
            self._logger.log(level, line, self._actor, " ".join(f"{key}={value}" for key, value in fields.items()))


class TroubleLog:
    """A log that also remembers why things failed: its latest errors and reasons."""

    def __init__(self, log: StructuredLog, clock: RealClock) -> None:
        self._log, self._clock = log, clock
        self._latest: dict[str, int] = {}

    def __call__(self, event: str, **fields: object) -> None:
        self._log(event, **fields)
        said = fields.get("error") or fields.get("reason")
        if said:
            self._latest.pop(str(said), None)
            self._latest[str(said)] = self._clock.monotonic()
            if len(self._latest) > MOST_TROUBLES:
                del self._latest[next(iter(self._latest))]

    def troubles(self) -> list[str]:
        """Troubles of the last TROUBLE_MS milliseconds, oldest first."""
        now = self._clock.monotonic()
        return [said for said, at in list(self._latest.items()) if now - at < TROUBLE_MS]


async def work_beside(call: Callable[[], T]) -> T:
    """Call in the one thread of this process for such work, which gives way to the others. Implements ports.Work."""
    return await asyncio.get_running_loop().run_in_executor(_worker(), call)


@cache
def _worker() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "work", initializer=_give_way)


def _give_way() -> None:
    with contextlib.suppress(OSError):  # a system without priorities of threads
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BACKGROUND_NICE)


@cache
def make_rng() -> random.Random:
    """Randomness of the operating system. It has no state, so one is enough for all actors of a process."""
    return random.SystemRandom()


def real_ports(
    me: Address,
    net: Net,
    stores: tuple[Meta, Objects],
    spawn: Tasks,
    watch: Watch,
    process: InCommon,
    places: Places | None = None,
) -> Ports:
    """The world as an actor of this process sees it; its disk, if it has one, comes with its kind."""
    meta, objects = stores
    return Ports(
        me=me,
        clock=RealClock(),
        net=net,
        objects=objects,
        meta=meta,
        rng=make_rng(),
        spawn=spawn,
        log=StructuredLog(me),
        watch=watch,
        places=places,
        work=work_beside,
        process=process,
    )


def log_to_stderr(level: str) -> None:
    """Send Sluice's own log to stderr, which Ray puts into a worker's log file. level: debug, info, warning, error."""
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        handler.addFilter(FewOfEachKind())
        logger.addHandler(handler)
        logger.setLevel(level.upper())
