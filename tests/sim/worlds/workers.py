"""The broker's world with a pool of workers that publish what they make of each message, effectively once.

The decisions are those of `cluster.workers`: which message may be handled (`KeySchedule`), what becomes of it
(`ResultLoop`), how many workers there are (`Scaling`). The results go out through the real publisher to a topic that
deduplicates. Handlers take their time and fail at times. Workers are killed and frozen and come back under their names,
the pool grows and shrinks, and the owners of both topics change.

Beside what the broker's world judges: within a worker no key is handled twice at once; between workers not either, as
long as the first one's lease lasts; a worker that leaves has finished. In the end every result is in the output exactly
once, and of each key in order, whatever was handled how often; nothing else is there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from sluice.actors.consumer.payload import Payloads
from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import CreateTopic, ReadEnds, TopicSettings
from sluice.actors.ports import Ports, Unknown
from sluice.actors.producer.results import Publication, ResultPublisher
from sluice.cluster.client.log_reader import ranges_of
from sluice.cluster.client.message import Batch, Message
from sluice.cluster.workers.outputs import Result, rows_of_several
from sluice.cluster.workers.result_loop import Call, NotOurs, ResultLoop
from sluice.cluster.workers.scaling import Scaling, ScalingLimits, WorkerLoad
from sluice.cluster.workers.schedule import KeySchedule
from sluice.loadgen.base import history
from sluice.storage.errors import SluiceError
from tests.sim.faults import Fault
from tests.sim.world import Process, World
from tests.sim.worlds.broker import CONTROLLER, HEALED_MS, SUBSCRIPTION, TOPIC, BrokerWorld, Course, Size
from tests.sim.worlds.clients import SimConsumer
from tests.sim.worlds.redeliveries import RedeliveriesCourse, RedeliveriesWorld, size_of

OUTPUTS = ("invoices", "audit")
LOOK_MS = 100
FEW = 4
"""A message has up to so many results."""

Item = tuple[Received, int]


def made_of(key: bytes, number: int) -> list[tuple[str, bytes | None, bytes]]:
    """Return the results of a message, as (output, key, payload): always the same, up to FEW, and at times one of them
    under another key.
    """
    results: list[tuple[str, bytes | None, bytes]] = [
        (OUTPUTS[place % 2], None, b"%s/%d/%d" % (key, number, place)) for place in range(number % FEW)
    ]
    if number % 5 == 0:
        results.append((OUTPUTS[0], b"by-%d" % (number % 3), b"%s/%d/other" % (key, number)))
    return results


class WorkersWorld(RedeliveriesWorld):
    """See the module."""

    name = "workers"
    kinds = [kind for kind in BrokerWorld.kinds if kind not in ("clock", "lost_object")]
    favourites: Sequence[str] = ("two_owners", "crash", "churn", "pause")

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """See BrokerWorld."""
        rng = random.Random(f"workers/{world.seed}")
        size = size_of(rng, options)
        settings = msgspec.structs.replace(
            size.traffic.settings, nack_order="key", grace_ms=rng.choice((0, 500, 10_000))
        )
        traffic = replace(
            size.traffic,
            settings=settings,
            negative=rng.choice((0.0, 0.05, 0.2)),
            negative_delays=(0, 50, 1_000),
            sends=min(size.traffic.sends, 12),
            delayed=0.0,
        )
        size = replace(size, traffic=traffic, trouble_ms=rng.randint(1_000, 5_000))
        course = WorkersCourse(world, faults, options, size)
        course.begun = lambda: world.background(course.change(rng), "owners change")
        return course


@dataclass
class Running:
    """A handler that runs."""

    worker: SimWorker
    item: Item


@dataclass(eq=False)
class SimWorker(SimConsumer):
    """One worker: a consumer whose messages go through the loop of a real one."""

    course: WorkersCourse = field(kw_only=True)
    left: bool = False

    def __post_init__(self) -> None:
        rng = random.Random(f"worker-{self.number}/{self.world.seed}")
        self.prefetch = rng.choice((1, 5, 50))
        self.plan: KeySchedule[Item] = KeySchedule(rng.choice((1, 2, 4)), self.is_stale)
        self.loop: ResultLoop[Item] = ResultLoop(self.plan, self, self._changed)
        self.together_ms = rng.choice((0, 1, 5))
        """How long what has come back waits for others, as for a thread that is busy."""
        self._back: dict[str, list[Call[Item]]] = {"returned": [], "published": []}
        super().__post_init__()
        self.publisher = ResultPublisher(self.ports, Directory(self.ports, CONTROLLER), TOPIC, SUBSCRIPTION)

    def _changed(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def is_stale(self, item: Item) -> bool:
        """Return whether the item is not this worker's any more."""
        part, row = item
        taken = part.taken_back is not None and bool(part.taken_back[row])
        return part.revoked or taken

    def load(self) -> WorkerLoad:
        """How long the first message of each key has waited here."""
        now, firsts = self.ports.clock.now(), dict(self.plan.first_waiting()) | self.plan.running
        ages = {key: now - int(part.rows.column("publish_time")[row].as_py()) for key, (part, row) in firsts.items()}
        return WorkerLoad(ages=ages)

    async def _work(self) -> None:
        while True:
            while not self.queue or self.plan.waiting >= self.prefetch:
                self._wake = self.world.loop.create_future()
                await self._wake
            part = self.queue.popleft()
            self.parts[part.partition].taken(part)
            part.shown = len(part)
            if not part.open.any():
                continue
            keys = part.rows.column("key").to_pylist()
            for row in np.flatnonzero(part.open).tolist():
                self.loop.submit(keys[row], (part, row))
            self.loop.start()

    async def _close(self) -> None:
        self.loop.stop()
        while not self.loop.finished and self.loop.error is None:
            await self.ports.clock.sleep(1)
        await self._settle()
        assert not self.plan.running, f"S9: {self.name} leaves before it has finished {list(self.plan.running)}"
        self.left = True
        await super()._close()

    # -- the steps of a message --

    def _came_back(self, step: str, calls: Sequence[Call[Item]]) -> None:
        """They have ended this step; the loop hears of it soon, together with others."""
        if not self._back[step]:
            self.ports.spawn(self._hand_back(step), step)
        self._back[step] += calls

    async def _hand_back(self, step: str) -> None:
        await self.ports.clock.sleep(self.together_ms)
        calls, self._back[step] = self._back[step], []
        if step == "returned":
            self.loop.returned(calls)
        else:
            self.loop.published(calls)

    def call(self, calls: list[Call[Item]]) -> None:
        """The handlers."""
        for call in calls:
            self.ports.spawn(self._call(call), "handle")

    async def _call(self, call: Call[Item]) -> None:
        try:
            call.results = await self._handle(call.item)
            call.size = sum(result.size for result in call.results)
        except (NotOurs, ValueError) as error:
            call.error = error
        self._came_back("returned", [call])

    async def _handle(self, item: Item) -> list[Result]:
        part, row = item
        while not part.revoked and self.parts[part.partition].lease_over():
            await self.ports.clock.sleep(20)
        if self.is_stale(item):
            raise NotOurs
        key, number = part.rows.column("key")[row].as_py(), int(part.rows.column("payload")[row].as_py())
        self._note_call(item, key, number)
        self.course.begins(key, Running(self, item))
        try:
            await self.ports.clock.sleep(1 if self.calm else self.rng.randrange(self.traffic.think_ms))
            if not self.calm and self.rng.random() < 0.02:
                await self.ports.clock.sleep(5_000)
            if not self.calm and self.rng.random() < self.traffic.negative:
                raise ValueError("the handler failed")
        finally:
            self.course.ends(key, self)
        return [Result(payload, under, topic=topic) for topic, under, payload in made_of(key, number)]

    def _note_call(self, item: Item, key: bytes, number: int) -> None:
        """The application sees a message when its handler is called; what is taken back before that it never saw."""
        part, row = item
        self.past.receives.append(
            [
                self.name, part.session, part.partition, int(part.positions[row]), key, number,
                int(part.redeliveries[row]), part.epoch, int(part.dispatch[row]), self.past.stamp(),
            ]
        )  # fmt: skip

    def publish(self, calls: list[Call[Item]]) -> None:
        """As a worker does."""
        sent = []
        for call in calls:
            part, row = call.item
            sent.append(Publication(call, part.partition, int(part.positions[row])))
        made = [(self._message(call.item), call.results) for call in calls]
        rows = rows_of_several(made, SUBSCRIPTION, OUTPUTS, self.ports.clock.now())
        self.ports.spawn(self.publisher.publish(sent, rows, self._published), "publish")

    def _message(self, item: Item) -> Message:
        part, row = item
        return Message(Batch(TOPIC, part, self.parts[part.partition]), row)

    def _published(self, sent: list[Publication[Call[Item]]]) -> None:
        for one in sent:
            one.item.error = one.error
        self._came_back("published", [one.item for one in sent])

    def acknowledge(self, calls: list[Call[Item]]) -> None:
        """They are done, whatever is still theirs."""
        rows: dict[Received, list[int]] = {}
        for call in calls:
            part, row = call.item
            if part.open[row]:
                rows.setdefault(part, []).append(row)
        for part, done in rows.items():
            for row in done:
                key, number = part.rows.column("key")[row].as_py(), int(part.rows.column("payload")[row].as_py())
                ack = [self.name, part.session, part.partition, int(part.positions[row]), self.past.stamp(), 0, False]
                self.past.acks.append(ack)
                self.unconfirmed[part.partition].append(ack)
                self.past.finish([(key, number)])
            self.parts[part.partition].acknowledge(part, np.array(sorted(done)))
            self._acked.set()

    def give_back(self, call: Call[Item]) -> None:
        """Give the message back: it comes again."""
        self.ports.spawn(self._give_item_back(call), "give back")

    async def _give_item_back(self, call: Call[Item]) -> None:
        part, row = call.item
        if not isinstance(call.error, ValueError):
            self.world.record(self.name, "not published", error=str(call.error))
        if part.open[row]:
            position, moment = int(part.positions[row]), self.past.stamp()
            self.past.acks.append([self.name, part.session, part.partition, position, moment, 0, True])
            # Unlike other users, a worker does not give up waiting: its key goes on only when this is confirmed.
            delay = self.rng.choice(self.traffic.negative_delays)
            await self.parts[part.partition].negative_acknowledge(part, np.array([row]), delay)
        self.loop.given_back(call)

    async def _settle(self) -> None:
        """Wait until the acknowledgements are durable."""
        for part in self.parts:
            try:
                await part.settle()
            except SluiceError as error:  # its session was lost: those messages come again
                self.ports.log("not settled", error=str(error))


