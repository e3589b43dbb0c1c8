"""A subscription's owner alone deletes it, on all partitions or on none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sluice.actors.dispatcher import Dispatcher
from sluice.actors.ledger.record import record_key, unpack_record
from sluice.actors.messages import (
    Attach,
    Attached,
    Deleted,
    DeleteSubscription,
    Detach,
    Progress,
    RemoveSubscription,
    RemoveUnused,
)
from sluice.actors.ownership.fenced_record import FencedRecord
from sluice.actors.ports import Unknown
from sluice.storage.errors import Fenced, Invalid, SluiceError, Unavailable
from tests.scenarios.key_shared.broker import CONTROLLER, SUBSCRIPTION, TOPIC, Broker, play

Work = Callable[[], Coroutine[Any, Any, None]]
FORCED = DeleteSubscription(force=True)


async def owner(broker: Broker, partition: int = 0) -> Dispatcher:
    """Return the dispatcher itself."""
    process = broker.world.at(await broker.address(partition))
    assert process is not None
    assert isinstance(process.actor, Dispatcher)
    return process.actor


async def replace(broker: Broker, actor: Dispatcher) -> None:
    """Let a newer owner write the record without a word to this one."""
    newer = FencedRecord(broker.world.client("newer"), actor.identity.key)
    value = await newer.acquire()
    assert value is not None
    await newer.save(value)


async def recorded(broker: Broker) -> list[bool]:
    """Return for each partition whether the subscription has a record there."""
    keys = [f"subscription/{TOPIC}/{partition}/{SUBSCRIPTION}" for partition in range(broker.partitions)]
    return [await broker.ports.meta.read(key) is not None for key in keys]


async def marks(broker: Broker) -> dict[str, int]:
    """Return each subscription's progress, by the topic's record."""
    record = await broker.ports.meta.read(record_key(TOPIC, 0))
    assert record is not None
    return unpack_record(record.value).subscriptions


def before(work: Work, first: Work) -> Work:
    async def both() -> None:
        await first()
        await work()

    return both


def test_an_owner_that_was_replaced_unknowingly_deletes_nothing() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish("a")
        actor = await owner(broker)
        told: list[Progress] = []
        topic = broker.world.at(await broker.directory.topic(TOPIC, 0))
        assert topic is not None
        heard: Any = topic.actor
        on_progress = heard.on_progress

        async def hear(request: Progress) -> Any:
            told.append(request)
            return await on_progress(request)

        heard.on_progress = hear
        await replace(broker, actor)
        with pytest.raises(Fenced):
            await actor.on_delete_subscription(FORCED)
        assert await recorded(broker) == [True]
        assert not any(request.gone for request in told), "the topic would trim what the newer owner has not delivered"

    play(scenario)


def test_owner_replaced_during_a_deletion_leaves_the_record() -> None:
    async def scenario(broker: Broker) -> None:
        actor = await owner(broker)
        history = actor.parts.context.history
        history.clear = before(history.clear, lambda: replace(broker, actor))  # type: ignore[method-assign]
        with pytest.raises(Fenced):
            await actor.on_delete_subscription(FORCED)
        assert await recorded(broker) == [True]

    play(scenario)


def test_half_deleted_subscription_starts_over() -> None:
    """Acknowledgements from before do not count, and the deletion can be asked for again."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.publish("a", "b", "c")
        await broker.until(lambda: len(client.got) == 3)
        await client.close()
        actor = await owner(broker)

        async def refused() -> None:
            raise Unavailable("the store is away")

        actor.parts.context.history.clear = refused  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            await actor.on_delete_subscription(FORCED)
        again = await broker.join("late")
        await broker.until(lambda: len(again.got) == 3)
        await broker.quiet(1_000)
        assert (await broker.stats())["msgBacklog"] == 0
        await broker.ports.net.call(
            CONTROLLER, RemoveSubscription(topic=TOPIC, subscription=SUBSCRIPTION, force=True), 10_000
        )
        assert await recorded(broker) == [False]

    play(scenario, initial_position="earliest")


def test_attach_is_refused_during_a_deletion() -> None:
    async def scenario(broker: Broker) -> None:
        actor = await owner(broker)
        history, refused = actor.parts.context.history, list[SluiceError]()
        await broker.join("c")

        async def come() -> None:
            with pytest.raises(Unavailable, match="is being deleted") as caught:
                await attach(broker, 0, "late")
            refused.append(caught.value)

        history.clear = before(history.clear, come)  # type: ignore[method-assign]
        await actor.on_delete_subscription(FORCED)
        assert refused
        assert await recorded(broker) == [False]
        await broker.join("later")  # creates it again, so that there is an owner whose sentinel can be asked

    play(scenario)


async def attach(broker: Broker, partition: int, name: str) -> Attached:
    """Attach a consumer. Raises the owner's refusal."""
    reply = await broker.ports.net.call(
        await broker.address(partition), Attach(consumer=name, incarnation=name), 10_000
    )
    assert isinstance(reply, Attached)
    return reply


async def ask(broker: Broker, request: Any) -> None:
    """Send a request to the controller that must be answered."""
    assert not isinstance(await broker.ports.net.call(CONTROLLER, request, 60_000), Unknown)


