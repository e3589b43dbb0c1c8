"""One cluster in this process for all tests of a module, and a client of Pulsar's for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pulsar
import pytest

import sluice
from sluice.cluster.client.client import Client
from tests.cluster.gateway.clients import joined
from tests.cluster.gateway.raw import Raw


@pytest.fixture(scope="module")
def server() -> Iterator[Client]:
    """A cluster that serves Pulsar's clients."""
    with sluice.connect(embedded=True, pulsar_port=0) as client:
        yield client


@pytest.fixture
def client(server: Client) -> Iterator[pulsar.Client]:
    """A client of Pulsar's."""
    one = joined(server)
    yield one
    one.close()


@pytest.fixture
def raw(server: Client) -> Iterator[Raw]:
    """A connection whose bytes are made by hand."""
    one = Raw(server.pulsar_service_url)
    yield one
    one.close()
