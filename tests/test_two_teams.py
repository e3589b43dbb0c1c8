"""The ten commands of the page about two teams run as they stand there, one after the other."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "two-teams.md"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def commands() -> list[str]:
    """Those before the last heading, and the ones behind it."""
    return re.findall(r"^    (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not there")
def test_the_ten_commands(tmp_path: Path) -> None:
    shown = commands()
    assert len(shown) == 11, "ten commands, and one that sets a limit"
    ports = {"6650": str(free_port()), "8080": str(free_port())}

    def here(command: str) -> str:
        for port, other in ports.items():
            command = command.replace(f"127.0.0.1:{port}", f"127.0.0.1:{other}")
        return command.replace("./sluice", str(ROOT / "sluice")).replace("python3", sys.executable)

    marks = [f"echo '== {number}'\n{here(command)}" for number, command in enumerate(shown)]
    environ = os.environ | {"SLUICE_PULSAR_PORT": ports["6650"], "SLUICE_PULSAR_WEB_PORT": ports["8080"]}
    script = "\n".join(["set -eu", *marks])
    try:
        ran = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=250, check=False
        )
    finally:
        down = [str(ROOT / "sluice"), "down", "--data-dir", "teams"]
        subprocess.run(down, cwd=tmp_path, env=environ, capture_output=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout[-2_000:] + ran.stderr[-2_000:]
    told = dict(part.split("\n", 1) for part in ran.stdout.split("== ")[1:])
    assert "b'paid'" in told["7"]
    assert "AuthorizationError" in told["8"] or "Authorization" in told["8"]
    assert "refused" in told["9"]
