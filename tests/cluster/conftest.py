"""Fixtures that several of these modules use; modules that want another cluster have a `client` of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import sluice
from sluice.cluster.client.client import Client


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A cluster of the test's own, in this process, with a topic of one partition."""
    with sluice.connect(embedded=True, data_dir=tmp_path / "data") as client:
        client.create_topic("orders", 1)
        yield client
