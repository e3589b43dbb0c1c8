"""Chaos while ledgers leave for an S3 server that goes away again and again, and a reader of what has left beside it.

    .venv/bin/python -m benchmarks.chaos_history [--minutes N] [--every 3s] [--faults A,B] [--rate N] [--small]

A cluster on this machine keeps its objects on an S3 server (MinIO where it can be had, tests/s3server.py), and
`./sluice chaos` floods it while every closed ledger leaves and its bookies forget it a second later. Retention keeps
the log. A reader beside it follows the log, and keeps a hash of each message and its publish time. Again and again it
reads some ledgers anew that are in the store alone, and compares; after the end it does so with all of them.

Prints one JSON object: the verdict of chaos, how many ledgers and messages had left when it ended, how many messages
were read from ledgers that were in the store alone, how many of them meanwhile, and how many were other ones than
before. `waits` counts reads that were refused meanwhile and tried again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import sluice
from sluice.cluster.base.arguments import ArgumentParser, amount, count
from sluice.cluster.client.client import Client
from sluice.cluster.client.log_reader import StoredRange
from sluice.cluster.history.scan import HistoryScan, StoreUrls
from sluice.loadgen.run.flood import TOPIC
from sluice.storage.errors import SluiceError
from sluice.storage.format.hashing import hash_column
from sluice.storage.format.position import position
from tests.s3server import ACCESS_KEY, SECRET_KEY, S3Server, available_kinds

ROOT = Path(__file__).resolve().parent.parent
FAULTS = "s3-down,kill-topic,kill-bookie,kill-consumer,kill-dispatcher,freeze-topic"
SETTINGS = {"offload_threshold_bytes": "0", "offload_deletion_lag_ms": "1s", "retention_ms": "1h"}
AGAIN = 6
"""So many ledgers that have left are read anew at a time while chaos goes on."""
LOOK_S = 2.0
END_S = 120.0
"""How long what was refused is tried again after the end."""

Ledger = tuple[int, int]
"""Partition and id."""


class PastReader:
    """Follows a topic's log, and reads its past anew. Its client asks whoever owns a partition."""

    def __init__(self, client: Client, topic: str, urls: StoreUrls, seed: int) -> None:
        self._client, self._topic = client, topic
        self._scan, self._chance = HistoryScan(urls, topic), random.Random(seed)
        self._known: dict[Ledger, npt.NDArray[np.int64]] = {}
        """Of each message, by entry."""
        self.counts: Counter[str] = Counter()
        self.compared: set[Ledger] = set()

    def follow(self) -> None:
        """Keep what came since the last time. Raises SluiceError."""
        for part in self._client.stored(self._topic):
            known = self._known.get((part.partition, part.ledger), np.empty((0, 2), np.int64))
            if len(known) <= part.last:
                rest = StoredRange(part.partition, part.ledger, len(known), part.last)
                self._known[part.partition, part.ledger] = np.concatenate([known, self._read(rest)])

    def gone(self) -> list[Ledger]:
        """The ledgers that are in the store alone. Raises SluiceError."""
        return [
            (number, ledger.id)
            for number, record in self._scan.records().items()
            for ledger in record.ledgers
            if ledger.offloaded is not None and not ledger.fragments
        ]

    def compare(self, ledgers: list[Ledger], when: str) -> None:
        """Read ledgers anew that are in the store alone, counted under the name `when`. Raises SluiceError."""
        for one in ledgers:
            known = self._known[one]
            found = self._read(StoredRange(*one, 0, len(known) - 1))
            self.counts[when] += len(found)
            self.counts["others"] += int(np.count_nonzero((found != known).any(axis=1)))
            self.compared.add(one)

    def some(self) -> list[Ledger]:
        """Some of those that are in the store alone, the oldest among them. Raises SluiceError."""
        known = [one for one in self.gone() if one in self._known]
        return known[:1] + self._chance.sample(known[1:], min(AGAIN - 1, len(known[1:])))

    def totals(self) -> tuple[int, int]:
        """Ledgers and messages that it knows."""
        return len(self._known), sum(len(known) for known in self._known.values())

    def messages_of(self, ledgers: list[Ledger]) -> int:
        """How many messages these have."""
        return sum(len(self._known[one]) for one in ledgers)

    def _read(self, wanted: StoredRange) -> npt.NDArray[np.int64]:
        """A hash and the publish time of each message, int64 (n, 2). Raises SluiceError; AssertionError on a gap."""
        found, at = [], position(wanted.ledger, wanted.first)
        for part in self._client.read(self._topic, wanted):
            if not np.array_equal(part.positions, at + np.arange(len(part))):
                raise AssertionError(f"of {wanted} other messages came than were asked for")
            at += len(part)
            hashes = hash_column(part.rows.column("payload"))
            found.append(np.stack([hashes.astype(np.int64), part.rows.column("publish_time").to_numpy()], axis=1))
        return np.concatenate(found)


