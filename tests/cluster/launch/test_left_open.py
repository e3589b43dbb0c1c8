"""A program that ends without closing the cluster that it began in a Ray of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster.helpers import PATIENCE_S, PYTHON, ROOT

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

PROGRAM = """
import os
from sluice import KeyedQueue
queue = KeyedQueue("jobs")
queue.put("work", key="a")
print(os.environ["RAY_TMPDIR"])
raise RuntimeError("of the program")
"""


def test_error_of_a_program_is_the_last_it_prints(tmp_path: Path) -> None:
    """Hundreds of lines followed it."""
    environ = {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}
    command = [PYTHON, "-c", PROGRAM]
    ran = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=PATIENCE_S * 2, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == "RuntimeError: of the program"
    assert ran.stderr.count("Traceback") == 1, ran.stderr
    assert not Path(ran.stdout.strip()).exists()
