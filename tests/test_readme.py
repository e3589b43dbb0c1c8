"""The Python examples of the README and of the pages in docs run as they stand there, and so do their commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import cluster
from cluster.bootstrap.environment import short_folder

ROOT = Path(__file__).parents[1]


pytestmark = [pytest.mark.ray, pytest.mark.slow]


def examples(page: str) -> list[str]:
    """The Python programs that a page shows."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def run(example: str, folder: Path) -> str:
    """What a program prints that ends well."""
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", example]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_first_example_runs(tmp_path: Path) -> None:
    (first,) = examples("README.md")
    printed = run(first, tmp_path)
    assert "customer-7 b'paid'" in printed
    assert "b'remind'" in printed


def test_the_queue_of_the_python_page_runs(tmp_path: Path) -> None:
    """In a Ray of the program's own, here on the loopback alone and in a folder with a short name."""
    sessions: list[str] = []
    there = (
        f"import cluster, ray\nray.init(num_cpus=2, _node_ip_address='127.0.0.1', _temp_dir={short_folder(sessions)!r})"
    )
    queue, _ = examples("docs/python-client.md")
    example = queue.replace("import ray\n", "").replace("ray.init()\n", "")
    assert "ray.init()" not in example
    run(f"{there}\n{example}", tmp_path)


def test_the_gateway_of_the_python_page_serves(tmp_path: Path) -> None:
    _, gateway = examples("docs/python-client.md")
    use = "    client.create_producer('orders').send(b'paid')\n    client.close()\n    print('sent')\n"
    assert run(f"import cluster, pulsar\n{gateway}{use}", tmp_path).endswith("sent\n")


def test_the_example_of_delayed_messages_cancels(tmp_path: Path) -> None:
    (example,) = examples("docs/delayed-messages.md")
    assert "cancelled" in run(example, tmp_path)


def test_the_history_of_its_page_is_a_table(tmp_path: Path) -> None:
    (example,) = examples("docs/history.md")
    assert run(example, tmp_path).splitlines() == ["read by the broker: 5000", "in tables: 5000 of 10 customers"]


def test_a_copy_of_the_metadata_goes_on(tmp_path: Path) -> None:
    """As the page of running a cluster says: what was done since comes again, of ledgers that the copy knows."""
    _, _, section = (ROOT / "docs/running-a-cluster.md").read_text(encoding="utf-8").partition("## Backups")
    (command,) = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    data = tmp_path / "sluice-data"
    with cluster.connect(embedded=True, data_dir=data) as client:
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
    with pytest.raises(cluster.Invalid, match="gone back in time"):
        cluster.connect(embedded=True, data_dir=data)
    (data / "metadata.db-witness").unlink()
    with cluster.connect(embedded=True, data_dir=data) as client:
        consumer = client.subscribe("orders", "billing")
        assert consumer.receive(240_000).data() == b"since"


SLUICE = f"{shlex.quote(sys.executable)} -c 'from cli import main; main()'"


def typed(commands: str, folder: Path) -> str:
    """What these lines print if each of them ends well. A cluster that they left running is ended."""
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
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
    """From a topic to SQL: what has left and what is still with the broker, and then without a broker."""
    (block,) = re.findall(r"```shell\n(.*?)```", (ROOT / "docs" / "history.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(block.splitlines()) <= 8
    said = typed(block.replace("./sluice", SLUICE).replace(f"{SLUICE} sql", f"{SLUICE} sql --json"), tmp_path)
    assert '"customer": "customer-3"' in said
    assert said.count('"orders": 500') >= 10, said
    last = json.loads(said[said.rindex("[") :])
    assert 4_000 <= last[0]["orders"] <= 5_000


def test_the_workers_of_their_page_keep_the_order(tmp_path: Path) -> None:
    example, *_ = examples("docs/workers.md")
    lines = run(example, tmp_path).splitlines()
    for customer in range(2):
        assert [line for line in lines if f"customer-{customer}" in line] == [
            f"customer-{customer} {number}" for number in range(customer, 6, 2)
        ]


def test_the_outputs_of_the_workers_page_are_there_once(tmp_path: Path) -> None:
    (example,) = [one for one in examples("docs/workers.md") if "output=" in one]
    assert run(example, tmp_path) == "7 invoices\n"
