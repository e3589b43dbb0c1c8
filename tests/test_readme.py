"""The Python examples of every page run as they stand there, twice in one folder. The commands of pages run too."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import sluice
from sluice.cluster.launch.launch import leave_nothing
from sluice.cluster.node.environment import short_folder

ROOT = Path(__file__).parents[1]


pytestmark = [pytest.mark.ray, pytest.mark.slow]


Example = tuple[str, int]
"""A page, and which of its programs."""
SLUICE = f"{shlex.quote(sys.executable)} -c 'from sluice.cli import main; main()'"


def examples(page: str) -> list[str]:
    """Return the Python programs that a page shows."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


EXCERPTS = {("docs/workers.md", 4): "examples/serving.py"}
"""Part of a program that runs as a whole in `test_examples`."""
ELSEWHERE = {
    ("deploy/README.md", 0): "its address is that of another machine",
    ("docs/python-client.md", 1): "tests.test_testing",
    ("docs/python-client.md", 2): "tests.test_testing",
}
CUSTOMERS = ["customer-0 0", "customer-0 2", "customer-0 4", "customer-1 1", "customer-1 3", "customer-1 5"]
EMBEDDED: dict[Example, tuple[str, ...]] = {
    ("README.md", 0): ("customer-7 b'paid'", "b'remind'"),
    ("docs/delayed-messages.md", 0): ("cancelled",),
    ("docs/history.md", 0): ("read by the broker: 5000", "in tables: 5000 of 10 customers"),
    ("docs/incidents.md", 0): ("billed 12",),
    ("docs/in-your-project.md", 0): ("image-1 b'resize'",),
    ("docs/python-client.md", 3): (),
    ("docs/python-client.md", 4): ("paid", "sent"),
    ("docs/python-client.md", 5): ("billed pen", "packed pen"),
    ("docs/workers.md", 1): ("6 rows",),
    ("docs/workers.md", 3): ("7 invoices",),
}
"""Programs with a cluster of their own, and what they print the first time."""
QUEUE: Example = ("docs/python-client.md", 0)
ORDERED: Example = ("docs/workers.md", 0)
POOL: Example = ("docs/workers.md", 2)


def pages() -> list[str]:
    """Return every page with a Python program, decisions included."""
    found = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")]
    return sorted(str(page.relative_to(ROOT)) for page in found if examples(str(page)))


def environment(folder: Path, session: str = "") -> dict[str, str]:
    """Return an environment without any setting of Ray, with an empty home, as after a first login.

    session: the folder for Ray's files.
    """
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLUICE_"))}
    (folder / "home").mkdir(exist_ok=True)
    short = {"RAY_TMPDIR": session} if session else {}
    return plain | {"PYTHONPATH": str(ROOT / "src"), "HOME": str(folder / "home")} | short


def run(example: Example, folder: Path, session: str = "") -> str:
    """Run a program as it stands on its page, from a file, to a good end. Return its standard output."""
    page, number = example
    program = folder / "program.py"
    program.write_text(examples(page)[number], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, program.name],
        cwd=folder,
        env=environment(folder, session),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_every_example_of_every_page_is_run() -> None:
    there = {(page, number) for page in pages() for number in range(len(examples(page)))}
    assert there == {*EMBEDDED, QUEUE, ORDERED, POOL, *EXCERPTS, *ELSEWHERE}


@pytest.mark.parametrize(("example", "whole"), EXCERPTS.items())
def test_an_excerpt_is_of_a_program_that_runs(example: Example, whole: str) -> None:
    page, number = example
    assert examples(page)[number] in (ROOT / whole).read_text(encoding="utf-8")


@pytest.mark.parametrize(("example", "printed"), EMBEDDED.items(), ids=[f"{page}-{at}" for page, at in EMBEDDED])
def test_an_example_runs_twice_in_its_folder(example: Example, printed: tuple[str, ...], tmp_path: Path) -> None:
    first = run(example, tmp_path)
    for text in printed:
        assert text in first
    run(example, tmp_path)


