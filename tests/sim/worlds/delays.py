"""The broker's world with delayed messages and stores in trouble: what indexes them is away, refused or damaged.

Metadata that cannot be had while an owner starts, an object store that is away for a while, unreadable objects,
deletes that are refused, manifests that are damaged; and owners change meanwhile. Everything that is judged in the
broker's world holds. Afterwards the topic is deleted, and nothing of its index may be left.
"""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec

from sluice.actors.messages import RemoveTopic
from sluice.actors.ports import Unknown
from sluice.storage.errors import Invalid, SluiceError, Unavailable
from tests.sim.faults import Fault
from tests.sim.world import World
from tests.sim.worlds.broker import CONTROLLER, TOPIC, BrokerWorld, Course, Size

LINGER_MS = 45_000
"""Until then every owner that was replaced knows it, and what was on its way has landed."""
DELETED_MS = 120_000
INDEX = "delayed/"
"""What keys and names of the index begin with."""


class DelaysWorld(BrokerWorld):
    """See the module."""

    name = "delays"

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """See BrokerWorld."""
        rng = random.Random(f"delays/{world.seed}")
        size = Size.draw(rng, options)
        settings = msgspec.structs.replace(
            size.traffic.settings,
            delayed_tracker=rng.choice(("bucket", "bucket", "bucket", "memory")),
            delayed_delivery_shared_index_enabled=rng.random() < 0.3,
            delayed_delivery_min_index_count_per_bucket=rng.choice((2, 5)),
        )
        traffic = replace(
            size.traffic,
            settings=settings,
            delayed=rng.choice((0.5, 0.9)),
            delay_ms=rng.choice((200, 2_000, 20_000)),
            sends=rng.randint(10, 40),
        )
        size = replace(size, traffic=traffic, trouble_ms=rng.randint(3_000, 12_000), dense=False)
        course = DelaysCourse(world, faults, options, size)
        course.linger_ms = LINGER_MS
        course.begun = lambda: world.background(course.disturb(rng), "stores in trouble")
        return course


class DelaysCourse(Course):
    """One run, in which the stores are in trouble."""

    async def run(self) -> None:
        """The broker's run; then the topic is deleted, and nothing of the index is left."""
        await super().run()
        await self.world.within(DELETED_MS, self._delete(), "the topic cannot be deleted")
        left = [name for name in self.world.objects.objects if name.startswith(INDEX)]
        left += [key for key in self.world.meta.records if key.startswith(INDEX)]
        assert not left, f"the deleted topic leaves {left}"

    async def disturb(self, rng: random.Random) -> None:
        """One trouble after the other until the safety phase is over."""
        acts = [self._no_manifest, self._no_objects, self._some_objects, self._no_deletes, self._damage]
        while self.nemesis.active:
            await self.world.loop.pause(rng.randrange(100, 3_000))
            act = rng.choice(acts)
            if self.nemesis.active:
                self._add(f"trouble: {act.__name__}", 1)
                act(rng)
                if rng.random() < 0.5:
                    await self.second_owner(rng, ("topic", "dispatcher"))
                await self.world.loop.pause(rng.choice((300, 3_000, 8_000)))
                for store in (self.world.meta, self.world.objects):
                    store.trouble.refused.clear()

    def _no_manifest(self, rng: random.Random) -> None:
        calls = rng.choice((("read",), ("create",), ("read", "create", "remove")))
        self.world.meta.trouble.refused.update({f"{call} {INDEX}": Unavailable for call in calls})

    def _no_objects(self, rng: random.Random) -> None:
        calls = rng.choice((("put",), ("get",), ("put", "get", "names", "delete")))
        error = rng.choice((Unavailable, Invalid))
        self.world.objects.trouble.refused.update({f"{call} {INDEX}": error for call in calls})

    def _some_objects(self, rng: random.Random) -> None:
        names = [name for name in sorted(self.world.objects.objects) if rng.random() < 0.5]
        self.world.objects.trouble.refused.update({f"get {name}": Unavailable for name in names})

    def _no_deletes(self, rng: random.Random) -> None:
        self.world.objects.trouble.refused[f"delete {INDEX}"] = rng.choice((Unavailable, Invalid))

    def _damage(self, rng: random.Random) -> None:
        keys = [key for key in sorted(self.world.meta.records) if key.startswith(INDEX)]
        for key in keys:
            if rng.random() < 0.7:
                newest = bytearray(self.world.meta.records[key][-1])
                newest[rng.randrange(len(newest))] ^= 1 << rng.randrange(8)
                self.world.meta.records[key][-1] = bytes(newest)
                self._add("damaged manifests", 1)

    async def _delete(self) -> None:
        ports = self.world.client("operator")
        request = RemoveTopic(topic=TOPIC, force=True)
        for consumer in self.consumers:
            consumer.leave()
        while True:
            try:
                if not isinstance(await ports.net.call(CONTROLLER, request, 10_000), Unknown):
                    return
            except SluiceError as error:
                ports.log("not deleted", error=str(error))
            await ports.clock.sleep(500)
