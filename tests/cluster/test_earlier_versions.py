"""Folders that earlier versions left are opened.

`tests/formats` has one of each version whose formats were others, packed. One process made it, with a topic `orders` of
two partitions and 40 messages, "0" to "39", of five keys in turn. A subscription `billing` received all of them and
acknowledged those below 20.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import cluster
from tests.hygiene.source import ROOT

FOLDERS = sorted((ROOT / "tests" / "formats").glob("*.tar.gz"))


@pytest.mark.parametrize("packed", FOLDERS, ids=lambda path: str(path.name))
def test_a_folder_of_an_earlier_version_is_opened(packed: Path, tmp_path: Path) -> None:
    """What was acknowledged stays so; the rest comes in order of each key, and new messages after it."""
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "data"
    folder.chmod(0o700)
    with cluster.connect(embedded=True, data_dir=folder) as client:
        producer = client.create_producer("orders")
        for number in range(40, 45):
            producer.send(str(number).encode(), partition_key=f"key-{number % 5}")
        consumer = client.subscribe("orders", "billing", consumer_name="c")
        received: dict[str, list[int]] = {}
        for _ in range(25):
            message = consumer.receive(timeout_millis=30_000)
            received.setdefault(message.partition_key(), []).append(int(message.data()))
            consumer.acknowledge(message)
    assert received == {f"key-{rest}": list(range(20 + rest, 45, 5)) for rest in range(5)}
