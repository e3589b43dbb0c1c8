"""The broker's world behind gateways: all clients speak Pulsar's protocol, over connections that break.

Gateways are the real ones, with everything between the bytes of a connection and the actors; clients are models of
Pulsar's (tests.sim.worlds.wire), and some are Sluice's own. The controller keeps a gateway on each machine; beside it
others may wait for the machine's port. Gateways crash and freeze like everything else, connections end in the middle of
frames, and clients come back to any machine and send again what has no receipt. The judge is that of a flood: order and
single holders of keys, nothing lost, nothing early, nothing again without a reason, nothing after a confirmed
acknowledgement; and with deduplication nothing is stored twice. Receipts come in the order of the sends, and nobody is
sent more than was asked for. In some runs gateways ask for roles, and the rights of some clients come and go
(tests.sim.worlds.guests).

In some runs the topic is given more partitions while all that goes on, and in some it is terminated: then nothing is
confirmed behind the end that the operator was told, and in the end every client knows it. In some a client floods the
gateways and reads nothing, and what is held for it is bounded.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from sluice.actors.consumer.partition import PartitionConsumer
from sluice.actors.controller.controller import Controller
from sluice.actors.dispatcher.delivery.sessions import EPOCH_SESSIONS
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import AddPartitions, SubscriptionSettings, Terminate
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.pulsar.codec.frames import Buffer, Cutter
from sluice.actors.pulsar.codec.loop_decoder import VECTORIZED_FROM
from sluice.actors.pulsar.codec.protocol import FIELD_OF, Command, parse
from sluice.actors.pulsar.conversation.client_connection import ClientConnection
from sluice.actors.pulsar.conversation.gateway.gateway import Gateway, GatewayActor
from sluice.actors.pulsar.conversation.gateway.port_claims import MachinePorts, PortHolder
from sluice.loadgen.base import history
from sluice.storage.errors import Fenced, SluiceError
from sluice.storage.format.position import position
from tests.sim.faults import Fault
from tests.sim.machine_ports import SimMachinePorts
from tests.sim.pipes import End, Pipes
from tests.sim.world import Process, World
from tests.sim.worlds.broker import CONTROLLER, TOPIC, BrokerWorld, Course, Size
from tests.sim.worlds.clients import SimConsumer
from tests.sim.worlds.flooding import Flooder
from tests.sim.worlds.guests import HOST, Guests, enforce
from tests.sim.worlds.manner import FAILOVER, KEY_SHARED, SHARED, Manner
from tests.sim.worlds.past import ON_ITS_WAY_US, SOMEBODY
from tests.sim.worlds.types import ORDER, RELAYED
from tests.sim.worlds.wire import Stamp
from tests.sim.worlds.wire_consumers import WireConsumerModel
from tests.sim.worlds.wire_producers import WireProducerModel

FIXED = 6650
KINDS = {KEY_SHARED: "key_shared", SHARED: "shared", FAILOVER: "failover"}
EXCUSED = {SHARED: ORDER, FAILOVER: RELAYED | {"acked_redelivered"}}


class GatewayWorld(BrokerWorld):
    """See the module."""

    name = "gateway"
    kinds = [*BrokerWorld.kinds, "hang_up"]
    favourites: Sequence[str] = ("hang_up", "crash", "churn")

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """See BrokerWorld."""
        rng = random.Random(f"gateway/{world.seed}")
        size = Size.draw(rng, options)
        deduplicated = rng.random() < 0.5
        machines = [f"machine-{number}" for number in range(rng.choice((1, 2, 2, 3)))]
        manner = Manner.draw(rng, machines, deduplicated=deduplicated)
        doors = DoorsOf.draw(rng)
        at_once = random.Random(f"refused/{world.seed}").random() < 0.5
        lanes = random.Random(f"lanes/{world.seed}").choice((1, 1, 2, 4))
        manner = self._manner(replace(manner, at_once=at_once, lanes=lanes))
        settings = SubscriptionSettings(type=KINDS[manner.type], initial_position="earliest")
        topic = msgspec.structs.replace(size.topic, deduplication_enabled=deduplicated)
        size = replace(size, topic=topic, traffic=replace(size.traffic, settings=settings))
        changes = Changes.draw(random.Random(f"changes/{world.seed}"), size.traffic.partitions)
        if changes.grows:
            settings = msgspec.structs.replace(settings, initial_position="latest")
            size = replace(size, traffic=replace(size.traffic, settings=settings))
            manner, doors = replace(manner, watchful=True, earliest=False), replace(doors, own=0.0)
        return GatewayCourse(world, faults, options, size, manner, doors, changes)

    def _manner(self, drawn: Manner) -> Manner:
        """How clients are."""
        return drawn


class RelayWorld(GatewayWorld):
    """The same with a Failover subscription, where batches go whole to the consumer that is active."""

    name = "relay"

    def _manner(self, drawn: Manner) -> Manner:
        return replace(drawn, type=FAILOVER)


@dataclass(frozen=True)
class Changes:
    """The changes that Pulsar's tools make to a topic. grows: its new number of partitions, 0: none. ends: it ends.

    A topic that grows has a subscription from the latest message on: what comes on a partition before the subscription
    is on it would be lost.
    """

    grows: int
    ends: bool
    share: float
    """Of the time of trouble, which passes before."""

    @classmethod
    def draw(cls, rng: random.Random, partitions: int) -> Changes:
        """Draw the changes; mostly none."""
        grows = partitions + rng.randint(1, 2) if partitions > 1 and rng.random() < 0.5 else 0
        return cls(grows, rng.random() < 0.25, rng.random())


@dataclass(frozen=True)
class DoorsOf:
    """The ports of the machines. spare: gateways that wait beside those that the controller starts, and that it does
    not know. taken_ms: how long another program has the port of the first machine; 0: none has it.
    """

    port: int
    spare: int
    taken_ms: int
    own: float
    """Share of the clients that are Sluice's own and need no gateway."""

    @classmethod
    def draw(cls, rng: random.Random) -> DoorsOf:
        """Draw the ports: any free one, or one that is given."""
        taken_ms = rng.choice((0, 0, 0, rng.randrange(1, 5_000)))
        return cls(rng.choice((0, FIXED)), rng.choice((0, 0, 1, 2)), taken_ms, rng.choice((0.0, 0.0, 0.4)))


