"""Consumers that are forked: real processes, a stand-in for the broker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sluice.loadgen.base.history import HistoryClock
from sluice.loadgen.load.consume import ConsumeJob
from sluice.loadgen.load.fork_server import ForkServer
from sluice.storage.errors import Unavailable
from tests.cluster.helpers import eventually
from tests.loadgen.fakes import FolderClient

PATIENCE_S = 60.0


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    made = ForkServer()
    try:
        yield made
    finally:
        made.close()


def job(folder: Path) -> ConsumeJob:
    made = ConsumeJob(FolderClient(folder), "t", "s", HistoryClock.start(), folder)
    made.prepare()
    return made


def ended(pid: int) -> bool:
    """A process that its parent has not asked after yet stays in the table."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_each_consumer_is_a_process_of_its_own(fork_server: ForkServer, tmp_path: Path) -> None:
    """One that is killed leaves the others as they are."""
    first, second = fork_server(job(tmp_path)), fork_server(job(tmp_path))
    pids = [one.ready(PATIENCE_S) for one in (first, second)]
    assert len({*pids, os.getpid()}) == 3
    os.kill(pids[0], signal.SIGKILL)
    eventually(lambda: ended(pids[0]), "the end of a killed process", PATIENCE_S)
    with pytest.raises(Unavailable, match="has ended"):
        first.start("c-1.1", "c-1", 500)
    second.stop(PATIENCE_S)
    assert second.ready(PATIENCE_S) == pids[1]


def test_nothing_is_left_not_even_of_a_stopped_process(tmp_path: Path) -> None:
    fork_server = ForkServer()
    consumers = [fork_server(job(tmp_path)) for _ in range(3)]
    pids = [one.ready(PATIENCE_S) for one in consumers]
    os.kill(pids[0], signal.SIGSTOP)
    consumers[1].end()
    eventually(lambda: ended(pids[1]), "the end of a consumer", PATIENCE_S)
    fork_server.close()
    eventually(lambda: all(ended(pid) for pid in pids), "the end of all", PATIENCE_S)
    with pytest.raises(Unavailable, match="forked from has ended"):
        fork_server(job(tmp_path))
