"""A flood of questions by HTTP whose answers nobody reads, against a cluster in a process of its own."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

import sluice
from sluice.cluster.client.client import Client
from sluice.cluster.gateway.ports import WEB, port_of
from sluice.cluster.http.guard import PORT_FILE, TOKEN_FILE
from sluice.cluster.launch import launch, standalone
from sluice.cluster.launch.discovery import process_of
from sluice.cluster.node.folder import read_state
from tests.cluster.admin.asking import BASE, Tool
from tests.cluster.helpers import values

pytestmark = pytest.mark.timeout(540)

CONNECTIONS, LARGE, MOST_BYTES = 200, 100_000, 400 << 20
PARTITIONS, SCHEMAS, MESSAGES = 64, 40, 100
WEB_PATHS = (
    "/admin/v2/schemas/public/default/orders/schemas",
    f"{BASE}/orders/partitioned-stats",
    f"{BASE}/orders/partitioned-internalStats",
    f"{BASE}/large/examinemessage?initialPosition=earliest&messagePosition=1",
    BASE,
)
ADMIN_PATHS = ("/metrics", f"{BASE}/orders/partitioned-stats")


class Flooded(NamedTuple):
    """A cluster with much to tell. web, admin: the ports of Pulsar's tools and of the operator, who has the token."""

    process: psutil.Process
    client: Client
    web: int
    admin: int
    token: str


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flooded]:
    """Start a cluster whose answers have from 100 KB to several MB."""
    folder = tmp_path_factory.mktemp("flood") / "data"
    standalone.up(values(folder, pulsar_port=0, pulsar_web_port=0))
    try:
        state = read_state(folder)
        process = None if state is None else process_of(state)
        assert process is not None
        web = port_of(folder, WEB)
        with sluice.connect(data_dir=folder) as client:
            client.create_topic("orders", PARTITIONS)
            client.create_topic("large")
            client.create_topic("busy")
            for number in range(700):
                client.create_topic(f"{number:03d}-{'x' * 120}")
            for topic in ("orders", "large"):
                client.subscribe(topic, "billing", initial_position="earliest").close()
            with client.create_producer("large") as producer:
                producer.send(bytes(4 << 20), partition_key="k")
            tool = Tool(web, "")
            for number in range(SCHEMAS):
                body = {"type": "BYTES", "schema": f"{number:03d}{'é' * 30_000}", "properties": {}}
                sent = json.dumps(body, ensure_ascii=False)
                answer = tool.ask_raw("POST", "/admin/v2/schemas/public/default/orders/schema", sent)
                assert answer.status == 202, answer
            admin, token = int((folder / PORT_FILE).read_text()), (folder / TOKEN_FILE).read_text()
            yield Flooded(process, client, web, admin, token)
    finally:
        launch.down(folder)


def highest(process: psutil.Process) -> int:
    """The most bytes that a process has had in memory since it was asked to forget it."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def asked(port: int, path: str, token: str) -> socket.socket:
    """A connection on which somebody asks and reads nothing; a small buffer hides little."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
    connection.sendall(head.encode())
    return connection


@pytest.mark.parametrize(
    ("door", "path"), [*(("web", path) for path in WEB_PATHS), *(("admin", path) for path in ADMIN_PATHS)]
)
def test_answers_that_nobody_reads_hurt_nobody(flooded: Flooded, door: str, path: str) -> None:
    """They took gigabytes, and others waited for a minute. How fast others go on is not judged here."""
    Path(f"/proc/{flooded.process.pid}/clear_refs").write_text("5")
    port = flooded.web if door == "web" else flooded.admin
    whole = Tool(port, "").ask_raw("GET", path, None, Authorization=f"Bearer {flooded.token}")
    assert (whole.status, int(whole.headers.get("Content-Length", MOST_BYTES)) >= LARGE) == (200, True), str(
        whole.body
    )[:99]
    with ExitStack() as open_ones, flooded.client.create_producer("busy") as producer:
        for _ in range(CONNECTIONS):
            open_ones.enter_context(asked(port, path, flooded.token))
        for _ in range(MESSAGES):
            producer.send(b"goes on", partition_key="k")
            with urllib.request.urlopen(f"http://127.0.0.1:{flooded.admin}/healthz", timeout=60) as answer:
                assert answer.status == 200
    assert highest(flooded.process) < MOST_BYTES
