"""Readers that bring ranges of hashes are shown the messages of these alone."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.actors.pulsar.codec.protocol import ServerError
from sluice.storage.format.hashing import HASH_RANGE, masked_hash
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.sim.worlds.wire import Refusal, batch_frame

COUNT, HALF = 40, HASH_RANGE // 2
KEYS = [b"k%d" % number for number in range(COUNT)]


def reading(*ranges: tuple[int, int]) -> dict[str, Any]:
    """How a reader of these ranges subscribes."""
    hash_ranges = [{"start": start, "end": end} for start, end in ranges]
    return {"durable": False, "key_shared": {"mode": 1, "hash_ranges": hash_ranges}}


@pytest.mark.parametrize("size", [1, 10])
def test_two_readers_divide_the_keys_by_their_ranges(size: int) -> None:
    """However many keys a producer's batch has."""

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.producer(wire, "till", SHARED)
        for first in range(0, COUNT, size):
            rows = [(KEYS[number], number) for number in range(first, first + size)]
            before = len(clients.receipts)
            wire.write(batch_frame(0, first, rows, now=clients.broker.ports.clock.now(), due=0, by_key=True))
            await clients.broker.until(lambda: len(clients.receipts) > before)  # noqa: B023
        lower = [number for number, key in enumerate(KEYS) if masked_hash(key) % HASH_RANGE < HALF]
        for name, ranges in (("low", [(0, HALF - 1)]), ("high", [(HALF, HALF + 9), (HALF + 10, HASH_RANGE - 1)])):
            reader = await clients.join(name, GATEWAYS[1])
            await clients.consumer(reader, 0, name, subscription=name, **reading(*ranges))
        higher = sorted({*range(COUNT)} - {*lower})
        await clients.broker.until(
            lambda: (len(clients.numbers("low")), len(clients.numbers("high"))) == (len(lower), len(higher))
        )
        assert (clients.numbers("low"), clients.numbers("high")) == (lower, higher)

    with_gateways(scenario)


@pytest.mark.parametrize("wrong", [(5, 4), (-1, 3), (0, HASH_RANGE)])
def test_a_range_that_is_none_is_refused(wrong: tuple[int, int]) -> None:
    async def scenario(clients: Clients) -> None:
        reader = await clients.join("c0", GATEWAYS[0])
        with pytest.raises(Refusal) as refused:
            await clients.consumer(reader, 0, "a", subscription="reader", **reading(wrong))
        assert refused.value.code == ServerError.CONSUMER_ASSIGN

    with_gateways(scenario)
