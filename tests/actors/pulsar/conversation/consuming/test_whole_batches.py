"""Subscriptions with all messages at one consumer: whole batches go out; the rows of an id at another gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sluice.actors.consumer.client_batches import BatchAcks
from sluice.actors.consumer.config import ConsumerCallbacks, ConsumerConfig
from sluice.actors.consumer.partition import PartitionConsumer
from sluice.actors.consumer.unacked_messages import UNKNOWN, Received, UnackedMessageTracker
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.pulsar.conversation.consuming.batch_reassembly import (
    PATIENCE_MS,
    BatchReassembler,
    RowRange,
    begun_in,
    goes_on_at,
    leading,
)
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.sim.worlds.wire import Refusal, Wire, message_id

ONE, _, FAILOVER, KEYED = range(4)
LONG_MS = 60_000


def part_of(positions: list[int], index: list[int | None] | None, follows: int = 0) -> Received:
    """Messages at these positions. index: of each, its place in a client's batch."""
    count = len(positions)
    columns = {"key": pa.array([b"k"] * count, pa.large_binary())}
    if index is not None:
        columns["batch_index"] = pa.array(index, pa.int32())
    return Received(
        rows=pa.record_batch(columns),
        partition=0,
        positions=np.array(positions, np.int64),
        dispatch=np.arange(count, dtype=np.int64),
        redeliveries=np.zeros(count, np.uint8),
        deliver_at=np.zeros(count, np.int64),
        epoch=1,
        session=1,
        follows=follows,
    )


@pytest.mark.parametrize(
    ("positions", "open_rows", "row"),
    [
        ([13, 15], [True, True], 0),
        ([11, 15], [True, True], 0),
        ([9, 15], [True, True], 1),
        ([11, 15], [False, True], 1),
        ([9, 11], [True, False], 2),
    ],
    ids=["the_rest", "held_by_another", "an_earlier_batch", "done", "none"],
)
def test_a_begun_batch_goes_on_at_its_first_open_row(positions: list[int], open_rows: list[bool], row: int) -> None:
    """A row that another consumer held may come after later messages of its batch."""
    begun = begun_in(part_of([10, 11, 12], [0, 1, 2], follows=2))
    assert begun is not None
    later = part_of(positions, None)
    later.open = np.array(open_rows)
    assert goes_on_at(begun, later, 0) == row


async def with_room(clients: Clients, wire: Wire, kind: int, permits: int, name: str = "a") -> None:
    """Subscribe, with room for so many messages."""
    asked = {"topic": "orders", "subscription": "pulsar", "type": kind, "consumer_id": 0, "consumer_name": name}
    await wire.ask("subscribe", **asked, initial_position=1)
    wire.say("flow", consumer_id=0, permits=permits)


@pytest.mark.parametrize("kind", [ONE, FAILOVER])
def test_a_batch_for_which_there_is_no_room_goes_whole(kind: int) -> None:
    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await with_room(clients, wire, kind, 3)
        await clients.producer(wire, "till", SHARED)
        await clients.send_batch(wire, "c0", 10)
        await clients.broker.until(lambda: len(clients.numbers("c0")) >= 3)
        await clients.broker.quiet(500)
        assert (clients.numbers("c0"), clients.frames["c0"]) == ([*range(10)], 1)
        await clients.send_batch(wire, "c0", 5)
        await clients.broker.quiet(500)
        assert clients.frames["c0"] == 1, "there is no room"
        wire.say("flow", consumer_id=0, permits=8)
        await clients.broker.until(lambda: clients.frames["c0"] == 2)
        assert len(clients.numbers("c0")) == 15

    with_gateways(scenario)


@pytest.mark.parametrize("kind", [ONE, FAILOVER])
def test_unsent_rows_are_not_acknowledged_elsewhere(kind: int) -> None:
    """A client has what it had room for, its gateway dies, and it is done with that at another one."""

    async def scenario(clients: Clients) -> None:
        first = await clients.join("c0", GATEWAYS[0])
        await with_room(clients, first, kind, 3)
        await clients.producer(first, "till", SHARED)
        await clients.send_batch(first, "c0", 10)
        await clients.broker.until(lambda: len(clients.numbers("c0")) >= 3)
        at = clients.came["c0"][0].position
        clients.broker.world.crash(GATEWAYS[0])
        again = await clients.join("c2", GATEWAYS[1])
        await with_room(clients, again, kind, 0)
        again.say("ack", consumer_id=0, message_id=[message_id(at)])
        again.say("flow", consumer_id=0, permits=1_000)
        await clients.producer(again, "other", SHARED)
        await clients.send(again, "c2")
        everything = {*range(10)}
        await clients.broker.until(lambda: {*clients.numbers("c0"), *clients.numbers("c2")} >= everything, LONG_MS)

    with_gateways(scenario)


