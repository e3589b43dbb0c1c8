"""Backlog quotas by age: who keeps producers out, and whose messages go."""

from __future__ import annotations

import pytest

from sluice.actors.policies.backlog_quotas import EVICTION, Quota, Quotas
from sluice.actors.policies.policy_records import AGES, LOOK_MS, of_namespace, of_topic
from sluice.actors.pulsar.conversation.gateway.backlogs import Backlogs
from sluice.actors.pulsar.refusals import CommandRefused
from tests.scenarios.key_shared.broker import TOPIC, Broker, play

SPACE, HOLD = of_namespace("public/default"), "producer_request_hold"


def gateways(broker: Broker) -> tuple[Backlogs, Quotas]:
    """Return the part of a gateway that enforces quotas, and the quotas of age."""
    ages = Quotas(broker.ports.meta, AGES)
    return Backlogs(broker.ports, broker.directory, Quotas(broker.ports.meta), ages, {}), ages


def test_producers_are_kept_out_while_something_waits_too_long() -> None:
    async def scenario(broker: Broker) -> None:
        backlogs, ages = gateways(broker)
        await ages.set(SPACE, Quota(60, HOLD))
        await broker.publish("a")
        await backlogs.check(TOPIC, 0)
        await broker.quiet(61_000)
        await broker.publish("b")
        with pytest.raises(CommandRefused):
            await backlogs.check(TOPIC, 0)
        await ages.set(of_topic(TOPIC), Quota(600, HOLD))
        await backlogs.check(TOPIC, 0)
        await ages.unset(of_topic(TOPIC))
        client = await broker.join("worker")
        await broker.until(lambda: len(client.got) == 2)
        await broker.quiet(2_000)
        await backlogs.check(TOPIC, 0)

    play(scenario)


@pytest.mark.parametrize("policy", [HOLD, EVICTION])
def test_an_age_of_no_seconds_is_no_limit(policy: str) -> None:
    """The topic's age of 0 hides the namespace's, as any other age does."""

    async def scenario(broker: Broker) -> None:
        backlogs, ages = gateways(broker)
        await ages.set(SPACE, Quota(1, policy))
        await ages.set(of_topic(TOPIC), Quota(0, policy))
        await broker.publish("a")
        await broker.quiet(LOOK_MS + 2_000)
        await backlogs.check(TOPIC, 0)
        assert (await broker.stats())["msgBacklog"] == 1

    play(scenario)


def test_evicted_messages_keep_no_producer_out() -> None:
    async def scenario(broker: Broker) -> None:
        backlogs, ages = gateways(broker)
        await broker.address()
        await broker.quiet(LOOK_MS // 2)
        await ages.set(SPACE, Quota(1, EVICTION))
        await broker.publish("a", "b")
        await broker.quiet(2_000)
        await backlogs.check(TOPIC, 0)
        assert (await broker.stats())["msgBacklog"] == 2
        await broker.quiet(LOOK_MS)
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario)
