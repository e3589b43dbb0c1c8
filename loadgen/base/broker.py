"""The parts of the broker's client that the load generator needs, as Protocols.

`sluice.connect` gives objects of these shapes. The load generator is written against them alone, so that its own
tests can run against a broker that is a folder of files.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.cluster.base.version import COMMAND
from sluice.storage.errors import Unavailable


class BrokerReceipt(Protocol):
    """The promise of one `send_batch`."""

    @property
    def partitions(self) -> npt.NDArray[Any]:
        """Partition of each row, shape (n,), once the result is there."""

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """Position of each row, shape (n,); ledger 0 if the place is forgotten."""

    @property
    def confirmed_at(self) -> npt.NDArray[np.int64]:
        """The time when each row was confirmed, microseconds since 1970, shape (n,)."""

    def done(self) -> bool:
        """Whether each row was confirmed or refused."""

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait until every row is durable. Raises SluiceError."""


class BrokerProducer(Protocol):
    """Sends batches, in order within each key."""

    @property
    def partitions(self) -> int:
        """Number of partitions of the topic."""

    def send_batch(self, batch: pa.RecordBatch) -> BrokerReceipt:
        """Hand over rows of (key, payload, ...); blocks while too much is in flight."""

    def flush(self) -> None:
        """Wait for everything that was sent."""

    def close(self) -> None:
        """Flush and end the session."""


class BrokerBatch(Protocol):
    """Messages of one partition as they arrive; every array has shape (n,)."""

    rows: pa.RecordBatch
    partition: int
    positions: npt.NDArray[np.int64]
    redeliveries: npt.NDArray[np.uint8]
    dispatch: npt.NDArray[np.int64]
    epoch: int
    session: int
    taken_back: npt.NDArray[np.bool_]


class BrokerConsumer(Protocol):
    """One consumer of a subscription."""

    def receive_batch(self, timeout_ms: int | None = None) -> Any:
        """The next BrokerBatch, or None if there is none within the timeout."""

    def acknowledge(self, batch: Any) -> None:
        """Acknowledge every row; returns before it is durable."""

    def negative_acknowledge(self, what: Any, *, delay_ms: int | None = None, rows: Any = None) -> None:
        """Give rows of a batch back; returns when that is durable."""

    def wait_acknowledged(self, timeout_ms: int | None = None) -> None:
        """Wait until all acknowledgements so far are durable. Raises Unavailable if they are not in time."""

    def close(self, drain_timeout_ms: int = 0) -> None:
        """Leave the subscription; unacknowledged messages go to the others."""


class BrokerClient(Protocol):
    """A connection to the broker."""

    def create_topic(self, topic: str, *, partitions: int = 1, **settings: Any) -> Any:
        """Create a topic."""

    def create_producer(
        self, topic: str, producer_name: str | None = None, *, initial_sequence_id: int | None = None
    ) -> Any:
        """Open a producer that numbers its rows from `initial_sequence_id` in every partition."""

    def subscribe(self, topic: str, subscription: str, **settings: Any) -> Any:
        """Join a subscription, which is created if it is new."""

    def stats(self, topic: str, subscription: str) -> list[dict[str, Any]]:
        """Statistics of each partition's dispatcher, Pulsar's names."""

    def stored(self, topic: str) -> list[Any]:
        """Return what a topic stores now, as ranges that can be split and read
        (cluster.client.log_reader.StoredRange).
        """

    def read(self, topic: str, wanted: Any) -> Any:
        """The messages of a range, as Batches without acknowledgements."""

    def admin(self, topic: str, subscription: str, verb: str, **arguments: Any) -> list[Any]:
        """The answer of each partition to a verb of the subscription."""


Connect = Callable[[], AbstractContextManager[Any]]
"""Opens a connection; must survive pickling, because Spark tasks and consumer processes open their own."""


@dataclass(frozen=True, slots=True)
class ClusterConnect:
    """Connects to a running cluster from any process, Spark's and Ray's workers included.

    address: `host:port` of Ray, None for the cluster that this process runs in. token_file: where its token is;
    empty leaves it to the environment (a worker may have inherited that of another cluster). data_dir: the cluster's
    data folder, where it is seen: then nobody needs to attach to Ray.
    """

    address: str | None
    token_file: str = ""
    data_dir: str = ""

    def __call__(self) -> Any:
        """A client, to be used as a context manager. Raises Unavailable if nothing answers."""
        import sluice
        from sluice.cluster.launch import discovery
        from sluice.cluster.node.environment import use_token

        if self.token_file:
            use_token(self.token_file)
        if self.address is None and self.data_dir and discovery.find(Path(self.data_dir)) is None:
            raise Unavailable(f"no cluster is running on {self.data_dir}; start one with `{COMMAND} up`")
        return sluice.connect(self.address, data_dir=self.data_dir or None)
