"""The connection of one command: join the cluster that is running, and leave it again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any


@contextmanager
def joined(address: str | None, config: Path | None = None) -> Iterator[Any]:
    """A client of the cluster at this address (or of the configured or local one), closed at the end.

    Raises Unavailable if nothing answers there.
    """
    from cluster.config import load

    cluster: Any = import_module("cluster")
    with cluster.connect(address=load(config, address=address).values.address) as client:
        yield client
