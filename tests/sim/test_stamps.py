"""The stamps of deliveries, which the judge of the gateway's world gets beside the wire, and its verdict on them."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.actors.pulsar.codec.frames import encode
from sluice.actors.pulsar.codec.protocol import command
from sluice.actors.pulsar.conversation.client_connection import ClientConnection
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.sim.worlds.gateway import check_order


def test_a_frame_is_stamped_though_its_consumer_goes_at_once() -> None:
    """Frames of the same millisecond are written together, perhaps after their consumer was sent away."""

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


def received(who: str, number: int, dispatch: int, came: int) -> list[Any]:
    """A delivery of a message of one key."""
    return [who, 1, 0, number, b"k", number, 0, 1, dispatch, came]


def test_first_deliveries_are_in_order_as_clients_get_them() -> None:
    """A client may get last what its consumer was sent first, without what the next consumer has done meanwhile."""
    late = [received("a", 6, 2, 30), received("b", 5, 3, 10), received("b", 6, 4, 20)]
    check_order([], late)
    with pytest.raises(AssertionError, match="message 5 of b'k' came first behind message 6"):
        check_order([], [received("b", 6, 4, 10), received("a", 5, 1, 20)])
    check_order([[b"", 0, b"k", 6, 0, 0, "", 0, 0, 7]], [received("b", 6, 4, 10), received("a", 5, 1, 20)])
