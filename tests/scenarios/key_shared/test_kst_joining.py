"""KST-9 to KST-12, KST-17 to KST-28: consumers that come, go and come back."""

from __future__ import annotations

import pytest

from sluice.storage.errors import Conflict, Invalid
from tests.scenarios.key_shared.broker import KEYS, Broker, Client, play
from tests.sim.loop import SimFailure

TEN = [str(key) for key in range(10)]


@pytest.mark.parametrize("silence", [100, 1_000], ids=["kst_9", "kst_11"])
def test_kst_9_and_kst_11_order_when_one_joins_and_one_leaves(silence: int) -> None:
    async def scenario(broker: Broker) -> None:
        first = await broker.join("c1", queue=10, acking=False, taking=False)
        await broker.publish(*TEN)
        await broker.until(lambda: len(first.got) == 10)
        second = await broker.join("c2")
        await broker.publish(*TEN)
        await broker.quiet(silence)
        assert second.got == []
        await first.close()
        await broker.until(lambda: len(second.got) == 20)
        assert [(m.key, m.number) for m in second.got] == [(key, number) for number in (0, 1) for key in TEN]

    play(scenario)


def test_kst_10_reading_ahead_stops_at_the_limit() -> None:
    async def scenario(broker: Broker) -> None:
        first = await broker.join("c1", queue=10, acking=False, taking=False)
        await broker.publish(*TEN)
        await broker.until(lambda: len(first.got) == 10)
        await broker.join("c2", acking=False)
        for _ in range(99):
            # Limits hold for whole runs: index columns are read by the run. So each publish is a small one.
            await broker.publish(*TEN)
        await broker.quiet(1_000)
        assert int((await broker.stats())["readPosition"].split(":")[1]) < 100

    play(scenario, look_ahead_per_subscription=50, look_ahead_per_consumer=0)


def test_kst_12_ranges_that_overlap_are_refused() -> None:
    async def scenario(broker: Broker) -> None:
        count = 0

        async def join(*ranges: tuple[int, int]) -> Client:
            nonlocal count
            count += 1
            return await broker.join(f"c{count}", ranges=ranges)

        async def refused(*ranges: tuple[int, int]) -> None:
            with pytest.raises((Conflict, Invalid)):
                await join(*ranges)

        first, second = await join((0, 99), (400, 65_535)), await join((100, 399))
        await refused((0, 65_535))
        await refused((1, 1))
        assert (await broker.stats())["consumersCount"] == 2
        await first.close()
        for span in ((0, 65_535), (50, 100), (399, 500)):
            await refused(span)
        third, fourth = await join((400, 600)), await join((50, 99))
        assert (await broker.stats())["consumersCount"] == 3
        for client in (second, third, fourth):
            await client.close()
        assert (await broker.stats())["consumersCount"] == 0

    play(scenario, selector="sticky")


def test_kst_17_the_mode_changes_when_nobody_is_connected() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c1")
        with pytest.raises(Conflict):
            await broker.configure(selector="sticky")
        await client.close()
        await broker.configure(selector="sticky")
        client = await broker.join("c2", ranges=[(0, 65_535)])
        assert (await broker.stats())["keySharedMode"] == "STICKY"
        await broker.publish(*TEN)
        await broker.until(lambda: len(client.got) == 10)

    play(scenario)


def test_kst_18_out_of_order_delivery_changes_when_unattended() -> None:
    async def scenario(broker: Broker) -> None:
        await (await broker.join("c1")).close()
        await broker.configure(allow_out_of_order_delivery=False)
        await broker.join("c2")
        assert (await broker.stats())["allowOutOfOrderDelivery"] is False

    play(scenario, allow_out_of_order_delivery=True)


def test_kst_19_equal_names_and_one_of_them_closes() -> None:
    async def scenario(broker: Broker) -> None:
        first = await broker.join("c1", called="same", queue=5, acking=False, taking=False)
        others = [await broker.join(name, called="same") for name in ("c2", "c3")]
        await broker.publish(*KEYS[:100])
        await broker.until(lambda: len(first.got) == 5)
        await first.close()
        await broker.until(lambda: sum(len(client.got) for client in others) == 100)
        assert {key for client in others for key in client.came()} == {*KEYS[:100]}

    play(scenario)


