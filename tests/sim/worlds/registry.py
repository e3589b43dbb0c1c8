"""A stand-in for the controller: says where owners are, starts them, and is easily persuaded to start another.

The real controller is careful about starting a second owner; safety must not depend on that. This one starts a new
owner whenever the old one was slow to answer, and the nemesis can make it do so at any moment, so that two or three
owners of a partition are alive at once.
"""

from __future__ import annotations

import random

import msgspec

from sluice.actors.dispatcher import Dispatcher
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import (
    BookieList,
    Done,
    ListBookies,
    Located,
    LocateSubscription,
    LocateTopic,
    Ping,
    SubscriptionSettings,
    Suspect,
    TopicSettings,
)
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.runtime.host import Actor
from sluice.actors.topic.partition.hooks import ProcessResources
from sluice.actors.topic.topic import Topic
from sluice.cluster.launch.topic_rooms import topic_resources
from sluice.storage.errors import SluiceError, Unavailable
from sluice.storage.format.frame import NEWEST
from tests.sim.world import World

BROKERS = 3
PING_MS, PING_TIMEOUT = 400, 600


class Registry(Actor):
    """Owners of the partitions of one topic, and the bookies of a world."""

    def __init__(self, ports: Ports, world: World, topic: str, settings: TopicSettings, controller: Address) -> None:
        super().__init__(ports)
        self.world = world
        self.topic = topic
        self.settings = settings
        self.owners: dict[int, Address] = {}
        self.dispatchers: dict[str, Address] = {}
        """By subscription, on the first partition."""
        self.started = 0
        self._busy: dict[int, bool] = {}
        self._starting = False
        rng = random.Random(f"frames/{world.seed}")
        self._upgraded_at = rng.choice((0, 0, rng.randrange(3_000)))
        """When the last process that reads no newer frames is replaced, monotonic."""
        self.controller = controller
        self._resources = [topic_resources() for _ in range(BROKERS)]

    async def start(self) -> None:
        """Begin to watch."""
        self.ports.spawn(self._watch(), "watch")

    async def on_locate_topic(self, request: LocateTopic) -> Located:
        """Answer where the owners are, and start the missing ones."""
        for partition in range(self.settings.partitions):
            if partition not in self.owners:
                await self.replace(partition)
        known = [self.owners.get(partition) for partition in range(self.settings.partitions)]
        if None in known:
            raise Unavailable("an owner could not be started")
        return Located(addresses=[a for a in known if a], settings=msgspec.json.encode(self.settings).decode())

    async def on_locate_subscription(self, request: LocateSubscription) -> Located:
        """Say where the dispatcher is; start it if it is missing."""
        name = request.subscription
        if name not in self.dispatchers:
            await self._dispatch(name, request.settings)
        if name not in self.dispatchers:
            raise Unavailable("a dispatcher could not be started")
        settings = msgspec.json.encode(self.settings).decode()
        return Located(addresses=[self.dispatchers[name]], settings=settings)

    async def _dispatch(self, subscription: str, settings: SubscriptionSettings | None) -> None:
        if self._starting:
            return
        self._starting = True
        self.started += 1

        def make(ports: Ports) -> Dispatcher:
            directory = Directory(ports, self.controller)
            return Dispatcher(
                ports,
                topic=self.topic,
                partition=0,
                subscription=subscription,
                settings=settings,
                directory=directory,
            )

        try:
            name, machine = f"dispatcher-0-{self.started}", f"broker-{self.started % BROKERS}"
            self.dispatchers[subscription] = await self.world.start(name, make, machine=machine)
        except SluiceError as error:
            self.ports.log("no dispatcher", error=str(error))
        finally:
            self._starting = False

    async def on_suspect(self, request: Suspect) -> Done:
        """Look at an owner, and replace it if it does not answer."""
        for partition, address in sorted(self.owners.items()):
            if address == request.address:
                await self._look(partition, address)
        for subscription, address in sorted(self.dispatchers.items()):
            if address == request.address and isinstance(
                await self.ports.net.call(address, Ping(), PING_TIMEOUT), Unknown
            ):
                self.dispatchers.pop(subscription, None)
        return Done()

    async def on_list_bookies(self, request: ListBookies) -> BookieList:
        """All bookies that ever were, with their present addresses. In half of the runs the last older process is
        replaced after a while.
        """
        names = [name for name in self.world.names() if name.startswith("bookie-")]
        frames = NEWEST if self.ports.clock.monotonic() >= self._upgraded_at else 1
        return BookieList(ids=names, addresses=[self.world.process(name).address for name in names], frames=frames)

    async def replace(self, partition: int) -> None:
        """Start one more owner, whatever became of the others."""
        if self._busy.get(partition):
            return
        self._busy[partition] = True
        self.started += 1
        number = self.started
        try:
            self.owners[partition] = await self.world.start(
                f"topic-{partition}-{number}",
                lambda ports: make_topic(ports, self, partition, self._resources[number % BROKERS]),
                machine=f"broker-{number % BROKERS}",
            )
        except SluiceError as error:
            self.ports.log("no owner", partition=partition, error=str(error))
        finally:
            self._busy[partition] = False

    async def _look(self, partition: int, address: Address) -> None:
        reply = await self.ports.net.call(address, Ping(), PING_TIMEOUT)
        if isinstance(reply, Unknown) and self.owners.get(partition) == address:
            await self.replace(partition)

    async def _watch(self) -> None:
        while True:
            await self.ports.clock.sleep(PING_MS)
            for partition, address in sorted(self.owners.items()):
                await self._look(partition, address)


def make_topic(ports: Ports, registry: Registry, partition: int, resources: ProcessResources) -> Topic:
    """An owner that asks the registry for bookies. resources: those of its broker."""

    async def bookies() -> BookieList:
        reply = await ports.net.call(registry.controller, ListBookies(), 2_000)
        if isinstance(reply, Unknown):
            raise Unavailable(f"the registry does not answer: {reply.reason}")
        return reply

    return Topic(
        ports,
        topic=registry.topic,
        partition=partition,
        settings=registry.settings,
        bookies=bookies,
        resources=resources,
    )
