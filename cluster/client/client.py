"""The client that blocks: a thin face on AsyncClient, which runs in its own thread. `sluice.connect()` makes one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, cast

import numpy as np
import pyarrow as pa

from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.lookup.directory import Directory
from sluice.actors.ports import Ports
from sluice.cluster.base.loop import LoopThread
from sluice.cluster.base.own_process import OfThisProcess
from sluice.cluster.client.async_client import AsyncClient, F, Opening
from sluice.cluster.client.blocking import Consumer, Producer
from sluice.cluster.client.dead_letters import DeadLetters
from sluice.cluster.client.log_reader import StoredRange, read_range
from sluice.cluster.client.message import MessageId
from sluice.cluster.client.reader import Reader, reader_name, reading
from sluice.cluster.client.topic_pattern import Topics
from sluice.cluster.client.typed_settings import ConsumerSettings, ProducerSettings
from sluice.cluster.client.typed_values import typed_values
from sluice.cluster.typed.codecs import SchemaType
from sluice.cluster.typed.variables import S, V
from sluice.cluster.wire.net import DirectNet

A = ParamSpec("A")
R = TypeVar("R")


def _blocking(
    method: Callable[Concatenate[AsyncClient, A], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Client, A], R]:
    """Make a method that calls this one in the client's own loop, and waits for it."""

    @functools.wraps(method)
    def call(self: Client, *arguments: A.args, **named: A.kwargs) -> R:
        return self.run(method, *arguments, **named)

    return cast("Callable[Concatenate[Client, A], R]", call)