def test_kst_20_sticky_consumers_restart_in_the_middle() -> None:
    halves = [(0, 32_767), (32_768, 65_535)]

    async def scenario(broker: Broker) -> None:
        early = [await broker.join(f"early-{n}", ranges=[span], queue=3) for n, span in enumerate(halves)]
        late: list[Client] = []
        for number, key in enumerate(KEYS[:100]):
            await broker.publish(key)
            await broker.quiet(100)
            if number == 10:
                for client in early:
                    await client.close()
            if number == 40:
                late = [await broker.join(f"late-{n}", ranges=[span]) for n, span in enumerate(halves)]
        await broker.until(lambda: broker.seen() == 100, 20_000)
        assert {key for client in early + late for key in client.came()} == {*KEYS[:100]}
        await broker.quiet(500)
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario, selector="sticky")


def test_kst_22_what_waits_is_not_read_again_and_again() -> None:
    async def scenario(broker: Broker) -> None:
        acking = await broker.join("c1", queue=10, acking=False, taking=False)
        holding = await broker.join("c2", queue=10, acking=False, taking=False)
        await broker.publish(*KEYS[:100])
        await broker.until(lambda: len(acking.got) == len(holding.got) == 10)
        acking.ack()
        third = await broker.join("c3")
        await broker.quiet(100)
        before = broker.calls["ReadIndex"]
        await holding.close()
        await broker.quiet(5_000)
        assert broker.calls["ReadIndex"] - before <= 10, "a few long polls at the end of the topic"
        assert len(third.got) + 20 >= len(set(third.came())) > 10

    play(scenario)


def test_kst_27_new_keys_of_a_newcomer_arrive_at_once() -> None:
    async def scenario(broker: Broker) -> None:
        first = await broker.join("c1", acking=False)
        await broker.publish("key1", "key1")
        await broker.until(lambda: len(first.got) == 2)
        second = await broker.join("c2")
        await broker.publish(*KEYS)
        await broker.quiet(200)
        assert len(first.got) + len(second.got) >= 2 + len(KEYS) - 1
        assert len(second.got) > 100

    play(scenario)


def test_kst_28_an_unacknowledged_message_stops_no_other_key() -> None:
    async def scenario(broker: Broker) -> None:
        def work() -> None:
            for client in broker.clients.values():
                others = [message for message in client.held() if message.key != "stuck"]
                if others:
                    client.ack(*others)

        await broker.join("steady", acking=False)
        client = await broker.join("c0", acking=False)
        await broker.publish("stuck")
        for turn in range(14):
            await broker.publish(*KEYS[turn * 20 : turn * 20 + 20], "stuck")
            newcomer = await broker.join(f"c{turn + 1}", acking=False)
            work()
            await client.close()
            await broker.quiet(200)
            work()
            client = newcomer
        for _ in range(5):
            await broker.quiet(100)
            work()
        came = {key for each in broker.clients.values() for key in each.came()}
        assert came == {*KEYS[: 14 * 20], "stuck"}
        await broker.quiet(100)
        assert (await broker.stats())["msgBacklog"] == 15, "the messages of one key, and nothing else"

    play(scenario)


@pytest.mark.parametrize("policy", ["draining_hashes", "last_sent_position", "read_position"])
def test_pip_282_issue_1_is_noticed_where_it_happens(policy: str) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.join("c2")
        first = await broker.join("c1", queue=1, acking=False, taking=False)
        await broker.publish("key1", "key1", "key1", "key-0")
        await broker.until(lambda: len(first.got) == 1)
        third = await broker.join("c3")
        await broker.quiet(500)
        await first.close()
        await broker.until(lambda: len(third.got) == 3)
        assert [message.number for message in third.got] == [0, 1, 2]

    if policy == "read_position":
        with pytest.raises(SimFailure, match="key1 is at c1 too"):
            play(scenario, policy=policy, selector="auto_split")
    else:
        play(scenario, policy=policy, selector="auto_split")
