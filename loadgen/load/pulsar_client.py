"""Pulsar's own unchanged client in the place of Sluice's, for `--client pulsar`.

The shapes are those of loadgen.base.broker, so tasks and consumers of a flood do not know the difference. A batch goes
out message by message and comes back so, because that is how this client is used.

What the wire does not tell a client is not made up. There is no stamp of the dispatcher: the order of deliveries is
that in which clients received, by the clock of the machine, and since a key is with one consumer at a time that is
evidence enough. That a session was lost behind its back, or when an acknowledgement is durable, this client is never
told; `untold` names the promises that therefore cannot be judged.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.cluster.node.environment import LOOPBACK
from sluice.loadgen.base.kinds import CONSUMER_KINDS
from sluice.storage.errors import Invalid, SluiceError, Unavailable
from sluice.storage.format.position import position

MISSING = (
    "--client pulsar needs the package pulsar-client; install it: "
    "uv pip install --python .venv/bin/python 'pulsar-client>=3.5,<4'"
)
TOPIC_SETTINGS = {"deduplication_enabled": True}
"""Without it a send whose receipt was lost with its connection is stored twice, with Pulsar as well."""
SESSION = 1
MOST_AT_ONCE = 1_000
"""Messages that are taken from the client's queue before the first of them is worked on."""
AT_ONCE_MS = 1
IN_FLIGHT = 20_000
OPERATION_S, SEND_MS = 60, 120_000


def check_installed() -> None:
    """Raises Invalid with what to install."""
    from importlib.util import find_spec

    if find_spec("pulsar") is None or find_spec("_pulsar") is None:
        raise Invalid(MISSING)


def untold(faults: Sequence[str]) -> dict[str, str]:
    """The promises that a flood with this client cannot judge, and why. faults: the kinds that are done to it."""
    reasons = {
        "unexplained_redelivery": "a Pulsar client is not told why a message comes again",
        "acked_redelivered": "this client is not told when an acknowledgement is durable",
    }
    if any(kind not in CONSUMER_KINDS for kind in faults):
        reasons["overlap"] = "a Pulsar client is not told when the broker takes back what it holds"
    return reasons


@dataclass(frozen=True, slots=True)
class PulsarConnect:
    """Connects to the gateway at a service URL, from any process."""

    url: str

    def __call__(self) -> PulsarClient:
        """A client, to be used as a context manager; it connects when something is opened."""
        return PulsarClient(self.url)


def connect_to(data_dir: Path) -> PulsarConnect:
    """A function that connects to the gateway of the cluster on a data folder. Raises Unavailable if it has none."""
    from sluice.cluster.gateway.ports import service_url

    try:
        return PulsarConnect(service_url(data_dir, 0))
    except Unavailable:
        raise Unavailable(
            f"the cluster on {data_dir} serves no Pulsar client; start it with --set pulsar_port=6650"
        ) from None


