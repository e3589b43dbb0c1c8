"""Closed owners that have something to do are woken, even by a new controller; the others are not."""

from __future__ import annotations

from functools import partial

import msgpack
import msgspec
import pytest

from sluice.actors.controller.closed_owners import LOOK_MS, PAUSE_MS
from sluice.actors.dispatcher.delivery.subscription import PartitionSubscription
from sluice.actors.ledger.record import LedgerRecord, LedgerState, encode_record, record_key, unpack_record
from sluice.actors.ownership.record_scan import TOGETHER
from sluice.actors.policies.backlog_quotas import EVICTION, Quota, Quotas
from sluice.actors.policies.policy_records import LIFETIMES, of_namespace, of_topic
from sluice.actors.policies.retention import Lifetimes, Retention
from sluice.storage.errors import Unavailable
from tests.actors.controller.test_idle_owners import closed, running
from tests.scenarios.key_shared.broker import TOPIC, Broker, play

HOUR_MS = 3_600_000
WITHIN_MS = LOOK_MS + PAUSE_MS + 10_000
SPACE = of_namespace("public/default")
closing = partial(play, close_idle_after_ms=5_000)


async def chain(broker: Broker) -> tuple[LedgerRecord, ...]:
    """The ledgers of the topic."""
    newest = await broker.ports.meta.read(record_key(TOPIC, 0))
    assert newest is not None
    return unpack_record(newest.value).ledgers


async def ledgers(broker: Broker) -> list[int]:
    """Their ids."""
    return [ledger.id for ledger in await chain(broker)]


async def seen_by_all(broker: Broker, *keys: str) -> None:
    """Publish, and have the subscription acknowledge everything; then nobody is there any more."""
    client = await broker.join("c")
    for key in keys:
        await broker.publish(key)
    await broker.until(lambda: len(client.got) == len(keys))
    await client.parts[0].wait_confirmed()
    await broker.quiet(2_000)
    await client.close()
    await closed(broker)


async def waited_for_by_nobody(broker: Broker) -> None:
    """Publish, with a subscription whose consumer has gone; then nobody is there any more."""
    client = await broker.join("c")
    await client.close()
    await broker.publish("a", "b")
    await closed(broker)


async def stays_closed(broker: Broker, milliseconds: int) -> None:
    """Nothing runs meanwhile."""
    end = broker.ports.clock.now() + milliseconds
    while broker.ports.clock.now() < end:
        assert running(broker) == []
        await broker.quiet(1_000)


async def left_open(broker: Broker) -> None:
    """The last ledger is as an owner leaves it that ends without closing it."""
    newest = await broker.ports.meta.read(record_key(TOPIC, 0))
    assert newest is not None
    record = unpack_record(newest.value)
    last = record.ledgers[-1]
    last = msgspec.structs.replace(last, state=LedgerState.OPEN, last_run=-1, last_entry=-1, closed_at=0)
    value = msgpack.packb({**msgpack.unpackb(newest.value), **encode_record(record.with_ledger(last))})
    assert await broker.ports.meta.create(record_key(TOPIC, 0), newest.number + 1, value)


async def gone(broker: Broker) -> None:
    """Wait until retention has deleted every ledger."""
    left = [0]

    async def look() -> None:
        while left:
            left[:] = await ledgers(broker)
            await broker.quiet(1_000)

    broker.ports.spawn(look(), "look")
    await broker.until(lambda: not left, WITHIN_MS)


@pytest.mark.parametrize("where", [SPACE, of_topic(TOPIC)])
def test_a_shorter_retention_is_carried_out_where_nobody_is(where: str) -> None:
    async def scenario(broker: Broker) -> None:
        await Lifetimes(broker.ports.meta).change(where, retention=Retention(24 * HOUR_MS, -1))
        await seen_by_all(broker, "a", "b")
        await stays_closed(broker, 2 * WITHIN_MS)
        await Lifetimes(broker.ports.meta).change(where, retention=Retention(1, 0))
        await gone(broker)
        await closed(broker)
        await stays_closed(broker, 3 * WITHIN_MS)

    closing(scenario)


def test_acked_ledgers_are_deleted_when_the_owner_closes() -> None:
    """The ledger that was open is deleted as well; no owner is woken for it."""

    async def scenario(broker: Broker) -> None:
        await seen_by_all(broker, "a", "b")
        assert await ledgers(broker) == []
        await stays_closed(broker, 3 * WITHIN_MS)
        assert (await broker.address(), await broker.offer("c"))[1] == []

    closing(scenario)


