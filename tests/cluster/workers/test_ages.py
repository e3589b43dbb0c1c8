"""Messages without a key at a pool: each is ordered with no other, however its handler is called."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sluice
from sluice.cluster.client.client import Client
from sluice.cluster.client.message import Message
from sluice.cluster.workers.pool import Workers
from tests.cluster.helpers import PATIENCE_S, eventually
from tests.cluster.workers.test_pool import drained

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with sluice.connect(embedded=True, data_dir=tmp_path / "data") as one:
        one.create_topic("orders", 2)
        yield one


def send_keyless(client: Client, messages: int) -> None:
    """Numbered messages without a key."""
    with client.create_producer("orders") as producer:
        payloads = [b"%d" % number for number in range(messages)]
        producer.send_batch(pa.record_batch({"payload": payloads})).result(60)


def test_failed_rows_without_a_key_strand_no_others(client: Client) -> None:
    send_keyless(client, 20)

    def handle(rows: pa.RecordBatch) -> None:
        first = [not count for count in rows.column("redelivery_count").to_pylist()]
        if failed := [row for row in range(len(rows)) if first[row] and row % 5 == 0]:
            raise sluice.FailedRows(failed)

    options: dict[str, Any] = {"batch_size": 100, "batch_wait_ms": 200, "retry_delay_ms": 10}
    with Workers("orders", "billing", handle, client=client, **options) as workers:
        eventually(lambda: workers.status().handled == 20, lambda: str(workers.status()))
        eventually(lambda: drained(client), lambda: str(client.stats("orders", "billing")))


@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("loop", [False, True])
def test_messages_without_a_key_are_handled_together(client: Client, output: bool, loop: bool) -> None:
    send_keyless(client, 4)
    met, all_met = threading.Barrier(4), asyncio.Event()
    count = 0

    def handle(message: Message) -> None:
        met.wait(PATIENCE_S)

    async def handle_in_loop(message: Message) -> None:
        nonlocal count
        count += 1
        if count == 4:
            all_met.set()
        await asyncio.wait_for(all_met.wait(), PATIENCE_S)

    options: dict[str, Any] = {"concurrency": 4, "max_redeliver_count": 1}
    if output:
        client.create_topic("made", deduplication_enabled=True)
        options["output"] = "made"
    handler: Any = handle_in_loop if loop else handle
    with Workers("orders", "billing", handler, client=client, **options) as workers:
        eventually(lambda: workers.status().handled == 4, lambda: str(workers.status()))
        assert workers.status().failed == 0
