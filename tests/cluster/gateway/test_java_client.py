"""Pulsar's Java client, unchanged. It runs where Java and Maven are, and Maven has or gets the client."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path
from typing import Literal

import jwt
import pytest

import sluice
from benchmarks._java import compiled
from benchmarks._peer_servers import Missing
from sluice.cluster.gateway.ports import service_url
from sluice.cluster.launch.embedded import running
from sluice.cluster.settings.options import ClusterOptions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SOURCE = Path(__file__).parent / "java" / "Scenes.java"
SCENES = (
    "produce_and_consume", "partitions", "one_partition_a_key", "key_shared_with_joins", "delayed", "given_back",
    "dead_letter", "retry_topic", "seek", "reader", "pattern", "schemas", "receipts_of_single_messages",
    "active_consumer", "table_view", "more_partitions", "terminated", "token", "transactions_are_refused",
)  # fmt: skip
KEYS = ("a", "key-1", "key-2", "key-3", "key-4", "key-5", "välkommen", "😀")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that plays the scenes, compiled against the client."""
    try:
        return compiled(SOURCE, tmp_path_factory.mktemp("java"), "-XX:TieredStopAtLevel=1")
    except Missing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def played(program: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Play every scene against an open cluster and one that wants a token, and return the outcome of each."""
    key = tmp_path_factory.mktemp("key") / "token.key"
    key.write_bytes(secrets.token_bytes(32))
    key.chmod(0o600)
    token = jwt.encode({"sub": "till"}, key.read_bytes(), "HS256")
    folder = tmp_path_factory.mktemp("guarded")
    guarded = ClusterOptions(data_dir=folder, pulsar_port=0, pulsar_token_key_file=str(key))
    with sluice.connect(embedded=True, pulsar_port=0) as server, running(guarded):
        server.create_topic("parts", partitions=3)
        schemes: dict[str, Literal["java_string_hash", "murmur3_32_hash"]] = {
            "JavaStringHash": "java_string_hash",
            "Murmur3_32Hash": "murmur3_32_hash",
        }
        for topic, scheme in schemes.items():
            server.create_topic(topic, partitions=5)
            with server.create_producer(topic, hashing_scheme=scheme) as producer:
                for one in KEYS:
                    producer.send(b"native", partition_key=one)
        urls = [server.pulsar_service_url, service_url(folder, 0)]
        done = subprocess.run([*program, *urls, token], capture_output=True, text=True, timeout=800, check=False)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.split(" ", 1)[0] in SCENES)
    return said or {"": done.stderr[-4000:]}


@pytest.mark.parametrize("scene", SCENES)
def test_a_scene_of_the_java_client(played: dict[str, str], scene: str) -> None:
    assert played.get(scene, played) == "ok"
