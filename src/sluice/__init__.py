"""The public interface of Sluice: `import sluice; client = sluice.connect()`.

Nothing heavy is imported here. Ray comes with the first `connect`, unless that is `embedded`. The environment that Ray
reads when it is imported is set now, so import this package before ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from sluice.cluster.base import interrupts as _interrupts  # noqa: F401 (the command leaves at Ctrl-C from here on)
from sluice.cluster.base.extras import named_extras
from sluice.cluster.node.environment import prepare
from sluice.storage.errors import (
    AccessDenied,
    Conflict,
    Corrupt,
    Fenced,
    Invalid,
    InvariantViolation,
    NotFound,
    Overloaded,
    ProducerFenced,
    SluiceError,
    Terminated,
    Timeout,
    Unavailable,
)

if TYPE_CHECKING:
    from sluice.cluster.client.async_client import AsyncClient
    from sluice.cluster.client.async_consumer import AsyncConsumer
    from sluice.cluster.client.async_producer import AsyncProducer
    from sluice.cluster.client.blocking import Consumer, Producer
    from sluice.cluster.client.client import Client
    from sluice.cluster.client.dead_letters import AsyncDeadLetters, DeadLetter, DeadLetters
    from sluice.cluster.client.message import Batch, Message, MessageId
    from sluice.cluster.client.reader import AsyncReader, Reader
    from sluice.cluster.client.receipts import Receipt, SentMessage
    from sluice.cluster.launch.connecting import connect, connect_async
    from sluice.cluster.on_ray.keyed_queue import Item, KeyedQueue
    from sluice.cluster.on_ray.ray_data import SluiceSink, read_dataset
    from sluice.cluster.workers.failed_rows import FailedRows
    from sluice.cluster.workers.keeper import PoolStatus
    from sluice.cluster.workers.outputs import Result
    from sluice.cluster.workers.pool import Workers
else:

    def __getattr__(name):
        """Import a public name on first use. Type checkers see the imports above instead."""
        if name in _HOMES:
            with named_extras():
                return getattr(import_module(f"sluice.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AccessDenied",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncDeadLetters",
    "AsyncProducer",
    "AsyncReader",
    "Batch",
    "Client",
    "Conflict",
    "Consumer",
    "Corrupt",
    "DeadLetter",
    "DeadLetters",
    "FailedRows",
    "Fenced",
    "Invalid",
    "InvariantViolation",
    "Item",
    "KeyedQueue",
    "Message",
    "MessageId",
    "NotFound",
    "Overloaded",
    "PoolStatus",
    "Producer",
    "ProducerFenced",
    "Reader",
    "Receipt",
    "Result",
    "SentMessage",
    "SluiceError",
    "SluiceSink",
    "Terminated",
    "Timeout",
    "Unavailable",
    "Workers",
    "connect",
    "connect_async",
    "read_dataset",
]

_HOMES = {
    "AsyncClient": "cluster.client.async_client",
    "AsyncConsumer": "cluster.client.async_consumer",
    "AsyncDeadLetters": "cluster.client.dead_letters",
    "AsyncProducer": "cluster.client.async_producer",
    "AsyncReader": "cluster.client.reader",
    "Batch": "cluster.client.message",
    "Client": "cluster.client.client",
    "Consumer": "cluster.client.blocking",
    "DeadLetter": "cluster.client.dead_letters",
    "DeadLetters": "cluster.client.dead_letters",
    "FailedRows": "cluster.workers.failed_rows",
    "Item": "cluster.on_ray.keyed_queue",
    "KeyedQueue": "cluster.on_ray.keyed_queue",
    "Message": "cluster.client.message",
    "MessageId": "cluster.client.message",
    "PoolStatus": "cluster.workers.keeper",
    "Producer": "cluster.client.blocking",
    "Reader": "cluster.client.reader",
    "Receipt": "cluster.client.receipts",
    "Result": "cluster.workers.outputs",
    "SentMessage": "cluster.client.receipts",
    "SluiceSink": "cluster.on_ray.ray_data",
    "Workers": "cluster.workers.pool",
    "connect": "cluster.launch.connecting",
    "connect_async": "cluster.launch.connecting",
    "read_dataset": "cluster.on_ray.ray_data",
}
"""The modules of the names that are imported on first use: most programs do without some of them."""

prepare()