def test_awaited_ledger_is_closed_when_the_owner_closes() -> None:
    """The end of the last ledger is known, so the next owner has nothing to recover and appends behind it."""

    async def scenario(broker: Broker) -> None:
        await waited_for_by_nobody(broker)
        (last,) = await chain(broker)
        assert (last.state, last.last_entry) == (LedgerState.CLOSED, 1)
        await stays_closed(broker, 3 * WITHIN_MS)
        client = await broker.join("c")
        await broker.publish("c")
        await broker.until(lambda: client.came() == ["a", "b", "c"])

    closing(scenario)


def test_a_new_controller_knows_what_retention_lets_go_of() -> None:
    async def scenario(broker: Broker) -> None:
        await Lifetimes(broker.ports.meta).change(SPACE, retention=Retention(HOUR_MS, -1))
        await seen_by_all(broker, "a", "b")
        await broker.world.restart("controller")
        await stays_closed(broker, HOUR_MS - 2 * WITHIN_MS)
        assert await ledgers(broker)
        await broker.until(lambda: "topic" in running(broker), 3 * WITHIN_MS)
        await closed(broker)
        assert await ledgers(broker) == []
        await stays_closed(broker, 3 * WITHIN_MS)

    closing(scenario)


def test_how_old_an_open_ledger_is_the_topic_finds_out() -> None:
    """The owner ended without closing its ledger: the age counts from when the next owner closes it."""

    async def scenario(broker: Broker) -> None:
        await Lifetimes(broker.ports.meta).change(SPACE, retention=Retention(HOUR_MS, -1))
        await seen_by_all(broker, "a", "b")
        await left_open(broker)
        for _ in range(2):
            await broker.world.restart("controller")
            await stays_closed(broker, HOUR_MS - 2 * WITHIN_MS)
            assert await ledgers(broker)
            await broker.until(lambda: "topic" in running(broker), 3 * WITHIN_MS)
            await broker.quiet(2_000)
            await broker.world.restart("controller")
            await closed(broker)
        assert await ledgers(broker) == []
        await stays_closed(broker, 3 * WITHIN_MS)

    closing(scenario)


@pytest.mark.parametrize("open_", [False, True], ids=["closed", "open"])
def test_a_time_to_live_wakes_nobody_who_waits_for_nothing(open_: bool) -> None:
    """The time to live holds for a namespace, and most of its topics have nothing that could expire.

    If the last ledger is open, this is known once its topic has been woken.
    """

    async def scenario(broker: Broker) -> None:
        await Lifetimes(broker.ports.meta).change(SPACE, ttl_ms=60_000, retention=Retention(-1, -1))
        await seen_by_all(broker, "a", "b")
        if open_:
            await left_open(broker)
            await broker.until(lambda: "dispatcher" in running(broker), WITHIN_MS)
            await closed(broker)
        await stays_closed(broker, 4 * WITHIN_MS)
        assert await ledgers(broker)

    closing(scenario)


@pytest.mark.parametrize("limit", ["ttl", "quota"])
def test_unacked_messages_expire_without_owners_or_clients(limit: str) -> None:
    async def scenario(broker: Broker) -> None:
        await waited_for_by_nobody(broker)
        await stays_closed(broker, WITHIN_MS)
        if limit == "ttl":
            await Lifetimes(broker.ports.meta).change(SPACE, ttl_ms=60_000)
        else:
            await Quotas(broker.ports.meta).set(SPACE, Quota(1, EVICTION))
        await broker.until(lambda: "dispatcher" in running(broker), WITHIN_MS)
        await closed(broker)
        await broker.quiet(2 * WITHIN_MS)
        await stays_closed(broker, 2 * WITHIN_MS)
        assert (await broker.stats())["msgBacklog"] == 0

    closing(scenario)


def test_an_unreadable_record_keeps_none_from_the_others() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.ports.meta.create(LIFETIMES + of_namespace("other/space"), 1, b"?")
        for number in range(TOGETHER):
            await broker.ports.meta.create(f"partition/a{number}/0", 1, b"?")
        await Lifetimes(broker.ports.meta).change(SPACE, retention=Retention(24 * HOUR_MS, -1))
        await seen_by_all(broker, "a")
        await Lifetimes(broker.ports.meta).change(SPACE, retention=Retention(1, 0))
        await gone(broker)

    closing(scenario)


