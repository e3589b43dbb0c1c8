"""The public interface of Sluice: `import sluice; client = sluice.connect()`.

Nothing heavy is imported here. Ray comes with the first `connect`, unless that is `embedded`. The environment that Ray
reads when it is imported is set now, so import this package before ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sluice.cluster.base.extras import named_extras
from sluice.cluster.node.environment import prepare
from sluice.storage.errors import (
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
    from sluice.cluster.launch.connecting import connect
    from sluice.cluster.on_ray.keyed_queue import KeyedQueue
    from sluice.cluster.on_ray.ray_data import SluiceSink, read_dataset
    from sluice.cluster.workers.failed_rows import FailedRows
    from sluice.cluster.workers.outputs import Result
    from sluice.cluster.workers.pool import Workers

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

_HOMES = {
    "FailedRows": "cluster.workers.failed_rows",
    "KeyedQueue": "cluster.on_ray.keyed_queue",
    "Result": "cluster.workers.outputs",
    "SluiceSink": "cluster.on_ray.ray_data",
    "Workers": "cluster.workers.pool",
    "connect": "cluster.launch.connecting",
    "read_dataset": "cluster.on_ray.ray_data",
}
"""The modules of the names that are imported on first use: most programs do without some of them."""

prepare()


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _HOMES:
        with named_extras():
            return getattr(import_module(f"sluice.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
