"""Notices at once that a process has ended: the `Watch` port on Linux.

A consumer that is killed says nothing, and its lease runs for seconds. But a process that has ended holds nothing, and
on its own machine the kernel knows. So a consumer names its process when it attaches: machine, process id and start
time. A host on the same machine opens a pidfd, a handle of that very process: it becomes readable when all of its
threads are gone, and never for another reason, be it frozen, traced or out of memory. The start time is compared after
the handle was opened, so a number that another process has got since is not taken for it.

Nothing else is proof. A broken connection may be a cut cable; a process of another machine, or of another container
with its own process ids, may be anything. For those, and on systems without pidfds, the lease alone decides.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from sluice.cluster.base.forks import forget_in_children

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_LAST_PID = (1 << 31) - 1
_known: dict[str, str] = {}
"""What does not change as long as this process lives."""


def this_process() -> str:
    """The name of this process for `ProcessWatch`; empty if its end could not be proved. Each consumer asks for it."""
    return _kept("process", _name)


def space(kind: str) -> str:
    """Return this boot of this machine and its view of something (`pid`, `mnt`, `net`); empty if it is not known now,
    as in a process that may open no more files.
    """
    return _kept(kind, lambda: f"{_BOOT.read_text().strip()}:{os.stat(f'/proc/self/ns/{kind}').st_ino}")


def _kept(what: str, find: Callable[[], str]) -> str:
    if not (value := _known.get(what, "")):
        try:
            value = find()
        except OSError:
            return ""
        if value:
            _known[what] = value
    return value


def _name() -> str:
    machine, started = _machine(), _started(os.getpid())
    return f"{machine}/{os.getpid()}/{started}" if machine and started else ""


def lives(process: str) -> bool:
    """Whether there is a process of this name on this machine now. One that nobody has reaped counts."""
    _, pid, started = process.split("/")
    return _is_here(process) and _started(int(pid)) == started


class ProcessWatch:
    """The `Watch` port of one event loop. Many may wait for one process; it costs one handle."""

    def __init__(self) -> None:
        self._watches: dict[str, _Watched] = {}

    def sees(self, process: str) -> bool:
        return _is_here(process) and process != this_process()

    async def ended(self, process: str) -> None:
        if not _is_here(process):
            await asyncio.get_running_loop().create_future()
        watched = self._watches.get(process)
        if watched is None:
            watched = self._watches[process] = _Watched(process.partition("/")[2])
        try:
            await watched.ended()
        finally:
            if not watched.waiting:
                watched.task.cancel()
                if self._watches.get(process) is watched:
                    del self._watches[process]


def _is_here(process: str) -> bool:
    """Whether it runs, or ran, on this machine."""
    machine = process.partition("/")[0]
    return bool(machine) and machine == _machine()


class _Watched:
    """A process, and the callers that wait for its end.

    A caller that gives up costs the others nothing. Ten thousand consumers of a process may do so at once, and
    `asyncio.shield` would look for each of them among all.
    """

    def __init__(self, pid_and_start: str) -> None:
        self.waiting: dict[asyncio.Future[None], None] = {}
        self.task = asyncio.ensure_future(_ended(pid_and_start))
        self.task.add_done_callback(self._over)

    async def ended(self) -> None:
        """Wait for its end. Raises what looking for it raised."""
        if not self.task.done():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting[waiter] = None
            try:
                await waiter
            finally:
                del self.waiting[waiter]
        self.task.result()

    def _over(self, _: asyncio.Future[None]) -> None:
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)


async def _ended(pid_and_start: str) -> None:
    """Wait for the process `pid/start time` of this machine; for ever if it cannot be known whether it has ended."""
    pid, _, started = pid_and_start.partition("/")
    if not (pid.isdecimal() and 0 < int(pid) <= _LAST_PID and started):
        await asyncio.get_running_loop().create_future()
    try:
        handle = os.pidfd_open(int(pid))
    except ProcessLookupError:
        return
    except OSError:  # no descriptor is left
        await asyncio.get_running_loop().create_future()
    try:
        if (found := _started(int(pid))) and found != started:
            return
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        loop.add_reader(handle, over.cancel)  # the fact is all there is to say, and it may be said again
        try:
            await asyncio.wait([over])
        finally:
            loop.remove_reader(handle)
    finally:
        os.close(handle)


def _machine() -> str:
    """This boot of this machine, and the space of its process ids; empty where no handle of a process can be had."""
    return space("pid") if hasattr(os, "pidfd_open") else ""


def _started(pid: int) -> str:
    """Return when a process began, in the kernel's ticks since the boot; empty if there is none of that number."""
    try:
        # The second field is the program's name in brackets, which may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


forget_in_children(_known.clear)
