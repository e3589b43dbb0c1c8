"""The modules of a program that publishes and consumes in one process: the core alone.

The program runs where no package of an extra can be imported, as after an installation of the core.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sluice.cluster.base.extras import EXTRAS

UNUSED = (
    "aiohttp", "avro", "google.protobuf", "psutil", "pydantic_settings", "typer",
    "sluice.actors.ledger.history_reader",
    "sluice.actors.policies.authorization", "sluice.actors.policies.schema_compatibility", "sluice.actors.pulsar",
    "sluice.actors.recorder.replay", "sluice.actors.recorder.timeline",
    "sluice.actors.topic.background.compaction", "sluice.actors.topic.background.erasing",
    "sluice.actors.topic.background.newer_table", "sluice.actors.topic.background.offloading",
    "sluice.actors.topic.background.table_following", "sluice.actors.topic.partition.compacted_reads",
    "sluice.actors.topic.partition.result_intake", "sluice.actors.topic.partition.results",
    "sluice.cluster.admin", "sluice.cluster.base.audit", "sluice.cluster.history", "sluice.cluster.http",
    "sluice.cluster.on_ray", "sluice.cluster.settings.config", "sluice.cluster.watch", "sluice.cluster.workers",
    "sluice.loadgen", "sluice.cli", "sluice.storage.history",
)  # fmt: skip
"""Modules, with those below them, that serve what this program does not use."""

AS_IT_IS = 'sluice.connect(embedded=True, data_dir="data")'
WITHOUT_RECORDER = 'embedded.connect(Path("data"), recorder_bytes=0)'

PROGRAM = f"""
import sys
from pathlib import Path

sys.modules.update(dict.fromkeys({sorted({*EXTRAS} - {"pandas"})}))
from sluice.cluster.base.arrow import without_pandas

without_pandas()
import sluice
from sluice.cluster.launch import embedded
with CONNECT as client:
    client.create_topic("orders", partitions=2)
    producer = client.create_producer("orders")
    consumer = client.subscribe("orders", "billing", initial_position="earliest")
    producer.send(b"paid", partition_key="customer-7")
    message = consumer.receive(timeout_millis=20_000)
    consumer.acknowledge(message)
    print(message.data().decode())
print(*(name for name, module in sys.modules.items() if module is not None))
"""


@pytest.mark.parametrize(
    ("connect", "unused"),
    [(AS_IT_IS, UNUSED), (WITHOUT_RECORDER, (*UNUSED, "sluice.actors.recorder"))],
    ids=["as_it_is", "unrecorded"],
)
def test_program_in_one_process_imports_the_core_alone(tmp_path: Path, connect: str, unused: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", PROGRAM.replace("CONNECT", connect)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said, _, modules = done.stdout.partition("\n")
    assert said == "paid"
    loaded = [name for name in modules.split() for room in unused if name == room or name.startswith(f"{room}.")]
    assert loaded == []