async def half_given_back(clients: Clients, wire: Wire, delay: int) -> None:
    """A batch of ten is sent; a consumer of Sluice's own gives the second half back for so many ms, and leaves."""
    await clients.producer(wire, "till", SHARED)
    await clients.send_batch(wire, "c0", 10)
    await given_back(clients, "exclusive", 10, np.arange(5, 10), delay)


async def given_back(clients: Clients, kind: str, count: int, rows: np.ndarray, delay: int) -> None:
    """A consumer of Sluice's own gets so many messages, gives these of them back for so many ms, and leaves."""
    own, part = await of_sluice(clients, kind, count)
    await part.negative_acknowledge(own[0], rows, delay)
    await part.close()


async def of_sluice(clients: Clients, kind: str, count: int) -> tuple[list[Received], PartitionConsumer]:
    """A consumer of Sluice's own, which has got so many messages; of a Failover subscription it is the active one."""
    own: list[Received] = []
    part = PartitionConsumer(
        clients.broker.ports,
        clients.broker.directory,
        ConsumerConfig(
            topic="orders",
            partition=0,
            subscription="pulsar",
            name="a-own",
            incarnation=f"own-{clients.broker.ports.clock.now()}",
            settings=SubscriptionSettings(type=kind, initial_position="earliest"),
            queue_size=100,
        ),
        ConsumerCallbacks(on_received=own.append, on_event=lambda *_: None),
    )
    await part.open()
    await clients.broker.until(lambda: sum(len(each) for each in own) == count)
    return own, part


def test_a_batch_of_two_counts_is_one() -> None:
    """Half of it comes for the second time."""

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await half_given_back(clients, wire, 1_000)
        await clients.broker.quiet(2_000)
        await with_room(clients, wire, ONE, 1_000)
        await clients.broker.until(lambda: clients.numbers("c0") == [*range(10)])
        assert clients.frames["c0"] == 1

    with_gateways(scenario)


@pytest.mark.parametrize("ends", ["gateway", "both"])
def test_a_part_whose_rest_waits_stands_for_nothing_else(ends: str) -> None:
    """A consumer of Sluice's own gave the rest of a batch back for a while, so it does not come with the beginning."""

    async def scenario(clients: Clients) -> None:
        world = clients.broker.world
        first = await clients.join("c0", GATEWAYS[0])
        await half_given_back(clients, first, LONG_MS)
        await with_room(clients, first, ONE, 1_000)
        await clients.broker.until(lambda: clients.numbers("c0") == [*range(5)])
        at = clients.came["c0"][0].position
        world.crash(GATEWAYS[0])
        for name in world.alive("dispatcher-") if ends == "both" else ():
            world.crash(name)
        again = await clients.join("c2", GATEWAYS[1])
        await with_room(clients, again, ONE, 0)
        with pytest.raises(Refusal, match="only a part is known"):
            await again.ask("ack", consumer_id=0, message_id=[message_id(at)])
        again.say("flow", consumer_id=0, permits=1_000)
        await clients.broker.until(lambda: set(clients.numbers("c2")) == {*range(1, 10)}, 2 * LONG_MS)

    with_gateways(scenario)


def test_the_cut_batch_in_the_midst_of_a_part_is_noted() -> None:
    """The next batch comes with the beginning of one whose rest was given back for a while."""

    async def scenario(clients: Clients) -> None:
        world = clients.broker.world
        first = await clients.join("c0", GATEWAYS[0])
        await clients.producer(first, "till", SHARED)
        for _ in range(2):
            await clients.send_batch(first, "c0", 10)
        await given_back(clients, "exclusive", 20, np.arange(5, 10), LONG_MS)
        await with_room(clients, first, ONE, 1_000)
        await clients.broker.until(lambda: len(clients.numbers("c0")) == 15)
        at = clients.came["c0"][0].position
        world.crash(GATEWAYS[0])
        again = await clients.join("c2", GATEWAYS[1])
        await with_room(clients, again, ONE, 0)
        with pytest.raises(Refusal, match="only a part is known"):
            await again.ask("ack", consumer_id=0, message_id=[message_id(at)])

    with_gateways(scenario)


