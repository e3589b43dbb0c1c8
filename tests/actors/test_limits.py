"""Limits hold where things are kept: whatever is sent to an actor is answered or refused, and the actor lives."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from sluice.actors.messages import (
    Attach,
    CreateTopic,
    Explain,
    ListSubscriptions,
    ListTopics,
    LocateSubscription,
    RemoveSubscription,
    RemoveTopic,
    SubscriptionSettings,
    request_of,
)
from sluice.actors.messages import TopicSettings as Settings
from sluice.actors.messages.administration import VERBS
from sluice.actors.policies.namespaces import Namespaces
from sluice.actors.ports import Unknown
from sluice.actors.ports.wire import Request
from sluice.storage.errors import Invalid, NotFound, SluiceError
from tests.scenarios.key_shared.broker import CONTROLLER, SUBSCRIPTION, TOPIC, Broker, play

HUGE = 99999999999999999999
ODD: list[Any] = [
    None, True, -1, 0, 1, 65536, 1 << 31, 1 << 63, HUGE, 0.5, float("nan"), "", "x", "../x", "a" * 5000, "1:1",
    "9999999999:1", "earliest", [], [1], ["a", "b"], [[]], {}, {"a": 1},
]  # fmt: skip


async def ask(broker: Broker, request: Request[Any]) -> Any:
    reply = await broker.ports.net.call(CONTROLLER, request, 60_000)
    assert not isinstance(reply, Unknown), reply.reason
    return reply


async def refused(broker: Broker, request: Request[Any], told: str) -> None:
    with pytest.raises(Invalid, match=told):
        await ask(broker, request)


def test_a_topic_beyond_the_limits_is_refused() -> None:
    async def scenario(broker: Broker) -> None:
        for partitions in (0, -1, 1025):
            await refused(broker, CreateTopic(topic="many", settings=Settings(partitions=partitions)), "1 to 1024")
        quick = Settings(ensemble=1, write_quorum=1, ack_quorum=1, roll_ms=0)
        await refused(broker, CreateTopic(topic="many", settings=quick), "roll_ms")
        good = Settings(ensemble=1, write_quorum=1, ack_quorum=1)
        for name in ("", "../up", "a/b", "x" * 129, "t-partition-1", "persistent://public/default/t"):
            await refused(broker, CreateTopic(topic=name, settings=good), "topic name|topics of kind")
        assert await broker.world.client("look").meta.keys("topic/") == [f"topic/{TOPIC}"]

    play(scenario)


def test_topics_of_a_namespace_that_is_not_there_are_refused() -> None:
    """Also dead letter topics: what died would wait for a topic that nobody can make."""

    async def scenario(broker: Broker) -> None:
        good = Settings(ensemble=1, write_quorum=1, ack_quorum=1)
        dead = SubscriptionSettings(max_redeliver_count=1, dead_letter_topic="sales..eu..dead")
        create = CreateTopic(topic="sales..eu..orders", settings=good)
        subscribe = LocateSubscription(topic=TOPIC, subscription="s", settings=dead)
        for request in (create, subscribe):
            with pytest.raises(NotFound, match="Namespace sales/eu does not exist"):
                await ask(broker, request)
        meta = broker.world.client("look").meta
        assert await meta.keys("topic/") == [f"topic/{TOPIC}"]
        await Namespaces(meta).create("sales/eu")
        for request in (create, subscribe):
            await ask(broker, request)

    play(scenario)


def test_a_subscription_beyond_the_limits_is_refused() -> None:
    async def scenario(broker: Broker) -> None:
        wrong: list[tuple[str, dict[str, Any], str]] = [
            ("s", {"delayed_delivery_tick_time_millis": -5}, "tick_time_millis = -5: it is 0 to"),
            ("s", {"delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds": 0}, "it is 1 to"),
            ("s", {"replica_points": 1 << 20}, "it is 1 to 1000"),
            ("s", {"max_redeliver_count": 1, "dead_letter_topic": TOPIC}, "itself"),
            ("s", {"max_redeliver_count": 1, "dead_letter_topic": "../x"}, "topic name"),
            ("a/b", {}, "subscription name"),
        ]
        for name, settings, told in wrong:
            request = LocateSubscription(topic=TOPIC, subscription=name, settings=SubscriptionSettings(**settings))
            await refused(broker, request, told)
        assert (await ask(broker, ListSubscriptions(topic=TOPIC))).names
        keys = await broker.world.client("look").meta.keys("subscription/")
        assert keys == [f"subscription/{TOPIC}/0/{SUBSCRIPTION}"]

    play(scenario)


def test_a_topic_with_too_many_partitions_is_deleted() -> None:
    async def scenario(broker: Broker) -> None:
        look = broker.world.client("look")
        stored = {"partitions": HUGE, "ensemble": 1, "write_quorum": 1, "ack_quorum": 1, "roll_ms": -7}
        await look.meta.create("topic/many", 1, json.dumps(stored).encode())
        found = (await ask(broker, ListTopics())).topics["many"]
        assert (found.partitions, found.roll_ms) == (1024, 1)
        await ask(broker, RemoveTopic(topic="many"))
        assert await look.meta.keys("topic/") == [f"topic/{TOPIC}"]

    play(scenario)


def test_a_subscription_with_impossible_settings_can_be_deleted() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish("a", "b")
        key = f"subscription/{TOPIC}/0/{SUBSCRIPTION}"
        look = broker.world.client("look")
        address = await broker.address()
        broker.world.stop(address)
        newest = await look.meta.read(key)
        assert newest is not None
        import msgpack

        value = msgpack.unpackb(newest.value)
        plain = msgspec.to_builtins(broker.settings) | {"delayed_delivery_tick_time_millis": -5, "lease_ms": 0}
        value["settings"] = json.dumps(plain).encode()
        assert await look.meta.create(key, newest.number + 1, msgpack.packb(value))
        await broker.directory.suspect(address)
        assert (await broker.stats())["msgBacklog"] == 2
        await broker.configure(delayed_delivery_tick_time_millis=7)
        again = await look.meta.read(key)
        assert again is not None
        saved = json.loads(msgpack.unpackb(again.value)["settings"])
        assert (saved["delayed_delivery_tick_time_millis"], saved["lease_ms"]) == (7, 10_000)
        consumer = await broker.join("c")
        await broker.until(lambda: len(consumer.got) == 2)

    play(scenario)


def test_names_of_consumers_are_checked_where_they_join() -> None:
    async def scenario(broker: Broker) -> None:
        for name in ("", "\x1b[2J", "x" * 129, "a b"):
            with pytest.raises(Invalid, match="consumer name"):
                await broker.ask(Attach(consumer=name, incarnation="i"))
        with pytest.raises(Invalid, match="Attach could not be read"):
            await broker.ask(Attach(consumer="c", incarnation="i" * 600))
        with pytest.raises(Invalid, match="Attach could not be read"):
            await broker.ask(Attach(consumer="c", incarnation="i", ranges=[(1, 2)] * 5000))
        assert (await broker.stats())["consumersCount"] == 0

    play(scenario)


def test_a_question_that_is_too_expensive_is_refused_first() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.join("c")
        with pytest.raises(Invalid, match="add"):
            await broker.admin("what_if", add=50_000)
        with pytest.raises(Invalid, match="ask for at most 100"):
            await broker.admin("what_if", add=101)
        assert (await broker.admin("what_if", add=100))["consumers"] == 101
        with pytest.raises(Invalid, match="top"):
            await broker.admin("blocked_keys", top=10**9)

    play(scenario, replica_points=1000)


def test_whatever_a_verb_is_given_the_actor_lives() -> None:
    random_ = random.Random(5)
    names = ["message_id", "time", "messages", "before", "force", "consumer", "most", "top", "add", "remove", "key"]
    names += ["hash", "at", "topic", "subscription", "bookies", "odd"]

    def arguments() -> dict[str, Any]:
        chosen = random_.sample(names, random_.randrange(4))
        return {name: random_.choice(ODD) for name in chosen}

    async def scenario(broker: Broker) -> None:
        await broker.publish("a", "b", delay=[0, 60_000])
        controller = broker.world.process("controller").address
        verbs = [verb for verb in VERBS if verb != "delete"]
        for turn in range(600):
            given = arguments()
            request = _unchecked(VERBS[random_.choice(verbs)], given)
            if turn % 3 == 0:
                kinds: list[type[Request[Any]]] = [ListTopics, ListSubscriptions, RemoveTopic, RemoveSubscription]
                kind = random_.choice(kinds)
                await _answered(broker, controller, _unchecked(kind, given))
                request = Explain(hash=random_.choice([0, 1, 65535, 65536, -1]), position=None)
            await _answered(broker, await broker.address(), request)

    play(scenario)


@pytest.mark.parametrize("verb", VERBS)
def test_odd_arguments_of_a_verb_are_refused_where_given(verb: str) -> None:
    for name in VERBS[verb].__struct_fields__:
        others = {"deliver_at": 1} if (verb, name) == ("reschedule_delayed", "key") else {}
        with pytest.raises(Invalid, match=name):
            request_of(verb, {name: {"a": 1}, **others})
    with pytest.raises(Invalid, match="unknown verb"):
        request_of(f"{verb}s", {})


def _unchecked(kind: type[Request[Any]], given: dict[str, Any]) -> Request[Any]:
    """A request with fields that nobody has looked at, as somebody may send it who does not use this code."""
    fields = {field.name: field.required for field in msgspec.structs.fields(kind)}
    values = {name: given.get(name) for name, required in fields.items() if required or name in given}
    key = values.pop("key", None)
    request = kind(**{name: str(value) if value == HUGE else value for name, value in values.items()})
    if key is not None and "key" in fields:  # of which there is a look as soon as the request is made
        msgspec.structs.force_setattr(request, "key", str(key) if key == HUGE else key)
    return request


async def _answered(broker: Broker, address: str, request: Request[Any]) -> None:
    try:
        reply = await broker.ports.net.call(address, request, 60_000)
    except SluiceError:
        return
    assert not isinstance(reply, Unknown), (request, reply.reason)
