"""How the processes of a Ray session end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sluice.cluster.node import sessions
from sluice.cluster.node.minimal_ray import RAY_COMMAND
from sluice.cluster.node.sessions import runs, stop_session
from tests.cluster.helpers import ROOT, eventually

START = """
import sys
from sluice.cluster.node.nodes import add_node, start_head
starts = {"head": start_head, "node": lambda session, **size: add_node(session, "127.0.0.1:9", **size)}
starts[sys.argv[1]](sys.argv[2], cpus=1, object_store_bytes=80 << 20)
"""

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


@pytest.mark.ray
@pytest.mark.parametrize("kind", ["head", "node"])
def test_a_node_that_still_starts_ends_as_well(tmp_path: Path, kind: str) -> None:
    """An `up` that was killed left the command behind that it had begun, and that started a node nobody knew of."""
    up = subprocess.Popen([sys.executable, "-c", START, kind, tmp_path], cwd=ROOT)
    begun: list[psutil.Process] = []

    def begins() -> bool:
        begun[:] = [child for child in psutil.Process(up.pid).children() if RAY_COMMAND in child.cmdline()]
        return bool(begun)

    try:
        eventually(begins, "no node is started")
        up.kill()
        up.wait()
        assert runs(begun[0])
        assert stop_session(str(tmp_path / "another")) == 0
        assert runs(begun[0])
        assert stop_session(str(tmp_path)) == 1
        assert not runs(begun[0])
    finally:
        for process in [*begun, psutil.Process(up.pid)] if up.poll() is None else begun:
            if runs(process):
                process.kill()
