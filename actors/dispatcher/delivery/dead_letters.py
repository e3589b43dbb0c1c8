"""Dead letters: messages that were given back too often go to another topic and are then done here.

The order is publish first, acknowledge second: a crash in between publishes again, it never loses. No consumer gets a
dead message until it is acknowledged, so its keys wait for the move and no longer. One move is under way at a time: the
next begins when its predecessor has its sequence numbers.
The topic is `<topic>-<subscription>-DLQ` unless the subscription names another, and each message says where it comes
from, by the properties REAL_TOPIC and ORIGIN_MESSAGE_ID (as in Pulsar). It is made as durable as the topic is here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.dispatcher.delivery.ack_handler import AckHandler
from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.messages import NO_COUNTS, Part, TopicSettings
from sluice.actors.messages.settings import ORIGIN, dead_letter_topic
from sluice.actors.producer.batches import RUN_BYTES, Outgoing, split
from sluice.actors.producer.producer import PartitionProducer, ProducerConfig
from sluice.actors.runtime.waiting import Backoff
from sluice.storage.errors import Conflict, SluiceError
from sluice.storage.format.batch import GIVEN_BY_CLIENTS, StoredBatch, make_batch
from sluice.storage.format.position import Positions, entries_of, ledgers_of, positions_of

RETRY_FIRST, RETRY_MOST = 100, 5_000
AT_ONCE = 1_000
"""The most messages that one move takes."""


class DeadLetterMover:
    """A task that moves the dead messages of one subscription on one partition. moved: how many it has moved."""

    def __init__(self, context: SubscriptionContext, ack_handler: AckHandler) -> None:
        self._ports, self._directory, self._core, self._runs = (
            context.ports,
            context.directory,
            context.core,
            context.runs,
        )
        self._identity, self._payloads = context.identity, context.payloads
        of = context.identity
        self._topic = dead_letter_topic(of.topic, of.subscription, context.settings)
        self._name = f"dlq-{of.topic}-{of.partition}-{of.subscription}"
        self._ack_handler, self._store = ack_handler, context.store
        self._producers: dict[tuple[str, int], PartitionProducer] = {}
        self._working = False
        self.moved = 0

    def wake(self) -> None:
        """Move the dead messages, unless a move is under way."""
        if not self._working:
            self._working = True
            self._ports.spawn(self._work(), "dead-letters")

    async def _work(self) -> None:
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while len(dead := self._core.dead_letters()[:AT_ONCE]):
            resets = self._core.resets
            try:
                for part in self._runs.parts(dead, NO_COUNTS, 0):
                    await self._move(part, resets)
                wait.reset()
            except SluiceError as error:
                self._ports.log("dead_letters_wait", messages=len(dead), error=str(error))
                self._close()
                await wait.pause()
        self._working = False

    async def _move(self, part: Part, resets: int) -> None:
        """Publish a part's messages, then acknowledge them; trimmed messages no longer exist, and are done as well.

        Stop if the core was reset: a consumer that seeked back wants them again.
        """
        for received in await self._payloads.resolve(part, 0, 0):
            if self._core.resets != resets:
                return
            rows = _with_origin(received, self._identity.topic)
            batch = make_batch(
                rows,
                now=self._ports.clock.now(),
                producer=self._name,
                first_sequence=self.moved,
                accepted=GIVEN_BY_CLIENTS,
            )
            step = max(len(batch) * RUN_BYTES // max(rows.nbytes, RUN_BYTES), 1)
            for start in range(0, len(batch), step):
                await self._publish(batch.slice(start, start + step))
            self.moved += len(batch)
            if self._core.resets == resets:
                self._done(received.positions)
        if self._core.resets == resets:
            self._done(positions_of(part.ledger, part.first_entry + part.rows.astype(np.int64)))

    def _done(self, positions: Positions) -> None:
        """Mark messages as done that have left.

        With `nack_order=key` their keys go on when that is durable: a next owner that does not know of it would send
        them again, behind later messages.
        """
        self._ack_handler.done_elsewhere(positions)
        if self._core.nack_ordered:
            self._store.hold_back()

    async def _publish(self, batch: StoredBatch) -> None:
        """Store a batch in the dead letter topic, each message in the partition of its key. Raises SluiceError."""
        topic = self._topic
        if not any(opened == topic for opened, _ in self._producers):
            await self._create(topic)
        for partition, share, rows in split(batch, (await self._directory.settings(topic)).partitions):
            producer = await self._open(topic, partition)
            outcome: asyncio.Future[SluiceError | None] = asyncio.get_running_loop().create_future()
            producer.send(Outgoing(share, producer.last_sequence + 1, rows, _settle(outcome)))
            error = await outcome
            if error is not None:
                raise error

    async def _create(self, topic: str) -> None:
        own = await self._directory.settings(self._identity.topic)
        wanted = TopicSettings(ensemble=own.ensemble, write_quorum=own.write_quorum, ack_quorum=own.ack_quorum)
        with contextlib.suppress(Conflict):  # it exists with settings of its own: those count
            await self._directory.create(topic, wanted)

    async def _open(self, topic: str, partition: int) -> PartitionProducer:
        producer = self._producers.get((topic, partition))
        if producer is None:
            producer = PartitionProducer(
                self._ports, self._directory, ProducerConfig(topic, partition, self._name, self._ports.me)
            )
            await producer.open()
            self._producers[topic, partition] = producer
        return producer

    def _close(self) -> None:
        """Close the producers after an error, so that the next ones find the topic and the next sequence."""
        for producer in self._producers.values():
            producer.close()
        self._producers.clear()


def _with_origin(received: Received, topic: str) -> pa.RecordBatch:
    """Return the rows with two more properties, topic and message id. A row that has one of them already keeps that
    one, as in Pulsar. The rows no longer belong to a batch of their client, because others of it may stay behind.
    """
    rows = received.rows
    kind = pa.map_(pa.string(), pa.string())
    known = rows.column("properties") if "properties" in rows.schema.names else pa.nulls(rows.num_rows, kind)
    pairs = known.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    names, values = pc.list_flatten(pairs).flatten()
    homes = pc.list_parent_indices(pairs).to_numpy()
    at = received.positions
    id_parts = [pa.array(numbers).cast(pa.string()) for numbers in (ledgers_of(at), entries_of(at))]
    ids = pc.binary_join_element_wise(*id_parts, str(received.partition), ":")
    columns = [(names, values, homes)]
    for name, told in zip(ORIGIN, (pa.repeat(topic, rows.num_rows), ids), strict=True):
        tagged = homes[pc.equal(names, name).to_numpy(zero_copy_only=False)]
        new = np.setdiff1d(np.arange(rows.num_rows), tagged)
        columns.append((pa.repeat(name, len(new)), told.take(pa.array(new)), new))
    names, values = (pa.concat_arrays([column[n] for column in columns]) for n in (0, 1))
    homes = np.concatenate([column[2] for column in columns])
    order = pa.array(np.argsort(homes, kind="stable"))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(homes, minlength=rows.num_rows))]).astype(np.int32)
    properties = pa.MapArray.from_arrays(offsets, names.take(order), values.take(order))
    others = rows.drop_columns([name for name in ("properties", "batch_index") if name in rows.schema.names])
    return others.append_column("properties", properties)


def _settle(
    outcome: asyncio.Future[SluiceError | None],
) -> Callable[[npt.NDArray[np.int64], int, SluiceError | None], None]:
    def settle(rows: npt.NDArray[np.int64], first: int, error: SluiceError | None) -> None:
        if not outcome.done():
            outcome.set_result(error)

    return settle
