"""The broker's world behind gateways: all clients speak Pulsar's protocol, over connections that break.

Gateways are the real ones, with everything between the bytes of a connection and the actors; clients are models of
Pulsar's (tests.sim.worlds.wire). Gateways crash and freeze like everything else, connections end in the midst of
frames, and clients come back to any gateway and send again what has no receipt. The judge is that of a flood: order and
single holders of keys, nothing lost, nothing early, nothing again without a reason, nothing after a confirmed
acknowledgement; and with deduplication nothing is stored twice. Receipts come in the order of the sends, and nobody is
sent more than was asked for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from actors.messages import SubscriptionSettings
from actors.ports import Ports
from actors.pulsar.connection import Connection
from actors.pulsar.fields import FIELD_OF, Command, parse
from actors.pulsar.frames import Cutter
from actors.pulsar.gateway import Gateway, GatewayActor
from loadgen import history
from storage.position import position
from tests.sim.faults import Fault
from tests.sim.pipes import End, Pipes
from tests.sim.world import Process, World
from tests.sim.worlds.broker import CONTROLLER, BrokerWorld, Course, Size
from tests.sim.worlds.clients import SOMEBODY
from tests.sim.worlds.types import ORDER
from tests.sim.worlds.wire import Stamp
from tests.sim.worlds.wire_clients import SHARED, Manner, WireConsumerModel, WireProducerModel


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
        gateways = [f"gateway-{number}" for number in range(rng.choice((1, 1, 2)))]
        manner = Manner.draw(rng, gateways, deduplicated=deduplicated)
        kind = "shared" if manner.type == SHARED else "key_shared"
        settings = SubscriptionSettings(type=kind, initial_position="earliest")
        topic = msgspec.structs.replace(size.topic, deduplication_enabled=deduplicated)
        size = replace(size, topic=topic, traffic=replace(size.traffic, settings=settings))
        return GatewayCourse(world, faults, options, size, manner)


class SimGateway(GatewayActor):
    """A gateway in a process of its own."""

    def __init__(self, ports: Ports, name: str) -> None:
        super().__init__(ports)
        self.gateway = Gateway(ports, CONTROLLER, url=f"pulsar://{name}", process=name, abreast_from=2)

    async def accept(self, end: End, stamps: list[Stamp]) -> None:
        """Somebody has connected. stamps: what the judge wants to know of each MESSAGE frame."""
        conversation = Connection(self.gateway, end)
        end.choke = conversation.choke
        end.wrote = lambda data: stamps.extend(_stamps(conversation, data))
        await end.attach(conversation)


def _stamps(conversation: Connection, data: bytes) -> list[Stamp]:
    found = []
    for frame in Cutter().feed(data):
        told = parse(Command, frame.command)
        if FIELD_OF[told.type] != "message":
            continue
        one = told.message
        at = position(one.message_id.ledger, one.message_id.entry)
        sent = conversation.consumers[one.consumer_id]._sent.get(at)
        assert sent is not None
        rows = slice(sent.first, sent.first + sent.size)
        found.append(Stamp(sent.part.session, sent.part.epoch, sent.part.dispatch[rows].tolist()))
    return found


class GatewayCourse(Course):
    """One run."""

    def __init__(self, world: World, faults: list[Fault], options: dict[str, str], size: Size, manner: Manner) -> None:
        super().__init__(world, faults, options, size)
        self.manner = manner
        self.pipes = Pipes(world)
        if manner.type == SHARED:
            self.excused |= ORDER
        world.ears.append(self._hear)

    async def _build(self) -> None:
        await super()._build()
        for name in self.manner.gateways:
            await self.world.start(name, lambda ports, name=name: SimGateway(ports, name))  # type: ignore[misc]
        roles, revive = self.nemesis.roles, self.nemesis.revive
        roles["gateway"] = lambda: self.manner.gateways
        revive.pop("gateway", None)
        self.nemesis.special["hang_up"] = self._hang_up

    async def _hang_up(self, fault: Fault, rng: random.Random) -> None:
        """A connection ends, with whatever is on its way."""
        self.pipes.hang_up()

    def _produce(self, number: int) -> Any:
        """See Course."""
        return WireProducerModel(self.world, self.pipes, self.past, self.size.traffic, number, self.manner)

    def _join(self) -> Any:
        """See Course."""
        number = len(self.consumers)
        consumer: Any = WireConsumerModel(self.world, self.pipes, self.past, self.size.traffic, number, self.manner)
        self.consumers.append(consumer)
        return consumer

    def _hear(self, process: Process, event: str, fields: dict[str, object]) -> None:
        """What gateways know of sessions that end, and what must never be said of them."""
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
                    self.past.event(SOMEBODY, history.EXPIRED, session=session, partition=consumer.place.partition)

    def _judge(self) -> None:
        """See the module."""
        self._add("reconnections", sum(producer.reconnected - 1 for producer in self.producers))  # type: ignore[attr-defined]
        if not self.size.topic.deduplication_enabled and self.counters["reconnections"]:
            self.excused |= {"stored_twice"}
        super()._judge()


def _overdue(process: Process, session: int) -> int:
    """For how many milliseconds the lease of a session has been over."""
    assert isinstance(process.actor, SimGateway)
    for consumers in process.actor.gateway.consumers.values():
        for consumer in consumers:
            part = consumer._part  # type: ignore[attr-defined]
            if part.session == session:
                return int(max(0, process.ports.clock.monotonic() - part._renewed - part._lease))
    return 0
