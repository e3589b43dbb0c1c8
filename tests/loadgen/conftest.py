"""One Spark session for all Spark tests of the load generator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sluice.loadgen.spark.java import ensure_java
from sluice.loadgen.spark.session import spark_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    import os

    os.environ.update(ensure_java())
    with spark_session(tmp_path_factory.mktemp("spark"), cores=2) as session:
        yield session