class WorkersCourse(RedeliveriesCourse):
    """One run. The pool itself is not hit: a pool that is started again finds the same workers."""

    def __init__(self, world: World, faults: list[Fault], options: dict[str, str], size: Size) -> None:
        super().__init__(world, faults, options, size)
        rng = random.Random(f"pool/{world.seed}")
        self.pool: dict[int, SimWorker] = {}
        self.limits = ScalingLimits(
            min_workers=rng.choice((1, 2)),
            max_workers=rng.choice((2, 3, 5)),
            concurrency=2,
            target_age_ms=rng.choice((20, 200, 2_000)),
            upscale_delay_ms=rng.choice((100, 1_000)),
            downscale_delay_ms=rng.choice((100, 2_000)),
        )
        self.scaling = Scaling(self.limits)
        self.partitions = [rng.choice((1, 2)) for _ in OUTPUTS]
        self._running: dict[bytes, list[Running]] = {}
        self._over: set[tuple[int, int]] = set()
        self.first_calls: dict[bytes, list[int]] = {}

    # -- building --

    async def _create(self, admin: Ports) -> None:
        await super()._create(admin)
        for topic, partitions in zip(OUTPUTS, self.partitions, strict=True):
            settings = msgspec.structs.replace(self.size.topic, partitions=partitions, deduplication_enabled=True)
            await self._insist(admin, topic, settings)

    async def _insist(self, admin: Ports, topic: str, settings: TopicSettings) -> None:
        while True:
            try:
                request = CreateTopic(topic=topic, settings=settings)
                if not isinstance(await admin.net.call(CONTROLLER, request, 10_000), Unknown):
                    return
            except SluiceError as error:
                admin.log("not created", error=str(error))
            await admin.clock.sleep(100)

    async def _begin_clients(self) -> None:
        self.world.ears.append(self._hear)
        for number in range(self.size.producers):
            self.producers.append(self._produce(number))
        for slot in range(self.limits.min_workers):
            self._begin(slot)
        self.world.background(self._look_after(), "pool")

    def _hear(self, process: Process, event: str, fields: dict[str, object]) -> None:
        if event == "session_ended" and process.placed is not None:
            self._over.add((int(process.placed[1]["partition"]), int(str(fields["session"]))))

    # -- the pool --

    def _begin(self, slot: int) -> SimWorker:
        worker = SimWorker(
            self.world,
            self.past,
            self.size.traffic,
            len(self.consumers),
            calm=self._healed,
            called=f"worker-{slot}",
            course=self,
        )
        self.pool[slot] = worker
        self.consumers.append(worker)
        return worker

    _healed = False

    def join(self) -> SimConsumer:
        """Start one more worker at the end. The others stay, and the pool sees to the rest."""
        self._healed = True
        slot = next(number for number in range(len(self.pool) + 1) if number not in self.pool)
        return self._begin(slot)

    async def _look_after(self) -> None:
        while True:
            await self.world.loop.pause(LOOK_MS)
            for slot, worker in list(self.pool.items()):
                if worker.gone and (worker.left or not self.world.is_up(worker.name)):
                    del self.pool[slot]
                elif not self.world.is_up(worker.name):
                    self._begin(slot)
            active = {slot: worker for slot, worker in self.pool.items() if not worker.gone}
            loads = [worker.load() for worker in active.values()]
            wanted = self.scaling.decide(self.world.loop.now, loads, len(active)).workers
            for _ in range(wanted - len(active)):
                self._begin(next(number for number in range(len(self.pool) + 1) if number not in self.pool))
                self._add("grown", 1)
            for slot in sorted(active)[wanted:]:
                active[slot].leave()
                self._add("shrunk", 1)

    async def _churn(self, fault: Fault, rng: random.Random) -> None:
        """A worker dies, or the pool loses one or gets one whatever the load."""
        present = [worker for worker in self.pool.values() if not worker.gone and self.world.is_up(worker.name)]
        if not present:
            return
        worker = present[rng.randrange(len(present))]
        chance = rng.random()
        if chance < 0.4:
            self.world.crash(worker.name)
        elif chance < 0.7 and len(present) > 1:
            worker.leave()
        elif len(self.consumers) < 60 and len(self.pool) < 6:
            self._begin(next(number for number in range(len(self.pool) + 1) if number not in self.pool))

    # -- judgement --

    def begins(self, key: bytes, call: Running) -> None:
        """A handler begins."""
        running = self._running.setdefault(key, [])
        for other in running:
            assert other.worker is not call.worker, f"S9: {call.worker.name} handles key {key!r} twice at once"
            if self.world.is_up(other.worker.name):
                assert not other.worker.left, f"S9: {other.worker.name} has left, and still handles key {key!r}"
                assert not self._holds(other), f"S9: {call.worker.name} handles {key!r} beside {other.worker.name}"
        running.append(call)
        part, row = call.item
        self.first_calls.setdefault(key, []).append(int(part.rows.column("payload")[row].as_py()))
        self._add("calls", 1)

    def _holds(self, call: Running) -> bool:
        part, row = call.item
        consumer = call.worker.parts[part.partition]
        ended = part.revoked or consumer.lease.overdue() or (part.partition, part.session) in self._over
        taken = part.taken_back is not None and bool(part.taken_back[row])
        return not ended and not taken and consumer.session == part.session

    def ends(self, key: bytes, worker: SimWorker) -> None:
        """A handler has ended."""
        self._running[key] = [call for call in self._running[key] if call.worker is not worker]

    def _judge(self) -> None:
        Course._judge(self)
        for key, numbers in self.first_calls.items():
            firsts = list(dict.fromkeys(numbers))
            assert firsts == sorted(firsts), f"S8: key {key!r} was handled as {firsts}"

    async def _rest(self) -> None:
        await super()._rest()
        await self._judge_outputs()

    async def _judge_outputs(self) -> None:
        """Every result once, and each key's in order."""
        ports = self.world.client("reader")
        directory = Directory(ports, CONTROLLER)
        wanted: set[tuple[str, bytes]] = set()
        possible: set[tuple[str, bytes]] = set()
        for _, _, key, number, _, _, status, _, _, _ in self.past.sends:
            results = [(topic, payload) for topic, _, payload in made_of(key, number)]
            possible.update(results)
            if status == history.OK:
                wanted.update(results)
        found: dict[tuple[str, bytes], int] = {}
        for topic, partitions in zip(OUTPUTS, self.partitions, strict=True):
            for partition in range(partitions):
                last: dict[tuple[bytes, bytes], tuple[int, int]] = {}
                for key, payload in await _everything(ports, directory, topic, partition):
                    found[topic, payload] = found.get((topic, payload), 0) + 1
                    source, number, place = payload.rsplit(b"/", 2)
                    at = (int(number), int(place) if place != b"other" else FEW)
                    before = last.get((source, key), (-1, -1))
                    assert at > before, f"S8: result {payload!r} comes behind {before} of its key in {topic}"
                    last[source, key] = at
        twice = [result for result, count in found.items() if count > 1]
        assert not twice, f"S3: {len(twice)} results are there twice: {twice[:3]}"
        missing = sorted(wanted - set(found))
        assert not missing, f"S1: {len(missing)} results are missing: {missing[:3]}"
        odd = sorted(set(found) - possible)
        assert not odd, f"S2: {len(odd)} results of nothing: {odd[:3]}"
        self._add("results", len(found))


async def _everything(ports: Ports, directory: Directory, topic: str, partition: int) -> list[tuple[bytes, bytes]]:
    """(key, payload) of all messages of a partition, in order."""
    found: list[tuple[bytes, bytes]] = []
    ends = await directory.ask_owner(topic, partition, None, ReadEnds(), patience=HEALED_MS)
    payloads = Payloads(ports, directory, topic, partition)
    for part in ranges_of(partition, ends):
        entry = part.first
        while entry <= part.last:
            run = await payloads.run(part.ledger, entry)
            found += zip(run.rows.column("key").to_pylist(), run.rows.column("payload").to_pylist(), strict=True)
            entry = run.end
    return found
