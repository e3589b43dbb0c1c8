"""Measures what it costs to read a topic's past from the object store, against bookies in the same run.

    .venv/bin/python -m benchmarks.history [--messages N] [--bytes N] [--keys N] [--delay-ms N] [--server] [--folder F]

A cluster in this process has one partition with `--messages` messages. A Key_Shared subscription of one consumer reads
and acknowledges all of them from the first on

    bookies  where they lie on three bookies, with two copies each
    store    after every ledger but the newest has left, from a folder, or with --server from an S3 server beside it
    slow     the same, with --delay-ms added to each request

Between these the cluster is restarted, so that it has nothing in memory. Each time every message is compared: it must
be there once, with its id, key, properties and the number in its payload, and the messages of a key must come in order.
The seconds are on the clock, from the subscription to the last message; the comparison is not counted. Bytes are the
sizes of files: of the bookies when the ledgers have left and their segments are compacted. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from sluice.cluster.base.arguments import ArgumentParser, count
from sluice.cluster.client.bulk import ROWS, rows_of
from sluice.cluster.launch import embedded
from sluice.storage.stores.objects import LocalObjects
from sluice.storage.stores.s3 import S3Objects
from tests.s3server import ACCESS_KEY, SECRET_KEY, S3Server, available_kinds

BATCH, AHEAD = 5_000, 8
WANTED = ROWS.append(pa.field("properties", pa.map_(pa.string(), pa.string())))
NUMBER = 8
"""Bytes of a payload that say which message it is."""


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=count, default=1_000_000)
    parser.add_argument("--bytes", type=count, default=100, help="of a payload, which cannot be compressed")
    parser.add_argument("--keys", type=count, default=1_000)
    parser.add_argument("--delay-ms", type=count, default=50)
    parser.add_argument("--server", action="store_true", help="objects on MinIO, or what else is here (deploy/s3)")
    parser.add_argument("--folder", type=Path, help="where to put the data; default: a temporary folder")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sluice-history-", dir=options.folder))
    try:
        stores: AbstractContextManager[dict[str, str]] = server(folder / "s3") if options.server else nullcontext({})
        with stores as where:
            print(json.dumps(measured(options, folder / "data", where)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def server(folder: Path) -> Iterator[dict[str, str]]:
    """An S3 server with its data in a folder; the settings with which a cluster keeps its objects there."""
    if not (kinds := available_kinds()):
        raise SystemExit("there is no S3 server here: see deploy/s3/README.md")
    os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY, AWS_EC2_METADATA_DISABLED="true")
    running = S3Server(kinds[0], folder)
    running.start()
    try:
        running.client().create_bucket(Bucket="bucket")
        yield {"objects": "s3://bucket/sluice", "s3_endpoint_url": running.endpoint}
    finally:
        running.kill()


def measured(options: argparse.Namespace, data: Path, where: dict[str, str]) -> dict[str, Any]:
    """All figures. where: settings of the objects' store."""
    objects = data.parent / "s3" if where else data / "objects"
    told: dict[str, Any] = {"messages": options.messages, "payload_bytes": options.bytes, "keys": options.keys}
    with embedded.connect(data, **where) as client:
        published(client, options)
    told["bookies"] = read(data, options, where, "bookies")
    told["on_bookies_before"] = size_of(data / "bookies")
    with embedded.connect(data, **where) as client:
        told |= offloaded(client)
        told["stored_bytes_a_message"] = round(size_of(objects) / options.messages, 1)
        told["on_bookies_after"] = least_size_of(data / "bookies")
    told["store"] = read(data, options, where, "store")
    with slowed(options.delay_ms):
        told["slow"] = read(data, options, where, "slow")
    for name in ("store", "slow"):
        told[f"{name}_rate_of_bookies"] = round(told["bookies"]["seconds"] / told[name]["seconds"], 2)
    return told


