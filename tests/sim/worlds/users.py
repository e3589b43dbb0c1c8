"""Asyncio programs in the world of the broker: they publish, receive, read, and give up any call at any moment.

Each user has a topic of its own. A confirmed message is received, whatever was cancelled, and the first deliveries of a
key come in the order of its sends. In half of the runs a reader without a durable subscription reads the topic too, and
in some of these it goes back to the beginning: the same holds for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from sluice.cluster.base.loop import CallersLoop
from sluice.cluster.client.async_client import AsyncClient
from sluice.cluster.client.async_consumer import AsyncConsumer
from sluice.cluster.client.async_producer import AsyncProducer
from sluice.cluster.client.message import Message, MessageId
from sluice.storage.errors import SluiceError
from tests.sim.world import World
from tests.sim.worlds.broker import BrokerWorld, Course

T = TypeVar("T")
SENDS, KEYS = 40, 3
PATIENCE_MS = (0, 1, 5, 30, 200, 3_000)
"""A call is given up after one of these."""


class AsyncUser:
    """One program: a task that publishes and one that receives, with one client."""

    def __init__(self, world: World, number: int) -> None:
        self.name = f"user-{number}"
        self._world = world
        self._rng = random.Random(f"{self.name}/{world.seed}")
        self._ports = world.client(self.name)
        self.calm = False
        self.given_up = 0
        self.sent: dict[int, str] = {}
        """Keys of the confirmed messages, by number."""
        self.received: list[tuple[str, int]] = []
        self.read: list[tuple[str, int]] = []
        self.reads = random.Random(f"reads/{self.name}/{world.seed}").random() < 0.5
        self.done: asyncio.Future[None] = world.loop.create_future()
        self._ports.spawn(self._run(), "user")

    async def _run(self) -> None:
        client = AsyncClient(CallersLoop(), cast(Any, self._ports.net), ports=self._ports)
        await self._again(
            lambda: client.create_topic(self.name, self._rng.choice((1, 2)), ensemble=1, write_quorum=1, ack_quorum=1)
        )
        consumer = await self._again(
            lambda: client.subscribe(self.name, "s", consumer_name=self.name, initial_position="earliest")
        )
        producer = await self._again(lambda: client.create_producer(self.name, self.name))
        self._ports.spawn(self._receive(consumer), "receive")
        if self.reads:
            self._ports.spawn(self._read(client), "read")
        await self._send(producer)
        while not self.is_served():
            await self._ports.clock.sleep(50)
        await self._again(lambda: consumer.wait_acknowledged(10_000))
        self.done.set_result(None)

    async def _send(self, producer: AsyncProducer) -> None:
        for number in range(SENDS):
            key = f"k{self._rng.randrange(KEYS)}"
            if await self._once(producer.send(str(number), partition_key=key)) is not None:
                self.sent[number] = key
            await self._ports.clock.sleep(self._rng.choice((0, 1, 20, 300)))

    async def _receive(self, consumer: AsyncConsumer) -> None:
        while True:
            message = await self._once(consumer.receive(1_000))
            if isinstance(message, Message):
                self.received.append((message.partition_key(), int(message.data())))
                await self._once(consumer.acknowledge(message, ack_receipt=self._rng.random() < 0.2))

    async def _read(self, client: AsyncClient) -> None:
        reader = await self._again(lambda: client.create_reader(self.name, MessageId.earliest))
        while True:
            message = await self._once(reader.read_next(1_000))
            if isinstance(message, Message):
                self.read.append((message.partition_key(), int(message.data())))
            if not self.calm and self._rng.random() < 0.02:
                await self._again(lambda: reader.seek(MessageId.earliest))

    async def _again(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Call until it succeeds and nobody gave it up."""
        while True:
            answered: list[T] = []

            async def noted(answered: list[T] = answered) -> bool:
                answered.append(await call())
                return True

            if await self._once(noted()) is not None:
                return answered[0]
            await self._ports.clock.sleep(20)

    async def _once(self, work: Coroutine[Any, Any, T]) -> T | bool | None:
        """Return the result of some work, True for None; None if the work was given up, or did not succeed."""
        task = asyncio.ensure_future(work)
        impatient = not self.calm and self._rng.random() < 0.5
        await asyncio.wait([task], timeout=self._rng.choice(PATIENCE_MS) / 1000 if impatient else None)
        if not task.done():
            self.given_up += 1
            task.cancel()
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, SluiceError | asyncio.CancelledError), repr(outcome)
            return None
        return True if outcome is None else outcome

    def is_served(self) -> bool:
        """Whether every confirmed message was received, and read."""
        sent = {(key, number) for number, key in self.sent.items()}
        return sent <= set(self.received) and (sent <= set(self.read) or not self.reads)

    def judge(self) -> None:
        """First deliveries of a key come in order."""
        for came in (self.received, self.read):
            for key in {key for key, _ in came}:
                first = list(dict.fromkeys(number for its, number in came if its == key))
                assert first == sorted(first), f"{self.name}: {key} came as {first}"


class UsersCourse(Course):
    """A run of the broker's world in which asyncio programs take part."""

    users: list[AsyncUser]

    async def _begin_clients(self) -> None:
        await super()._begin_clients()
        self.users = [AsyncUser(self.world, number) for number in range(2)]

    async def _published(self) -> None:
        await super()._published()
        for user in self.users:
            user.calm = True
        for user in self.users:
            await user.done

    def _judge(self) -> None:
        super()._judge()
        for user in self.users:
            user.judge()
            self._add("confirmed to users", len(user.sent))
            self._add("given up by users", user.given_up)
            self._add("read by users", len(user.read))


class UsersWorld(BrokerWorld):
    """The world of the broker with asyncio programs."""

    name = "users"

    def course(self, world: World, faults: Any, options: dict[str, str]) -> Course:
        """See BrokerWorld.course."""
        return UsersCourse(world, faults, options)
