"""How the processes of a Ray session end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cluster.node import sessions
from sluice.cluster.node.sessions import stop_session
from tests.cluster.helpers import eventually

GCS = """#!/bin/sh
: > "$0.runs"
while :; do sleep 0.05; done
"""
RAYLET = """#!/bin/sh
# It takes leave of the GCS, which it needs for that.
trap 'sleep 0.2; kill -0 "$2" && : > "$0.left"; exit' TERM
: > "$0.runs"
while :; do sleep 0.05; done
"""
DEAF = """#!/bin/sh
trap '' TERM
: > "$0.runs"
while :; do sleep 0.05; done
"""


class Session:
    """Stand-ins for Ray's processes, with the session's folder on their command lines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "ray"
        self.folder.mkdir()
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, script: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Returns when it hears signals."""
        file = self.folder / name
        file.write_text(script)
        file.chmod(0o700)
        process = subprocess.Popen([str(file), str(self.folder), *arguments], start_new_session=True)
        self.running.append(process)
        eventually((self.folder / f"{name}.runs").exists, f"{name} did not start")
        return process


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(tmp_path)
    yield made
    for process in made.running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_raylets_take_leave_of_the_gcs_before_it_ends(session: Session) -> None:
    """A raylet that could not waited for ten seconds, and the end of the cluster waited with it."""
    gcs = session.start("gcs_server", GCS)
    session.start("raylet", RAYLET, str(gcs.pid))
    assert stop_session(str(session.folder)) >= 2
    assert (session.folder / "raylet.left").exists()
    assert all(process.wait(60) is not None for process in session.running)


def test_a_deaf_process_is_killed(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "RAYLET_GRACE", 0.1)
    monkeypatch.setattr(sessions, "STOP_GRACE", 0.5)
    for name in ("raylet", "gcs_server"):
        session.start(name, DEAF)
    assert stop_session(str(session.folder)) >= 2
    assert all(process.wait(60) is not None for process in session.running)