def test_the_workers_of_their_page_keep_the_order(tmp_path: Path) -> None:
    for _ in range(2):
        assert sorted(run(ORDERED, tmp_path).splitlines(), key=lambda line: line.split()[0]) == CUSTOMERS


def test_the_queue_of_the_python_page_runs_twice(tmp_path: Path) -> None:
    """Each run has a Ray of its own, which ends with it. The second run finds the messages that the first one left."""
    sessions: list[str] = []
    session = short_folder(sessions)
    try:
        for _ in range(2):
            assert "{'order': 7}" in run(QUEUE, tmp_path, session)
    finally:
        leave_nothing(sessions)


def test_a_pool_that_outlives_its_program_starts_twice(tmp_path: Path) -> None:
    environ = environment(tmp_path)

    def sluice(*words: str) -> str:
        command = ["sh", "-c", f"{SLUICE} {shlex.join(words)} --data-dir my-data"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    try:
        sluice("up")
        for _ in range(2):
            run(POOL, tmp_path)
        assert "billing" in sluice("workers", "list")
    finally:
        sluice("down")


def test_a_copy_of_the_metadata_goes_on(tmp_path: Path) -> None:
    """By the page about running a cluster, messages done since the copy come again, of ledgers that the copy knows."""
    _, _, section = (ROOT / "docs/running-a-cluster.md").read_text(encoding="utf-8").partition("## Backups")
    (command,) = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    data = tmp_path / "sluice-data"
    with sluice.connect(embedded=True, data_dir=data) as client:
        client.create_topic("orders", 1)
        consumer = client.subscribe("orders", "billing", initial_position="earliest")
        producer = client.create_producer("orders")
        producer.send(b"before", partition_key="k")
        consumer.acknowledge(consumer.receive(240_000), ack_receipt=True)
        typed = command.replace(".venv/bin/python", shlex.quote(sys.executable))
        subprocess.run(["sh", "-c", typed], cwd=tmp_path, check=True)
        producer.send(b"since", partition_key="k")
        consumer.acknowledge(consumer.receive(240_000))
    for beside in ("wal", "shm"):
        (data / f"metadata.db-{beside}").unlink(missing_ok=True)
    (tmp_path / "metadata-copy.db").replace(data / "metadata.db")
    with pytest.raises(sluice.Invalid, match="gone back in time"):
        sluice.connect(embedded=True, data_dir=data)
    (data / "metadata.db-witness").unlink()
    with sluice.connect(embedded=True, data_dir=data) as client:
        consumer = client.subscribe("orders", "billing")
        assert consumer.receive(240_000).data() == b"since"


def typed(commands: str, folder: Path) -> str:
    """Return the output of these lines, which must all end well. End a cluster that they left running."""
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = ["sh", "-e", "-c", commands]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environ, capture_output=True, text=True, timeout=280, check=False
        )
    finally:
        subprocess.run(["sh", "-c", f"{SLUICE} down"], cwd=folder, env=environ, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_commands_of_a_cluster_that_stays_answer(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    _, _, section = text.partition("## A cluster that stays\n\n")
    block, _, _ = section.partition("\n\n")
    commands = [line.strip() for line in block.splitlines()]
    assert commands[0].startswith("./sluice up")
    assert commands[-1].startswith("./sluice down")
    said = typed("\n".join(commands).replace("./sluice", SLUICE), tmp_path)
    assert "paid" in said
    assert "shipped" in said
    assert "customer-7" in said


@pytest.mark.spark
def test_the_commands_of_the_history_page_answer(tmp_path: Path) -> None:
    """The commands lead from a topic to SQL: first with messages in and out of the broker, then without a broker."""
    (block,) = re.findall(r"```shell\n(.*?)```", (ROOT / "docs" / "history.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(block.splitlines()) <= 8
    said = typed(block.replace("./sluice", SLUICE).replace(f"{SLUICE} sql", f"{SLUICE} sql --json"), tmp_path)
    assert '"customer": "customer-3"' in said
    assert said.count('"orders": 500') >= 10, said
    last = json.loads(said[said.rindex("[") :])
    assert 4_000 <= last[0]["orders"] <= 5_000
