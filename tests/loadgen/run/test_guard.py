"""When a run is given up: nothing moves, and somebody was there to see it. And where its data must not lie."""

from __future__ import annotations

import io
import time
from collections import deque
from pathlib import Path

import pytest
from rich.console import Console

from sluice.actors.recorder.flight_file import EVERY_MS, assemble, pack, unpack
from sluice.actors.recorder.replay import replay
from sluice.cluster.launch.embedded import connect
from sluice.cluster.node.identity import ID_FILE
from sluice.loadgen.base.display import FloodProgress
from sluice.loadgen.base.history import HistoryClock
from sluice.loadgen.base.options import FloodOptions
from sluice.loadgen.faults.faults import Fleet
from sluice.loadgen.load.consume import ConsumeJob
from sluice.loadgen.report.report import summary
from sluice.loadgen.report.result import OK
from sluice.loadgen.run.guard import StallGuard, data_folder, exported_incident, recorded_violations
from sluice.storage.errors import Invalid
from tests.actors.recorder.test_replay import OF, RecordedDriver
from tests.loadgen.fakes import ListClient, ListConsumer
from tests.loadgen.faults.test_faults import PretendedProcess
from tests.loadgen.report.test_result import make_report


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
    watch = StallGuard(FloodOptions.from_values(stall_s=5.0))
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
    watch = StallGuard(FloodOptions.from_values(stall_s=5.0))
    assert watch.trouble(progress, fleet) == ""
    now[0] += 60
    assert watch.trouble(progress, fleet) == ""


def test_the_data_of_a_cluster_are_no_place_for_those_of_a_run(tmp_path: Path) -> None:
    """A run clears its folder: what a cluster has there, its log for one, must not go with that."""
    for name in (ID_FILE, "ray.log"):
        (tmp_path / name).write_text("")
    with (
        pytest.raises(Invalid, match="is the data folder of a cluster"),
        data_folder(FloodOptions.from_values(data_dir=tmp_path)),
    ):
        raise AssertionError
    assert sorted(path.name for path in tmp_path.iterdir()) == [ID_FILE, "ray.log"]


def test_two_runs_at_once_are_not_in_one_folder(tmp_path: Path) -> None:
    """The second one removed the histories of the first, and at its end the data of its cluster."""
    options = FloodOptions.from_values(data_dir=tmp_path)
    with data_folder(options) as folder:
        (folder / "histories" / "sends").mkdir()
        with pytest.raises(Invalid, match="another run has its data in"), data_folder(options):
            raise AssertionError
        assert (folder / "histories" / "sends").is_dir()
    with data_folder(options) as again:
        assert list(again.iterdir()) == [again / "histories"]
    assert list(tmp_path.iterdir()) == []


def test_run_that_is_not_ok_names_an_incident_that_replays(tmp_path: Path) -> None:
    began = time.time_ns() // 1000
    with connect(tmp_path / "broker", recorder_bytes=1 << 20) as client:
        client.create_topic("flood-1", 1)
        consumer = client.subscribe("flood-1", "judge", initial_position="earliest")
        client.create_producer("flood-1").send(b"x", partition_key="k")
        consumer.acknowledge(consumer.receive(timeout_millis=10_000), ack_receipt=True)
        report = make_report(topic="flood-1", start_us=began, troubles=["a consumer stopped"])
        recorded = tmp_path / "broker" / "recorder"
        deadline = time.monotonic() + 30
        while not list(recorded.glob("*/flight-*")) and time.monotonic() < deadline:
            time.sleep(EVERY_MS / 1000)
        report.incident = exported_incident(tmp_path / "broker", report, "judge", tmp_path)
    assert report.incident == str(tmp_path / "flood-1.incident")
    (found,) = replay(unpack(Path(report.incident).read_bytes(), report.incident)).values()
    assert found.clean
    assert found.calls > 0
    printed = io.StringIO()
    Console(file=printed, width=200).print(summary(report))
    assert f"./sluice incident replay {report.incident}" in printed.getvalue()
    assert exported_incident(tmp_path / "nowhere", report, "judge", tmp_path) == ""


def test_owner_that_ended_with_a_broken_promise_is_named(tmp_path: Path) -> None:
    driver = RecordedDriver()
    driver.recording.remark(driver.now, "alarm: a key holds the others back")
    driver.recording.remark(driver.now, "the owner ended: InvariantViolation: two consumers hold a key")
    chunk = driver.recording.taken(driver.now)
    assert chunk is not None
    folder = tmp_path / "recorder" / "broker-0"
    folder.mkdir(parents=True)
    (folder / "flight-00000001").write_bytes(assemble([pack(chunk)]))
    found = recorded_violations(tmp_path, OF.topic, OF.subscription)
    assert found == ["the owner ended: InvariantViolation: two consumers hold a key"]
    assert make_report(troubles=found).verdict != OK
    assert recorded_violations(tmp_path, "others", OF.subscription) == []
    assert recorded_violations(tmp_path / "nowhere", OF.topic, OF.subscription) == []


@pytest.mark.parametrize("name", ["flight-00000000", "flight-00000002"])
def test_recording_that_cannot_be_read_is_no_proof(tmp_path: Path, name: str) -> None:
    """A damaged file hides neither what the others name nor that nobody has looked at it."""
    driver = RecordedDriver()
    driver.recording.remark(driver.now, "the owner ended: InvariantViolation: two consumers hold a key")
    chunk = driver.recording.taken(driver.now)
    assert chunk is not None
    folder = tmp_path / "recorder" / "broker-0"
    folder.mkdir(parents=True)
    whole = assemble([pack(chunk)])
    (folder / "flight-00000001").write_bytes(whole)
    (folder / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    found = recorded_violations(tmp_path, OF.topic, OF.subscription)
    assert len(found) == 2
    assert "the owner ended: InvariantViolation: two consumers hold a key" in found
    assert any(name in text for text in found)
    (folder / "flight-00000001").unlink()
    (unread,) = recorded_violations(tmp_path, OF.topic, OF.subscription)
    assert make_report(troubles=[unread]).verdict != OK
