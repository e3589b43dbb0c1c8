"""The measure of an installation: the core's own figures, from an empty environment that is gone afterwards."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.hygiene.source import ROOT


def test_unknown_environment_is_refused_in_one_line() -> None:
    command = [sys.executable, "-m", "tools.footprint", "cobol"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no environment cobol; there are: core, ray, spark, all" in done.stderr


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_core_is_at_most_300_megabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    command = [sys.executable, "-m", "tools.footprint", "core"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 100 < found["mb"] <= 300
    assert 20 < found["packages"] < 50
    assert list(tmp_path.iterdir()) == [], "the environment is removed"
