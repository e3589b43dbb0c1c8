"""Commands that take long, or become large, are taken up in parts, by their real size and not by a claimed one."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from sluice.actors.messages import SubscriptionSettings
from sluice.actors.pulsar.codec.compression import MAX_INFLATED, ZSTD
from sluice.actors.pulsar.codec.frames import encode, encode_message
from sluice.actors.pulsar.codec.protocol import Metadata, command
from sluice.actors.pulsar.codec.send_decoder import GROUP_BYTES
from sluice.actors.pulsar.conversation.client_connection import ClientConnection
from sluice.actors.pulsar.conversation.consuming.wire_consumer import WireConsumer
from sluice.actors.pulsar.conversation.limits.intake import PENDING_BYTES
from sluice.actors.pulsar.conversation.producing.wire_producer import WireProducer
from tests.actors.pulsar.conversation.limits.test_intake import Slow, Topic, passes, played
from tests.sim.world import World


def inflating(producer: int, size: int) -> bytes:
    """Return a SEND of one message whose few bytes inflate to `size`."""
    small = pa.Codec("zstd").compress(bytes(size), asbytes=True)
    metadata = Metadata(
        producer_name=b"p", sequence_id=1, publish_time=1, compression=ZSTD, uncompressed_size=size
    ).SerializeToString()
    asked = command("send", producer_id=producer, sequence_id=1, num_messages=1)
    return encode_message(asked.SerializeToString(), metadata, small)


def test_sends_count_at_their_inflated_size() -> None:
    """With one producer or several, no more is taken up at once than may be under way."""

    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        topic, count = Topic(False), 100
        connection.producers = dict.fromkeys(range(count), cast(WireProducer, topic))
        connection.data(b"".join(inflating(number, MAX_INFLATED) for number in range(count)))
        most = PENDING_BYTES + GROUP_BYTES + MAX_INFLATED
        assert PENDING_BYTES < topic.all * MAX_INFLATED <= most
        assert topic.most * MAX_INFLATED <= GROUP_BYTES + MAX_INFLATED
        assert wire.stopped()
        while topic.sizes:
            connection.settled(topic.sizes.pop(0))
            await passes(world, 1_000)
            assert sum(topic.sizes) <= most + GROUP_BYTES
        assert topic.all == count

    played(scenario)


class Listener:
    """A consumer that counts the ids of acknowledgements that it is handed, and when that was."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.asked = SimpleNamespace(settings=SubscriptionSettings(type="shared"))
        self.ids: list[tuple[int, int]] = []
        """(Moment, how many.)"""
        self.confirmations = 0

    def acknowledge_sent(self, ids: Sequence[bytes], *, cumulative: bool) -> list[Any]:
        """See WireConsumer."""
        self.ids.append((self._world.loop.now, len(ids)))
        return []

    async def acknowledge(self, ids: list[Any], *, cumulative: bool) -> list[int]:
        """See WireConsumer."""
        return []

    async def stand_alone(self, positions: list[int]) -> bool:
        """See WireConsumer."""
        return True

    async def confirmed(self) -> None:
        """See WireConsumer."""
        self.confirmations += 1

    @property
    def most(self) -> int:
        """How many came in one moment, at most."""
        return max(sum(count for at, count in self.ids if at == moment) for moment, _ in self.ids)


@pytest.mark.parametrize(("commands", "each"), [(1, 80_000), (5, 16_000), (20, 4_000), (40, 500)])
def test_acknowledgements_of_many_ids_are_taken_up_in_turns(commands: int, each: int) -> None:
    """In one command or in several; all of them are, and each has its answer."""

    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        wire.reads = True
        consumer = Listener(world)
        connection.consumers[1] = cast(WireConsumer, consumer)
        ids = [{"ledger": 5, "entry": number} for number in range(each)]
        ack = encode(command("ack", consumer_id=1, ack_type=0, request_id=1, message_id=ids))
        connection.data(ack * commands)
        while consumer.confirmations < commands:
            await passes(world, 100)
        assert sum(count for _, count in consumer.ids) == commands * each
        assert consumer.most <= 10_000
        assert wire.said().count("ack_answer") == commands
        connection.consumers.clear()

    played(scenario)
