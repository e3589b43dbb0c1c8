"""The wheel: one top-level name, which works in a folder that has modules of the same names as the project's folders.

The wheel is unpacked in front of the packages of this environment, so its dependencies need no second installation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sluice.cluster.launch.launch import leave_nothing
from sluice.cluster.node.environment import short_folder
from sluice.cluster.node.nodes import SLOW_START, START_TRIES

ROOT = Path(__file__).parents[1]
NEIGHBOURS = ("storage.py", "actors.py", "cluster.py", "loadgen.py", "cli/__init__.py")
"""Files of a program whose names are those of the project's folders."""

EMBEDDED = """
import storage, actors, cluster, loadgen, cli
import sluice
assert sluice.__file__.startswith({site!r}), sluice.__file__
with sluice.connect(embedded=True, data_dir="my-data") as client:
    client.create_topic("orders", partitions=2)
    producer = client.create_producer("orders")
    consumer = client.subscribe("orders", "billing", initial_position="earliest")
    producer.send(b"paid", partition_key="customer-7")
    message = consumer.receive(timeout_millis=20_000)
    consumer.acknowledge(message)
print(message.partition_key(), message.data())
"""

ON_RAY = """
import storage, actors, cluster, loadgen, cli
import ray
import sluice
assert sluice.__file__.startswith({site!r}), sluice.__file__
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1", _temp_dir={temp!r})
queue = sluice.KeyedQueue("orders", data_dir="my-data")
queue.put("paid", key="customer-7")

@ray.remote
def work(queue):
    item = queue.get(timeout=60)
    queue.ack(item)
    queue.close()
    return item.value

print(ray.get(work.remote(queue)))
queue.close()
ray.shutdown()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=200)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def program(tmp_path: Path) -> Path:
    for name in NEIGHBOURS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("MINE = True\n")
    return tmp_path


def run(wheel: Path, program: Path, text: str, temp: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program in a folder of its own, with an empty HOME and the unpacked wheel in front."""
    site, home = program / "site", program / "home"
    home.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    (program / "program.py").write_text(text.format(site=str(site), temp=temp))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLUICE_"))}
    environ = kept | {"HOME": str(home), "PYTHONPATH": str(site)}
    command = [sys.executable, "program.py"]
    return subprocess.run(command, cwd=program, env=environ, capture_output=True, text=True, timeout=200, check=False)


def test_wheel_has_one_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = {name.split("/")[0] for name in packed.namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"sluice"}


def test_wheel_runs_beside_modules_of_the_same_names(wheel: Path, program: Path) -> None:
    done = run(wheel, program, EMBEDDED)
    assert (done.returncode, done.stdout) == (0, "customer-7 b'paid'\n"), done.stderr


@pytest.mark.ray
def test_wheel_runs_on_ray_beside_modules_of_the_same_names(wheel: Path, program: Path) -> None:
    sessions: list[str] = []
    try:
        for _ in range(START_TRIES):  # on a busy machine Ray gives up its own start
            done = run(wheel, program, ON_RAY, short_folder(sessions))
            if SLOW_START not in done.stderr and "Timed out waiting for file" not in done.stderr:
                break
    finally:
        leave_nothing(sessions)
    assert (done.returncode, done.stdout) == (0, "paid\n"), done.stderr


@pytest.mark.parametrize("folder", ["storage", "actors", "cluster", "loadgen", "cli"])
def test_import_of_a_folder_says_what_to_write(folder: str) -> None:
    command = [sys.executable, "-c", f"import {folder}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: write `import sluice`")
