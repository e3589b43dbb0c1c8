"""Fixtures of pytest: a broker of a test's own, in the process that runs it.

`pytest_plugins = "sluice.testing"` in the `conftest.py` at the root of a project brings them in. Nothing else does.
What a broker imports is imported with these fixtures, so that no test waits for it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sluice
import sluice.cluster.launch.embedded

pa.array(np.zeros(1))  # imports pandas, where that is installed


@pytest.fixture
def sluice_client() -> Iterator[sluice.Client]:
    """A client of a broker that has no topics yet, with its data in a folder that is removed after the test.

    A fixture with the same name in a `conftest.py` replaces this one: one with `scope="session"`, for example, gives
    all tests of a process one broker.
    """
    with sluice.connect(embedded=True) as client:
        yield client


@pytest.fixture
def sluice_topic(sluice_client: sluice.Client, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Makes topics and returns their names, which no other test has: `sluice_topic(partitions=4, ttl_ms=60_000)`.

    The settings are those of `Client.create_topic`.
    """
    test = re.sub(r"[^A-Za-z0-9_-]+", "-", request.node.name)[:60].strip("-")

    def made(partitions: int = 1, **settings: Any) -> str:
        topic = f"{test}-{uuid.uuid4().hex}"
        sluice_client.create_topic(topic, partitions, **settings)
        return topic

    return made
