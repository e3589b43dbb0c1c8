"""Recordings of a process that dies: of one that is killed nearly all is there, and a crash stands in its recording."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sluice.actors.recorder.replay import replay
from sluice.cluster.host.disk import FileDisk
from sluice.cluster.host.recordings import export_incident, recorded_chunks, remove_stale
from tests.test_readme import ROOT, environment

LOST_MS = 1_000
SENDS = """
import sys, time
from pathlib import Path
from sluice.cluster.launch.embedded import connect
with connect(Path(sys.argv[1]), recorder_bytes=64 << 20) as client:
    client.create_topic("orders")
    producer = client.create_producer("orders")
    consumer = client.subscribe("orders", "billing")
    while True:
        producer.send(b"paid", partition_key="k")
        consumer.acknowledge(consumer.receive(timeout_millis=30_000))
        print(time.time_ns() // 1_000_000, flush=True)
"""
BREAKS = """
import sys
import time
from pathlib import Path
from tools.mutants import plant
from tools.mutants.replaying import REPLAYING
plant(REPLAYING[0])
from sluice.actors.recorder.replay import replay
from sluice.cluster.host.recordings import recorded_chunks
from sluice.storage.errors import Corrupt, NotFound
from sluice.cluster.launch.embedded import connect
def recorded():
    try:
        found = replay(recorded_chunks(Path(sys.argv[1]), "orders", "billing"), through=True)
    except (Corrupt, NotFound):  # it is being written
        return False
    return any("InvariantViolation" in text for each in found.values() for _, text in each.remarks)
with connect(Path(sys.argv[1]), recorder_bytes=64 << 20) as client:
    client.create_topic("orders")
    producer = client.create_producer("orders")
    first = client.subscribe("orders", "billing", consumer_name="first")
    keys = [f"k{number}" for number in range(20)]
    for _ in range(2):
        for key in keys:
            producer.send(b"paid", partition_key=key)
        if _ == 0:
            held = [first.receive(timeout_millis=30_000) for _ in keys]
            second = client.subscribe("orders", "billing", consumer_name="second")
    while not recorded():
        time.sleep(0.01)
"""


def test_a_killed_process_loses_at_most_its_last_second(tmp_path: Path) -> None:
    (tmp_path / "sends.py").write_text(SENDS)
    with subprocess.Popen(
        [sys.executable, "sends.py", "data"], cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = int(process.stdout.readline())
        last = first
        while last < first + 3 * LOST_MS:
            last = int(process.stdout.readline())
        process.kill()
    chunks = list(recorded_chunks(tmp_path / "data", "orders", "billing"))
    (found,) = replay(chunks).values()
    assert (found.difference, found.gaps, found.missing) == (None, 0, 0)
    assert found.last >= last - LOST_MS


def test_a_crash_stands_in_the_recording_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "breaks.py").write_text(BREAKS)
    log = tmp_path / "log"
    with log.open("w") as stream:
        done = subprocess.run(
            [sys.executable, "breaks.py", "data"],
            cwd=tmp_path,
            env={**environment(tmp_path), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
            stderr=stream,
            timeout=120,
        )
    assert done.returncode == 0, log.read_text()[-2_000:]
    incident = tmp_path / "x.incident"
    export_incident(tmp_path / "data", "orders", "billing", (0, 1 << 50), incident)
    found = replay(recorded_chunks(tmp_path / "data", "orders", "billing"), through=True)
    remarks = [text for each in found.values() for _, text in each.remarks]
    assert any(text.startswith("the owner ended: InvariantViolation") for text in remarks), remarks


def test_old_recordings_of_a_living_process_stay(tmp_path: Path) -> None:
    """The process had no work for a long time, and goes on in its folder."""
    for name in ("alive", "ended"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "flight-1").write_bytes(b"")
        os.utime(folder / "flight-1", (0, 0))
    living = FileDisk(tmp_path / "alive")
    remove_stale(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["alive"]
    living.close()
    remove_stale(tmp_path)
    assert not list(tmp_path.iterdir())
