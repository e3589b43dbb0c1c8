"""Unchanged clients whose service URL is HTTP, and what is asked by hand."""

from __future__ import annotations

import http.client
import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pulsar
import pytest

from sluice.cluster.client.client import Client
from sluice.cluster.gateway.ports import TLS, port_of
from sluice.cluster.launch.embedded import running
from sluice.cluster.settings.options import ClusterOptions
from tests.cluster.gateway.clients import EARLIEST, PATIENCE, received
from tests.cluster.gateway.raw import Raw
from tests.kit.certificates import Authority

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def by_http(server: Client) -> Iterator[pulsar.Client]:
    """A client that looks topics up by HTTP."""
    one = joined(server.pulsar_service_url.replace("pulsar://", "http://"))
    yield one
    one.close()


def joined(url: str, **options: Any) -> pulsar.Client:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(url, logger=quiet, **{"operation_timeout_seconds": 60, **options})


def ask(server: Client, path: str, **headers: str) -> tuple[int, Any]:
    """Status and answer."""
    return ask_at(int(server.pulsar_service_url.rpartition(":")[2]), path, **headers)


def ask_at(port: int, path: str, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE / 1000)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    said = answer.status, json.loads(answer.read())
    connection.close()
    return said


def test_new_topics_and_partitioned_ones(server: Client, by_http: pulsar.Client) -> None:
    server.create_topic("parts", 3)
    for topic in ("plain", "parts"):
        consumer = by_http.subscribe(topic, "s", initial_position=EARLIEST)
        producer = by_http.create_producer(topic)
        for number in range(20):
            producer.send(str(number).encode(), partition_key=f"key-{number}")
        assert {int(message.data()) for message in received(consumer, 20)} == set(range(20))


def test_topics_are_found_by_a_pattern(server: Client, by_http: pulsar.Client) -> None:
    for name in ("found-a", "found-b"):
        server.create_topic(name)
        server.create_producer(name).send(name.encode(), partition_key="k")
    pattern = re.compile("persistent://public/default/found-.*")
    consumer = by_http.subscribe(pattern, "s", initial_position=EARLIEST)
    assert {message.data() for message in received(consumer, 2)} == {b"found-a", b"found-b"}


def test_questions_by_hand_make_no_topic(server: Client) -> None:
    """Nothing is made by asking, and nothing is told to a page under a made-up name."""
    lookup = "/lookup/v2/topic/persistent/public/default/new-by-hand"
    assert ask(server, lookup)[1]["brokerUrl"] == server.pulsar_service_url
    count = "/admin/v2/persistent/public/default/new-by-hand/partitions"
    assert ask(server, count)[0] == 404
    assert ask(server, f"{count}?checkAllowAutoCreation=true")[1]["partitions"] == 0
    status, topics = ask(server, "/admin/v2/namespaces/public/default/topics")
    assert status == 200
    assert not [name for name in topics if "new-by-hand" in name]
    assert ask(server, lookup, Host="evil.example:6650")[0] == 421
    assert ask(server, "/admin/v2/namespaces/other/one/topics")[0] == 404
    assert ask(server, "/lookup/v2/topic/persistent/public/default/%20")[0] == 412


def test_a_request_may_come_in_pieces(server: Client, raw: Raw) -> None:
    path = "/lookup/v2/topic/persistent/public/default/slow"
    for piece in (b"G", b"ET ", f"{path} HTTP/1.1\r\nHost: localhost:1\r\n".encode(), b"Connection: close\r\n\r\n"):
        raw.send(piece)
    data = b""
    while chunk := raw.socket.recv(65536):
        data += chunk
    assert data.startswith(b"HTTP/1.1 200")
    assert server.pulsar_service_url.encode() in data


@pytest.mark.parametrize("apart", [False, True])
def test_a_body_that_no_header_announces(server: Client, raw: Raw, apart: bool) -> None:
    """The request is answered, and what follows it is refused and ends the connection."""
    topic = f"unannounced-{apart}".lower()
    server.create_topic(topic)
    head = f"DELETE /admin/v2/persistent/public/default/{topic} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    body = b'{"force": true}'
    if apart:
        raw.send(head)
        raw.send(body)
    else:
        raw.send(head + body)
    data = b""
    while chunk := raw.socket.recv(65536):
        data += chunk
    assert data.startswith(b"HTTP/1.1 204")
    assert data.count(b"HTTP/1.") == 2
    assert b" 400 Bad Request" in data
    assert topic not in [one["topic"] for one in server.topics()]


def test_requests_that_come_at_once_are_answered_in_turn(server: Client, raw: Raw) -> None:
    counts = "/admin/v2/persistent/public/default/at-once/partitions"
    put = f"PUT {counts} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n3\r\n\r\n"
    raw.send(f"{put}GET {counts} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    data = b""
    while chunk := raw.socket.recv(65536):
        data += chunk
    assert data.startswith(b"HTTP/1.1 204")
    assert b'{"partitions": 3' in data


def test_tokens_and_tls_are_wanted_here_too(tmp_path: Path) -> None:
    key = tmp_path / "token.key"
    key.write_bytes(secrets.token_bytes(32))
    key.chmod(0o600)
    authority = Authority(tmp_path)
    pair = authority.issue("broker")
    tls: dict[str, Any] = {"pulsar_tls_certificate_file": pair.certificate, "pulsar_tls_key_file": pair.key}
    options = ClusterOptions(tmp_path / "data", pulsar_port=0, pulsar_tls_port=0, pulsar_token_key_file=str(key), **tls)
    token = str(jwt.encode({"sub": "till"}, key.read_bytes(), "HS256"))
    path = "/admin/v2/namespaces/public/default/topics"
    with running(options):
        data = options.data_dir
        assert ask_at(port_of(data), path)[0] == 401
        assert ask_at(port_of(data), path, Authorization=f"Bearer {token}") == (200, [])
        client = joined(
            f"https://127.0.0.1:{port_of(data, TLS)}",
            authentication=pulsar.AuthenticationToken(token),
            tls_trust_certs_file_path=authority.trust,
        )
        consumer = client.subscribe("sealed", "s", initial_position=EARLIEST)
        client.create_producer("sealed").send(b"paid")
        assert consumer.receive(PATIENCE).data() == b"paid"
        client.close()
