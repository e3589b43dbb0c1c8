"""A pool that outlives its program and its keeper: rolled to a new version, scaled, and drained."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sluice
from sluice.cluster.client.client import Client
from sluice.cluster.launch import launch
from sluice.cluster.workers import registry
from tests.cluster.helpers import PATIENCE_S, PYTHON, ROOT, eventually, values

PROGRAM = """
import sys
import sluice

folder, version = sys.argv[2], sys.argv[3]

def handle(message):
    import os
    with open(f"{folder}/{message.key().decode()}", "a") as calls:
        print(int(message.data()), os.getpid(), version, file=calls)

sluice.Workers(
    "orders", "billing", handle, detached=True, version=version, min_workers=3, max_workers=3,
    ray_actor_options={"num_cpus": 0.1}, connect={"data_dir": sys.argv[1]},
).start()
"""
POOL = "billing-workers"
KEYS = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of the module's cluster. Each test drains its pool, and has a topic of its own."""
    data = tmp_path_factory.mktemp("detached") / "data"
    launch.up(values(data))
    try:
        yield data
    finally:
        launch.down(data)


def start(folder: Path, calls: Path, version: str, program: str = PROGRAM) -> None:
    """A program starts the pool and ends."""
    command = [PYTHON, "-c", program, str(folder), str(calls), version]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLUICE_"))}
    ran = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ran.returncode == 0, ran.stderr


def typed(folder: Path, *words: str) -> str:
    """Run a command and return its output."""
    command = [PYTHON, "-c", "import sys; from sluice.cli import main; sys.argv[0] = 'sluice'; main()", *words]
    ran = subprocess.run(
        [*command, "--data-dir", str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def row(client: Client) -> dict[str, Any]:
    """The pool, as its keeper has reported it."""
    return registry.pools(client, POOL)[0]


def runs(client: Client, version: str, workers: int) -> bool:
    """Whether all of so many workers run with this version."""
    told = row(client)["status"]
    states = list(told.get("workers", {}).values())
    return states == ["running"] * workers and set(told["versions"].values()) == {version}


def moved(client: Client) -> int:
    """Hashes that changed from one worker to another."""
    return sum(int(part["hashesMovedTotal"]) for part in client.stats("orders", "billing"))


def drained(client: Client) -> bool:
    return not sum(int(part["msgBacklog"]) for part in client.stats("orders", "billing"))


@pytest.mark.ray
def test_a_detached_pool_goes_on_under_its_name(folder: Path, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()
    with sluice.connect(data_dir=folder) as client:
        client.create_topic("orders", 2)
        start(folder, calls, "one")
        eventually(lambda: runs(client, "one", 3), lambda: str(row(client)))
        before = moved(client)
        with client.create_producer("orders") as producer:
            for number in range(40 * KEYS):
                producer.send_async(b"%d" % number, partition_key=f"key-{number % KEYS}")
                if number == 20 * KEYS:
                    producer.flush()
                    start(folder, calls, "two")
            producer.flush()
        eventually(lambda: runs(client, "two", 3), lambda: str(row(client)))
        assert moved(client) == before
        eventually(lambda: drained(client), lambda: str(row(client)))

        workers, epoch = row(client)["status"]["where"], row(client)["epoch"]
        os.kill(keeper_pid(folder), signal.SIGKILL)
        eventually(lambda: row(client)["epoch"] > epoch and runs(client, "two", 3), lambda: str(row(client)))
        assert row(client)["status"]["where"] == workers

        typed(folder, "workers", "scale", POOL, "2")
        eventually(lambda: runs(client, "two", 2), lambda: str(row(client)))
        epoch = row(client)["epoch"]
        os.kill(keeper_pid(folder), signal.SIGKILL)
        eventually(lambda: row(client)["epoch"] > epoch, lambda: str(row(client)))
        [listed] = json.loads(typed(folder, "workers", "list", "--json"))
        assert (listed["name"], listed["min_workers"], listed["kind"]) == (POOL, 2, "detached")
        eventually(lambda: f"{POOL}-0 goes on" in typed(folder, "workers", "logs", POOL), lambda: str(row(client)))
        assert "running" in typed(folder, "workers", "status", POOL)
        typed(folder, "workers", "drain", POOL)
        assert registry.pools(client) == []
    for key in range(KEYS):
        handled = [line.split() for line in (calls / f"key-{key}").read_text().splitlines()]
        assert [int(number) for number, _, _ in handled] == list(range(key, 40 * KEYS, KEYS))
        versions = [version for version, _ in itertools.groupby(version for _, _, version in handled)]
        assert versions in (["one", "two"], ["two"], ["one"])


STOPS = """
import sys
import sluice

def handle(message):
    raise ValueError("never")

sluice.Workers(
    "refunds", "billing", handle, detached=True, dead_letter_policy="stop", max_redeliver_count=1, retry_delay_ms=1,
    ray_actor_options={"num_cpus": 0.1}, connect={"data_dir": sys.argv[1]},
).start()
"""


@pytest.mark.ray
def test_a_pool_that_gave_up_is_listed_with_the_reason(folder: Path, tmp_path: Path) -> None:
    with sluice.connect(data_dir=folder) as client:
        client.create_topic("refunds", 1)
        with client.create_producer("refunds") as producer:
            producer.send(b"one", partition_key="key")
        start(folder, tmp_path, "one", STOPS)
        eventually(lambda: "ValueError: never" in row(client)["stopped"], lambda: str(row(client)))
        assert "stopped" in typed(folder, "workers", "list")
        options: dict[str, Any] = {"detached": True, "ray_actor_options": {}, "connect": {"data_dir": str(folder)}}
        assert "ValueError: never" in sluice.Workers("refunds", "billing", **options).status().reason
        typed(folder, "workers", "drain", POOL)
        assert registry.pools(client) == []


def keeper_pid(folder: Path) -> int:
    """The process of the pool's keeper."""
    script = (
        "import sys, ray, sluice; from pathlib import Path; from sluice.cluster.launch.discovery import find;"
        "from sluice.cluster.launch.attach import join; from sluice.cluster.node.environment import POOLS_NAMESPACE;"
        "found = find(Path(sys.argv[1])); join(*found);"
        f"print(ray.get(ray.get_actor('keeper/{POOL}', POOLS_NAMESPACE).pid.remote()))"
    )
    ran = subprocess.run(
        [PYTHON, "-c", script, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return int(ran.stdout)
