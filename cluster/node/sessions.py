"""The processes of a Ray session, known by its temporary folder, and their end by process id.

Every process of a node carries the folder on its command line or is a child of one that does.
"""

from __future__ import annotations

import contextlib
import os
import time

import psutil

from sluice.cluster.node.minimal_ray import RAY_COMMAND

RAYLET = "raylet"
RAYLET_GRACE, STOP_GRACE = 3.0, 10.0
"""Seconds in which a raylet, and each of the other processes, is to end."""


def processes_of(session: str) -> list[psutil.Process]:
    """Every process of the Ray session in that temporary folder, with all their children.

    The daemons have the folder on their command line. Workers, whose title Ray rewrites, are their children; one that
    lost its raylet is known by its environment. So is the command that starts a node, which outlives an `up` that is
    killed. This process and its other children are none of them.
    """
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and _belongs(process, session):
                found[process.pid] = process
                found |= {child.pid: child for child in process.children(recursive=True) if child.pid != os.getpid()}
    return list(found.values())


def _belongs(process: psutil.Process, session: str) -> bool:
    words = process.cmdline()
    if (words and words[0].startswith("ray::")) or RAY_COMMAND in words:
        return bool(process.environ().get("RAY_TMPDIR") == session)
    return any("/ray/" in word for word in words) and any(session in word for word in words)


def count_nodes(session: str) -> int:
    """How many nodes of a session run on this machine: each has one raylet."""
    return sum(_name(process) == RAYLET for process in processes_of(session))


def _name(process: psutil.Process) -> str:
    """Empty if the process has ended since it was listed, which one that was just killed may do at any moment."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""


def stop_session(session: str) -> int:
    """End every process of a session: asked first, killed after STOP_GRACE seconds. Returns how many there were.

    Raylets go first, and take their workers and agents along: one takes leave of the GCS, and waits ten seconds for
    that where there is none any more.
    """
    processes = processes_of(session)
    raylets = [process for process in processes if _name(process) == RAYLET]
    left = _asked(raylets, RAYLET_GRACE) + _asked([one for one in processes if one not in raylets], STOP_GRACE)
    stubborn = left + processes_of(session)
    for process in stubborn:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _wait(stubborn, STOP_GRACE)
    return len(processes)


def _asked(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Ask processes to end; returns those that have not after so long."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    return _wait(processes, seconds)


def runs(process: psutil.Process) -> bool:
    """Whether it still does something. In a container whose first process reaps nothing the dead stay as zombies."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _wait(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until they are gone, so long at most; returns those that are not."""
    deadline = time.monotonic() + seconds
    while (left := [process for process in processes if runs(process)]) and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=0.05)
    return left
