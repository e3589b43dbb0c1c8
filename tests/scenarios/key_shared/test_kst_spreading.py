"""KST-1 to KST-5, KST-8, KST-16: how messages spread over consumers, and stay in order."""

from __future__ import annotations

import random

from sluice.storage.format.hashing import masked_hash
from tests.scenarios.key_shared.broker import KEYS, Broker, play


def _keys(count: int, seed: int = 3) -> list[str]:
    rng = random.Random(seed)
    return [rng.choice(KEYS) for _ in range(count)]


def test_kst_1_messages_spread_and_a_key_stays_with_its_consumer() -> None:
    async def scenario(broker: Broker) -> None:
        clients = [await broker.join(name) for name in ("a", "b", "c")]
        for _ in range(10):
            await broker.publish(*_keys(100, broker.seen()))
        await broker.until(lambda: broker.seen() == 1000)
        assert sum(len(client.got) for client in clients) == 1000
        for client in clients:
            assert 200 <= len(client.got) <= 467
        owners = [dict.fromkeys(client.came(), client.name) for client in clients]
        assert sum(map(len, owners)) == len({key for owner in owners for key in owner}), "each key at one consumer"

    play(scenario)


def test_kst_2_sticky_ranges_get_their_keys_in_order() -> None:
    ranges = {"a": (0, 20_000), "b": (20_001, 40_000), "c": (40_001, 65_535)}

    async def scenario(broker: Broker) -> None:
        clients = [await broker.join(name, ranges=[span], acking=False) for name, span in ranges.items()]
        await broker.publish(*_keys(500), *_keys(500))
        await broker.until(lambda: broker.seen() == 1000)
        for client in clients:
            low, high = ranges[client.name]
            assert all(low <= masked_hash(key.encode()) % 65_536 <= high for key in client.came())
            first = list(client.got)
            client.ack(*first[::2])
            await broker.quiet(100)
            await client.redeliver_all()
            await broker.quiet(500)
            again = client.got[len(first) :]
            assert [message.position for message in again] == [message.position for message in first[1::2]]

    play(scenario, selector="sticky")


def test_kst_3_a_crashed_consumers_share_goes_to_the_others() -> None:
    async def scenario(broker: Broker) -> None:
        a, b, c = [await broker.join(name, acking=False) for name in ("a", "b", "c")]
        await broker.publish(*_keys(1000))
        await broker.until(lambda: broker.seen() == 1000)
        lost = {message.position for message in c.got}
        assert lost
        c.crash()
        a.ack()
        b.ack()
        await broker.until(lambda: lost <= {message.position for client in (a, b) for message in client.got}, 20_000)
        for client in (a, b):
            again = [message for message in client.got if message.position in lost]
            for key in {message.key for message in again}:
                numbers = [message.number for message in again if message.key == key]
                assert numbers == sorted(numbers)

    play(scenario)


def test_kst_4_keyless_messages_spread_by_producer_and_sequence() -> None:
    async def scenario(broker: Broker) -> None:
        clients = [await broker.join(name) for name in ("a", "b", "c")]
        await broker.publish(*[None] * 1000)
        await broker.until(lambda: broker.seen() == 1000)
        assert all(200 <= len(client.got) <= 467 for client in clients)

    play(scenario)


def test_kst_5_the_ordering_key_wins_over_the_key() -> None:
    async def scenario(broker: Broker) -> None:
        clients = [await broker.join(name) for name in ("a", "b", "c")]
        await broker.publish(*KEYS, ordering=["the same"] * len(KEYS))
        await broker.until(lambda: broker.seen() == len(KEYS))
        assert sorted(len(client.got) for client in clients) == [0, 0, len(KEYS)]

    play(scenario)


def test_kst_8_a_slow_consumer_holds_back_only_its_own_keys() -> None:
    async def scenario(broker: Broker) -> None:
        slow = await broker.join("slow", queue=1, acking=False, taking=False)
        fast = [await broker.join(f"fast-{number}") for number in range(9)]
        await broker.publish(*KEYS)
        await broker.until(lambda: len(slow.got) == 1)
        await broker.publish(*_keys(1000))
        await broker.quiet(1_000)
        stuck = (await broker.stats())["msgInReplay"]
        assert len(slow.got) == 1
        assert 0 < stuck < 500
        assert sum(len(client.got) for client in fast) == len(KEYS) + 1000 - 1 - stuck
        slow.taking = slow.acking = True
        slow.ack()
        for part in slow.parts:
            part.taken(slow.got[0].part)
        await broker.until(lambda: broker.seen() == len(KEYS) + 1000, 60_000)

    play(scenario)


def test_kst_16_keys_rise_without_any_acknowledgement() -> None:
    async def scenario(broker: Broker) -> None:
        clients = [await broker.join(name, acking=False) for name in ("a", "b")]
        for _ in range(20):
            await broker.publish(*["x", "y", "z"] * 16)
        await broker.until(lambda: broker.seen() == 960)
        for client in clients:
            client.ack()
        await broker.quiet(500)
        assert [(await broker.stats(partition))["msgBacklog"] for partition in (0, 1)] == [0, 0]

    play(scenario, partitions=2)
