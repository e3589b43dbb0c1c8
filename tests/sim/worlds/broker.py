"""The whole broker: controller, topics, bookies, dispatchers, producers, and consumers that come and go.

Safety phase: every kind of fault, consumers that join, leave, crash and freeze, owners that are replaced while they
live. Then everything heals; what was published is delivered and acknowledged within a bound of virtual time (L1, L4,
L5); and then there is rest: every counter of every dispatcher is zero (L3). The history goes to the judge of
loadgen.judge.checkers: nothing lost, nothing twice, nothing from nowhere (S1 to S4), redelivery only for a reason (S5),
nothing acknowledged comes back (S6), order and a single holder per key (S8, S9), nothing early (S10). The order
sentinels of the dispatchers must have seen nothing either.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from sluice.actors.bookie import Bookie
from sluice.actors.controller.controller import LEFTOVERS_MS, Controller
from sluice.actors.controller.factories import make_dispatcher, make_topic
from sluice.actors.delayed.shared import SharedIndexes
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import CreateTopic, Stats, SubscriptionSettings, TopicSettings
from sluice.actors.ports import InCommon, Ports, Unknown
from sluice.actors.runtime.host import Actor
from sluice.cluster.launch.topic_rooms import topic_resources
from sluice.loadgen.judge.checkers import judge
from sluice.storage.errors import SluiceError
from tests.sim.faults import Fault, Nemesis
from tests.sim.world import World
from tests.sim.worlds.bounds import watch_bounds
from tests.sim.worlds.clients import SimConsumer, SimProducer, Traffic, watch
from tests.sim.worlds.ledger import BOOKIE, DENSE
from tests.sim.worlds.past import History
from tests.sim.worlds.patience import lose_more

TOPIC, SUBSCRIPTION = "orders", "billing"
CONTROLLER = "controller/controller"
BROKERS = 2
HEALED_MS = 300_000
AT_REST = (
    "msgBacklog", "msgDelayed", "unackedMessages", "msgInReplay", "msgDelayedRedelivery", "drainingHashesCount",
    "drainingHashesUnackedMessages", "awaitedConsumers", "nonContiguousDeletedMessagesRanges", "runsHeld",
    "msgDelayedHoldingKeys", "msgDeadLetter", "msgRevoked", "msgRescheduled",
)  # fmt: skip
"""Statistics that are zero when everything is delivered and acknowledged."""


@dataclass(frozen=True)
class Size:
    """How big this world is; drawn from the seed."""

    bookies: int
    topic: TopicSettings
    traffic: Traffic
    producers: int
    consumers: int
    trouble_ms: int
    dense: bool
    """Everything happens twenty times as often: consumers and owners change while messages are on their way."""

    @classmethod
    def draw(cls, rng: random.Random, options: dict[str, str]) -> Size:
        """A random size."""
        ensemble = rng.choice((1, 2, 3))
        write = rng.randint(1, ensemble)
        delayed = rng.choice((0.0, 0.0, 0.1, 0.6))
        dense = rng.random() < 0.6
        look_ahead = rng.choice((30, 200, 4_000))
        settings = SubscriptionSettings(
            policy=options.get("policy", "draining_hashes"),
            selector=rng.choice(("consistent_hashing", "consistent_hashing", "auto_split")),
            replica_points=rng.choice((3, 100)),
            initial_position="earliest",
            max_unacked_messages_per_consumer=rng.choice((5, 50, 50_000)),
            max_unacked_messages_per_subscription=rng.choice((20, 200_000)),
            look_ahead_per_consumer=look_ahead,
            look_ahead_per_subscription=look_ahead * 3,
            lease_ms=rng.choice((3_000, 10_000)),
            delayed_tracker=rng.choice(("bucket", "memory")),
            delayed_delivery_min_index_count_per_bucket=rng.choice((5, 30)),
            delayed_delivery_max_indexes_per_bucket_snapshot_segment=rng.choice((3, 20)),
            delayed_delivery_max_num_buckets=rng.choice((3, 10, -1)),
        )
        traffic = Traffic(
            topic=TOPIC,
            partitions=rng.choice((1, 1, 2)),
            subscription=SUBSCRIPTION,
            settings=settings,
            controller=CONTROLLER,
            sends=rng.randint(1, 25),
            delayed=delayed,
            delay_ms=rng.choice((20, 200, 2_000) if dense else (20, 2_000, 20_000)),
            negative=rng.choice((0.0, 0.0, 0.1)),
            think_ms=rng.choice((2, 30, 400)),
            pauses_ms=(0, 2, 5, 30) if dense else (0, 2, 30, 400),
        )
        topic = TopicSettings(
            partitions=traffic.partitions,
            ensemble=ensemble,
            write_quorum=write,
            ack_quorum=rng.randint(1, write),
            roll_entries=rng.choice((20, 100, 5_000_000)),
        )
        bookies = ensemble + rng.randrange(2)
        trouble = rng.randint(1, 2_000 if dense else 20_000)
        if traffic.delayed:
            settings = msgspec.structs.replace(settings, delayed_delivery_shared_index_enabled=rng.random() < 0.5)
            traffic = replace(traffic, settings=settings)
        return cls(bookies, topic, traffic, rng.randint(1, 2), rng.randint(1, 4), trouble, dense)


class BrokerWorld:
    """See the module."""

    name = "broker"
    kinds = [
        "loss", "delay", "repeat", "late", "blob_loss", "no_hint", "partition", "pause", "crash", "power", "torn",
        "slow_disk", "failed_sync", "meta_503", "meta_lost_answer", "meta_late", "meta_slow", "object_503",
        "object_lost_answer", "object_late", "object_slow", "lost_object", "cut_stores", "clock", "no_place",
        "stores_403", "zombie", "two_owners", "churn",
    ]  # fmt: skip
    favourites: Sequence[str] = ("two_owners", "crash", "churn")

    def __call__(self, world: World, faults: list[Fault], options: dict[str, str]) -> dict[str, int]:
        """Play a run."""
        course = self.course(world, faults, options)
        world.play(lambda _: course.run())
        return course.counters

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """The run that the seed stands for; what a kind of this world has of its own."""
        return Course(world, faults, options)


class Course:
    """One run. size: how big the world is; drawn from the seed if not given."""

    def __init__(self, world: World, faults: list[Fault], options: dict[str, str], size: Size | None = None) -> None:
        self.world = world
        self.size = size or Size.draw(random.Random(f"course/{world.seed}"), options)
        self.begun: Callable[[], object] = lambda: None
        """Told when the safety phase begins."""
        self.linger_ms = 0
        """So long the world goes on at rest, for the upkeep that comes late."""
        self.past = History(world)
        self.nemesis = Nemesis(world, [fault.quickened(DENSE) for fault in faults] if self.size.dense else faults)
        self.excused = {"early"} if any(fault.kind == "clock" for fault in faults) else set()
        """What is not judged: a message is early by the dispatcher's own clock only, and that one may be skewed."""
        self.producers: list[SimProducer] = []
        self.consumers: list[SimConsumer] = []
        self.counters: dict[str, int] = {}
        self._close_idle_after_ms = 0
        self._shared = SharedIndexes()
        """A partition's topic and dispatchers are always on one machine: here they share what a process would."""
        self._resources = [topic_resources() for _ in range(BROKERS)]
        """Who owns a partition next takes its ledgers' numbers from another process's block, or from the same."""
        self._placing = random.Random(f"resources/{world.seed}")

    async def run(self) -> None:
        """Trouble, healing, rest, judgement."""
        world = self.world
        watch(world, self.past, TOPIC, self.consumers)
        world.background(watch_bounds(world), "bounds")
        await self._build()
        await self._begin_clients()
        self.nemesis.begin()
        lose_more(world)
        self.begun()
        await world.loop.pause(self.size.trouble_ms)
        await self.nemesis.heal()
        for consumer in self.consumers:
            consumer.calm = True
        self.join().calm = True
        await world.within(HEALED_MS, self._published(), "L1: a publish is not confirmed")
        await world.within(HEALED_MS, self._rest(), lambda: f"L3: no rest; {self._told}")
        if self.linger_ms:
            await world.loop.pause(self.linger_ms)
            await world.within(HEALED_MS, self._rest(), lambda: f"L3: no rest any more; {self._told}")
        self._judge()

    async def _begin_clients(self) -> None:
        """Producers and consumers begin."""
        for number in range(self.size.producers):
            self.producers.append(self._produce(number))
        for _ in range(self.size.consumers):
            self.join()

    # -- building --

    async def _build(self) -> None:
        world, size = self.world, self.size
        names = [f"bookie-{number}" for number in range(size.bookies)]
        world.kinds["bookie"] = (self._bookie, lambda settings: str(settings["bookie"]), lambda s: str(s["bookie"]))
        world.kinds["topic"] = (self._topic, _broker, lambda settings: None)
        world.kinds["dispatcher"] = (self._dispatcher, _broker, lambda settings: None)
        often = random.Random(f"leftovers/{world.seed}").random() < 0.3
        pause = 300 if often else LEFTOVERS_MS
        if random.Random(f"hosts/{world.seed}").random() < 0.5:
            world.hosts.update({f"broker-{number}": InCommon() for number in range(BROKERS)})
        self._close_idle_after_ms = random.Random(f"idle/{world.seed}").choice((0, 0, 100, 1_000))
        address = await world.start("controller", lambda ports: self._controller(ports, names, pause), fixed=True)
        assert address == CONTROLLER
        await self._create(world.client("admin"))
        roles = self.nemesis.roles
        roles["controller"] = lambda: ["controller"]
        for role in ("bookie", "topic", "dispatcher", "consumer"):
            roles[role] = partial(world.alive, f"{role}-")
            self.nemesis.revive[role] = self._leave_it
        self.nemesis.special.update(two_owners=self._elect, churn=self._churn, lost_object=self._lose)

    def _controller(self, ports: Ports, bookies: list[str], leftovers_ms: int) -> Controller:
        return Controller(
            ports, bookies=bookies, leftovers_ms=leftovers_ms, close_idle_after_ms=self._close_idle_after_ms
        )

    async def _create(self, admin: Ports) -> None:
        """Make topic and subscription, as often as it takes.

        The subscription is there before the first message: what was trimmed earlier was never owed to it.
        """
        request = CreateTopic(topic=TOPIC, settings=self.size.topic)
        directory = Directory(admin, CONTROLLER)
        while True:
            try:
                if not isinstance(await admin.net.call(CONTROLLER, request, 10_000), Unknown):
                    for partition in range(self.size.traffic.partitions):
                        await directory.dispatcher(TOPIC, partition, SUBSCRIPTION, self.size.traffic.settings)
                    return
            except SluiceError as error:
                admin.log("not created", error=str(error))
            await admin.clock.sleep(100)

    def _bookie(self, ports: Ports, settings: dict[str, Any]) -> Actor:
        return Bookie(ports, bookie_id=settings["bookie"], settings=BOOKIE)

    def _topic(self, ports: Ports, settings: dict[str, Any]) -> Actor:
        return make_topic(ports, settings, CONTROLLER, self._shared, self._placing.choice(self._resources))

    def _dispatcher(self, ports: Ports, settings: dict[str, Any]) -> Actor:
        return make_dispatcher(ports, settings, CONTROLLER, self._shared)

    # -- trouble --

    async def _leave_it(self, name: str) -> None:
        """Leave a crashed process down: the controller starts what is missing."""

    def _produce(self, number: int) -> SimProducer:
        """One more producer."""
        return SimProducer(self.world, self.past, self.size.traffic, number, mate=self._mate(number))

    def _mate(self, number: int) -> SimProducer | None:
        """The producer of the same client: in half of the runs two share one."""
        shared = number % 2 and random.Random(f"mates/{self.world.seed}").random() < 0.5
        mate = self.producers[number - 1] if shared else None
        return mate if isinstance(mate, SimProducer) else None

    def join(self) -> SimConsumer:
        """One more consumer."""
        consumer = SimConsumer(self.world, self.past, self.size.traffic, len(self.consumers))
        self.consumers.append(consumer)
        return consumer

    async def _churn(self, fault: Fault, rng: random.Random) -> None:
        """A consumer joins, leaves, crashes or freezes for a while."""
        present = [each for each in self.consumers if not each.gone and self.world.is_up(each.name)]
        if len(self.consumers) < 60 and (not present or (rng.random() < 0.5 and len(present) < 6)):
            self.join()
        elif present:
            consumer = present[rng.randrange(len(present))]
            if rng.random() < 0.6:
                consumer.leave()
            else:
                consumer.gone = True
                self.world.crash(consumer.name)

    async def _elect(self, fault: Fault, rng: random.Random) -> None:
        """Start one more owner of something that has an owner already, behind the controller's back."""
        await self.second_owner(rng, ("topic", "dispatcher"))

    async def second_owner(self, rng: random.Random, kinds: Sequence[str]) -> None:
        """Start one more owner of something of these kinds; the old one lives on and does not know."""
        running = [row for row in self.world.placed() if row[0] in kinds]
        if running:
            kind, _, settings = running[rng.randrange(len(running))]
            make, machine, _ = self.world.kinds[kind]
            name = f"{kind}-extra-{rng.randrange(1 << 30):x}"
            try:
                await self.world.start(
                    name, lambda ports: make(ports, settings), machine=machine(settings), placed=(kind, settings)
                )
            except SluiceError as error:
                self.world.record("nemesis", "no second owner", error=str(error))

    async def _lose(self, fault: Fault, rng: random.Random) -> None:
        """The object store loses an object, or damages it."""
        lost = self.world.objects.lose() if rng.random() < 0.5 else self.world.objects.flip()
        self.world.record("nemesis", "object lost or damaged", name=lost)

    # -- rest --

    _told = "nothing was told"

    async def _published(self) -> None:
        for producer in self.producers:
            await producer.done

    async def _rest(self) -> None:
        """Wait until every dispatcher says that nothing is left."""
        ports = self.world.client("inspector")
        directory = Directory(ports, CONTROLLER)
        while left := self.past.unfinished():
            self._told = f"{left} messages are not acknowledged"
            await ports.clock.sleep(100)
        partition = 0
        while partition < self.size.traffic.partitions:
            stats = await self._stats(ports, directory, partition)
            busy = {name: stats[name] for name in AT_REST if stats.get(name)} if stats else {"stats": None}
            self._told = f"partition {partition}: {busy}"
            if busy:
                await ports.clock.sleep(100)
                continue
            broken = 0 if "order" in self.excused else stats["orderViolationsTotal"]
            assert not broken, f"S8: the sentinel of partition {partition} saw a violation"
            self._add("order checked", int(stats["orderCheckedTotal"]))
            partition += 1
        while waiting := [each.name for each in self._here() if each.unanswered()]:
            self._told = f"{waiting} wait for answers"
            await ports.clock.sleep(100)

    def _here(self) -> list[SimConsumer]:
        """The consumers that live and have not left."""
        return [each for each in self.consumers if not each.gone and self.world.is_up(each.name)]

    async def _stats(self, ports: Ports, directory: Directory, partition: int) -> dict[str, Any]:
        try:
            settings = self.size.traffic.settings
            address = await directory.dispatcher(TOPIC, partition, SUBSCRIPTION, settings)
            reply = await ports.net.call(address, Stats(), 2_000)
            if isinstance(reply, Unknown):
                await directory.suspect(address)
                return {}
            found: dict[str, Any] = json.loads(reply.json)
            return found
        except SluiceError as error:
            ports.log("no statistics", error=str(error))
            return {}

    def _judge(self) -> None:
        findings = judge(*self.past.tables(), nack_order=self.size.traffic.settings.nack_order)
        for kind, count in findings.violations.items():
            assert kind in self.excused or not count, f"{kind}: {count}; {'; '.join(findings.examples.get(kind, []))}"
        for name, number in [*findings.checked.items(), *findings.messages.items()]:
            self._add(name, number)
        self._add("consumers", len(self.consumers))

    def _add(self, name: str, number: int) -> None:
        self.counters[name] = self.counters.get(name, 0) + number


def _broker(settings: dict[str, Any]) -> str:
    return f"broker-{settings['partition'] % BROKERS}"