def published(client: Any, options: argparse.Namespace) -> None:
    """All messages; nothing is trimmed, and what has left leaves its bookies at once."""
    rolled = max(1_000, options.messages // 20)
    client.create_topic(
        "t",
        1,
        roll_entries=rolled,
        offload_deletion_lag_ms=0,
        retention_ms=-1,
        ensemble=3,
        write_quorum=2,
        ack_quorum=2,
    )
    chance = np.random.default_rng(7)
    under_way: deque[Any] = deque()
    with client.create_producer("t", "p") as producer:
        for first in range(0, options.messages, BATCH):
            numbers = np.arange(first, min(first + BATCH, options.messages))
            under_way.append(producer.send_batch(rows(numbers, options, chance)))
            if len(under_way) > AHEAD:
                under_way.popleft().result(120)
        for receipt in under_way:
            receipt.result(120)


def rows(numbers: np.ndarray, options: argparse.Namespace, chance: np.random.Generator) -> pa.Table:
    """Messages, each with its number at the beginning of its payload and in its properties."""
    payload = np.frombuffer(chance.bytes(len(numbers) * options.bytes), np.uint8).reshape(len(numbers), -1).copy()
    payload[:, :NUMBER] = numbers.astype("<u8").view(np.uint8).reshape(len(numbers), NUMBER)
    ends = pa.py_buffer(np.arange(0, (len(numbers) + 1) * options.bytes, options.bytes, dtype=np.int32))
    offsets = pa.array(np.arange(len(numbers) + 1, dtype=np.int32))
    names, values = pa.array(["number"] * len(numbers)), pa.array(numbers).cast(pa.string())
    return pa.table(
        {
            "key": pa.array(numbers % options.keys).cast(pa.string()).cast(pa.binary()),
            "payload": pa.Array.from_buffers(pa.binary(), len(numbers), [None, ends, pa.py_buffer(payload.tobytes())]),
            "properties": pa.MapArray.from_arrays(offsets, names, values),
        }
    )


def read(data: Path, options: argparse.Namespace, where: dict[str, str], name: str) -> dict[str, Any]:
    """Read everything as a new subscription, and compare it."""
    batches, found = [], 0
    with (
        embedded.connect(data, **where) as client,
        client.subscribe("t", name, type="key_shared", initial_position="earliest") as consumer,
    ):
        began, processors = time.perf_counter(), time.process_time()
        while found < options.messages:
            batch = consumer.receive_batch(timeout_ms=60_000)
            if batch is None:
                raise SystemExit(f"{name}: only {found} messages came")
            batches.append(batch)
            found += batch.rows.num_rows
            consumer.acknowledge(batch)
        seconds, used = time.perf_counter() - began, time.process_time() - processors
        consumer.wait_acknowledged(60_000)
    compare(pa.Table.from_batches([rows_of(batch, WANTED) for batch in batches]), options)
    return {"seconds": round(seconds, 2), "cpu_s": round(used, 2), "messages_s": round(found / seconds)}


def compare(table: pa.Table, options: argparse.Namespace) -> None:
    """Every message once, with its id, key, properties and the number in its payload; those of a key in order."""
    payloads = table.column("payload").combine_chunks()
    heads = np.frombuffer(b"".join(value[:NUMBER] for value in payloads.to_pylist()), "<u8").astype(np.int64)
    if len(heads) != options.messages:
        raise SystemExit(f"{len(heads)} messages came, not {options.messages}")
    keys = table.column("key").combine_chunks().cast(pa.string()).cast(pa.int64()).to_numpy()
    by_key = np.argsort(keys, kind="stable")
    if (np.diff(heads[by_key])[np.diff(keys[by_key]) == 0] <= 0).any():
        raise SystemExit("the messages of a key did not come in order")
    order = np.argsort(table.column("position").to_numpy(), kind="stable")
    if (heads[order] != np.arange(options.messages)).any() or (keys != heads % options.keys).any():
        raise SystemExit("a message is another one, or not where it was")
    values = table.column("properties").combine_chunks().items.cast(pa.int64()).to_numpy()
    if (values != heads).any():
        raise SystemExit("a message has other properties")


def offloaded(client: Any) -> dict[str, Any]:
    """Let everything leave, and the bookies forget it."""
    began, processors = time.perf_counter(), time.process_time()
    client.offload("t")
    while (status := client.offload_status("t")[0])["asked"] or left(client):
        if status["error"]:
            raise SystemExit(f"offloading waits: {status['error']}")
        time.sleep(0.2)
    used = time.process_time() - processors
    return {"offload_s": round(time.perf_counter() - began, 1), "offload_cpu_s": round(used, 1)}


def left(client: Any) -> bool:
    """Whether bookies still hold ledgers that have left."""
    ledgers = client.stats("t")[0]["ledgers"]
    return any(ledger["offloaded"] and ledger["fragments"] for ledger in ledgers)


@contextmanager
def slowed(milliseconds: int) -> Iterator[None]:
    """Make each request for objects take so many milliseconds longer."""

    def slow(get: Any) -> Any:
        def later(*arguments: Any) -> bytes:
            time.sleep(milliseconds / 1000)
            return bytes(get(*arguments))

        return later

    with patch.object(LocalObjects, "get", slow(LocalObjects.get)), patch.object(S3Objects, "get", slow(S3Objects.get)):
        yield


def size_of(folder: Path) -> int:
    """Bytes of all files, as they lie on the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def least_size_of(folder: Path, patience_s: float = 120.0) -> int:
    """Return the size once it has not become less for ten seconds: the bookies compact their segments in turn."""
    best, since, until = size_of(folder), time.monotonic(), time.monotonic() + patience_s
    while time.monotonic() < min(since + 10, until):
        time.sleep(0.5)
        if (now := size_of(folder)) < best:
            best, since = now, time.monotonic()
    return best


if __name__ == "__main__":
    main()