@pytest.mark.parametrize("used", [0, 1])
def test_a_consumer_on_one_partition_keeps_all_of_them(used: int) -> None:
    async def scenario(broker: Broker) -> None:
        owners = [await broker.address(partition) for partition in range(2)]
        session = (await attach(broker, used, "c")).session
        with pytest.raises(Invalid, match="consumers are connected"):
            await ask(broker, RemoveSubscription(topic=TOPIC, subscription=SUBSCRIPTION))
        assert await recorded(broker) == [True, True]
        await attach(broker, 1 - used, "d")
        assert [await broker.address(partition) for partition in range(2)] == owners
        await broker.ask(Detach(session=session), used)
        await ask(broker, RemoveSubscription(topic=TOPIC, subscription=SUBSCRIPTION, force=True))
        assert await recorded(broker) == [False, False]

    play(scenario, partitions=2)


@pytest.mark.parametrize("late", [0, 1])
def test_attach_during_a_deletion_keeps_no_partition(late: int) -> None:
    async def scenario(broker: Broker) -> None:
        actor = await owner(broker, 1 - late)
        address, outcomes = await broker.address(late), list[object]()
        history = actor.parts.context.history

        async def come() -> None:
            try:
                outcomes.append(await broker.ports.net.call(address, Attach(consumer="c", incarnation="c"), 10_000))
            except Unavailable as error:
                outcomes.append(error)

        history.clear = before(history.clear, come)  # type: ignore[method-assign]
        await ask(broker, RemoveUnused(topic=TOPIC, subscription=SUBSCRIPTION))
        assert [isinstance(outcome, Unavailable | Unknown) for outcome in outcomes] == [True]
        assert await recorded(broker) == [False, False]

    play(scenario, partitions=2, durable=False)


def test_a_durable_one_is_never_unused() -> None:
    async def scenario(broker: Broker) -> None:
        await ask(broker, RemoveUnused(topic=TOPIC, subscription=SUBSCRIPTION))
        assert await recorded(broker) == [True]

    play(scenario)


def test_one_that_is_made_again_is_heard_by_its_topic() -> None:
    """The topic ignores late reports of earlier subscriptions of the name, but none of the new one's."""

    async def scenario(broker: Broker) -> None:
        first = await owner(broker)
        await broker.publish("a")
        broker.world.stop(first.ports.me)
        await broker.directory.suspect(first.ports.me)
        await broker.stats()
        await ask(broker, RemoveSubscription(topic=TOPIC, subscription=SUBSCRIPTION))
        assert await marks(broker) == {}
        late = first.parts.context.reporter.statement()
        broker.directory.invalidate(TOPIC)
        await broker.stats()
        made_again = await marks(broker)
        assert list(made_again) == [SUBSCRIPTION], "the topic would trim what it has not delivered"
        await broker.ports.net.call(await broker.directory.topic(TOPIC, 0), late, 1_000)
        await broker.ports.net.call(
            await broker.directory.topic(TOPIC, 0), first.parts.context.reporter.statement(gone=True), 1_000
        )
        assert await marks(broker) == made_again

    play(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_concurrent_deletions_get_the_same_answer(seed: int) -> None:
    """A second controller may be asked while the first is silent.

    If it was refused, it would start the subscription again.
    """

    async def scenario(broker: Broker) -> None:
        actor, address = await owner(broker), await broker.address()
        told = await asyncio.gather(*(broker.ports.net.call(address, FORCED, 10_000) for _ in range(2)))
        assert told == [Deleted(deleted=True)] * 2
        assert actor.ended()
        assert await recorded(broker) == [False]

    play(scenario, seed=seed)


def test_replacing_a_deleted_owner_creates_no_record() -> None:
    """Another controller has deleted the subscription, and this one finds the owner gone."""

    async def scenario(broker: Broker) -> None:
        address = await broker.address()
        await broker.ports.net.call(address, FORCED, 10_000)
        await broker.quiet(5_000)
        assert await recorded(broker) == [False]
        broker.directory.invalidate(TOPIC)
        await broker.stats()
        assert await recorded(broker) == [True]

    play(scenario)


def test_consumer_after_a_deletion_gets_a_new_subscription() -> None:
    """At that moment the controller starts an owner in place of the deleted subscription's."""

    async def scenario(broker: Broker) -> None:
        address = await broker.address()
        await broker.ports.net.call(address, FORCED, 10_000)
        broker.directory.invalidate(TOPIC)
        client = await broker.join("c")
        await broker.publish("a")
        await broker.until(lambda: client.came() == ["a"])
        assert await recorded(broker) == [True]

    play(scenario)


def test_no_progress_is_reported_after_the_deletion() -> None:
    """The last acknowledgements are reported a second later. With slow stores that would be after the deletion."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.publish("a")
        await broker.until(lambda: len(client.got) == 1)
        await client.close()
        actor = await owner(broker)
        history = actor.parts.context.history
        history.clear = before(history.clear, lambda: broker.quiet(3_000))  # type: ignore[method-assign]
        await actor.on_delete_subscription(FORCED)
        assert await marks(broker) == {}, "the topic would keep everything for nobody"

    play(scenario)
