"""A queue between the processes of a Ray program that is durable, keeps the order of each key, and has many readers.

It has the feel of `ray.util.queue.Queue`, and `Empty` and `Full` are Python's own. What is different:

* an item may have a key: items of one key reach one reader at a time, in the order in which they were put;
* `get` hands out an `Item`; `ack` says that it is done. Without that, it comes again when its reader closes or dies;
* `put` returns when the item is on disk on the ack quorum. `put_nowait` does not wait for that; `flush` does;
* the queue is a topic with one subscription: it outlives every process, and `delete` removes it. Other processes that
  have it open raise NotFound until it is made again, and then go on with the new one.

A queue can be handed to tasks and actors: each process connects for itself when it uses the queue for the first time.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, Full
from typing import TYPE_CHECKING, Any

from sluice.actors.ownership.names import check_name
from sluice.cluster.base.loop import carried_out
from sluice.cluster.client.receipts import MessageContainer
from sluice.cluster.client.settings_input import as_bytes
from sluice.cluster.launch.connecting import connect
from sluice.storage.errors import Fenced, Invalid, SluiceError, Timeout

if TYPE_CHECKING:
    from sluice.cluster.client.blocking import Consumer, Producer
    from sluice.cluster.client.client import Client
    from sluice.cluster.client.message import Message

__all__ = ["Empty", "Full", "Item", "KeyedQueue"]

SUBSCRIPTION = "queue"
LOOK_AGAIN_S = 0.02
"""A full queue is asked so often whether there is room: readers are other processes, and tell nobody here."""
PUT_TIMEOUT_S = 30.0
OPERATION_TIMEOUT = 30_000

Key = str | bytes | None


@dataclass(frozen=True, repr=False)
class Item:
    """key: its key, None without one. redelivery_count: how often it was given back."""

    key: bytes | None
    redelivery_count: int
    _message: Message
    _value: Any
    _error: Exception | None = None

    @property
    def value(self) -> Any:
        """The item that was put. Raises what its bytes were refused with where they cannot be unpickled in this
        process: it can be acknowledged and given back all the same.
        """
        if self._error is not None:
            raise self._error
        return self._value

    def __repr__(self) -> str:
        value = repr(self._value) if self._error is None else f"<{self._error!r}>"
        return f"Item(value={value}, key={self.key!r}, redelivery_count={self.redelivery_count})"


class _Connection:
    """The producer and consumer that one process has open for a queue."""

    def __init__(self, client: Client, owned: bool) -> None:
        self.client = client
        self.owned = owned
        self.producer: Producer | None = None
        self.consumer: Consumer | None = None

    def close(self) -> None:
        """Close all of it, in whatever one of them ends: who asked for it has no other way to do that."""
        with contextlib.ExitStack() as closing:
            if self.owned:
                closing.callback(self.client.close)
            for part in (self.consumer, self.producer):  # the last one first
                if part is not None:
                    closing.callback(part.close)


class KeyedQueue:
    """A queue by name. Safe for threads; several readers and writers may have it open at once."""

    def __init__(
        self,
        name: str,
        maxsize: int = 0,
        *,
        partitions: int = 4,
        prefetch: int = 1000,
        client: Client | None = None,
        **connect: Any,
    ) -> None:
        """name: of the topic, made with so many partitions if it is new. prefetch: items that a reader takes ahead.

        maxsize: so many items, acknowledged ones not counted, may be in the queue; 0 = no limit. Writers that put at
        the same time may each pass it by what they put at once. client: to use, and not close; else the queue
        connects by itself as `sluice.connect(**connect)` does. Raises Invalid, Unavailable.
        """
        if prefetch < 1 or partitions < 1:
            raise Invalid("prefetch and partitions are at least 1")
        self.name, self.maxsize = check_name("topic", name), maxsize
        self._partitions, self._prefetch, self._connect = partitions, prefetch, connect
        self._client = client
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._closed = False
        self._free = 0
        self._error: SluiceError | None = None

    def __getstate__(self) -> dict[str, Any]:
        kept = ("name", "maxsize", "_partitions", "_prefetch", "_connect")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._client = None
        self._begin()

    # -- putting --------------------------------------------------------------------------------------------------

    def put(self, item: Any, block: bool = True, timeout: float | None = None, *, key: Key = None) -> None:
        """Put an item and wait until it is durable. timeout: seconds to wait for room.

        Raises Full, and Unavailable if nobody confirms it within 30 s: then it may be in the queue or not.
        """
        self._take_room(1, block, timeout)
        self._writer().send_async(_packed(item), partition_key=key).result(PUT_TIMEOUT_S)

    def put_nowait(self, item: Any, *, key: Key = None) -> None:
        """Put an item without waiting for anything but this process's own buffer. Raises Full.

        An error comes with the next `put_nowait`, `flush` or `close`.
        """
        self._take_room(1, False, None)
        self._raise_error()
        self._writer().send_async(_packed(item), self._settled, partition_key=key)

    def put_nowait_batch(self, items: Sequence[Any], keys: Sequence[Key] | None = None) -> None:
        """Put many items, all or, if there is no room for all of them or one of them cannot be put, none. Raises Full;
        errors as `put_nowait`.
        """
        if keys is not None and len(keys) != len(items):
            raise Invalid(f"{len(items)} items have {len(keys)} keys; give one each")
        packed = [_packed(item) for item in items]
        keyed = [None] * len(items) if keys is None else list(keys)
        trial = MessageContainer()
        for item, key in zip(packed, keyed, strict=True):
            trial.add(item, as_bytes(key), 0)
        self._take_room(len(items), False, None)
        self._raise_error()
        writer = self._writer()
        for item, key in zip(packed, keyed, strict=True):
            writer.send_async(item, self._settled, partition_key=key)

    async def put_async(self, item: Any, block: bool = True, timeout: float | None = None, *, key: Key = None) -> None:
        """The same as `put` for a running event loop: others go on while it waits. Raises Full, SluiceErrors."""
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        while self.maxsize > 0 and not await asyncio.to_thread(self._has_room, 1):
            self._check_wait(1, block, until is not None and loop.time() >= until)
            await asyncio.sleep(LOOK_AGAIN_S)
        outcome: asyncio.Future[None] = loop.create_future()

        def settled(error: SluiceError | None, _: object) -> None:
            loop.call_soon_threadsafe(_settle, outcome, error)

        writer = self._writer() if self._is_open() else await asyncio.to_thread(self._writer)
        writer.send_async(_packed(item), settled, partition_key=key)
        await outcome

    def flush(self) -> None:
        """Wait until everything that was put here is durable. Raises the first error of those that nobody saw."""
        connection = self._connection
        if connection is not None and connection.producer is not None:
            connection.producer.flush()
        self._raise_error()

    # -- getting --------------------------------------------------------------------------------------------------

    def get(self, block: bool = True, timeout: float | None = None) -> Item:
        """The next item. timeout: seconds. Raises Empty if none is here in time."""
        try:
            return _item(self._reader().receive(_milliseconds(block, timeout)))
        except Timeout as error:
            raise self._empty() from error

    def get_nowait(self) -> Item:
        """The next item if one is here. Raises Empty."""
        return self.get(block=False)

    def get_nowait_batch(self, num_items: int) -> list[Item]:
        """Return `num_items` items at once. Raises Empty, and takes none, if fewer are here: the items that this reader
        has taken ahead, which are at most `prefetch`, and of one partition its share of that.
        """
        messages = self._reader().receive_nowait(num_items)
        if messages is None:
            raise self._empty()
        return [_item(message) for message in messages]

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Item:
        """The same as `get` for a running event loop. A wait that is cancelled takes no item with it."""
        connection = self._connection
        reader = None if connection is None else connection.consumer
        if reader is None:
            reader = await asyncio.to_thread(self._reader)
        try:
            message = await reader.receive_async(_milliseconds(block, timeout))
        except Timeout as error:
            raise self._empty() from error
        return _item(message)

    def _empty(self) -> Empty:
        return Empty(f"the queue {self.name} has nothing for this reader now")

    def ack(self, item: Item) -> None:
        """Done with it, for good; the next item of its key may follow."""
        self._reader().acknowledge(item._message)

    def nack(self, item: Item, delay_s: float = 0.0) -> None:
        """Give an item back: it comes again after a number of seconds, here or at another reader."""
        self._reader().negative_acknowledge(item._message, delay_ms=int(delay_s * 1000))

    # -- the queue ------------------------------------------------------------------------------------------------

    def qsize(self) -> int:
        """Items that are durable and not acknowledged, those with readers included. What this process has acknowledged
        is waited for: a loop that ends with `empty` must not ask for an item more.
        """
        connection = self._open()
        if connection.consumer is not None:
            with contextlib.suppress(Fenced):  # a session was lost, and its items come again
                connection.consumer.wait_acknowledged(OPERATION_TIMEOUT)
        return sum(int(row["msgBacklog"]) for row in connection.client.stats(self.name, SUBSCRIPTION))

    def size(self) -> int:
        """The same, by the name that `ray.util.queue` has for it."""
        return self.qsize()

    def __len__(self) -> int:
        return self.qsize()

    def empty(self) -> bool:
        """Return whether no message is left that is not acknowledged."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether there is no room for another item."""
        return self.maxsize > 0 and self.qsize() >= self.maxsize

    def close(self) -> None:
        """Close the queue here: items that were put become durable first, unacknowledged ones come again elsewhere."""
        with self._lock:
            connection, self._connection, self._closed = self._connection, None, True
        if connection is not None:
            connection.close()
        self._raise_error()

    def shutdown(self, force: bool = False, grace_period_s: int = 5) -> None:
        """Close it here. Unlike Ray's queue it keeps its items; `delete` removes them. The arguments have no use."""
        self.close()

    def delete(self) -> None:
        """Close it here and remove it with everything in it."""
        self._open().client.delete_topic(self.name, force=True)
        self.close()

    def __enter__(self) -> KeyedQueue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> KeyedQueue:
        """Connect in another thread. A call that is cancelled closes what it has opened."""
        try:
            await carried_out(self._open)
        except asyncio.CancelledError:
            await carried_out(self.close)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close in another thread, also when this call is cancelled."""
        await carried_out(self.close)

    # -- parts ----------------------------------------------------------------------------------------------------

    def _is_open(self) -> bool:
        return self._connection is not None

    def _open(self) -> _Connection:
        if self._connection is not None:
            return self._connection
        with self._lock:
            self._check_open()
            if self._connection is None:
                client = self._client or connect(**self._connect)
                self._connection = self._found(_Connection(client, self._client is None))
            return self._connection

    def _check_open(self) -> None:
        """Raises Invalid. Under the lock: what is opened behind a close, nobody closes."""
        if self._closed:
            raise Invalid(f"the queue {self.name} is closed here")

    def _found(self, connection: _Connection) -> _Connection:
        """Make sure that the topic and its subscription exist before the first item."""
        client = connection.client
        try:
            if self.name not in [row["topic"] for row in client.topics()]:
                client.create_topic(self.name, self._partitions)
            if SUBSCRIPTION not in client.subscriptions(self.name):
                client.subscribe(self.name, SUBSCRIPTION, initial_position="earliest", receiver_queue_size=1).close()
        except BaseException:
            connection.close()
            raise
        return connection

    def _writer(self) -> Producer:
        connection = self._open()
        with self._lock:
            self._check_open()
            if connection.producer is None:
                connection.producer = connection.client.create_producer(self.name)
            return connection.producer

    def _reader(self) -> Consumer:
        connection = self._open()
        with self._lock:
            self._check_open()
            if connection.consumer is None:
                connection.consumer = connection.client.subscribe(
                    self.name, SUBSCRIPTION, initial_position="earliest", receiver_queue_size=self._prefetch
                )
            return connection.consumer

    def _take_room(self, count: int, block: bool, timeout: float | None) -> None:
        if self.maxsize <= 0:
            return
        until = None if timeout is None else time.monotonic() + timeout
        while not self._has_room(count):
            self._check_wait(count, block, until is not None and time.monotonic() >= until)
            time.sleep(LOOK_AGAIN_S)

    def _check_wait(self, count: int, block: bool, late: bool) -> None:
        if late or not block:
            raise Full(f"the queue {self.name} has room for {max(self._free, 0)} of {count} items")

    def _has_room(self, count: int) -> bool:
        """Room that was seen is used up first: a look costs a call to every partition."""
        self._open()
        with self._lock:
            if self._free >= count:
                self._free -= count
                return True
        self.flush()
        free = self.maxsize - self.qsize()
        with self._lock:
            self._free = free - count if free >= count else free
        return free >= count

    def _settled(self, error: SluiceError | None, _: object) -> None:
        if error is not None:
            self._error = self._error or error

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


def _packed(item: Any) -> bytes:
    """Python's own pickle where it can, for it is fast; what Ray's tasks may be given besides goes Ray's way."""
    try:
        return pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        from ray import cloudpickle

        dumps: Callable[[Any], bytes] = cloudpickle.dumps
        return dumps(item)


def _milliseconds(block: bool, timeout: float | None) -> int | None:
    """How long to wait for an item; None: without end."""
    if not block:
        return 0
    return None if timeout is None else int(timeout * 1000)


def _item(message: Message) -> Item:
    value, error = None, None
    try:
        value = pickle.loads(message.data())
    except Exception as raised:  # it is what was put in: a class may be missing here, or raise what it likes
        error = raised
    return Item(message.key(), message.redelivery_count(), message, value, error)


def _settle(outcome: asyncio.Future[None], error: SluiceError | None) -> None:
    if outcome.done():
        return
    if error is None:
        outcome.set_result(None)
    else:
        outcome.set_exception(error)
