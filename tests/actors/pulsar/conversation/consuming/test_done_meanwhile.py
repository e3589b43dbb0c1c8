"""Messages that another Failover consumer has done meanwhile are not sent, wherever at the gateway they wait."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, cast

import numpy as np
import pytest

from sluice.actors.pulsar.conversation.consuming.batch_reassembly import PATIENCE_MS
from sluice.actors.pulsar.conversation.consuming.wire_consumer import SURE_MS
from sluice.storage.format.position import Positions
from tests.actors.pulsar.conversation.consuming.test_whole_batches import FAILOVER, of_sluice, with_room
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.sim.worlds.wire import Wire, message_id


@pytest.mark.parametrize(("room", "chokes"), [(12, False), (100, True), (12, True)])
def test_waiting_row_done_by_another_is_not_sent(room: int, chokes: bool) -> None:
    """On a Failover subscription messages wait for room, or for a client that reads, and another consumer is active
    meanwhile.
    """

    async def scenario(clients: Clients) -> None:
        wire, other = [await clients.join(f"c{number}", GATEWAYS[number]) for number in range(2)]
        await with_room(clients, wire, FAILOVER, room, "b")
        consumer = wire._end.other.reader.consumers[0]  # type: ignore[union-attr]
        await clients.producer(other, "till", SHARED)
        await clients.send_batch(other, "c1", 10)
        await clients.broker.until(lambda: len(clients.numbers("c0")) == 10)
        if room < 20:  # what comes again goes first, and leaves none for what was begun
            wire.say("redeliver", consumer_id=0, message_ids=[message_id(clients.ids["c0"][0])])
            await clients.send_batch(other, "c1", 10)
            await clients.broker.until(lambda: len(clients.numbers("c0")) == 20)
        consumer.choke(chokes)
        if chokes:
            wire.say("flow", consumer_id=0, permits=100)
            await clients.send_batch(other, "c1", 10)
        await clients.broker.quiet(500)
        came, sent = len(clients.numbers("c0")), clients.receipts.count("c1")
        await with_room(clients, other, FAILOVER, 100, "a")
        await clients.broker.until(lambda: len(clients.frames) > 1 and clients.frames["c1"] == sent)
        for one in clients.ids["c1"]:
            await other.ask("ack", consumer_id=0, message_id=[message_id(one)])
        consumer.choke(False)
        wire.say("flow", consumer_id=0, permits=100)
        await clients.broker.quiet(2 * PATIENCE_MS)
        assert len(clients.numbers("c0")) == came

    with_gateways(scenario)


async def waited(clients: Clients, wire: Wire, late: Callable[[], Coroutine[Any, Any, None]]) -> list[np.ndarray]:
    """A message waits until its client reads. Whatever the owner is asked from then on, its answer waits for `late`;
    returns what it is asked about, question by question.
    """
    consumer, asked = wire._end.other.reader.consumers[0], list[np.ndarray]()  # type: ignore[union-attr]
    batches = consumer._part.batches
    still_open = batches.still_open

    async def answer(positions: np.ndarray) -> Any:
        asked.append(positions)
        await late()
        return await still_open(positions)

    batches.still_open = answer
    consumer.choke(True)
    await clients.send(wire, "c0")
    await clients.broker.quiet(2 * SURE_MS)
    consumer.choke(False)
    return asked


def test_an_answer_does_not_cover_what_came_meanwhile() -> None:
    """On a Failover subscription another consumer is active while the owner is asked, and does all messages."""

    async def scenario(clients: Clients) -> None:
        wire, other = [await clients.join(f"c{number}", GATEWAYS[number]) for number in range(2)]
        await with_room(clients, wire, FAILOVER, 100, "b")
        await clients.producer(wire, "till", SHARED)
        done: list[int] = []
        asked = await waited(clients, wire, lambda: clients.broker.until(lambda: len(done) == 2))
        await clients.send(wire, "c0")
        await clients.broker.quiet(2 * SURE_MS)
        assert [len(each) for each in asked] == [1]
        await with_room(clients, other, FAILOVER, 100, "a")
        await clients.broker.until(lambda: clients.frames["c1"] == 2)
        for one in clients.ids["c1"]:
            await other.ask("ack", consumer_id=0, message_id=[message_id(one)])
            done.append(one)
        await clients.broker.quiet(500)
        assert clients.numbers("c0") == []

    with_gateways(scenario)


def test_messages_go_on_while_every_answer_is_slow() -> None:
    """On a Failover subscription messages that come during a question wait so long that they need another one."""

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await with_room(clients, wire, FAILOVER, 1_000)
        await clients.producer(wire, "till", SHARED)
        asked = await waited(clients, wire, lambda: clients.broker.quiet(3 * SURE_MS))
        for _ in range(20):
            await clients.send(wire, "c0")
            await clients.broker.quiet(SURE_MS)
        assert len(clients.numbers("c0")) > 10
        assert 5 < len(asked) < 10, "one question covers all that waits"

    with_gateways(scenario)


@pytest.mark.parametrize("slow", [0, 50, 300])
def test_joined_rows_are_asked_about_as_well(slow: int) -> None:
    """One message comes, and a batch of ten in parts: the first five, the next three, the last two. slow: how long (ms)
    the owner takes to say what is done.
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
