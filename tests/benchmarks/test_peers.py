"""The comparison with other brokers: what can be known without them, and one small run against what is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks._peer_servers import CLIENT, Missing, PulsarSide, SluiceSide, configured
from benchmarks.peers import table

ROOT = CLIENT.parent.parent


def test_a_setting_takes_the_place_of_the_shipped_one() -> None:
    shipped = "# journalSyncData=x\njournalSyncData=false\nother = 1"
    made = configured(shipped, {"journalSyncData": "true", "new": "2"})
    assert made.splitlines() == ["# journalSyncData=x", "other = 1", "journalSyncData=true", "new=2"]


def test_the_table_shows_medians_and_the_ratio_within_a_round() -> None:
    lines = table(
        "paced", {"sluice": [{"ms": 1.0}, {"ms": 2.0}, {"ms": 9.0}], "x": [{"ms": 2.0}, {"ms": 2.0}, {"ms": 3.0}]}
    )
    assert lines[1].split() == ["ms", "2.00", "2.00", "(1.00x)"]


def test_a_folder_without_a_broker_is_named(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="--pulsar"):
        PulsarSide("pulsar", tmp_path, None).start()
    with pytest.raises(Missing, match="no bin/pulsar"):
        PulsarSide("pulsar", tmp_path, str(tmp_path)).start()
    with pytest.raises(Missing, match=r"run its \./sluice once"):
        SluiceSide("checkout", tmp_path, tmp_path)


def test_an_unknown_work_is_named() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "peers.py"), "--work", "nothing"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "there is no 'nothing'; there are paced, singles" in done.stderr


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.release
@pytest.mark.timeout(240)
def test_every_work_runs_against_what_is_installed() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "peers.py"), "--small", "--sides", "sluice"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    works = json.loads(done.stdout.splitlines()[-1])["works"]
    assert list(works) == ["paced", "singles"]
    for rounds in works.values():
        assert all(figure > 0 for figure in rounds["sluice"][0].values())
