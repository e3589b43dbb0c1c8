"""Dead letters: messages that were given back too often go to another topic and are then done here.

The order is publish first, acknowledge second: a crash in between publishes again, it never loses. Positions that the
core handed out as dead are sent to nobody until they are acknowledged, so their keys wait for the move and no longer.
The topic is `<topic>-<subscription>-DLQ` unless the subscription names another (as in Pulsar).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from actors.consumer.payload import Payloads
from actors.directory import Directory
from actors.dispatcher.runs import RunTable
from actors.messages import TopicSettings
from actors.ports import Ports
from actors.producer.producer import Outgoing, PartitionProducer
from storage.batch import make_batch
from storage.errors import Conflict, SluiceError
from storage.position import Positions

RETRY_MS = 500


class DeadLetters:
    """Moves dead messages of one subscription on one partition."""

    def __init__(
        self,
        ports: Ports,
        directory: Directory,
        topic: str,
        partition: int,
        subscription: str,
        target: str,
        moved: Callable[[Positions], None],
    ) -> None:
        self._ports, self._directory = ports, directory
        self._target = target or f"{topic}-{subscription}-DLQ"
        self._name = f"dlq-{topic}-{partition}-{subscription}"
        self._payloads = Payloads(ports, directory, topic, partition)
        self._moved = moved
        self._producer: PartitionProducer | None = None
        self.count = 0

    def take(self, positions: Positions, runs: RunTable) -> None:
        """Move these; `moved` is called with them when they are stored in the other topic."""
        self._ports.spawn(self._move(positions, runs), "dead-letters")

    async def _move(self, positions: Positions, runs: RunTable) -> None:
        parts = runs.parts(positions, np.empty(0, np.uint8), 0)
        for part in parts:
            for received in await self._payloads.resolve(part, 0, 0):
                batch = make_batch(received.rows, now=self._ports.clock.now(), producer=self._name)
                producer = await self._open()
                outcome: asyncio.Future[SluiceError | None] = asyncio.get_running_loop().create_future()
                producer.send(Outgoing(batch, producer.last_sequence + 1, np.arange(len(batch)), _settle(outcome)))
                error = await outcome
                if error is not None:
                    raise error
                self.count += len(batch)
                self._moved(received.positions)

    async def _open(self) -> PartitionProducer:
        while self._producer is None:
            try:
                await self._directory.create(self._target, TopicSettings())
            except Conflict:
                pass  # it exists with settings of its own: those count
            except SluiceError as error:
                self._ports.log("dead_letters_wait", error=str(error))
                await self._ports.clock.sleep(RETRY_MS)
                continue
            producer = PartitionProducer(self._ports, self._directory, self._target, 0, self._name, self._ports.me)
            await producer.open()
            self._producer = producer
        return self._producer


def _settle(
    outcome: asyncio.Future[SluiceError | None],
) -> Callable[[npt.NDArray[np.int64], int, SluiceError | None], None]:
    def settle(rows: npt.NDArray[np.int64], first: int, error: SluiceError | None) -> None:
        if not outcome.done():
            outcome.set_result(error)

    return settle
