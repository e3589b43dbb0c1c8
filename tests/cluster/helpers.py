"""Helpers of the tests on a real cluster: patience, batches, received messages, and the ports of listeners."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

import sluice
from sluice.actors.ports import Ports
from sluice.cluster.base.real import RealClock, StructuredLog, Tasks, make_rng
from sluice.cluster.client.blocking import Consumer
from sluice.cluster.client.client import Client
from sluice.cluster.launch import launch
from sluice.cluster.launch.discovery import find
from sluice.cluster.node.folder import STATE_FILE
from sluice.cluster.node.sessions import processes_of
from sluice.cluster.settings.config import load
from sluice.storage.errors import SluiceError
from tests.kit.meta import MemoryMeta

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 240.0
PATIENCE_MS = round(PATIENCE_S * 1000)
"""How long to wait for what must come true; a machine that runs other tests besides is slow."""

SMALL = {"object_store_bytes": 80 << 20}
PYTHON = sys.executable


def unpacked(name: str, folder: Path) -> Path:
    """The data folder that an earlier version left, packed under this name in `tests/formats`, unpacked in a folder."""
    archive = ROOT / "tests" / "formats" / name
    options = ("--no-same-owner", "--no-same-permissions")  # tarfile's own filters are not in Python 3.11.2
    subprocess.run(["tar", "-xzf", archive, "-C", folder, *options], check=True)
    (folder / "data").chmod(0o700)
    return folder / "data"


def values(folder: Path, **more: Any) -> Any:
    """A configuration without this machine's files."""
    nowhere = {"pulsar_port": -1, "pulsar_web_port": -1}
    return load(None, data_dir=folder, **({"brokers": 1} | SMALL | nowhere | more)).values


def admin_ports(net: Any = None, me: str = "host/admin") -> Ports:
    """The real clock and tasks for what serves administrators: it has records in memory, no other store and no disk."""
    return Ports(
        me=me,
        clock=RealClock(),
        net=net,
        objects=None,  # type: ignore[arg-type]
        meta=MemoryMeta(),
        rng=make_rng(),
        spawn=Tasks(me),
        log=StructuredLog(me),
    )


@contextlib.contextmanager
def attached(folder: Path) -> Iterator[Client]:
    """A client of the cluster of a folder, while this process is attached to its Ray; afterwards it is free again."""
    import ray

    address, token_file = find(folder) or ("", None)
    launch.join(address, token_file)
    try:
        with sluice.connect(data_dir=folder) as client:
            yield client
    finally:
        ray.shutdown()


def session_of(folder: Path) -> str:
    """Ray's folder of the cluster that was started on a data folder."""
    return str(json.loads((folder / STATE_FILE).read_text())["session"])


def eventually(condition: Callable[[], object], what: str | Callable[[], str], seconds: float = PATIENCE_S) -> None:
    """Wait for something that must come true. A cluster that does not answer yet is not there yet."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(SluiceError):
            if condition():
                return
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.05)


def batch(keys: int, each: int, first: int = 0) -> pa.RecordBatch:
    """`each` messages for each of `keys` keys, interleaved; the payload is the number within the key."""
    names = [f"key-{key}" for _ in range(each) for key in range(keys)]
    payloads = [str(first + number).encode() for number in range(each) for _ in range(keys)]
    return pa.record_batch({"key": names, "payload": pa.array(payloads, pa.binary())})


class Received:
    """The messages of a subscription's consumers, in order of arrival."""

    def __init__(self) -> None:
        self.by_key: dict[str, list[int]] = {}
        self.count = 0

    def take(self, consumers: Sequence[Consumer], *, timeout_millis: int = 50, acknowledge: bool = True) -> int:
        """One round over the consumers; returns how many messages came."""
        before = self.count
        for consumer in consumers:
            got = consumer.receive_batch(timeout_millis)
            if got is None:
                continue
            pairs = zip(got.rows.column("key").to_pylist(), got.rows.column("payload").to_pylist(), strict=True)
            for key, payload in pairs:
                self.by_key.setdefault(key.decode(), []).append(int(payload))
            self.count += len(got)
            if acknowledge:
                consumer.acknowledge(got)
        return self.count - before

    def settle(self, consumers: Sequence[Consumer], client: Client, topic: str, subscription: str) -> None:
        """Until everything is acknowledged for good. Who lost a session is told once, and its messages come again."""

        def durable() -> bool:
            self.take(consumers)
            for consumer in consumers:
                consumer.wait_acknowledged(PATIENCE_MS)
            return rows(client, topic, subscription, "msgBacklog") == 0

        eventually(durable, "the backlog stays")

    def complete(self, keys: int, each: int) -> bool:
        """Whether every number of every key has come."""
        return len(self.by_key) == keys and all(len(set(numbers)) == each for numbers in self.by_key.values())

    def missing(self, keys: int, each: int) -> str:
        """Return the number of missing messages by key, as text."""
        lacking = {f"key-{key}": each - len(set(self.by_key.get(f"key-{key}", []))) for key in range(keys)}
        return f"missing: { {key: count for key, count in lacking.items() if count} }"

    def check(self, keys: int, each: int) -> None:
        """Nothing is lost, and the first deliveries of each key rise."""
        assert len(self.by_key) == keys
        for key, numbers in self.by_key.items():
            assert list(dict.fromkeys(numbers)) == list(range(each)), f"{key} lost messages or came out of order"


def rows(client: Client, topic: str, subscription: str, name: str) -> int:
    """The sum of a statistic over all partitions."""
    return sum(row[name] for row in client.stats(topic, subscription))


def actors(client: Client, kind: str, text: str = "") -> list[dict[str, Any]]:
    """The rows of the status about running actors of a kind whose name contains a text."""
    status = client.status()["actors"]
    return [row for row in status if row["kind"] == kind and text in row["name"] and row["address"]]


def pid_of(address: str) -> int:
    """The process of the host at an address."""
    import ray

    return int(ray.get(ray.get_actor(address.partition("/")[0], "sluice").usage.remote(), timeout=60)["pid"])


def listeners(session: str) -> dict[tuple[str, int], str]:
    """(address, port) of every TCP socket that a process of a session listens on, and who that is.

    An IPv4 address on an IPv6 socket is shown as what it is.
    """
    found: dict[tuple[str, int], str] = {}
    for process in processes_of(session):
        with contextlib.suppress(psutil.Error):
            for each in process.net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN:
                    found[(each.laddr.ip.removeprefix("::ffff:"), each.laddr.port)] = process.name()
    return found


def listening_sockets(ports: Sequence[int]) -> dict[int, int]:
    """The port of each TCP socket of this machine that listens on one of these ports, by the number of its inode.

    A port alone does not say whose it is: what somebody let go, anybody may be given a moment later.
    """
    found: dict[int, int] = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            port = int(fields[1].rpartition(":")[2], 16)
            if fields[3] == "0A" and port in ports:
                found[int(fields[9])] = port
    return found


def still_open(sockets: dict[int, int]) -> list[int]:
    """On which ports these sockets (`listening_sockets`) still listen."""
    return sorted(port for inode, port in listening_sockets([*sockets.values()]).items() if inode in sockets)
