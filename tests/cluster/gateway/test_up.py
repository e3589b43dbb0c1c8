"""A cluster that stays serves Pulsar's clients, and says where; a port that is taken does not keep it from starting."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from sluice.cluster.launch import launch, standalone
from sluice.storage.errors import Invalid
from tests.cluster.gateway.clients import EARLIEST, PATIENCE
from tests.cluster.gateway.raw import Raw
from tests.cluster.helpers import values

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A data folder whose cluster ends with the test."""
    yield tmp_path / "data"
    launch.down(tmp_path / "data")


def round_trip(said: str) -> bytes:
    """Send a message at the printed address, and return the payload that comes back."""
    found = re.search(r"pulsar://127\.0\.0\.1:[0-9]+", said)
    assert found is not None
    client = pulsar.Client(found[0], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe("orders", "s", initial_position=EARLIEST)
    client.create_producer("orders").send(b"paid")
    message = consumer.receive(PATIENCE)
    consumer.acknowledge(message)
    client.close()
    return bytes(message.data())


def test_one_process_says_where_and_serves(folder: Path) -> None:
    assert round_trip(standalone.up(values(folder, pulsar_port=0))["pulsar"]) == b"paid"


@pytest.mark.ray
def test_a_cluster_on_ray_says_where_and_serves(folder: Path) -> None:
    assert round_trip(launch.up(values(folder, pulsar_port=0))["pulsar"]) == b"paid"


def test_a_taken_port_is_said_in_one_line(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = standalone.up(values(folder, pulsar_port=port))["pulsar"]
    assert f"port {port} is in use" in said
    assert "\n" not in said


def test_clients_are_told_the_advertised_address(folder: Path) -> None:
    said = standalone.up(values(folder, pulsar_port=0, pulsar_advertised_address="localhost"))["pulsar"]
    assert round_trip(said) == b"paid"
    raw = Raw(said.split()[-1])
    raw.greet()
    raw.say("lookup", topic="orders", request_id=1)
    told = raw.next("lookup_answer").url
    raw.close()
    assert told == said.split()[-1].replace("127.0.0.1", "localhost")


@pytest.mark.parametrize("wrong", ["pulsar://broker", "broker:6650", "a b", "-x", "a..b", "::1", "x" * 254])
def test_address_that_is_no_host_is_refused_in_one_line(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(Invalid, match=r"pulsar_advertised_address is the name") as refused:
        standalone.up(values(tmp_path, pulsar_port=0, pulsar_advertised_address=wrong))
    assert "\n" not in str(refused.value)


def test_up_without_a_gateway_prints_nothing_on_pulsar(folder: Path) -> None:
    assert "pulsar" not in standalone.up(values(folder, pulsar_port=-1))
