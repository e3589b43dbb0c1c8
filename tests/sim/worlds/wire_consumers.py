"""Consumers of the gateway's world, as Pulsar's clients behave, and the history that they write.

What a client is not told, the dispatcher's stamp of each delivery, the judge is told all the same: the gateway knows it
as it writes the frame. So the judge is the one of the other worlds, with all that it can see.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sluice.loadgen.base import history
from sluice.storage.format.position import position
from tests.sim.pipes import Pipes
from tests.sim.world import World
from tests.sim.worlds.clients import Traffic
from tests.sim.worlds.manner import FAILOVER, Manner
from tests.sim.worlds.past import History
from tests.sim.worlds.patience import Patience
from tests.sim.worlds.wire import BACKOFF_MS, Gone, Message, Refusal, Stamp, Wire, message_id, partition_name


@dataclass(eq=False)
class _Entry:
    """Messages of one frame at the client. position: what its id says. told: rows whose acknowledgement was said to the
    gateway.
    """

    partition: int
    life: int
    session: int
    position: int
    messages: list[Message]
    acked: set[int] = field(default_factory=set)
    told: set[int] = field(default_factory=set)
    acks: dict[int, list[Any]] = field(default_factory=dict)
    void: bool = False

    def ended(self, life: int) -> bool:
        """Whether nobody speaks of it any more in a life of the consumer: then its id may be another's."""
        return self.void or self.life != life or len(self.told) == len(self.messages)

    def still_open(self) -> list[int]:
        """Return the indexes in the batch of the messages that are not acknowledged."""
        rows = [row for row in range(len(self.messages)) if row not in self.acked]
        return [self.messages[row].position - self.position for row in rows]


@dataclass(eq=False)
class _Said:
    """An acknowledgement that is to be said. done: positions that it says are done. rows: of the history, those that an
    answer to it confirms.
    """

    entry: _Entry
    message_id: dict[str, Any]
    done: list[int]
    rows: list[list[Any]]


