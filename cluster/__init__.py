"""Sluice's public interface: `import cluster; client = cluster.connect()`.

Nothing heavy is imported here; Ray comes with the first `connect`, unless that is `embedded`. The environment of its
processes is set now. A program may import this package before or after ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster.bootstrap.connecting import connect
from cluster.bootstrap.environment import prepare
from storage.errors import (
    Conflict,
    Corrupt,
    Fenced,
    Invalid,
    InvariantViolation,
    NotFound,
    Overloaded,
    ProducerFenced,
    SluiceError,
    Timeout,
    Unavailable,
)

if TYPE_CHECKING:
    from cluster.keyed_queue import KeyedQueue
    from cluster.ray_data import SluiceSink, read_dataset
    from cluster.workers.failed_rows import FailedRows
    from cluster.workers.outputs import Result
    from cluster.workers.pool import Workers

__all__ = [
    "Conflict",
    "Corrupt",
    "FailedRows",
    "Fenced",
    "Invalid",
    "InvariantViolation",
    "KeyedQueue",
    "NotFound",
    "Overloaded",
    "ProducerFenced",
    "Result",
    "SluiceError",
    "SluiceSink",
    "Timeout",
    "Unavailable",
    "Workers",
    "connect",
    "read_dataset",
]


prepare()


def __getattr__(name: str) -> Any:
    """Import a name on first use, if its module is slow to import and most programs do without it."""
    if name == "KeyedQueue":
        from cluster.keyed_queue import KeyedQueue

        return KeyedQueue
    if name == "FailedRows":
        from cluster.workers.failed_rows import FailedRows

        return FailedRows
    if name == "Workers":
        from cluster.workers.pool import Workers

        return Workers
    if name == "Result":
        from cluster.workers.outputs import Result

        return Result
    if name in ("SluiceSink", "read_dataset"):
        from cluster import ray_data

        return getattr(ray_data, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
