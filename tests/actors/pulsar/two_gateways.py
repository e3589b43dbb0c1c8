"""Clients of two gateways in the simulated world: raw connections that say what a test wants said."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from sluice.actors.policies.authorization import Authorization
from sluice.actors.pulsar.conversation.gateway.gateway import Certified
from sluice.storage.errors import Invalid, Unavailable
from sluice.storage.format.position import position
from tests.scenarios.key_shared.broker import Broker, play
from tests.sim.pipes import Pipes
from tests.sim.worlds.gateway import SimGateway
from tests.sim.worlds.wire import ROLE, Message, Wire, batch_frame

GATEWAYS = ("gateway-0", "gateway-1")
SHARED, EXCLUSIVE, WAIT, FENCING = range(4)


class Clients:
    """Clients of two gateways."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.pipes = Pipes(broker.world)
        self.ended: list[str] = []
        self.receipts: list[str] = []
        self.sent_away: list[str] = []
        self.answered: dict[str, list[tuple[int, int | None]]] = {}
        """By client: the sequence ids of its sends in the order of the answers, each with the code of an error."""
        self.came: dict[str, list[Message]] = {}
        """Messages by client."""
        self.frames: Counter[str] = Counter()
        """MESSAGE frames by client."""
        self.ids: dict[str, list[int]] = {}
        """The positions that their ids say, in order."""
        self.redeliveries: dict[str, list[int]] = {}
        """Of each frame that came to a client, the redelivery count."""
        self.active: dict[str, bool] = {}
        """Who was told last that it is, or is not, the active consumer."""

    async def open(self, vectorized_from: int = 2) -> None:
        """Start the gateways."""
        for name in GATEWAYS:
            make = partial(SimGateway, name=name, vectorized_from=vectorized_from)
            await self.broker.world.start(name, make)

    def enforce(self, *gateways: str) -> None:
        """From now on rights are enforced. `root` is a superuser and `watcher` a viewer."""

        async def known(method: str, data: bytes) -> Certified:
            if method != ROLE or not data:
                raise Invalid("a role is wanted")
            return Certified(data.decode())

        for name in gateways or GATEWAYS:
            actor = self.broker.world.process(name).actor
            assert isinstance(actor, SimGateway)
            actor.gateway.authenticate = known
            actor.gateway.access.enforce(Authorization(("root",), ("watcher",)))
            actor.gateway.ports.spawn(actor.gateway.access.run(), "permissions")

    async def enter(self, name: str, gateway: str, role: str) -> Wire:
        """A client that says which role it has connects, and asks for nothing."""
        return await self.join(name, gateway, role)

    async def join(self, name: str, gateway: str, role: str = "") -> Wire:
        """A client connects."""

        def heard(said: str, body: Any, more: Any) -> None:
            if said == "close_producer":
                self.ended.append(name)
            elif said == "close_consumer":
                self.sent_away.append(name)
            elif said == "send_receipt":
                self.receipts.append(name)
                self.answered[name].append((body.sequence_id, None))
            elif said == "send_error":
                self.answered[name].append((body.sequence_id, body.error))
            elif said == "active_consumer":
                self.active[name] = body.is_active
            elif said == "message":
                self.came.setdefault(name, []).extend(more[0])
                self.frames[name] += 1
                at = position(body.message_id.ledger, body.message_id.entry)
                self.ids.setdefault(name, []).append(at)
                self.redeliveries.setdefault(name, []).append(body.redelivery_count)

        self.answered.setdefault(name, [])
        self.broker.world.client(name)
        process = self.broker.world.process(name)
        wire = Wire(self.pipes, process, [gateway], random.Random(1), heard=heard, lost=lambda: None)
        wire.role = role
        if role:
            await wire.greet()
        else:
            await wire.connect("orders", self.broker.partitions)
        return wire

    async def producer(self, wire: Wire, name: str, mode: int, **more: Any) -> Any:
        """Ask for a producer. Raises Refusal."""
        asked = {"topic": "orders", "producer_id": 0, "producer_name": name, "access_mode": mode}
        return await wire.ask("producer", **{**asked, **more})

    async def consumer(self, wire: Wire, kind: int, name: str, **more: Any) -> None:
        """Subscribe from the beginning of the topic, with room for 1,000 messages. Raises Refusal."""
        asked = {"topic": "orders", "subscription": "pulsar", "type": kind, "consumer_id": 0, "consumer_name": name}
        await wire.ask("subscribe", **{**asked, "initial_position": 1, **more})
        wire.say("flow", consumer_id=0, permits=1_000)

    def numbers(self, client: str) -> list[int]:
        """Return the numbers of the messages that came to a client, in order."""
        return [message.number for message in self.came.get(client, [])]

    async def send(self, wire: Wire, name: str) -> None:
        """Send something, and wait for its receipt."""
        await self.send_batch(wire, name, 1)

    async def send_batch(self, wire: Wire, name: str, count: int) -> None:
        """Send so many messages of one key as one batch, and wait for its receipt."""
        before = self.receipts.count(name)
        rows = [(b"k", before + number) for number in range(count)]
        wire.write(batch_frame(0, before, rows, now=self.broker.ports.clock.now(), due=0, by_key=True))
        await self.broker.until(lambda: self.receipts.count(name) > before)


async def told(broker: Broker) -> None:
    """The subscription has found the topic's new owner."""
    while True:
        try:
            await broker.stats()
            return
        except Unavailable:
            await broker.quiet(100)


def with_gateways(
    scenario: Callable[[Clients], Coroutine[Any, Any, None]],
    *,
    partitions: int = 1,
    topic: dict[str, Any] | None = None,
    vectorized_from: int = 2,
) -> None:
    """Play it. topic: its settings. vectorized_from: so many frames are decoded as columns."""

    async def main(broker: Broker) -> None:
        clients = Clients(broker)
        await clients.open(vectorized_from)
        await scenario(clients)
        await told(broker)

    play(main, partitions=partitions, topic=topic)


def new_topic_owner(broker: Broker) -> None:
    """The topic's owner ends; another one takes over."""
    broker.world.network.faults.gone_hint = 1.0
    broker.world.crash(next(name for name in broker.world.alive("topic-")))