@pytest.mark.parametrize(
    "key",
    ["partition/a0/0", LIFETIMES + of_topic("a1"), PartitionSubscription(TOPIC, 0, "a").key],
    ids=["partition", "policy", "subscription"],
)
def test_a_record_the_store_refuses_keeps_none_from_others(key: str) -> None:
    """One of an earlier group, one of a topic's policies, and one of the same partition."""

    async def scenario(broker: Broker) -> None:
        await waited_for_by_nobody(broker)
        newest = await broker.ports.meta.read(record_key(TOPIC, 0))
        assert newest is not None
        for number in range(TOGETHER):
            value = msgpack.packb({**msgpack.unpackb(newest.value), "topic": f"a{number}"})
            await broker.ports.meta.create(f"partition/a{number}/0", 1, value)
        await broker.ports.meta.create(LIFETIMES + of_topic("a1"), 1, b"{}")
        await broker.ports.meta.create(PartitionSubscription(TOPIC, 0, "a").key, 1, b"?")
        broker.world.meta.trouble.refused[f"read {key}"] = Unavailable
        await Lifetimes(broker.ports.meta).change(SPACE, ttl_ms=60_000)
        await broker.until(lambda: "dispatcher" in running(broker), 2 * WITHIN_MS)

    closing(scenario)


def test_a_topic_whose_ledgers_have_left_is_closed_as_well() -> None:
    """The copies on bookies are deleted an hour later, for which the topic is woken: also those of the ledger that
    was open.
    """

    async def scenario(broker: Broker) -> None:
        await Lifetimes(broker.ports.meta).change(SPACE, retention=Retention(-1, -1))
        await seen_by_all(broker, *"abcdefghijk")
        left = [ledger for ledger in await chain(broker) if ledger.offloaded is not None]
        assert (len(left), bool(left[-1].fragments)) == (3, True)
        await stays_closed(broker, HOUR_MS - 2 * WITHIN_MS)
        await broker.until(lambda: "topic" in running(broker), 3 * WITHIN_MS)
        await closed(broker)
        assert not any(ledger.fragments for ledger in await chain(broker))
        await stays_closed(broker, 2 * HOUR_MS)

    leaving = {"roll_entries": 5, "offload_threshold_bytes": 0, "offload_deletion_lag_ms": HOUR_MS}
    closing(scenario, topic=leaving)


def test_ledgers_kept_in_the_object_store_wake_no_owner() -> None:
    async def scenario(broker: Broker) -> None:
        await seen_by_all(broker, *"abcdefghij")
        await broker.quiet(WITHIN_MS)
        await closed(broker)
        first, second = [ledger for ledger in await chain(broker) if ledger.offloaded]
        assert not first.fragments
        assert not second.fragments
        await stays_closed(broker, 2 * HOUR_MS)

    kept = {"roll_entries": 5, "offload_threshold_bytes": 0, "offload_deletion_lag_ms": 0, "history_retention_ms": -1}
    closing(scenario, topic=kept)


@pytest.mark.parametrize(
    "odd", [b"?", msgpack.packb({"epoch": 1, "owner": "broker/d.1", "settings": {}})], ids=["nothing", "a map"]
)
def test_a_damaged_subscription_hides_no_other(odd: bytes) -> None:
    """On its partition, whose owner would never let expire what waits. That one comes before the other by its name."""

    async def scenario(broker: Broker) -> None:
        await waited_for_by_nobody(broker)
        await broker.ports.meta.create(PartitionSubscription(TOPIC, 0, "a").key, 1, odd)
        await Lifetimes(broker.ports.meta).change(SPACE, ttl_ms=60_000)
        await broker.until(lambda: "dispatcher" in running(broker), 2 * WITHIN_MS)

    closing(scenario)


def test_a_lifetime_that_is_no_text_is_damage() -> None:
    """The damaged record ends no task that looks at the records of all topics."""

    async def scenario(broker: Broker) -> None:
        await waited_for_by_nobody(broker)
        await broker.ports.meta.create(LIFETIMES + of_topic(TOPIC), 1, b'{"\x80": 1}')
        await stays_closed(broker, 2 * WITHIN_MS)
        assert broker.world.is_up("controller")

    closing(scenario)
