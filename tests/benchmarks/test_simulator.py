"""The benchmark of the simulator, small; its figures are not looked at, its counts are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.worlds import WORLDS

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.release
def test_every_world_is_measured_and_clean() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "simulator.py"), "--small"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert sorted(result) == sorted(WORLDS)
    for figures in result.values():
        assert figures["failed"] == 0
        assert figures["steps"] > 0
        assert figures["steps_per_s"] > 0
        assert figures["seeds_per_hour"] > 0
