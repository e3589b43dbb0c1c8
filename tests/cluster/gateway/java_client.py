"""Programs of Pulsar's Java client, played against a broker of a test."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks._java import compiled
from benchmarks._peer_servers import Missing


def play_java(source: Path, folder: Path, url: str) -> list[str]:
    """Compile a program in a folder and play it against a broker; return its lines. Skips where Java is missing."""
    try:
        program = compiled(source, folder, "-XX:TieredStopAtLevel=1")
    except Missing as error:
        pytest.skip(str(error))
    done = subprocess.run([*program, url], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout.splitlines()
