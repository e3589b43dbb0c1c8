"""The wheel: one top-level name, which works in a folder that has modules of the same names as the project's folders.

The wheel is unpacked in front of the packages of this environment, so its dependencies need no second installation.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from sluice.cluster.base.extras import EXTRAS
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


CORE_ALONE = f"import sys; sys.modules.update(dict.fromkeys({sorted({*EXTRAS} - {'pandas'})}))"
"""What a process begins with where extras are missing. pyarrow takes no pandas that is None; the command has none."""
Done = subprocess.CompletedProcess[str]
COMMAND = "from sluice.cli import main; main()"
RAY_HINT = " (or run in one process: embedded=True, `sluice up --embedded`)"


def build(folder: Path) -> tuple[Path, Path]:
    """Build the wheel and the source archive."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=200)
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, archive


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def wheel(built: tuple[Path, Path]) -> Path:
    return built[0]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    for name in NEIGHBOURS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("MINE = True\n")
    return tmp_path


def run(wheel: Path, program: Path, text: str, *words: str, temp: str = "", first: str = "") -> Done:
    """Run a program in a folder of its own, with an empty HOME and the unpacked wheel in front.

    words: its arguments. first: what each Python begins with.
    """
    site, home = program / "site", program / "home"
    home.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    (site / "sitecustomize.py").write_text(first)
    (program / "program.py").write_text(text.format(site=str(site), temp=temp))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLUICE_"))}
    environ = kept | {"HOME": str(home), "PYTHONPATH": str(site)}
    command = [sys.executable, "program.py", *words]
    return subprocess.run(command, cwd=program, env=environ, capture_output=True, text=True, timeout=200, check=False)


def test_wheel_has_one_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = {name.split("/")[0] for name in packed.namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"sluice"}


def test_two_builds_are_the_same_bytes(built: tuple[Path, Path], tmp_path: Path) -> None:
    again = build(tmp_path)
    assert [one.read_bytes() for one in again] == [one.read_bytes() for one in built]


def test_wheel_carries_types_licence_and_extras(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (metadata,) = (packed.read(name).decode() for name in names if name.endswith("/METADATA"))
    assert "sluice/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    extras = set(re.findall(r"^Provides-Extra: (\S+)$", metadata, re.MULTILINE))
    assert set(EXTRAS.values()) <= extras
    core = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", metadata, re.MULTILINE)
    assert {"pyarrow", "typer"} <= set(core)
    assert {"ray", "pyspark", "pandas", "plotly", "boto3"}.isdisjoint(core)


def test_wheel_names_its_version_and_commit(wheel: Path, program: Path) -> None:
    done = run(wheel, program, COMMAND, "--version", first=CORE_ALONE)
    with zipfile.ZipFile(wheel) as packed:
        commit = packed.read("sluice/commit.txt").decode().strip()
    assert done.stdout == f"sluice {version('sluice')} ({commit})\n", done.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("up", "a cluster of several processes (one process: --embedded) needs ray: pip install 'sluice[ray]'"),
        ("flood", "a flood needs ray, pyspark, hdrh, plotly: pip install 'sluice[ray,spark,watch]'"),
        ("sql SELECT", "a query needs duckdb: pip install 'sluice[sql]'"),
        ("sql --engine spark SELECT", "a query needs pyspark: pip install 'sluice[spark]'"),
        ("up --embedded --objects s3://bucket/objects", "boto3 is not installed: pip install 'sluice[s3]'"),
        ("tokens create --role team --key secret", "jwt is not installed: pip install 'sluice[auth]'"),
    ],
)
def test_missing_extra_is_one_line_with_its_name(wheel: Path, program: Path, words: str, line: str) -> None:
    done = run(wheel, program, COMMAND, *words.split(), first=CORE_ALONE)
    assert (done.returncode, done.stderr.splitlines()) == (2, [f"sluice: {line}"])


def test_messages_of_a_package_name_its_command(wheel: Path, program: Path) -> None:
    folder = program / "data"
    no_cluster = run(wheel, program, COMMAND, "down", "--data-dir", str(folder), first=CORE_ALONE)
    shown = run(wheel, program, COMMAND, "topics", "list", "--data-dir", str(folder), first=CORE_ALONE)
    assert f"no cluster is running on {folder}; start one with `sluice up`" in shown.stderr
    helped = run(wheel, program, COMMAND, "--help", first=CORE_ALONE)
    assert "Try `sluice flood`" in helped.stdout
    assert "./sluice" not in no_cluster.stderr + shown.stderr


@pytest.mark.parametrize("call", ["connect()", "KeyedQueue('jobs').put(1)", "read_dataset"])
def test_missing_ray_is_named_to_a_program(wheel: Path, program: Path, call: str) -> None:
    done = run(wheel, program, f"import sluice; sluice.{call}", first=CORE_ALONE)
    wanted = f"sluice.storage.errors.Invalid: ray is not installed: pip install 'sluice[ray]'{RAY_HINT}"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, wanted)


def test_wheel_runs_beside_modules_of_the_same_names(wheel: Path, program: Path) -> None:
    done = run(wheel, program, EMBEDDED)
    assert (done.returncode, done.stdout) == (0, "customer-7 b'paid'\n"), done.stderr


@pytest.mark.ray
def test_wheel_runs_on_ray_beside_modules_of_the_same_names(wheel: Path, program: Path) -> None:
    sessions: list[str] = []
    try:
        for _ in range(START_TRIES):  # on a busy machine Ray gives up its own start
            done = run(wheel, program, ON_RAY, temp=short_folder(sessions))
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
