"""Messages without a key in a Key_Shared subscription: which consumer gets each, and all chunks of one."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.actors.pulsar.codec.frames import encode_message
from sluice.actors.pulsar.codec.protocol import Metadata, command
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.sim.worlds.wire import Wire

KEY_SHARED = 3
CONSUMERS = ("one", "other")


def frames(sequence: int, chunks: int = 1) -> list[bytes]:
    """The SENDs of a message without key. The text of each is ten times the sequence id, and which chunk it is."""
    made = []
    for chunk in range(chunks):
        metadata = Metadata(producer_name=b"till", sequence_id=sequence, publish_time=1)
        if chunks > 1:
            metadata.uuid, metadata.num_chunks, metadata.chunk_id = b"till-%d" % sequence, chunks, chunk
        told = command("send", producer_id=0, sequence_id=sequence, num_messages=1, is_chunk=chunks > 1)
        text = b"%d" % (10 * sequence + chunk)
        made.append(encode_message(told.SerializeToString(), metadata.SerializeToString(), text))
    return made


async def who_got(clients: Clients, sends: list[list[bytes]]) -> list[list[int]]:
    """Return what each of the two consumers got. sends: each is written when the one before it is stored."""
    for number, name in enumerate(CONSUMERS):
        await clients.consumer(await clients.join(name, GATEWAYS[number]), KEY_SHARED, name)
    wire: Wire = await clients.join("c0", GATEWAYS[0])
    await clients.producer(wire, "till", SHARED)
    stored = 0
    for each in sends:
        stored += len(each)
        wire.write(b"".join(each))
        await clients.broker.until(lambda stored=stored: len(clients.answered["c0"]) == stored)  # type: ignore[misc]
    await clients.broker.until(lambda: sum(len(clients.numbers(name)) for name in CONSUMERS) == stored)
    return [clients.numbers(name) for name in CONSUMERS]


@pytest.mark.parametrize("topic", [{}, {"deduplication_enabled": True}])
def test_ks_4_keyless_messages_spread_one_by_one_too(topic: dict[str, Any]) -> None:
    async def scenario(clients: Clients) -> None:
        one, other = await who_got(clients, [frames(sequence) for sequence in range(40)])
        assert min(len(one), len(other)) >= 10

    with_gateways(scenario, topic=topic)


@pytest.mark.parametrize("topic", [{}, {"deduplication_enabled": True}])
def test_ks_4_all_chunks_of_a_message_go_to_one(topic: dict[str, Any]) -> None:
    async def scenario(clients: Clients) -> None:
        got = await who_got(clients, [frames(sequence, 3) for sequence in range(12)])
        assert all(got)
        for numbers in got:
            assert numbers == sorted(numbers)
        homes = [{number // 10 for number in numbers} for numbers in got]
        assert homes[0].isdisjoint(homes[1])

    with_gateways(scenario, topic=topic)