def watch(reader: PastReader, over: threading.Event) -> None:
    """Follow and compare until it is over."""
    while not over.wait(LOOK_S):
        try:
            reader.follow()
            reader.compare(reader.some(), "meanwhile")
        except SluiceError as error:
            reader.counts["waits"] += 1
            print(f"the reader waits: {error}", file=sys.stderr)


def at_the_end(reader: PastReader) -> list[Ledger]:
    """Read everything that is in the store alone once more; which ledgers these are."""
    deadline = time.monotonic() + END_S
    while True:
        try:
            reader.follow()
            gone = reader.gone()
            reader.compare(gone, "at_the_end")
            return gone
        except SluiceError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def flooded_topic(client: Client, chaos: subprocess.Popen[bytes]) -> str:
    """The topic of the flood, as soon as it is there. Raises SystemExit if chaos ends before."""
    while chaos.poll() is None:
        names = [str(row["topic"]) for row in client.topics() if str(row["topic"]).startswith(TOPIC)]
        if names:
            return names[0]
        time.sleep(0.5)
    raise SystemExit(f"chaos ended with {chaos.returncode} and had no topic")


def measured(options: argparse.Namespace, folder: Path, server: S3Server) -> dict[str, Any]:
    """Start a cluster, break it, read beside it."""
    data, report = folder / "data", folder / "report.json"
    stores = {"SLUICE_OBJECTS": "s3://bucket/sluice", "SLUICE_S3_ENDPOINT_URL": server.endpoint}
    os.environ.update(stores | {"SLUICE_DATA_DIR": str(data), "XDG_CONFIG_HOME": str(folder)})
    os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY, AWS_EC2_METADATA_DISABLED="true")
    os.environ.pop("SLUICE_MINIO", None)  # of the tests, not of Sluice
    door = str(ROOT / "sluice")
    settings = {**SETTINGS, "roll_entries": str(options.roll_entries)}
    command = [door, "chaos", "--minutes", str(options.minutes), "--every", options.every]
    command += ["--faults", options.faults, "--rate", str(options.rate), "--seed", str(options.seed)]
    command += ["--partitions", "2", "--keys", "1000", "--consumers", "2", "--json", str(report)]
    command += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    subprocess.run([door, "up"], check=True, stdout=sys.stderr)
    try:
        with sluice.connect(data_dir=data) as client, subprocess.Popen(command, stdout=sys.stderr) as chaos:
            topic = flooded_topic(client, chaos)
            urls = StoreUrls.of(client.status()["storage"])
            assert urls is not None
            reader, over = PastReader(client, topic, urls, options.seed), threading.Event()
            with ThreadPoolExecutor(1, "reader") as pool:
                beside = pool.submit(watch, reader, over)
                code = chaos.wait()
                over.set()
                beside.result()
            meanwhile = len(reader.compared)
            gone = at_the_end(reader)
            ledgers, messages = reader.totals()
            told = json.loads(report.read_text())
            return {
                "code": code,
                "verdict": told["verdict"],
                "published": told["messages"],
                "faults": dict(Counter(fault["kind"] for fault in told["faults"])),
                "ledgers": ledgers,
                "messages": messages,
                "ledgers_left": len(gone),
                "messages_left": reader.messages_of(gone),
                "ledgers_read_meanwhile": meanwhile,
                "messages_read_from_store": {name: reader.counts[name] for name in ("meanwhile", "at_the_end")},
                "other_than_before": reader.counts["others"],
                "waits": reader.counts["waits"],
                "server": server.kind,
            }
    finally:
        subprocess.run([door, "down"], check=False, stdout=sys.stderr)


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=amount, default=10.0)
    parser.add_argument("--every", default="3s")
    parser.add_argument("--faults", default=FAULTS)
    parser.add_argument("--rate", type=count, default=3_000)
    parser.add_argument("--roll-entries", type=count, default=5_000)
    parser.add_argument("--seed", type=count, default=1)
    parser.add_argument("--small", action="store_true", help="half a minute")
    options = parser.parse_args()
    if options.small:
        options.minutes, options.roll_entries = 0.5, 1_000
    if not (kinds := available_kinds()):
        raise SystemExit("there is no S3 server here: see deploy/s3/README.md")
    with tempfile.TemporaryDirectory(prefix="sluice-chaos-") as folder:
        server = S3Server(kinds[0], Path(folder) / "s3")
        server.start()
        try:
            server.client().create_bucket(Bucket="bucket")
            print(json.dumps(measured(options, Path(folder), server), indent=2))
        finally:
            server.kill()


if __name__ == "__main__":
    main()
