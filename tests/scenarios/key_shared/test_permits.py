"""PM, FT, UA: permits and unacknowledged messages, as the consumers and the statistics see them."""

from __future__ import annotations

import pytest

from tests.scenarios.key_shared.broker import KEYS, Broker, play

TWENTY = KEYS[:20]


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
def test_pm_1_permits_are_there_and_nothing_counts_as_under_way(kind: str) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.join("a", queue=100)
        await broker.quiet(100)
        row = (await broker.consumer_stats())["a"]
        assert (row["availablePermits"], row["unackedMessages"], row["msgOutCounter"]) == (100, 0, 0)
        broker.clients["a"].acking = False
        await broker.publish(*TWENTY)
        await broker.until(lambda: broker.seen() == 20)
        # Half of the queue is still granted; the rest is told with the next poll.
        await broker.quiet(1_100)
        row = (await broker.consumer_stats())["a"]
        assert (row["availablePermits"], row["unackedMessages"], row["msgOutCounter"]) == (100, 20, 20)
        broker.clients["a"].ack()
        await broker.quiet(200)

    play(scenario, type=kind)


def test_pm_4_held_back_permits_leave_with_their_consumer() -> None:
    async def scenario(broker: Broker) -> None:
        leaver = await broker.join("leaver", acking=False, queue=10)
        await broker.publish(*TWENTY)
        await broker.until(lambda: len(leaver.got) == 10)
        stayer = await broker.join("stayer", queue=10, acking=False)
        await broker.quiet(100)
        rows = await broker.consumer_stats()
        assert rows["leaver"]["blockedConsumerOnUnackedMsgs"]
        assert rows["leaver"]["availablePermits"] == 0, "what came after the limit is held back"
        await leaver.close()
        await broker.until(lambda: len(stayer.got) == 10)
        rows = await broker.consumer_stats()
        assert list(rows) == ["stayer"]
        assert rows["stayer"]["unackedMessages"] == 10
        while broker.seen() < 20 or stayer.held():
            stayer.ack()
            await broker.quiet(50)

    play(scenario, max_unacked_messages_per_consumer=10)


@pytest.mark.parametrize("kind", ["shared", "key_shared"])
def test_pm_5_a_consumer_leaves_with_permits_under_way(kind: str) -> None:
    async def scenario(broker: Broker) -> None:
        stayer, leaver = await broker.join("stayer", queue=10), await broker.join("leaver", queue=10)
        broker.world.background(leaver.close(), "close")
        await broker.quiet(300)
        rows = await broker.consumer_stats()
        assert {name: row["availablePermits"] for name, row in rows.items()} == {"stayer": 10}
        for key in TWENTY:
            before = len(stayer.got)
            await broker.publish(key)
            await broker.until(lambda before=before: len(stayer.got) == before + 1, 1_000)  # type: ignore[misc]

    play(scenario, type=kind)


def test_ft_1_permits_that_come_meanwhile_count_afterwards() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.admin("pause")
        client = await broker.join("a", queue=100)
        await broker.publish(*TWENTY)
        await broker.quiet(500)
        assert client.got == []
        assert (await broker.consumer_stats())["a"]["availablePermits"] == 100
        await broker.admin("resume")
        await broker.until(lambda: len(client.got) == 20)

    play(scenario)


def test_ua_1_leaving_twice_and_for_good_leaves_nothing_behind() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("a", acking=False)
        await broker.publish(*KEYS[:10])
        await broker.until(lambda: len(client.got) == 10)
        assert (await broker.stats())["unackedMessages"] == 10
        await client.parts[0].close()
        await client.parts[0].close()
        client.gone = True
        stats = await broker.stats()
        assert (stats["unackedMessages"], stats["consumersCount"]) == (0, 0)
        other = await broker.join("b")
        await broker.until(lambda: len(other.got) == 10)

    play(scenario)


def test_ua_9_another_acknowledges_for_one_that_is_blocked() -> None:
    async def scenario(broker: Broker) -> None:
        owner = await broker.join("owner", acking=False)
        await broker.publish(*KEYS[:12])
        await broker.until(lambda: len(owner.got) == 10)
        other = await broker.join("other", queue=1)
        other.parts[0].pause()
        await broker.quiet(100)
        assert (await broker.consumer_stats())["owner"]["blockedConsumerOnUnackedMsgs"]
        group = owner.got[:9]
        for _ in range(2):
            owner.ack(*group, through=other)
            await broker.quiet(100)
            row = (await broker.consumer_stats())["owner"]
            assert not row["blockedConsumerOnUnackedMsgs"]
        await broker.until(lambda: broker.seen() >= 11)
        owner.acking = True
        owner.ack()
        other.parts[0].resume()
        await broker.until(lambda: broker.seen() == 12)

    play(scenario, max_unacked_messages_per_consumer=10)


def test_ua_10_one_command_for_messages_of_two_consumers() -> None:
    async def scenario(broker: Broker) -> None:
        first = await broker.join("f", queue=3, acking=False, taking=False)
        second = await broker.join("s", queue=3, acking=False, taking=False)
        await broker.publish(*KEYS[:60])
        await broker.until(lambda: len(first.got) == len(second.got) == 3)
        f1, f2, f3 = first.got
        s1, s2, s3 = second.got
        first.ack(f1, f2, s1, s2, f1)
        await broker.quiet(200)
        rows = await broker.consumer_stats()
        assert [rows[name]["unackedMessages"] for name in "fs"] == [1, 1]
        first.ack(f3, s3)
        await broker.quiet(200)
        rows = await broker.consumer_stats()
        assert [rows[name]["unackedMessages"] for name in "fs"] == [0, 0]

    play(scenario)