class SimGateway(GatewayActor):
    """A gateway in a process of its own. doors: makes the machine's port, for which it waits; without, it has one."""

    def __init__(
        self,
        ports: Ports,
        name: str,
        doors: Callable[[], MachinePorts] | None = None,
        port: int = 0,
        controller: Address = CONTROLLER,
        vectorized_from: int = 2,
    ) -> None:
        super().__init__(ports)
        url = f"pulsar://{name}"
        self.gateway = Gateway(ports, controller, url=url, process=name, vectorized_from=vectorized_from)
        self._port_holder = PortHolder(ports, doors(), {"pulsar": port}, self._opened) if doors is not None else None

    async def start(self) -> None:
        """Listen, or wait for that."""
        self.gateway.start()
        if self._port_holder is not None:
            await self._port_holder.open()
            self.ports.spawn(self._port_holder.run(), "doors")

    def _opened(self, scheme: str, port: int) -> None:
        self.gateway.url = f"{scheme}://{self.ports.me}:{port}"

    async def accept(self, end: End, stamps: list[Stamp]) -> None:
        """Accept a connection. stamps: what the judge wants to know of each MESSAGE frame."""
        conversation = StampedConnection(self.gateway, end, stamps)
        end.choke = conversation.choke
        await end.attach(conversation)