class WireConsumerModel:
    """One consumer on every partition over one connection: thinks, acknowledges, at times gives back, comes back."""

    def __init__(
        self, world: World, pipes: Pipes, past: History, traffic: Traffic, number: int, manner: Manner
    ) -> None:
        self.name = f"consumer-{number}"
        self.number = number
        self.ports = world.client(self.name)
        self.calm = self.gone = False
        self._world, self._past, self._traffic, self._manner = world, past, traffic, manner
        self._rng = random.Random(f"{self.name}/{world.seed}")
        self._patience = Patience(world, self.name)
        self._partitions = 0
        self._lives: list[int] = []
        self._open: set[int] = set()
        self._ends: set[int] = set()
        """Open partitions of which the end was told."""
        self._granted: list[int] = []
        self._came: list[int] = []
        self._last: list[tuple[int, int]] = []
        """The batch that the last frame was of, and the position of its last message."""
        self._free: list[int] = []
        self._epochs: list[int] = []
        self._ids: dict[tuple[int, int], _Entry] = {}
        """What came last under an id, by partition and position."""
        self._queue: deque[tuple[_Entry, int]] = deque()
        self._sessions: list[set[int]] = []
        self._learn(traffic.partitions)
        self._said: list[_Said] = []
        self._speaks = asyncio.Event()
        """Set while something is to be said."""
        self._wire = Wire(
            pipes, world.process(self.name), manner.gateways, self._rng, heard=self._heard, lost=self._lost
        )
        for work in (self._live, self._work, self._acknowledge_now_and_then):
            self.ports.spawn(work(), work.__name__)

    # -- the connection -------------------------------------------------------------------------------------------

    def _learn(self, partitions: int) -> None:
        """The topic has so many."""
        for _ in range(self._partitions, partitions):
            for counts in (self._lives, self._granted, self._came, self._free, self._epochs):
                counts.append(0)
            self._last.append((-1, -1))
            self._sessions.append(set())
        self._partitions = max(self._partitions, partitions)

    def knows_end(self, partitions: int) -> bool:
        """Whether it was told of all of them that nothing comes any more."""
        return self._ends >= set(range(partitions))

    def unanswered(self) -> bool:
        """Whether it waits for an answer, as to an acknowledgement."""
        return self._wire.waits

    async def _live(self) -> None:
        while not self.gone:
            try:
                if not self._wire.up:
                    self._learn(await self._wire.connect(self._traffic.topic, self._partitions))
                elif self._manner.watchful:
                    self._learn(await self._wire.partitions(self._traffic.topic))
                for partition in range(self._partitions):
                    if partition not in self._open and not self.gone:
                        await self._subscribe(partition)
            except (Gone, Refusal) as error:
                self.ports.log("not subscribed", error=repr(error))
            await self.ports.clock.sleep(self._rng.choice(BACKOFF_MS))

    async def _subscribe(self, partition: int) -> None:
        self._lives[partition] += 1
        self._came[partition] = self._granted[partition] = self._free[partition] = 0
        self._last[partition] = (-1, -1)
        life = self._lives[partition]
        asked = self._wire.ask(
            "subscribe",
            topic=partition_name(self._traffic.topic, partition, self._partitions),
            subscription=self._traffic.subscription,
            type=self._manner.type,
            consumer_id=partition,
            consumer_name=f"worker-{self.number % 4}",
            initial_position=int(self._manner.earliest),
            consumer_epoch=self._epochs[partition],
        )
        try:
            await self._patience.wait(asked, calm=self.calm)
        except TimeoutError:
            self._wire.forget("close_consumer", consumer_id=partition)
            return
        if self._lives[partition] == life and self._wire.up:
            self._open.add(partition)
            self._grant(partition, self._manner.queue)

    def _grant(self, partition: int, permits: int) -> None:
        self._granted[partition] += permits
        self._wire.say("flow", consumer_id=partition, permits=permits)

    def _lost(self) -> None:
        for partition in range(self._partitions):
            self._over(partition)

    def _over(self, partition: int) -> None:
        """Drop what is in the queue: it comes again. A message that is being worked on may still be acknowledged."""
        self._open.discard(partition)
        self._ends.discard(partition)
        self._lives[partition] += 1
        self._queue = deque(item for item in self._queue if item[0].partition != partition)
        for session in self._sessions[partition]:
            self._past.event(self.name, history.EXPIRED, session=session, partition=partition)
        self._sessions[partition].clear()

    def _heard(self, name: str, body: Any, extra: Any) -> None:
        if name == "message":
            self._message(body, *extra)
        elif name == "close_consumer":  # at times right behind the answer that it is subscribed
            self._over(body.consumer_id)
        elif name == "reached_end":
            self._ends.add(body.consumer_id)

    # -- messages -------------------------------------------------------------------------------------------------

    def _message(self, body: Any, messages: list[Message], stamp: Stamp) -> None:
        partition = body.consumer_id
        if partition not in self._open:
            return
        at = position(body.message_id.ledger, body.message_id.entry)
        count = messages[-1].position - at + 1  # what is not shown of a batch is counted as well
        self._came[partition] += count
        came, granted = self._came[partition], self._granted[partition]
        if self._manner.type == FAILOVER:  # a batch goes whole where there is room for its first message
            batch, behind = self._past.batches.get((messages[0].key, messages[0].number), -at), self._last[partition]
            goes_on = behind[0] == batch and behind[1] < at
            came = 0 if goes_on else came - count + 1
            self._last[partition] = batch, messages[-1].position
        assert came <= granted, f"S11: {came} messages for {granted} permits"
        if body.consumer_epoch < self._epochs[partition]:
            self._freed(partition, count)
            return
        self._freed(partition, count - len(messages))
        self._sessions[partition].add(stamp.session)
        entry = _Entry(partition, self._lives[partition], stamp.session, at, messages)
        other = self._ids.get((partition, at))
        assert other is None or other.ended(entry.life), f"S: two frames at one client under the id {at}"
        self._ids[partition, at] = entry
        if self._manner.index and self._patience.limit():
            self._say_soon(_Said(entry, message_id(at, entry.still_open()), [], []))  # of which nothing is done
        moment = self._past.stamp()
        for row, message in enumerate(messages):
            self._past.receives.append(
                [
                    self.name, stamp.session, partition, message.position, message.key, message.number,
                    body.redelivery_count, stamp.epoch, message.dispatch, moment,
                ]
            )  # fmt: skip
            self._queue.append((entry, row))

    async def _work(self) -> None:
        rng = self._rng
        while True:
            while not self._queue:
                await self.ports.clock.sleep(5)
            entry, row = self._queue.popleft()
            self._taken(entry)
            if entry.void:
                continue
            thinking = 0 if self.calm else rng.randrange(self._traffic.think_ms)
            if not self.calm and rng.random() < 0.01:
                thinking = 5_000
            if thinking:
                await self.ports.clock.sleep(thinking)
            if entry.void or self.gone:
                continue
            if not self.calm and rng.random() < self._traffic.negative:
                self._give_back(entry)
            elif not self.calm and rng.random() < self._traffic.negative / 20:
                self._give_back_all(entry)
            else:
                self._acknowledge(entry, row)

    def _taken(self, entry: _Entry) -> None:
        if entry.life == self._lives[entry.partition]:
            self._freed(entry.partition, 1)

    def _freed(self, partition: int, count: int) -> None:
        self._free[partition] += count
        if self._free[partition] * 2 >= self._manner.queue:
            self._grant(partition, self._free[partition])
            self._free[partition] = 0

    def _acknowledge(self, entry: _Entry, row: int) -> None:
        message = entry.messages[row]
        ack = [self.name, entry.session, entry.partition, message.position, self._past.stamp(), 0, False]
        self._past.acks.append(ack)
        self._past.finish([(message.key, message.number)])
        entry.acked.add(row)
        entry.acks[row] = ack
        open_rows = entry.still_open()
        if open_rows and not self._manner.index:
            return
        fresh = sorted(entry.acked - entry.told)
        entry.told |= entry.acked
        done = [entry.messages[each].position for each in sorted(entry.acked)]
        said = _Said(entry, message_id(entry.position, open_rows), done, [entry.acks[each] for each in fresh])
        self._say_soon(said)
        if self._rng.random() < self._manner.again:
            self._say_soon(replace(said, rows=[]))

    async def _acknowledge_now_and_then(self) -> None:
        """Acknowledgements are gathered, also while there is no connection."""
        while True:
            await self._speaks.wait()
            await self.ports.clock.sleep(self._manner.gather_ms)
            self._say_acknowledged()
            if not self._said:
                self._speaks.clear()

    def _say_soon(self, said: _Said) -> None:
        self._said.append(said)
        self._speaks.set()

    def _say_acknowledged(self) -> None:
        for partition in sorted(self._open):
            mine = [said for said in self._said if said.entry.partition == partition]
            if not mine:
                continue
            self._said = [said for said in self._said if said.entry.partition != partition]
            # What is said over a later connection may have been sent to others, whom it still reaches: it is confirmed,
            # and that it comes again afterwards is no fault.
            late = [said for said in mine if said.entry.life != self._lives[partition]]
            number = {}
            if self._manner.receipts:
                rows = [row for said in mine if said not in late for row in said.rows]
                number = {"request_id": self._wire.number(partial(self._confirmed, rows))}
            self._wire.say("ack", consumer_id=partition, message_id=[said.message_id for said in mine], **number)
            for said in late:
                self._past.finish_for_all(self.name, partition, said.done)

    def _confirmed(self, rows: list[list[Any]], _: Any) -> None:
        moment = self._past.stamp()
        for row in rows:
            row[5] = moment

    def _give_back(self, entry: _Entry) -> None:
        self._say_acknowledged()
        self._void(entry)
        if entry.life == self._lives[entry.partition]:
            told = [message_id(entry.position)]
            self._wire.say("redeliver", consumer_id=entry.partition, message_ids=told)

    def _void(self, entry: _Entry) -> None:
        """Mark an entry as void: what the gateway does not know to be done comes again, also if it was worked on."""
        entry.void = True
        moment = self._past.stamp()
        for row, message in enumerate(entry.messages):
            if row not in entry.told:
                self._past.acks.append([self.name, entry.session, entry.partition, message.position, moment, 0, True])

    def _give_back_all(self, entry: _Entry) -> None:
        """Everything of a partition comes again; what is on its way has an older epoch and is dropped."""
        partition = entry.partition
        if entry.life != self._lives[partition]:
            return
        self._say_acknowledged()
        waiting = [item for item in self._queue if item[0].partition == partition]
        self._queue = deque(item for item in self._queue if item[0].partition != partition)
        for other in {id(other): other for other in (entry, *(other for other, _ in waiting))}.values():
            self._void(other)
        self._epochs[partition] += 1
        self._wire.say("redeliver", consumer_id=partition, consumer_epoch=self._epochs[partition])
        self._freed(partition, len(waiting))

    def leave(self) -> None:
        """Close politely; what is held goes to the others."""
        if not self.gone:
            self.gone = True
            self.ports.spawn(self._close(), "close")

    async def _close(self) -> None:
        self._say_acknowledged()
        self._past.event(self.name, history.DETACH)
        for partition in sorted(self._open):
            self._open.discard(partition)
            try:
                await self._wire.ask("close_consumer", consumer_id=partition)
            except (Gone, Refusal) as error:
                self.ports.log("not closed", error=repr(error))
        self._wire.hang_up()
        self._world.stop(self.ports.me)
