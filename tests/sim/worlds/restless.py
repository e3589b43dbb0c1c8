"""The broker's world with users and operators who do what the others do not, while answers are odd and payloads away.

Consumers give back everything at once while deliveries are on their way. An operator clears, skips and expires, and
then the owner changes under consumers that still hold some of it. Somebody asks for other settings while consumers are
attached. The topic refuses questions with errors that nobody expects, and payloads cannot be had for a while. As in
the world of skips nobody is owed what was skipped; order, single holders and the final rest are judged as ever.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec

from sluice.actors.dispatcher import Dispatcher
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.ports import Address, Ports
from sluice.storage.errors import Conflict, Corrupt, Invalid, NotFound, Overloaded, SluiceError, Unavailable
from tests.sim.faults import Fault
from tests.sim.world import World
from tests.sim.worlds.broker import CONTROLLER, SUBSCRIPTION, TOPIC, BrokerWorld, Course, Size
from tests.sim.worlds.seeks import SkipsCourse

LATENCIES = ((0, 3), (0, 40), (40, 40), (10, 200))
ODD: tuple[SluiceError, ...] = tuple(
    kind("an odd answer") for kind in (NotFound, Corrupt, Overloaded, Conflict, Invalid)
)
AWAY: tuple[SluiceError, ...] = tuple(kind("no payload now") for kind in (Unavailable, Corrupt, Overloaded))
CHANGES: tuple[dict[str, Any], ...] = (
    {"lease_ms": 4_000},
    {"look_ahead_per_consumer": 9},
    {"max_redeliver_count": 200},
    {"selector": "sticky"},
)


class RestlessWorld(BrokerWorld):
    """See the module."""

    name = "restless"

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """See BrokerWorld."""
        rng = random.Random(f"restless/{world.seed}")
        size = Size.draw(rng, options)
        topic = msgspec.structs.replace(size.topic, roll_entries=rng.choice((10, 40, 5_000_000)))
        course = RestlessCourse(world, faults, options, replace(size, topic=topic))
        course.excused |= {"unexplained_redelivery", "acked_redelivered", "lost"}
        course.begun = lambda: course.trouble(rng)
        return course


class RestlessCourse(SkipsCourse):
    """One run of that world."""

    def trouble(self, rng: random.Random) -> None:
        """Begin everything that this world has of its own."""
        network = self.world.network
        if network.faults.delay_ms[1] < 4:
            network.faults.delay_ms = rng.choice(LATENCIES)
        network.refusals["ReadRowIndex"] = (rng.choice((0.0, 0.3, 0.9)), ODD)
        network.refusals["ReadPayload"] = (rng.choice((0.0, 0.3, 0.9)), AWAY)
        for work, name in (
            (self.seek_often(random.Random(rng.random())), "somebody skips"),
            (self._give_back_often(random.Random(rng.random())), "somebody gives everything back"),
            (self._configure_often(random.Random(rng.random())), "somebody asks for other settings"),
        ):
            self.world.background(work, name)

    async def _move(self, rng: random.Random, ports: Ports, directory: Directory, partition: int) -> None:
        await super()._move(rng, ports, directory, partition)
        if rng.random() < 0.6:
            await self.world.loop.pause(rng.choice((0, 20, 600)))
            await self.second_owner(rng, ("dispatcher",))

    async def _give_back_often(self, rng: random.Random) -> None:
        end = self.world.loop.now + self.size.trouble_ms
        while self.world.loop.now < end:
            await self.world.loop.pause(rng.randrange(1, max(self.size.trouble_ms // 8, 2)))
            present = [each for each in self.consumers if not each.gone and self.world.is_up(each.name)]
            if present:
                consumer = present[rng.randrange(len(present))]
                consumer.ports.spawn(consumer.redeliver_all(), "redeliver")
                self._add("redeliver all", 1)

    async def _configure_often(self, rng: random.Random) -> None:
        """Ask for other settings. If they are set, because nobody is attached, put the old ones back."""
        ports, own = self.world.client("administrator"), self.size.traffic.settings
        end = self.world.loop.now + self.size.trouble_ms
        while self.world.loop.now < end:
            await self.world.loop.pause(rng.randrange(1, max(self.size.trouble_ms // 3, 2)))
            changed = rng.choice(CHANGES)
            wanted, said = SubscriptionSettings(**changed), list(changed)
            partition = rng.randrange(self.size.traffic.partitions)
            try:
                address = await Directory(ports, CONTROLLER).dispatcher(TOPIC, partition, SUBSCRIPTION, wanted, said)
            except SluiceError as error:
                ports.log("no change", error=str(error))
                self._add("settings refused", isinstance(error, Conflict))
            else:
                self._add("settings changed", 1)
                self._check_settings(address, msgspec.structs.replace(own, **changed))
            await self._put_back(ports, partition)
            if all(consumer.gone for consumer in self.consumers):
                self.join().calm = self.world.loop.now >= end

    def _check_settings(self, address: Address, wanted: SubscriptionSettings) -> None:
        """The settings that were said are in force when they are answered, and the others are as they were."""
        process = self.world.at(address)
        if process is not None and isinstance(process.actor, Dispatcher) and process.actor.serves:
            got = process.actor.parts.context.state.settings
            assert got == wanted, f"settings: {wanted} was answered as in force, and it is {got}"
            self._add("settings compared", 1)

    async def _put_back(self, ports: Ports, partition: int) -> None:
        while True:
            try:
                await Directory(ports, CONTROLLER).dispatcher(
                    TOPIC, partition, SUBSCRIPTION, self.size.traffic.settings
                )
                return
            except Conflict:  # somebody came back before, and works with them: only when all are gone they change
                for consumer in self.consumers:
                    consumer.leave()
                self._add("all leave", 1)
            except SluiceError as error:
                ports.log("not put back", error=str(error))
            await ports.clock.sleep(1_000)
