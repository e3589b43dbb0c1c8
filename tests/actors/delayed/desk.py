"""A broker with subscriptions of every kind, consumers that keep a diary, and a look at the object store.

The broker is the one of the Key_Shared scenarios (controller, bookie, topic, dispatchers, the client library, virtual
time). Its watch is another one here: a message with a delay may stand behind later ones of its key. Instead no
message may come before its time, and none that its subscription has acknowledged may come again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from sluice.actors.delayed.open_tracker import delays
from sluice.actors.messages import RemoveSubscription, RemoveTopic, SubscriptionSettings, TopicSettings
from sluice.actors.ports import Unknown
from sluice.actors.ports.wire import Reply
from sluice.storage.errors import Unavailable
from tests.scenarios.key_shared.broker import CONTROLLER, SUBSCRIPTION, Broker, Client, Message
from tests.sim.clock import EPOCH_MS
from tests.sim.world import World

LATE_MS = 150
"""A message comes at most so long after its time if its consumer waits for it: a group of due times, and the calls."""
OWNERS_MS = 15_000
"""In this time an owner that ended was replaced, and the leases that it knew are renewed or over."""
STRAY_MS = 3_000
"""What would come although it should not, has come by then."""


@dataclass(frozen=True)
class Arrival:
    """A message came to a consumer. at, due: ms since the scenario's start; due is 0 for a message without a delay."""

    at: int
    due: int
    message: Message
    client: Customer

    @property
    def name(self) -> tuple[str, int]:
        """Key, and number within the key."""
        return self.message.key, self.message.number


class Customer(Client):
    """A consumer of one of the subscriptions."""

    def ack(self, *messages: Message, through: Client | None = None) -> None:
        """Acknowledge; without messages everything."""
        desk = self.broker
        assert isinstance(desk, Desk)
        done = messages or tuple(self.held())
        desk.acknowledged.update(dict.fromkeys((self.subscription, m.part.partition, m.position) for m in done))
        if done:
            super().ack(*done, through=through)


class Desk(Broker):
    """See the module. arrivals: everything that came to anybody, in order."""

    def __init__(self, world: World, partitions: int, topic: TopicSettings, settings: SubscriptionSettings) -> None:
        super().__init__(world, partitions, settings)
        self.topic = topic
        self.subscriptions: dict[str, SubscriptionSettings] = {SUBSCRIPTION: settings}
        self.arrivals: list[Arrival] = []
        self.acknowledged: dict[tuple[str, int, int], None] = {}

    def settings_of(self, subscription: str) -> SubscriptionSettings:
        """How a subscription is set up."""
        return self.subscriptions[subscription]

    # -- subscriptions and consumers --

    async def subscribe(self, subscription: str, **changed: Any) -> None:
        """One more subscription, set up like the first one but for the changes."""
        self.subscriptions[subscription] = msgspec.structs.replace(self.settings, **changed)
        for partition in range(self.partitions):
            await self.address(partition, subscription)

    async def consume(
        self, name: str, subscription: str = SUBSCRIPTION, *, queue: int = 1000, acking: bool = True
    ) -> Customer:
        """A consumer attaches."""
        customer = Customer(self, name, name, queue, acking=acking, taking=True)
        customer.subscription = subscription
        self.clients[name] = customer
        await customer.open(())
        return customer

    async def configure(self, **changed: Any) -> None:
        """Change settings of the first subscription; its dispatcher restarts if they concern delays."""
        await super().configure(**changed)
        self.subscriptions[SUBSCRIPTION] = self.settings
        await self.quiet(OWNERS_MS)

    def watch(self, client: Client, came: list[Message]) -> None:
        """Write down what came; see the module for what it must not be."""
        assert isinstance(client, Customer)
        settings = self.settings_of(client.subscription)
        for message in came:
            wall = int(message.part.deliver_at[message.row])
            arrival = Arrival(self.world.loop.now, wall - EPOCH_MS if wall else 0, message, client)
            if delays(settings):
                early = arrival.due - settings.delayed_delivery_tick_time_millis - arrival.at
                assert early <= 0, f"{message} comes {early} ms early"
            place = (client.subscription, message.part.partition, message.position)
            assert place not in self.acknowledged, f"{message} comes again although it is acknowledged"
            self.arrivals.append(arrival)

    def came(self, subscription: str = SUBSCRIPTION) -> list[Arrival]:
        """Return the messages that came to the consumers of a subscription, in order."""
        return [arrival for arrival in self.arrivals if arrival.client.subscription == subscription]

    def names(self, subscription: str = SUBSCRIPTION) -> list[tuple[str, int]]:
        """(key, number) of what came, sorted; twice what came twice."""
        return sorted(arrival.name for arrival in self.came(subscription))

    async def settled(self, milliseconds: int = STRAY_MS) -> None:
        """Wait until nothing has come for so long."""
        seen = -1
        while seen != len(self.arrivals):
            seen = len(self.arrivals)
            await self.quiet(milliseconds)

    # -- operators --

    async def manage(self, request: RemoveTopic | RemoveSubscription) -> None:
        """Delete a topic or a subscription. Ask up to three times if a process was away."""
        for _ in range(3):
            with contextlib.suppress(Unavailable):
                reply: Reply | Unknown = await self.ports.net.call(CONTROLLER, request, 30_000)
                assert not isinstance(reply, Unknown)
                return
        raise AssertionError(f"{request} is refused three times")

    async def restart(self, *kinds: str) -> None:
        """The processes of the owners end; the controller starts others."""
        ended = [address for kind, address, _ in self.world.placed() if kind in kinds]
        assert ended
        for address in ended:
            self.world.stop(address)
        await self.quiet(OWNERS_MS)

    def objects(self) -> dict[str, int]:
        """The delayed buckets in the object store, and their lengths."""
        stored = self.world.objects.objects
        return {name: len(stored[name]) for name in sorted(stored) if name.startswith("delayed/")}

    async def manifests(self) -> list[str]:
        """The records of delayed buckets in the metadata store."""
        return await self.ports.meta.keys("delayed/")

    async def count(self, name: str, subscription: str = SUBSCRIPTION) -> int:
        """A statistic, summed over the partitions."""
        return sum([int((await self.stats(p, subscription))[name]) for p in range(self.partitions)])


def serve(
    scenario: Callable[[Desk], Coroutine[Any, Any, None]],
    *,
    partitions: int = 1,
    topic: dict[str, Any] | None = None,
    tracker: str = "bucket",
    **settings: Any,
) -> None:
    """Run a scenario. tracker: memory, bucket, or shared for buckets that all subscriptions of the partition share.

    At the end the order sentinels have seen nothing wrong, but for shared subscriptions, which promise no order.
    """
    shared = tracker == "shared"
    chosen = {"delayed_tracker": "bucket" if shared else tracker, "delayed_delivery_shared_index_enabled": shared}
    plain = SubscriptionSettings(**{"type": "shared", "initial_position": "earliest", **chosen, **settings})
    single = TopicSettings(
        **{"partitions": partitions, "ensemble": 1, "write_quorum": 1, "ack_quorum": 1, **(topic or {})}
    )

    async def main(world: World) -> None:
        desk = Desk(world, partitions, single, plain)
        await desk.open()
        await scenario(desk)
        for subscription in [name for name, each in desk.subscriptions.items() if each.type != "shared"]:
            assert await desk.count("orderViolationsTotal", subscription) == 0

    World(1).play(main)
