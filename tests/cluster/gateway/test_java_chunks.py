"""Large messages in chunks, between Sluice's client and Pulsar's Java client, either way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import sluice
from tests.cluster.gateway.java_client import play_java

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SOURCE = Path(__file__).parent / "java" / "Chunks.java"
PATIENCE_MS = 60_000
CODECS = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
LARGE = os.urandom(12_000_000) + bytes(3_000_000)
SAID = f"k till {hashlib.sha256(LARGE).hexdigest()}"
STEPS = {"receives": SAID, "then": "small", "again": SAID, "reads": SAID, "seeks": "small"} | {
    f"writes-{codec}": "ok" for codec in CODECS
}
"""Outcomes of the Java client's steps."""


@pytest.fixture(scope="module")
def server() -> Iterator[sluice.Client]:
    """A broker with a large message of ours, and a small one behind it."""
    with sluice.connect(embedded=True, pulsar_port=0) as client:
        for topic in ("ours", *(f"theirs-{codec}" for codec in CODECS)):
            client.create_topic(topic)
        with client.create_producer("ours", chunking_enabled=True) as producer:
            producer.send(LARGE, {"by": "till"}, partition_key="k")
            producer.send(b"small", partition_key="k")
        yield client


@pytest.fixture(scope="module")
def played(server: sluice.Client, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The steps of the Java client, and what came of each."""
    return play_java(SOURCE, tmp_path_factory.mktemp("java"), server.pulsar_service_url)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_the_java_client_with_chunks(played: list[str], step: str) -> None:
    assert f"{step}: {STEPS[step]}" in played


def test_an_acknowledged_message_of_java_leaves_no_chunk(server: sluice.Client, played: list[str]) -> None:
    assert [row["msgBacklog"] for row in server.stats("ours", "java")] == [1]  # the small one


@pytest.mark.parametrize("codec", CODECS)
def test_chunks_of_the_java_client_come_as_one(server: sluice.Client, played: list[str], codec: str) -> None:
    topic = f"theirs-{codec}"
    with server.subscribe(topic, "s", initial_position="earliest") as consumer:
        message = consumer.receive(PATIENCE_MS)
        assert message.data() == LARGE
        assert (message.partition_key(), message.properties()) == ("k", {"by": "java"})
        consumer.acknowledge(message)
        small = consumer.receive(PATIENCE_MS)
        assert small.data() == b"small"
        consumer.acknowledge(small, ack_receipt=True)
    assert [row["msgBacklog"] for row in server.stats(topic, "s")] == [0]
