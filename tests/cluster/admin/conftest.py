"""A cluster in this process that serves Pulsar's clients and tools."""

from __future__ import annotations

from collections.abc import Iterator

import pulsar
import pytest

from sluice.cluster.gateway.ports import WEB, port_of, service_url
from sluice.cluster.launch.embedded import running
from sluice.cluster.settings.options import ClusterOptions
from tests.cluster.admin.asking import Tool


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    """Yield a caller of the admin interface by HTTP, at a cluster of its own."""
    data = tmp_path_factory.mktemp("web")
    with running(ClusterOptions(data_dir=data, pulsar_port=0, pulsar_web_port=0)):
        yield Tool(port_of(data, WEB), service_url(data, 0))


@pytest.fixture
def client(tool: Tool) -> Iterator[pulsar.Client]:
    """A client of Pulsar's."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    one = pulsar.Client(tool.service_url, logger=quiet, operation_timeout_seconds=60)
    yield one
    one.close()
