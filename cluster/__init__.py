"""Sluice's public interface: `import cluster; client = cluster.connect()`.

Nothing heavy is imported here; Ray comes with the first `connect`. The environment that Ray reads when it is imported
is set now, so import this package before ray.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.environment import prepare
from storage.errors import (
    Conflict,
    Corrupt,
    Fenced,
    Invalid,
    InvariantViolation,
    NotFound,
    Overloaded,
    SluiceError,
    Unavailable,
)

if TYPE_CHECKING:
    from cluster.client import Client

__all__ = [
    "Conflict",
    "Corrupt",
    "Fenced",
    "Invalid",
    "InvariantViolation",
    "NotFound",
    "Overloaded",
    "SluiceError",
    "Unavailable",
    "connect",
]


prepare()


def connect(address: str | None = None, *, data_dir: str | Path | None = None) -> Client:
    """A client of the cluster at `address` (`host:port` of Ray's head).

    Without an address: the cluster that this process or its parents run in, else the one that `./sluice up` left
    running for `data_dir`, else a new local one that lives as long as the client. Raises Unavailable, Invalid.
    """
    from cluster import launch

    folder = None if data_dir is None else Path(data_dir)
    cleanup = contextlib.ExitStack()
    if address is not None:
        found = launch.find(folder)
        launch.join(address, found[1] if found else None)
    elif (found := launch.find(folder)) is not None:
        launch.join(*found)
    else:
        cleanup.enter_context(launch.local(folder or Path("sluice-data")))
    from cluster.client import Client

    return Client(cleanup)