@pytest.mark.parametrize("done", [False, True])
async def test_the_log_says_whether_a_batch_was_cut(done: bool) -> None:
    """The second half of the first batch is not in the part; it is somewhere else, or done."""

    async def still_open(positions: np.ndarray) -> np.ndarray:
        assert positions.tolist() == [*range(5, 10)]
        return positions[:0] if done else positions

    async def run(ledger: int, entry: int) -> SimpleNamespace:
        assert (ledger, entry) == (0, 4)
        return SimpleNamespace(first_entry=0, follows=lambda row: 9 - row)

    works: list[asyncio.Task[None]] = []
    ports: Any = SimpleNamespace(spawn=lambda work, name: works.append(asyncio.ensure_future(work)))
    part: Any = SimpleNamespace(batches=SimpleNamespace(apart=False, still_open=still_open))
    payloads: Any = SimpleNamespace(run=run)
    whole = BatchReassembler(ports, part, payloads, want=lambda _: None, send=lambda: None, idle=lambda: True)
    whole.add(part_of([*range(5), *range(10, 13)], [*range(5), *range(3)]))
    await asyncio.gather(*works)
    assert [(one.first, one.end, one.rest) for one in whole.ready] == [(0, 8, not done)]


async def sent_of(parts: list[Received]) -> list[list[int]]:
    """Return the positions that are sent together when `parts` come; the last part ends the waiting for a rest.

    Once everything was sent, no rows are kept.
    """
    works: list[asyncio.Task[None]] = []
    never = asyncio.Event()

    def spawn(work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.ensure_future(work)
        works.extend([task] if name == "batches" else [])

    async def sleep(_: int) -> None:
        await never.wait()

    ports: Any = SimpleNamespace(spawn=spawn, clock=SimpleNamespace(sleep=sleep))
    part: Any = SimpleNamespace(batches=BatchAcks(ports, lambda: None, UnackedMessageTracker()))
    part.batches.attached(apart=True)  # the log need not say where batches end
    payloads: Any = None
    whole = BatchReassembler(ports, part, payloads, want=lambda _: None, send=lambda: None, idle=lambda: False)
    for each in parts:
        assert not whole.ready, "the rest is waited for"
        whole.add(each)
        await asyncio.gather(*works)
    stretches = [*whole.ready]
    for stretch in stretches:
        assert stretch.part.rows.num_rows, "it is still to be sent"
        whole.ready.popleft()
        whole.let_go(stretch.part, stretch.end)
    assert not any(each.rows.num_rows for each in [*parts, *(stretch.part for stretch in stretches)])
    return [each.part.positions[each.first : each.end].tolist() for each in stretches]


@pytest.mark.parametrize(
    ("positions", "index", "sent"),
    [
        ([2, *range(8, 15)], [None, *range(3, 10)], [[2], [*range(5, 15)]]),
        ([2, *range(8, 15), 20], [None, *range(3, 10), None], [[2], [*range(5, 15)], [20]]),
        ([2, 20], [None, None], [[2], [5, 6, 7], [20]]),
        ([8, 9, 20], [3, 4, None], [[5, 6, 7, 8, 9], [20]]),
        ([2, 20, 8], [None, None, 3], [[2], [5, 6, 7], [20, 8]]),
    ],
)
def test_nothing_overtakes_what_was_begun_of_a_batch(
    positions: list[int], index: list[int | None], sent: list[list[int]]
) -> None:
    """The rest of a batch, or what lies behind it, comes in the middle of a part: the beginning goes first."""
    begun = part_of([5, 6, 7], [0, 1, 2], follows=7)
    assert asyncio.run(sent_of([begun, part_of(positions, index)])) == sent


@pytest.mark.parametrize(
    ("parts", "sent"),
    [
        (
            [([3, 5, 6], [1, 3, 4], 3), ([2], [0], 7), ([4, 7, 8], [2, 5, 6], 1), ([9, 10], [7, None], 0)],
            [[*range(2, 10)], [10]],
        ),
        ([([3, 5, 6], [1, 3, 4], 3), ([0], [0], 1), ([7, 8, 9], [5, 6, 7], 0)], [[0], [3, 5, 6, 7, 8, 9]]),
        ([([3, 5, 6], [1, 3, 4], 3), ([0], [0], 1), ([1, 7, 8, 9], [1, 5, 6, 7], 0)], [[0, 1], [3, *range(5, 10)]]),
    ],
)
def test_rows_held_by_another_come_behind_later_rows(
    parts: list[tuple[list[int], list[int | None], int]], sent: list[list[int]]
) -> None:
    """The held rows join the batch that was begun without them, or go before the end of a later batch."""
    assert asyncio.run(sent_of([part_of(*part) for part in parts])) == sent


def test_done_rows_of_a_batch_are_not_waited_for() -> None:
    """Nor does an id stand for less because of it: all that there was to send was sent."""

    async def scenario(clients: Clients) -> None:
        first = await clients.join("c0", GATEWAYS[0])
        await with_room(clients, first, FAILOVER, 1_000)
        await clients.producer(first, "till", SHARED)
        await clients.send_batch(first, "c0", 10)
        await clients.broker.until(lambda: len(clients.numbers("c0")) == 10)
        at = clients.came["c0"][0].position
        await first.ask("ack", consumer_id=0, message_id=[message_id(at, [*range(8)])])
        await first.ask("close_consumer", consumer_id=0)
        await with_room(clients, first, FAILOVER, 1_000)
        await clients.broker.until(lambda: clients.numbers("c0")[10:] == [*range(8)], PATIENCE_MS // 2)
        clients.broker.world.crash(GATEWAYS[0])
        again = await clients.join("c2", GATEWAYS[1])
        await with_room(clients, again, FAILOVER, 0)
        await again.ask("ack", consumer_id=0, message_id=[message_id(at)])
        again.say("flow", consumer_id=0, permits=1_000)
        await clients.producer(again, "other", SHARED)
        await clients.send(again, "c2")
        await clients.broker.until(lambda: len(clients.numbers("c2")) > 0, LONG_MS)
        assert len(clients.numbers("c2")) == 1, "and nothing of the batch"

    with_gateways(scenario)


@pytest.mark.parametrize("name", ["all", "one"])
def test_batch_given_back_comes_again_whole(name: str) -> None:
    """Also where some of it was not sent yet, and so has another count."""

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await with_room(clients, wire, ONE, 3)
        await clients.producer(wire, "till", SHARED)
        for _ in range(2):
            await clients.send_batch(wire, "c0", 10)
        await clients.broker.until(lambda: len(clients.numbers("c0")) == 10)
        at = clients.came["c0"][0].position
        wire.say("flow", consumer_id=0, permits=9)
        named = {"message_ids": [message_id(at)]} if name == "one" else {}
        wire.say("redeliver", consumer_id=0, **named)
        wire.say("flow", consumer_id=0, permits=20)
        await clients.broker.until(lambda: len(set(clients.numbers("c0")[10:])) == 11)
        await clients.broker.quiet(PATIENCE_MS)
        frames = clients.frames["c0"]
        assert len(clients.numbers("c0")) == 10 * frames, "every frame is a whole batch"

    with_gateways(scenario)


@pytest.mark.parametrize("done", [True, False])
def test_the_beginning_is_not_sent_if_another_did_it(done: bool) -> None:
    """The rest of the batch comes when the first consumer is the active one again. If the other consumer did nothing of
    the batch, the beginning comes again, and is sent once.
    """

    async def scenario(clients: Clients) -> None:
        wire, other = [await clients.join(f"c{number}", GATEWAYS[number]) for number in range(2)]
        await clients.producer(other, "till", SHARED)
        await clients.send_batch(other, "c1", 10)
        await given_back(clients, "failover", 10, np.arange(5, 10), PATIENCE_MS * 3 // 4)
        await with_room(clients, wire, FAILOVER, 100, "b")
        await clients.broker.quiet(200)
        own, part = await of_sluice(clients, "failover", 5)
        for each in own if done else ():
            part.acknowledge(each, np.arange(len(each)))
        await part.wait_confirmed()
        await part.close()
        assert clients.numbers("c0") == [], "the rest is waited for"
        await clients.broker.until(lambda: len(clients.numbers("c0")) > 0, LONG_MS)
        await clients.broker.quiet(2 * PATIENCE_MS)
        assert clients.numbers("c0") == [*range(5 if done else 0, 10)]
        assert not clients.sent_away

    with_gateways(scenario)


@pytest.mark.parametrize(
    ("positions", "index", "room", "end"),
    [
        ([5, 6, 7, 8], [None] * 4, 4, 4),
        ([5, 6, 7, 8], [None] * 4, 2, 2),
        ([5, 6, 7, 8], None, 2, 2),
        ([5, 6, 7, 8], [0, 1, 2, 3], 2, 4),
        ([5, 6, 7, 8, 9], [0, 1, 2, 0, 1], 3, 3),
        ([5, 6, 7, 8, 9], [0, 1, 2, 0, 1], 4, 5),
        ([5, 7, 8], [0, 2, None], 3, 2),
        ([8, 9, 5], [None] * 3, 2, 2),
        ([16, 17, 18], [11, 12, None], 13, 2),
    ],
)
def test_little_room_cuts_behind_whole_batches(
    positions: list[int], index: list[int | None] | None, room: int, end: int
) -> None:
    """Whole batches go out, as long as a batch begins where there is room; done rows within them count."""
    count = len(positions)
    part = part_of(positions, index)
    whole = RowRange(part, 0, count, rest=True)
    sent, left = leading(whole, room)
    if end == count:
        assert (sent, left) == (whole, None)
    else:
        assert (sent, left) == (RowRange(part, 0, end, rest=True), RowRange(part, end, count, rest=True))
        second = RowRange(part, 1, count)
        assert leading(second, 100) == (second, None)


def test_rest_of_a_batch_and_its_first_have_own_ids() -> None:
    """The first message of a batch waits while others of it are at the client, which acknowledges single messages."""

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await with_room(clients, wire, FAILOVER, 1_000)
        await clients.producer(wire, "till", SHARED)
        await clients.send_batch(wire, "c0", 10)
        await clients.broker.until(lambda: len(clients.numbers("c0")) == 10)
        at = clients.came["c0"][0].position
        still = [0, 1, 2, 5, 6]
        await wire.ask("ack", consumer_id=0, message_id=[message_id(at, still)])
        await wire.ask("close_consumer", consumer_id=0)
        await given_back(clients, "failover", len(still), np.arange(1), LONG_MS)
        await with_room(clients, wire, FAILOVER, 1_000)
        await clients.broker.until(lambda: clients.numbers("c0")[10:] == still[1:], LONG_MS)
        await clients.broker.until(lambda: clients.numbers("c0")[10:] == [*still[1:], still[0]], 2 * LONG_MS)
        again = clients.ids["c0"][1:]
        assert len(set(again)) == len(again), "no two frames at the client have one id"
        for one in again:
            await wire.ask("ack", consumer_id=0, message_id=[message_id(one)])
        assert (await clients.broker.stats(subscription="pulsar"))["msgBacklog"] == 0

    with_gateways(scenario)


async def test_batch_end_already_asked_is_not_asked_again() -> None:
    """However long nobody can read the log: clients that come again and again would add to what is asked for."""
    asked, begun, answered, works = list[int](), asyncio.Event(), asyncio.Event(), list[asyncio.Task[None]]()

    async def run(ledger: int, entry: int) -> SimpleNamespace:
        asked.append(entry)
        begun.set()
        await answered.wait()
        return SimpleNamespace(first_entry=0, follows=lambda row: 0)

    async def still_open(positions: np.ndarray) -> np.ndarray:
        return positions

    ports: Any = SimpleNamespace(spawn=lambda work, name: works.append(asyncio.ensure_future(work)))
    part: Any = SimpleNamespace(batches=SimpleNamespace(apart=False, still_open=still_open))
    payloads: Any = SimpleNamespace(run=run)
    whole = BatchReassembler(ports, part, payloads, want=lambda _: None, send=lambda: None, idle=lambda: True)
    first = part_of([*range(5), *range(10, 13)], [*range(5), *range(3)], UNKNOWN)
    for each in (first, part_of([*range(20, 25), 30], [*range(5), 0])):
        whole.add(each)
    await begun.wait()
    whole.clear()
    await asyncio.wait_for(asyncio.gather(*works), 5)
    assert (asked, whole.waiting, bool(first.open.any())) == ([12], 0, False)
    answered.set()
    whole.add(part_of([*range(5), *range(10, 13)], [*range(5), *range(3)], UNKNOWN))
    await asyncio.gather(*works)
    assert [(one.first, one.end, one.rest) for one in whole.ready] == [(0, 8, False)]