class Client(OfThisProcess):
    """A connection to a cluster. Safe for threads; close it, or use it as a context manager."""

    elsewhere = "another one calls sluice.connect() itself"
    inner = OfThisProcess.inner | {"ask_controller", "owners", "run"}

    def __init__(
        self, on_close: contextlib.ExitStack | None = None, net: DirectNet | None = None, loop: LoopThread | None = None
    ) -> None:
        """on_close: closed with the client. net: reaches the cluster; Ray's by default.

        loop: an event loop to run on, which `close` does not end; by default one of its own.
        """
        # pyarrow imports pandas at its first conversion, a quarter of a second that the first message should not wait.
        pa.array(np.zeros(1))
        self._loop = loop or LoopThread("sluice-client")
        self._own_loop = loop is None
        self._cleanup = on_close or contextlib.ExitStack()
        self._core = AsyncClient(self._loop, net or DirectNet())
        self._closed = False

    @property
    def pulsar_service_url(self) -> str:
        """The address at which a cluster in this process serves clients of Apache Pulsar; empty if it serves none."""
        return self._core.pulsar_service_url

    @pulsar_service_url.setter
    def pulsar_service_url(self, url: str) -> None:
        self._core.pulsar_service_url = url

    def run(
        self,
        method: Callable[Concatenate[AsyncClient, A], Coroutine[Any, Any, R]],
        *arguments: A.args,
        **named: A.kwargs,
    ) -> R:
        """Call a method of the core in the client's loop, and wait for it."""
        return self._loop.run(method(self._core, *arguments, **named))

    # -- topics ---------------------------------------------------------------------------------------------------

    create_topic = _blocking(AsyncClient.create_topic)
    add_partitions = _blocking(AsyncClient.add_partitions)
    terminate_topic = _blocking(AsyncClient.terminate_topic)
    offload = _blocking(AsyncClient.offload)
    offload_status = _blocking(AsyncClient.offload_status)
    compact = _blocking(AsyncClient.compact)
    compaction_status = _blocking(AsyncClient.compaction_status)
    erase = _blocking(AsyncClient.erase)
    erase_status = _blocking(AsyncClient.erase_status)
    topics = _blocking(AsyncClient.topics)
    subscriptions = _blocking(AsyncClient.subscriptions)
    delete_topic = _blocking(AsyncClient.delete_topic)
    delete_subscription = _blocking(AsyncClient.delete_subscription)
    get_topic_partitions = _blocking(AsyncClient.get_topic_partitions)

    # -- producers and consumers ----------------------------------------------------------------------------------

    def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        *,
        schema: type[S] | None = None,
        schema_type: SchemaType = "json",
        **settings: Unpack[ProducerSettings],
    ) -> Producer[S]:
        """Open a producer; see AsyncClient.create_producer for the settings."""
        typed = typed_values(self._core, topic, schema, schema_type)
        return self._open(self._core.producer_opening(Producer[S], topic, producer_name, settings, typed))

    def subscribe(
        self,
        topic: Topics,
        subscription_name: str,
        *,
        schema: type[V] | None = None,
        schema_type: SchemaType = "json",
        **settings: Unpack[ConsumerSettings],
    ) -> Consumer[V]:
        """Join a subscription; see AsyncClient.subscribe for the settings."""
        typed = typed_values(self._core, topic, schema, schema_type)
        return self._open(self._core.consumer_opening(Consumer[V], topic, subscription_name, settings, typed))

    def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        *,
        start_message_id_inclusive: bool = False,
        receiver_queue_size: int = 1000,
        schema: type[V] | None = None,
        schema_type: SchemaType = "json",
    ) -> Reader[V]:
        """Open a reader behind a message (with start_message_id_inclusive: at it), or at MessageId.earliest or latest.

        A message id says where its own partition begins; the others begin at their first message.
        """
        name = reader_name(self._core.ports)
        settings = reading(start_message_id, receiver_queue_size, name)
        consumer = self.subscribe(topic, name, schema=schema, schema_type=schema_type, **settings)
        try:
            last = consumer.get_last_message_ids()
            if start_message_id.is_stored():
                consumer.seek(start_message_id)
        except BaseException:
            consumer.close(for_good=True)
            raise
        return Reader(consumer, start_message_id, last, inclusive=start_message_id_inclusive)

    def _open(self, opening: Opening[F]) -> F:
        try:
            return self._loop.run(opening.open())
        except BaseException:
            self._loop.soon(opening.give_up)
            raise

    def owners(self) -> tuple[LoopThread, Ports, Directory]:
        """Return what asks the owners of partitions: the loop's thread, its ports, the directory of addresses."""
        return self._loop, self._core.ports, self._core.directory

    # -- the log itself -------------------------------------------------------------------------------------------

    stored = _blocking(AsyncClient.stored)
    accept_loss = _blocking(AsyncClient.accept_loss)

    def read(self, topic: str, wanted: StoredRange) -> Iterator[Received]:
        """The messages of a range in order, delayed ones included, whatever subscriptions did with them; without
        acknowledgements. Raises NotFound if they were trimmed meanwhile.
        """
        return read_range(self._loop, self._core.payloads(topic, wanted.partition), wanted)

    # -- questions, and delayed messages --------------------------------------------------------------------------

    cancel_delayed = _blocking(AsyncClient.cancel_delayed)
    reschedule_delayed = _blocking(AsyncClient.reschedule_delayed)

    def dead_letters(self, topic: str, subscription: str) -> DeadLetters:
        """The dead letters of a subscription, to look at and to decide of, wherever they wait."""
        return DeadLetters(self._core.dead_letters(topic, subscription), self._loop)

    stats = _blocking(AsyncClient.stats)
    admin = _blocking(AsyncClient.admin)
    explain = _blocking(AsyncClient.explain)
    status = _blocking(AsyncClient.status)
    drain_node = _blocking(AsyncClient.drain_node)
    drain_status = _blocking(AsyncClient.drain_status)
    uncordon_node = _blocking(AsyncClient.uncordon_node)
    alarms = _blocking(AsyncClient.alarms)
    ask_controller = _blocking(AsyncClient.ask_controller)

    def troubles(self) -> list[str]:
        """Why something that this client waits for did not work when it was last tried, one line for each cause."""
        return self._core.troubles()

    # -- life -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every producer and consumer, then the connection. In a forked child they are its parent's, and stay.

        A close that was interrupted can be repeated, and goes on with the rest.
        """
        if self._closed or not self._loop.is_here:
            return
        self._loop.check_thread()
        self._closed = True
        try:
            for opened in list(self._core.opened.values()):
                with contextlib.suppress(Exception):
                    cast("Producer[Any] | Consumer[Any]", opened).close()
            self._loop.soon(self._core.end)
            if self._own_loop:
                self._loop.stop()
            self._cleanup.close()
        except BaseException:
            self._closed = False
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
