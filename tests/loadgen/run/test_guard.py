"""When a run is given up: nothing moves, and somebody was there to see it. And where its data must not lie."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from sluice.cluster.node.identity import ID_FILE
from sluice.loadgen.base.display import FloodProgress
from sluice.loadgen.base.history import HistoryClock
from sluice.loadgen.base.options import FloodOptions
from sluice.loadgen.faults.faults import Fleet
from sluice.loadgen.load.consume import ConsumeJob
from sluice.loadgen.run.guard import StallGuard, data_folder
from sluice.storage.errors import Invalid
from tests.loadgen.fakes import ListClient, ListConsumer
from tests.loadgen.faults.test_faults import PretendedProcess


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test moves."""
    time = [100.0]
    monkeypatch.setattr("sluice.loadgen.run.guard.time.monotonic", lambda: time[0])
    return time


def idle(folder: Path) -> Fleet:
    """A fleet without anybody."""
    job = ConsumeJob(ListClient(ListConsumer(deque())), "t", "s", HistoryClock.start(), folder)
    job.prepare()
    return Fleet(job, PretendedProcess)


def test_a_run_in_which_nothing_moves_is_given_up(tmp_path: Path, now: list[float]) -> None:
    fleet, progress = idle(tmp_path), FloodProgress(backlog=7)
    watch = StallGuard(FloodOptions.of(stall_s=5.0))
    seen = []
    for _ in range(12):
        seen.append(watch.trouble(progress, fleet))
        now[0] += 0.5
    assert [text for text in seen if text] == ["nothing moved for 5 s, 7 messages are left"] * 2
    progress.delivered += 1
    assert watch.trouble(progress, fleet) == ""


def test_time_in_which_nobody_looked_does_not_count(tmp_path: Path, now: list[float]) -> None:
    """Spare processes that take a minute to connect between two acts are no standstill."""
    fleet, progress = idle(tmp_path), FloodProgress(sent=9)
    watch = StallGuard(FloodOptions.of(stall_s=5.0))
    assert watch.trouble(progress, fleet) == ""
    now[0] += 60
    assert watch.trouble(progress, fleet) == ""


def test_the_data_of_a_cluster_are_no_place_for_those_of_a_run(tmp_path: Path) -> None:
    """A run clears its folder: what a cluster has there, its log for one, must not go with that."""
    for name in (ID_FILE, "ray.log"):
        (tmp_path / name).write_text("")
    with (
        pytest.raises(Invalid, match="is the data folder of a cluster"),
        data_folder(FloodOptions.of(data_dir=tmp_path)),
    ):
        raise AssertionError
    assert sorted(path.name for path in tmp_path.iterdir()) == [ID_FILE, "ray.log"]


def test_two_runs_at_once_are_not_in_one_folder(tmp_path: Path) -> None:
    """The second one removed the histories of the first, and at its end the data of its cluster."""
    options = FloodOptions.of(data_dir=tmp_path)
    with data_folder(options) as folder:
        (folder / "histories" / "sends").mkdir()
        with pytest.raises(Invalid, match="another run has its data in"), data_folder(options):
            raise AssertionError
        assert (folder / "histories" / "sends").is_dir()
    with data_folder(options) as again:
        assert list(again.iterdir()) == [again / "histories"]
    assert list(tmp_path.iterdir()) == []
