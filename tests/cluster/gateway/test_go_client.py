"""Pulsar's Go client, unchanged. It runs where the Go tool chain is, and has or gets the client."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import sluice

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FOLDER = Path(__file__).parent / "go"
SCENES = ("produce_and_consume", "key_shared", "given_back", "reader")
BUILD_S = 500


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that plays the scenes."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs the Go tool chain")
    built = tmp_path_factory.mktemp("go") / "scenes"
    environ = os.environ | {"GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"}
    has = [go, "mod", "download"]  # everything that go.mod names: the build asks for nothing more
    try:
        got = subprocess.run(has, cwd=FOLDER, env=environ, capture_output=True, text=True, timeout=200, check=False)
        why = got.stderr.strip() if got.returncode else ""
    except subprocess.TimeoutExpired:
        why = "it takes too long"
    if why:
        pytest.skip(f"Go has no pulsar-client-go, and cannot get it: {why}")
    made = subprocess.run(
        [go, "build", "-o", str(built), "."],
        cwd=FOLDER,
        env=environ,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return built


@pytest.fixture(scope="module")
def played(program: Path) -> dict[str, str]:
    """Play every scene and return its outcome by name."""
    with sluice.connect(embedded=True, pulsar_port=0) as server:
        command = [str(program), server.pulsar_service_url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.split(" ", 1)[0] in SCENES)
    return said or {"": done.stderr[-4000:]}


@pytest.mark.parametrize("scene", SCENES)
def test_a_scene_of_the_go_client(played: dict[str, str], scene: str) -> None:
    assert played.get(scene, played) == "ok"
