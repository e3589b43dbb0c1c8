"""The benchmark of what travels between machines, small; its times are not looked at, its bytes are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_what_is_cut_is_about_its_share_of_the_run() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "cutting.py"), "--small"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    runs = json.loads(done.stdout)["runs"]
    assert runs
    for run in runs:
        whole, cut = run["bytes"]
        assert run["share"] * whole < cut < run["share"] * whole + 1_000
