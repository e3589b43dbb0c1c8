"""The commands of the page about two teams run in order, as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "two-teams.md"
SLUICE = [sys.executable, "-c", "from sluice.cli import main; main()"]
"""The command of the environment that runs the tests, which need not be the one that ./sluice makes."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def commands() -> list[str]:
    """Return the commands of the page in their order."""
    return re.findall(r"^    (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def test_every_command_of_the_page_runs(tmp_path: Path) -> None:
    shown = commands()
    assert len(shown) == 14, "ten commands, one that revokes, and three for limits"
    ports = {"6650": str(free_port()), "8080": str(free_port())}

    def here(command: str) -> str:
        for port, other in ports.items():
            command = command.replace(f"127.0.0.1:{port}", f"127.0.0.1:{other}")
        return command.replace("python3", sys.executable).replace("./sluice", shlex.join(SLUICE))

    marks = [f"echo '== {number}'\n{here(command)}" for number, command in enumerate(shown)]
    environ = os.environ | {"SLUICE_PULSAR_PORT": ports["6650"], "SLUICE_PULSAR_WEB_PORT": ports["8080"]}
    script = "\n".join(["set -eu", *marks])
    try:
        ran = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=250, check=False
        )
    finally:
        down = [*SLUICE, "down", "--data-dir", "teams"]
        subprocess.run(down, cwd=tmp_path, env=environ, capture_output=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout[-2_000:] + ran.stderr[-2_000:]
    told = dict(part.split("\n", 1) for part in ran.stdout.split("== ")[1:])
    assert "consume, produce" in told["5"]
    assert "b'paid'" in told["7"]
    assert "AuthorizationError" in told["8"] or "Authorization" in told["8"]
    assert "refused" in told["9"]
    assert "1000 1MB" in told["13"]
    assert "7d 10GB" in told["13"]
