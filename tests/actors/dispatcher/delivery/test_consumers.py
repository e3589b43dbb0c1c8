"""KS-15: a consumer that does not answer loses its place, but keeps its messages while its lease may last."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from sluice.actors.messages import Attach, Attached, SentApart
from sluice.actors.ports import Unknown
from sluice.storage.errors import Conflict
from sluice.storage.format.hashing import hash_column, reduce_hash
from tests.scenarios.key_shared.broker import KEYS, Broker, Client, play

LEASE_MS = 20_000
LOW, HIGH = (0, 32_767), (32_768, 65_535)


def keys_of(first: int, last: int, count: int) -> list[str]:
    """Return keys whose hashes lie in a range of the sticky selector."""
    hashes = reduce_hash(hash_column(pa.array([key.encode() for key in KEYS])), size=65_536, start=0)
    return [key for key, at in zip(KEYS, hashes.tolist(), strict=True) if first <= at <= last][:count]


async def join(broker: Broker, name: str, ranges: Sequence[tuple[int, int]] = ()) -> tuple[Client, int]:
    """Join a consumer that acknowledges nothing; return it and the ms that joining took."""
    began = broker.world.loop.now
    client = await broker.join(name, ranges=ranges, acking=False)
    return client, broker.world.loop.now - began


@pytest.mark.parametrize("by", ["frozen", "cut off", "crashed"])
def test_silent_consumer_loses_an_exclusive_place(by: str) -> None:
    async def scenario(broker: Broker) -> None:
        first, _ = await join(broker, "c1")
        await broker.publish(*KEYS[:10])
        await broker.until(lambda: len(first.got) == 10)
        heal = None
        if by == "frozen":
            broker.world.pause("c1")
        elif by == "cut off":
            heal = broker.world.partition(["c1"], ["broker"])
        else:
            first.crash()
        second, took = await join(broker, "c2")
        assert 4_000 < took < 5_200
        await broker.publish(*KEYS[10:20])
        await broker.until(lambda: len(second.got) == 10)
        assert set(second.came()) == set(KEYS[10:20]), "what c1 holds is its own"
        await broker.until(lambda: len(second.got) == 20, LEASE_MS)
        second.ack()
        if heal is not None:
            heal()
        if by == "frozen":
            broker.world.resume("c1")
        await broker.quiet(5_000)
        await second.close()
        if by != "crashed":
            await broker.publish(*KEYS[20:30])
            await broker.until(lambda: len(first.got) == 20, 2 * LEASE_MS)

    play(scenario, type="exclusive", lease_ms=LEASE_MS)


def test_answering_consumer_keeps_its_place() -> None:
    async def scenario(broker: Broker) -> None:
        first, _ = await join(broker, "c1")
        began = broker.world.loop.now
        for number in range(5):
            with pytest.raises(Conflict, match="exclusive"):
                await broker.join(f"refused-{number}")
        assert broker.world.loop.now - began < 500
        await broker.publish(*KEYS[:10])
        await broker.until(lambda: len(first.got) == 10)

    play(scenario, type="exclusive", lease_ms=LEASE_MS)


def test_returning_consumer_gives_up_its_lost_range() -> None:
    """The other ranges go on all the while.

    The returning consumer's messages go on as soon as it reports that it knows of its end.
    """

    async def scenario(broker: Broker) -> None:
        low, high = keys_of(*LOW, 20), keys_of(*HIGH, 20)
        first, _ = await join(broker, "c1", [LOW])
        other, _ = await join(broker, "c2", [HIGH])
        other.acking = True
        await broker.publish(*low[:10], *high[:10])
        await broker.until(lambda: len(first.got) == len(other.got) == 10)
        broker.world.pause("c1")
        second, took = await join(broker, "c3", [LOW])
        assert took < 5_200
        await broker.publish(*low, *high)
        await broker.until(lambda: len(second.got) == 10 and len(other.got) == 30)
        assert set(second.came()) == set(low[10:])
        broker.world.resume("c1")
        await broker.until(lambda: len(second.got) == 30, 2_000)
        assert second.came().count(low[0]) == 2
        second.ack()

    play(scenario, selector="sticky", lease_ms=LEASE_MS)


def test_that_batches_came_apart_is_told_when_it_is_durable() -> None:
    """A consumer that learns it sends parts of batches.

    Consumers of a next owner that does not know it would misread the parts.
    """

    async def scenario(broker: Broker) -> None:
        net = broker.world.client("network").net
        answered: list[Attached] = []

        async def attach(name: str) -> None:
            address = await broker.address()
            reply = await net.call(address, Attach(consumer=name, incarnation=f"{name}.0"), 60_000)
            assert not isinstance(reply, Unknown)
            answered.append(reply)

        await attach("a")
        await attach("b")
        session = answered[0].session
        broker.world.meta.trouble.cut["broker"] = 1
        address = await broker.address()

        async def send_apart() -> None:
            await net.call(address, SentApart(session=session), 60_000)

        broker.world.background(send_apart(), "apart")
        await broker.quiet(100)
        broker.world.background(attach("b"), "a copy")
        await broker.quiet(1_000)
        assert not any(attached.apart for attached in answered), "no record says so"
        broker.world.meta.trouble.cut.clear()
        await broker.until(lambda: len(answered) == 3)
        assert answered[-1].apart

    play(scenario, type="failover", lease_ms=60_000)
