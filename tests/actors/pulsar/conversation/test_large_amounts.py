"""Commands that take long, or become large, are taken up in parts, by their real size and not by a claimed one."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from sluice.actors.messages import SubscriptionSettings
from sluice.actors.pulsar.codec import send_decoder
from sluice.actors.pulsar.codec.compression import MAX_INFLATED, ZSTD
from sluice.actors.pulsar.codec.frames import U32, encode, encode_message
from sluice.actors.pulsar.codec.protocol import Metadata, Single, command
from sluice.actors.pulsar.codec.send_decoder import GROUP_BYTES, PIECE_MESSAGES, Send, decode_sends
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


@pytest.mark.parametrize("speaks", [True, False])
@pytest.mark.parametrize("sizes", [[65_000], [3_000] * 10, [1_000] * 20])
def test_batches_of_many_messages_are_decoded_in_turns(
    sizes: list[int], speaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their time is bounded by the messages in them, of one large frame or of several that are small compressed."""
    decoded: list[int] = []
    columns = send_decoder._columns

    def counted(plain: Any, counts: Any) -> Any:
        decoded.append(int(counts.sum()))
        return columns(plain, counts)

    monkeypatch.setattr(send_decoder, "_columns", counted)

    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        gateway = connection.gateway
        topic = Decoding()
        connection.producers[1] = cast(WireProducer, topic)
        frames = [compressed_batch(number, count) for number, count in enumerate(sizes)]
        if speaks:
            gateway.speakers.heard(object(), gateway.ports.clock.monotonic())
        connection.data(b"".join(frames))
        assert not (speaks and max(sizes) > PIECE_MESSAGES and topic.rows)
        while sum(topic.rows) < sum(sizes):
            await passes(world, 10)
            if speaks:
                gateway.speakers.heard(object(), gateway.ports.clock.monotonic())
        assert topic.order == list(range(len(sizes)))
        assert max(decoded) <= PIECE_MESSAGES + max(size for size in [0, *sizes] if size < PIECE_MESSAGES)
        await passes(world, 10)
        assert not wire.stopped()

    played(scenario)


def test_large_frame_of_a_closed_producer_gives_its_room_back() -> None:
    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        topic = Decoding()
        connection.producers[1] = cast(WireProducer, topic)
        connection.gateway.speakers.heard(object(), connection.gateway.ports.clock.monotonic())
        connection.data(compressed_batch(0, 65_000))
        assert connection.gateway.held.total > 0
        topic.closed = True
        await passes(world, 2_000)
        assert (topic.rows, connection.gateway.held.total, wire.stopped()) == ([], 0, False)

    played(scenario)


class Decoding(Topic):
    """A producer that decodes what it is handed."""

    closed = False

    def __init__(self) -> None:
        super().__init__(takes=False)
        self.rows: list[int] = []
        self.order: list[int] = []

    def send(self, sends: list[Send], size: int) -> None:
        """See WireProducer."""
        groups = decode_sends(sends, now=1, producer="p")
        self.rows += [len(group.batch) for group in groups]
        self.order += [send.command.sequence_id for send in sends]


def compressed_batch(number: int, count: int) -> bytes:
    """Return a SEND of so many messages with nine properties, which few bytes become."""
    one = Single(payload_size=0)
    for name in range(9):
        one.properties.add(key=b"%d" % name, value=b"v")
    head = one.SerializeToString()
    payload = (U32.pack(len(head)) + head) * count
    metadata = Metadata(producer_name=b"p", sequence_id=number, publish_time=1, num_messages=count, compression=ZSTD)
    metadata.uncompressed_size = len(payload)
    asked = command("send", producer_id=1, sequence_id=number, num_messages=count)
    small = pa.Codec("zstd").compress(payload, asbytes=True)
    return encode_message(asked.SerializeToString(), metadata.SerializeToString(), small)