class StampedConnection(ClientConnection):
    """A connection that tells what the wire does not of each MESSAGE frame, as soon as a consumer says it: until it is
    written to the client the consumer may be gone.
    """

    def __init__(self, gateway: Gateway, end: End, stamps: list[Stamp]) -> None:
        self._stamps = stamps
        super().__init__(gateway, end)

    def write(self, *data: Buffer) -> None:
        """See ClientSession."""
        if not self.closed:
            self._stamps.extend(self._found(b"".join(data)))
        super().write(*data)

    def _found(self, data: bytes) -> Iterator[Stamp]:
        for frame in Cutter().feed(data):
            told = parse(Command, frame.command)
            if FIELD_OF[told.type] != "message":
                continue
            one = told.message
            sent = self.consumers[one.consumer_id]._sent.get(position(one.message_id.ledger, one.message_id.entry))
            assert sent is not None
            rows = slice(sent.first, sent.first + sent.size)
            yield Stamp(sent.part.session, sent.part.epoch, sent.part.dispatch[rows].tolist())


class GatewayCourse(Course):
    """One run."""

    def __init__(
        self,
        world: World,
        faults: list[Fault],
        options: dict[str, str],
        size: Size,
        manner: Manner,
        doors: DoorsOf,
        changes: Changes,
    ) -> None:
        super().__init__(world, faults, options, size)
        self.manner, self.doors, self.changes = manner, doors, changes
        self._ends: dict[int, int] = {}
        """By partition: the position of its last message, as the operator was told."""
        self._changed = world.loop.create_future()
        self.pipes = Pipes(world)
        self.machines = self.pipes.machines
        self._rng = random.Random(f"doors/{world.seed}")
        self.guests: Guests | None = None
        if random.Random(f"who may/{world.seed}").random() < 0.25:
            self.guests, self.pipes.role = Guests(world, self.pipes, manner.gateways, TOPIC), HOST
        world.gateway_machines = manner.gateways
        self.excused |= EXCUSED.get(manner.type, set())
        world.ears.append(self._hear)

    async def _build(self) -> None:
        machines = self.manner.gateways
        self.world.kinds["gateway"] = (self._gateway, lambda settings: str(settings["machine"]), lambda settings: None)
        if self.doors.taken_ms:
            self.machines.taken[machines[0], FIXED] = None
            self.world.background(self._free(machines[0]), "a port is free again")
        await super()._build()
        for machine in machines:
            while self.machines.listener(machine) is None and (machine, FIXED) not in self.machines.taken:
                await self.world.loop.pause(20)
        for number in range(self.doors.spare):
            await self.world.start(
                f"gateway-spare-{number}", self._doorway, machine=machines[self._rng.randrange(len(machines))]
            )
        self.nemesis.roles["gateway"] = partial(self.world.alive, "gateway-")
        self.nemesis.revive["gateway"] = self._leave_it
        self.nemesis.special["hang_up"] = self._hang_up

    def _controller(self, ports: Ports, bookies: list[str], leftovers_ms: int) -> Controller:
        """See Course."""
        return Controller(
            ports,
            bookies=bookies,
            leftovers_ms=leftovers_ms,
            close_idle_after_ms=self._close_idle_after_ms,
            gateways=True,
        )

    def _gateway(self, ports: Ports, settings: dict[str, Any]) -> SimGateway:
        return self._doorway(ports)

    def _doorway(self, ports: Ports) -> SimGateway:
        name = ports.me.partition("/")[2].rpartition(".")[0]
        made = SimGateway(
            ports,
            name,
            lambda: SimMachinePorts(self.machines, self.world.process(name)),
            self.doors.port,
            vectorized_from=2 if self.manner.lanes == 1 else VECTORIZED_FROM,
        )
        if self.guests is not None:
            enforce(made.gateway)
        return made

    async def _free(self, machine: str) -> None:
        await self.world.loop.pause(self.doors.taken_ms)
        del self.machines.taken[machine, FIXED]

    async def _hang_up(self, fault: Fault, rng: random.Random) -> None:
        """A connection ends, with whatever is on its way."""
        self.pipes.hang_up()

    async def _begin_clients(self) -> None:
        """See Course."""
        await super()._begin_clients()
        self.world.background(self._change(), "changes of the topic")
        if self.guests is not None:
            self.world.background(self.guests.run(self.size.traffic.partitions), "rights come and go")
        if random.Random(f"flood/{self.world.seed}").random() < 0.2:
            self.world.background(self._flood(), "somebody floods")

    async def _flood(self) -> None:
        flooder = Flooder(self.world, self.pipes, list(self.manner.gateways))
        try:
            await flooder.run(self.world.loop.now + self.size.trouble_ms)
        finally:
            self._add("asked by who reads nothing", flooder.asked)

    async def _change(self) -> None:
        """Change the topic as an operator does, while everything else goes on; ask again until it is answered."""
        ports = self.world.client("operator")
        directory = Directory(ports, CONTROLLER)
        await ports.clock.sleep(int(self.changes.share * self.size.trouble_ms))
        if grows := self.changes.grows:
            await self._insist(ports, directory, None, AddPartitions(topic=TOPIC, partitions=grows))
            self.size = replace(self.size, traffic=replace(self.size.traffic, partitions=grows))
            self._add("partitions added", 1)
        for partition in range(self.size.traffic.partitions) if self.changes.ends else ():
            self._ends[partition] = (await self._insist(ports, directory, partition, Terminate())).last
            self._add("partitions terminated", 1)
        self._changed.set_result(None)

    async def _insist(self, ports: Ports, directory: Directory, partition: int | None, request: Any) -> Any:
        while True:
            try:
                owner = CONTROLLER if partition is None else await directory.topic(TOPIC, partition)
                reply = await ports.net.call(owner, request, 10_000)
                if not isinstance(reply, Unknown):
                    return reply
                await directory.suspect(owner)
            except Fenced:
                await directory.suspect(owner)
            except SluiceError as error:
                ports.log("not changed", error=str(error))
            await ports.clock.sleep(50)

    async def _published(self) -> None:
        """See Course."""
        await self._changed
        await super()._published()

    async def _rest(self) -> None:
        """See Course. Of a topic that was terminated, everybody comes to know the end."""
        await super()._rest()
        if self.guests is not None:
            self.guests.end()
        if self.guests is not None and not self._ends:
            self._told = "rights of guests are not judged"
            await self.guests.judge(self.size.traffic.partitions)
            self._add("producers of guests", self.guests.opened)
            self._add("rights revoked at rest", self.guests.revoked)
        while self._ends and (waiting := self._without_end()):
            self._told = f"{waiting} do not know the end of the topic"
            await self.world.loop.pause(100)

    def _without_end(self) -> list[str]:
        everybody: list[Any] = list(self.consumers)
        wired = [each for each in everybody if isinstance(each, WireConsumerModel)]
        here = [each for each in wired if not each.gone and self.world.is_up(each.name)]
        return [each.name for each in here if not each.knows_end(self.size.traffic.partitions)]

    def _produce(self, number: int) -> Any:
        """See Course."""
        if self._rng.random() < self.doors.own:
            return super()._produce(number)
        return WireProducerModel(self.world, self.pipes, self.past, self.size.traffic, number, self.manner)

    def join(self) -> Any:
        """See Course."""
        if self._rng.random() < self.doors.own:
            return super().join()
        number = len(self.consumers)
        consumer: Any = WireConsumerModel(self.world, self.pipes, self.past, self.size.traffic, number, self.manner)
        self.consumers.append(consumer)
        return consumer

    def _hear(self, process: Process, event: str, fields: dict[str, object]) -> None:
        """Record the sessions that gateways report as ended, and fail on events that they must never report."""
        if not process.name.startswith("gateway-"):
            return
        assert event not in ("defect", "protocol"), f"{process.name}: {event} {fields}"
        if event == "session_lost":
            session, partition = int(str(fields["session"])), int(str(fields["partition"]))
            self.past.event(
                SOMEBODY, history.EXPIRED, session=session, partition=partition, ago=_overdue(process, session)
            )
        elif event == "ended" and isinstance(process.actor, SimGateway):
            for consumers in process.actor.gateway.consumers.values():
                for consumer in consumers:
                    session = consumer._part.session  # type: ignore[attr-defined]
                    self.past.event(SOMEBODY, history.EXPIRED, session=session, partition=consumer.tp.partition)

    def _judge(self) -> None:
        """See the module."""
        everybody: list[Any] = list(self.producers)
        wired = [each for each in everybody if isinstance(each, WireProducerModel)]
        self._add("reconnections", sum(producer.reconnected - 1 for producer in wired))
        self._add("sends that were refused", sum(producer.refused for producer in wired))
        self._add("gateways that took over", self.machines.takeovers)
        for send in self.past.sends:
            behind = send[6] == history.OK and send[5] > self._ends.get(send[1], send[5])
            assert not behind, f"message {send[3]} of {send[2]!r} was confirmed behind the end of partition {send[1]}"
        if not self.size.topic.deduplication_enabled and self.counters["reconnections"]:
            self.excused |= {"stored_twice"}
        if self.manner.type == FAILOVER:
            self._check_acknowledged()
            check_order(self.past.sends, self.past.receives)
            self.excused |= {"order"}
        super()._judge()

    def _check_acknowledged(self) -> None:
        """S6 where the messages of one consumer go to the next one while the first may still acknowledge them.

        An owner sends nothing that it knows to be acknowledged. What it had sent before may meet the confirmation on
        the way, and reach its client a little later. An answer to a poll that was lost is asked for again, as long as
        the session lasts, and is the same: one of Sluice's own consumers gets then what was sent to it before it was
        sent to the one that acknowledged it, which is another one, or itself before others were active for a moment.
        Such an answer is the first thing that its session gets after the confirmation.
        """
        own = {each.name for each in self.consumers if isinstance(each, SimConsumer)}
        lease_us = self.size.traffic.settings.lease_ms * 1000
        sent = {(one[1], one[2], one[3]): one[8] for one in self.past.receives}
        confirmed = defaultdict[tuple[int, int], list[tuple[int, int, int]]](list)
        for _, session, partition, at, _, moment, negative in self.past.acks:
            if moment and not negative:
                confirmed[partition, at].append((moment, session, sent.get((session, partition, at), 0)))
        for who, session, partition, at, key, number, _, _, dispatch, came in self.past.receives:
            for moment, by, order in confirmed[partition, at]:
                again = who in own and (dispatch < order or (by == session and not self._got(session, moment, came)))
                on_its_way = came - moment <= (lease_us if again else ON_ITS_WAY_US)
                on_its_way &= by // EPOCH_SESSIONS == session // EPOCH_SESSIONS
                told = f"S6: message {number} of {key!r} came {came - moment} us after it was acknowledged, confirmed"
                assert came < moment or on_its_way, told

    def _got(self, session: int, after: int, before: int) -> bool:
        """Whether anything came to a session between two moments."""
        return any(one[1] == session and after < one[9] < before for one in self.past.receives)


def check_order(sends: list[list[Any]], receives: list[list[Any]]) -> None:
    """S8 as clients see it, where what one consumer has goes to the next one. Rows: see loadgen.base.history.

    Their owner's stamps do not tell. What had gone to the first consumer before may come to its client last, without
    what the next one, which was sent all of it again, has done meanwhile.
    """
    delayed = {(send[2], send[3]) for send in sends if send[9]}
    seen = set[tuple[bytes, int]]()
    newest: dict[bytes, int] = {}
    for one in sorted(receives, key=lambda receive: int(receive[9])):
        key, number = one[4], one[5]
        if (key, number) in seen or (key, number) in delayed:
            continue
        seen.add((key, number))
        behind = newest.setdefault(key, number)
        assert number >= behind, f"S8: message {number} of {key!r} came first behind message {behind}"
        newest[key] = number


def _overdue(process: Process, session: int) -> int:
    """For how many milliseconds the lease of a session has been over."""
    assert isinstance(process.actor, SimGateway)
    for consumers in process.actor.gateway.consumers.values():
        for consumer in consumers:
            part: PartitionConsumer = consumer._part  # type: ignore[attr-defined]
            if part.session == session:
                return part.lease.overdue()
    return 0
