"""What the judge of the gateway's world is told of a delivery beside what is on the wire."""

from __future__ import annotations

from actors.pulsar.codec.frames import encode
from actors.pulsar.codec.protocol import command
from actors.pulsar.conversation.client_connection import ClientConnection
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways


def test_a_frame_is_stamped_though_its_consumer_goes_at_once() -> None:
    """What is said within a millisecond is written together, when the consumer may have been sent away already."""

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.consumer(wire, 1, "a")
        connection = wire._end.other.reader  # type: ignore[union-attr]
        assert isinstance(connection, ClientConnection)
        consumer = connection.consumers[0]
        consumer.choke(True)
        await clients.producer(wire, "till", SHARED)
        await clients.send_batch(wire, "c0", 3)
        await clients.broker.quiet(500)
        connection.write(encode(command("pong")))
        consumer.choke(False)
        connection.send_away(consumer)
        await clients.broker.until(lambda: clients.sent_away == ["c0"])
        assert (clients.numbers("c0"), wire.stamps) == ([0, 1, 2], [])

    with_gateways(scenario)
