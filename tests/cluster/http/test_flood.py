"""A flood of questions by HTTP whose answers nobody reads, against a cluster in a process of its own."""

from __future__ import annotations

import re
import select
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from sluice.cluster.http.responses import PIECE
from tests.cluster.http.filled import Filled, addresses, filled, shapes

pytestmark = pytest.mark.timeout(540)

CONNECTIONS, LARGE, MOST_BYTES, SENT = 200, 100_000, 400 << 20, 20
SHAPES = shapes()
ENDLESS = "/watch/events"
SMALLER = ("parked", "erase", "{topic}/subscriptions")
"""Ends of paths whose answers this cluster has too few keys or subscriptions for."""
OF_THE_OPERATOR = ("/watch", "/erase", "/explain", "/pending", "-keys", "/assignments", "/delayed", "/parked")
"""Parts of paths that Pulsar's tools do not know."""


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    with filled(tmp_path_factory.mktemp("flood") / "data") as cluster:
        yield cluster


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


def largest(cluster: Filled, shape: str) -> tuple[int, str]:
    """The bytes of the largest answer that a shape of a path has here, and its address."""
    return max((cluster.size(path), path) for path in addresses(shape))


@pytest.mark.parametrize("shape", [*(shape for shape, bounded in SHAPES.items() if bounded), ENDLESS])
def test_answers_that_nobody_reads_hurt_nobody(flooded: Filled, shape: str) -> None:
    """They took gigabytes, and others waited for a minute. How fast others go on is not judged here."""
    if shape == ENDLESS:
        (path, *_) = addresses(shape)
    else:
        size, path = largest(flooded, shape)
        assert size >= LARGE or shape.endswith(SMALLER), "this cluster has not enough to tell"
    Path(f"/proc/{flooded.process.pid}/clear_refs").write_text("5")
    port, tokens = flooded.web, flooded.roles
    if any(part in path for part in OF_THE_OPERATOR):
        port, tokens = flooded.admin, (*flooded.roles, flooded.token)
    with ExitStack() as open_ones, flooded.client.create_producer("busy") as producer:
        unread = [
            open_ones.enter_context(asked(port, path, tokens[number % len(tokens)])) for number in range(CONNECTIONS)
        ]
        assert select.select(unread, [], [], 60)[0], "no answer has begun"
        for _ in range(SENT):
            producer.send(b"goes on", partition_key="k")
            with urllib.request.urlopen(f"http://127.0.0.1:{flooded.admin}/healthz", timeout=60) as answer:
                assert answer.status == 200
    assert highest(flooded.process) < MOST_BYTES


def test_paths_without_bounds_have_small_answers(flooded: Filled) -> None:
    unbounded = [shape for shape, bounded in SHAPES.items() if not bounded and shape != ENDLESS]
    assert [found for shape in unbounded if (found := largest(flooded, shape))[0] >= PIECE] == []
