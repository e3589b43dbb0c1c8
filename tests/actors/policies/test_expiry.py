"""Time to live that is set while topics are used: the owners of subscriptions carry it out, and no gateway runs."""

from __future__ import annotations

import asyncio
import dataclasses

from sluice.actors.controller import closed_owners
from sluice.actors.controller.controller import Controller
from sluice.actors.messages import TopicSettings
from sluice.actors.policies.backlog_quotas import EVICTION, Quota, Quotas
from sluice.actors.policies.expiry import ExpiryLimits, TopicExpiry
from sluice.actors.policies.policy_records import AGES, LIFETIMES, LOOK_MS, of_namespace, of_topic
from sluice.actors.policies.retention import Lifetimes
from sluice.actors.ports import Version
from tests.kit.meta import MemoryMeta
from tests.scenarios.key_shared.broker import TOPIC, Broker, play
from tests.sim.world import World

SPACE = of_namespace("public/default")


async def backlog(broker: Broker) -> int:
    return sum([(await broker.stats(partition))["msgBacklog"] for partition in range(broker.partitions)])


def test_expired_messages_count_as_done() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish("a", "b", "c", "d")
        assert await backlog(broker) == 4
        await broker.quiet(LOOK_MS)
        await Lifetimes(broker.ports.meta).change(SPACE, ttl_ms=2 * LOOK_MS)
        await broker.publish("e", "f")
        assert await backlog(broker) == 6
        await broker.quiet(LOOK_MS * 3 // 2)
        assert await backlog(broker) == 2
        client = await broker.join("late")
        await broker.until(lambda: len(client.got) == 2)
        assert sorted(client.came()) == ["e", "f"]

    play(scenario, partitions=2)


def test_the_topics_own_goes_first() -> None:
    async def scenario(broker: Broker) -> None:
        said = Lifetimes(broker.ports.meta)
        await said.change(SPACE, ttl_ms=1)
        await said.change(of_topic(TOPIC), ttl_ms=0)
        await broker.publish("a", "b")
        assert await backlog(broker) == 2
        await broker.quiet(2 * LOOK_MS)
        assert await backlog(broker) == 2, "0 is that nothing expires"
        await said.remove(SPACE)
        await said.change(of_topic(TOPIC), ttl_ms=None)
        await broker.quiet(2 * LOOK_MS)
        assert await backlog(broker) == 2
        await said.change(SPACE, ttl_ms=1)
        await broker.quiet(2 * LOOK_MS)
        assert await backlog(broker) == 0

    play(scenario)


def test_a_store_that_is_away_is_asked_again() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish("a")
        assert await backlog(broker) == 1
        await Lifetimes(broker.ports.meta).change(SPACE, ttl_ms=1)
        broker.world.meta.trouble.faults.fail_before = 1.0
        await broker.quiet(2 * LOOK_MS)
        assert await backlog(broker) == 1, "nothing expires while nobody can say what is to expire"
        broker.world.meta.trouble.faults.fail_before = 0.0
        await broker.quiet(5_000)
        assert await backlog(broker) == 0

    play(scenario)


def test_a_record_that_cannot_be_read_ends_nothing() -> None:
    async def scenario(broker: Broker) -> None:
        key, meta = f"{LIFETIMES}{SPACE}", broker.ports.meta
        await meta.create(key, 1, b"?")
        await broker.publish("a")
        await broker.quiet(2 * LOOK_MS)
        assert await backlog(broker) == 1
        await meta.create(key, 2, b'{"ttl_ms":1}')
        await broker.quiet(5_000)
        assert await backlog(broker) == 0

    play(scenario)


def test_messages_expire_although_no_client_returns() -> None:
    """The controller starts the owners of subscriptions whose messages expire."""

    async def scenario(broker: Broker) -> None:
        await broker.publish("a", "b")
        assert await backlog(broker) == 2
        await Lifetimes(broker.ports.meta).change(SPACE, ttl_ms=1)
        for name in ("controller", *broker.world.alive("dispatcher-")):
            broker.world.crash(name)
        await broker.world.start("controller", lambda ports: Controller(ports, bookies=["bookie-0"]), fixed=True)
        await broker.quiet(closed_owners.LOOK_MS + 2 * LOOK_MS)
        assert list(broker.world.alive("dispatcher-")), "an owner runs though nobody asked for it"
        assert await backlog(broker) == 0

    play(scenario)


def test_the_shorter_of_time_to_live_and_a_quota_of_age_holds() -> None:
    async def scenario(world: World) -> None:
        ports = world.client("tool")
        expiry = TopicExpiry(ports, TOPIC)
        ages, plain = Quotas(ports.meta, AGES), TopicSettings()

        async def next_limits(made: TopicSettings) -> ExpiryLimits:
            await world.loop.pause(LOOK_MS)
            return await expiry.now(made)

        assert await expiry.now(plain) == (0, None)
        await ages.set(SPACE, Quota(7, EVICTION))
        assert await expiry.now(plain) == (0, None), "it looks again when LOOK_MS have passed"
        assert await next_limits(plain) == (7_000, None)
        assert await next_limits(TopicSettings(ttl_ms=5_000)) == (5_000, None)
        assert await next_limits(TopicSettings(ttl_ms=9_000)) == (7_000, None)
        await ages.set(of_topic(TOPIC), Quota(1, "producer_exception"))
        await Quotas(ports.meta).set(SPACE, Quota(100, EVICTION))
        assert await next_limits(plain) == (0, 100)

    World(1).play(scenario)


class _AllAsked(MemoryMeta):
    """Answers nobody before all records have been asked for that may say when messages of a topic expire."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, None] = {}
        self.all_asked = asyncio.Event()

    async def read(self, key: str) -> Version | None:
        self.asked[key] = None
        if len(self.asked) == 6:
            self.all_asked.set()
        await self.all_asked.wait()
        return await super().read(key)


def test_all_records_are_asked_for_together() -> None:
    async def scenario(world: World) -> None:
        meta = _AllAsked()
        await meta.create(f"{LIFETIMES}{SPACE}", 1, b'{"ttl_ms":5}')
        expiry = TopicExpiry(dataclasses.replace(world.client("tool"), meta=meta), TOPIC)
        assert await expiry.now(TopicSettings()) == (5, None)

    World(1).play(scenario)