def free_port() -> int:
    """A port for a gateway that keeps it when its process is replaced: clients come back to where they were."""
    with socket.create_server((LOOPBACK, 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _refusals(what: str) -> Iterator[None]:
    """The client's errors as Unavailable."""
    import pulsar

    try:
        yield
    except pulsar.PulsarException as error:
        raise Unavailable(f"{what}: {error}") from None


class PulsarClient:
    """One connection: the part of loadgen.base.broker.BrokerClient that tasks and consumers need."""

    def __init__(self, url: str) -> None:
        import pulsar

        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self._client = pulsar.Client(url, logger=quiet, operation_timeout_seconds=OPERATION_S)

    def __enter__(self) -> PulsarClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(SluiceError), _refusals("closing"):
            self._client.close()

    def create_producer(
        self, topic: str, producer_name: str | None = None, *, initial_sequence_id: int | None = None
    ) -> PulsarProducer:
        """Open a producer whose messages are numbered from `initial_sequence_id` over all partitions."""
        return PulsarProducer(self._client, topic, producer_name, initial_sequence_id or 0)

    def stats(self, topic: str, subscription: str) -> list[dict[str, Any]]:
        """Return no rows, because this client knows none; but it is connected then. Raises Unavailable."""
        with _refusals("connecting"):
            self._client.get_topic_partitions(topic)
        return []

    def subscribe(
        self, topic: str, subscription: str, *, consumer_name: str, receiver_queue_size: int, **_: Any
    ) -> PulsarConsumer:
        """Join a Key_Shared subscription from the topic's beginning."""
        return PulsarConsumer(self._client, topic, subscription, consumer_name, receiver_queue_size)


class PulsarReceipt:
    """The promise of one `send_batch`; see loadgen.base.broker.BrokerReceipt."""

    def __init__(self, count: int) -> None:
        self.partitions = np.zeros(count, np.uint16)
        self.positions = np.zeros(count, np.int64)
        self.confirmed_at = np.zeros(count, np.int64)
        self._left = count
        self._error = ""
        self._over = threading.Event()

    def on_sent(self, row: int, result: Any, message_id: Any) -> None:
        """The outcome of one message, from the client's own thread."""
        if result.name == "Ok":
            self.confirmed_at[row] = time.time_ns() // 1000
            self.partitions[row] = max(message_id.partition(), 0)
            if message_id.ledger_id() > 0:  # where it was stored before, the place is no longer told
                self.positions[row] = place_of(message_id)
        else:
            self._error = self._error or str(result.name)
        self._left -= 1
        if not self._left:
            self._over.set()

    def done(self) -> bool:
        """Whether each message was confirmed or refused."""
        return self._over.is_set()

    def result(self, timeout_s: float | None = None) -> PulsarReceipt:
        """Wait until all messages are confirmed. Raises Unavailable if one was refused, or the time is over."""
        if not self._over.wait(timeout_s):
            raise Unavailable(f"{self._left} messages have no receipt after {timeout_s} s")
        if self._error:
            raise Unavailable(f"a message was refused: {self._error}")
        return self


class PulsarProducer:
    """One producer. A name that has sent before sends one by one, so that each message is known again by its number."""

    def __init__(self, client: Any, topic: str, name: str | None, first: int) -> None:
        self._client, self._topic, self._name = client, topic, name
        self._next = first
        with _refusals("the producer cannot be opened"):
            self.partitions = max(len(client.get_topic_partitions(topic)), 1)
            self._one = self._open(batching=True)
            if self._one.last_sequence_id() >= 0:
                self._one.close()
                self._one = self._open(batching=False)

    def _open(self, *, batching: bool) -> Any:
        return self._client.create_producer(
            self._topic,
            producer_name=self._name,
            send_timeout_millis=SEND_MS,
            max_pending_messages=IN_FLIGHT,
            max_pending_messages_across_partitions=IN_FLIGHT * self.partitions,
            block_if_queue_full=True,
            batching_enabled=batching,
            batching_max_publish_delay_ms=2,
        )

    def send_batch(self, batch: pa.RecordBatch) -> PulsarReceipt:
        """Send these rows in order; blocks while too much is in flight. Raises Invalid for a binary key."""
        count = batch.num_rows
        receipt = PulsarReceipt(count)
        keys, payloads = (batch.column(name).to_pylist() for name in ("key", "payload"))
        more = {name: batch.column(name).to_pylist() for name in batch.schema.names if name not in ("key", "payload")}
        due, times = more.get("deliver_at"), more.get("event_time")
        with _refusals("sending"):
            for row in range(count):
                self._one.send_async(
                    payloads[row],
                    partial(receipt.on_sent, row),
                    properties=dict(more["properties"][row]) if "properties" in more else None,
                    partition_key=_text(keys[row]),
                    sequence_id=self._next,
                    event_timestamp=(times[row] or None) if times else None,
                    deliver_at=(due[row] or None) if due else None,
                )
                self._next += 1
        return receipt

    def flush(self) -> None:
        with _refusals("flushing"):
            self._one.flush()

    def close(self) -> None:
        with _refusals("closing the producer"):
            self._one.close()


@dataclass(frozen=True, slots=True, eq=False)
class PulsarBatch:
    """Messages of one partition as they were taken; see loadgen.base.broker.BrokerBatch. dispatch: when, monotonic
    ns."""

    rows: pa.RecordBatch
    partition: int
    positions: npt.NDArray[np.int64]
    redeliveries: npt.NDArray[np.uint8]
    dispatch: npt.NDArray[np.int64]
    messages: list[Any]
    epoch: int = 0
    session: int = SESSION


class PulsarConsumer:
    """One consumer on all partitions. receiver_queue_size: messages that it holds at most, over all of them."""

    def __init__(self, client: Any, topic: str, subscription: str, name: str, receiver_queue_size: int) -> None:
        import pulsar

        self._timeout = pulsar.Timeout
        self._ready: deque[PulsarBatch] = deque()
        with _refusals("the consumer cannot be opened"):
            partitions = max(len(client.get_topic_partitions(topic)), 1)
            self._one = client.subscribe(
                topic,
                subscription,
                consumer_type=pulsar.ConsumerType.KeyShared,
                consumer_name=name,
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=max(receiver_queue_size // partitions, 1),
                max_total_receiver_queue_size_across_partitions=max(receiver_queue_size, partitions),
                batch_index_ack_enabled=True,
            )

    def receive_batch(self, timeout_ms: int | None = None) -> PulsarBatch | None:
        """The next messages of one partition, or None if none came within the timeout."""
        if not self._ready:
            self._take(timeout_ms)
        return self._ready.popleft() if self._ready else None

    def _take(self, timeout_ms: int | None) -> None:
        by_partition: dict[int, tuple[list[Any], list[int]]] = {}
        with _refusals("receiving"), contextlib.suppress(self._timeout):
            for _ in range(MOST_AT_ONCE):
                message = self._one.receive(timeout_ms)
                timeout_ms = AT_ONCE_MS
                messages, moments = by_partition.setdefault(max(message.message_id().partition(), 0), ([], []))
                messages.append(message)
                moments.append(time.monotonic_ns())
        self._ready.extend(_batch(partition, *taken) for partition, taken in by_partition.items())

    def acknowledge(self, batch: PulsarBatch) -> None:
        """Acknowledge every message; the client tells the broker within a tenth of a second."""
        with _refusals("acknowledging"):
            for message in batch.messages:
                self._one.acknowledge(message)

    def wait_acknowledged(self, timeout_ms: int | None = None) -> None:
        """Raises Unavailable: this client does not learn it."""
        raise Unavailable("a Pulsar client in Python is not told when an acknowledgement is durable")

    def close(self, drain_timeout_ms: int = 0) -> None:
        """Leave; unacknowledged messages go to the others."""
        with _refusals("closing the consumer"):
            self._one.close()


def place_of(message_id: Any) -> int:
    """The packed position of a message."""
    return position(message_id.ledger_id(), message_id.entry_id() + max(message_id.batch_index(), 0))


def _text(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        raise Invalid("a key that is not UTF-8 text cannot be sent with --client pulsar") from None


def _batch(partition: int, messages: list[Any], moments: list[int]) -> PulsarBatch:
    columns: dict[str, Any] = {
        "key": pa.array([message.partition_key().encode() or None for message in messages], pa.binary()),
        "payload": pa.array([message.data() for message in messages], pa.binary()),
    }
    properties = [message.properties() for message in messages]
    if any(properties):
        columns["properties"] = pa.array([list(each.items()) for each in properties], pa.map_(pa.string(), pa.string()))
    return PulsarBatch(
        pa.RecordBatch.from_pydict(columns),
        partition,
        np.array([place_of(message.message_id()) for message in messages], np.int64),
        np.array([min(message.redelivery_count(), 255) for message in messages], np.uint8),
        np.array(moments, np.int64),
        messages,
    )
