"""A batch whose rest came later, at a gateway that has to know what of it another consumer has done meanwhile."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from actors.pulsar.conversation.batch_reassembly import PATIENCE_MS
from storage.position import Positions
from tests.actors.pulsar.test_whole_batches import FAILOVER, of_sluice, with_room
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.sim.worlds.wire import message_id


@pytest.mark.parametrize("slow", [0, 50, 300])
def test_what_was_joined_is_asked_about_as_well(slow: int) -> None:
    """One message, and a batch of ten of which the first five, the next three and the last two come one after the
    other. slow: how long (ms) the owner takes to say what is done.
    """

    async def scenario(clients: Clients) -> None:
        wire, other = [await clients.join(f"c{number}", GATEWAYS[number]) for number in range(2)]
        await clients.producer(other, "till", SHARED)
        await clients.send_batch(other, "c1", 1)
        await clients.send_batch(other, "c1", 10)
        own, part = await of_sluice(clients, "failover", 11)
        positions = np.concatenate([piece.positions for piece in own])
        for first, end, delay in [(0, 1, 700), (6, 9, 1_000), (9, 11, 2_500)]:
            for piece in own:
                rows = np.flatnonzero(np.isin(piece.positions, positions[first:end]) & piece.open)
                if len(rows):
                    await part.negative_acknowledge(piece, rows, delay)
        await part.close()
        await with_room(clients, wire, FAILOVER, 100, "b")
        consumer = wire._end.other.reader.consumers[0]  # type: ignore[union-attr]
        await clients.broker.quiet(200)
        consumer.choke(True)  # its client reads nothing
        await clients.broker.quiet(1_200)
        await with_room(clients, other, FAILOVER, 100, "a")  # which is active from now on
        await clients.broker.until(lambda: len(clients.numbers("c1")) == 11, 20_000)
        for one in clients.ids["c1"]:
            await other.ask("ack", consumer_id=0, message_id=[message_id(one)])
        still_open = consumer._part.batches.still_open

        async def answered_late(asked: Positions) -> Positions:
            await clients.broker.quiet(slow)
            return cast(Positions, await still_open(asked))

        consumer._part.batches.still_open = answered_late
        consumer.choke(False)
        await clients.broker.quiet(2 * PATIENCE_MS)
        assert clients.numbers("c0") == []

    with_gateways(scenario)
