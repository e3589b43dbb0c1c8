"""With deduplication: what was refused may come again mended, and what is confirmed is stored, also in chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluice.actors.pulsar.codec.protocol import ServerError
from sluice.actors.pulsar.conversation.producing.sequence_spans import MOST_SPANS, Numbers, end_of, last_complete
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.sim.worlds.wire import Wire, batch_frame, chunk_frames, damaged

ONE = 0
TOPIC: dict[str, Any] = {"deduplication_enabled": True}
Scenario = Callable[[Clients, Wire], Any]


def deduplicated(scenario: Scenario) -> None:
    """Play it with a producer on a topic with deduplication."""

    async def play(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.producer(wire, "till", SHARED)
        await scenario(clients, wire)

    with_gateways(play, topic=TOPIC)


def frame(number: int, *, key: bytes = b"k") -> bytes:
    """A SEND of one message, whose text is its sequence id."""
    return batch_frame(0, number, [(key, number)], now=1, due=0, by_key=False)


async def stored(clients: Clients, *expected: int) -> None:
    """Check that the topic has the expected messages, in this order, and nothing else."""
    reader = await clients.join("reader", GATEWAYS[1])
    await clients.consumer(reader, ONE, "r")
    await clients.broker.until(lambda: len(clients.numbers("reader")) >= len(expected))
    await clients.broker.quiet(500)
    assert clients.numbers("reader") == [*expected]


@pytest.mark.parametrize("wrong", ["damaged", "key"])
def test_refused_send_is_stored_when_sent_again(wrong: str) -> None:
    """4, 5 and 6 go out together, and 5 cannot be stored. It comes again mended under its number."""

    async def scenario(clients: Clients, wire: Wire) -> None:
        bad = damaged(frame(5)) if wrong == "damaged" else frame(5, key=b"k" * 2_000)
        wire.write(frame(4) + bad + frame(6))
        await clients.broker.until(lambda: bool(clients.ended))
        assert clients.answered["c0"] == [(4, None), (5, ServerError.CHECKSUM)]
        wire.write(frame(5) + frame(6))  # nobody listens until the producer is opened again
        opened = await clients.producer(wire, "till", SHARED)
        assert opened.last_sequence_id == 4
        wire.write(frame(5) + frame(6))
        await clients.broker.until(lambda: len(clients.answered["c0"]) == 4)
        assert clients.answered["c0"][2:] == [(5, None), (6, None)]
        await stored(clients, 4, 5, 6)

    deduplicated(scenario)


def test_a_refused_number_may_be_left_out() -> None:
    """Then it is not stored, and is refused when it comes after all: what is stored above it says nothing of it."""

    async def scenario(clients: Clients, wire: Wire) -> None:
        wire.write(frame(4) + damaged(frame(5)) + frame(6))
        await clients.broker.until(lambda: bool(clients.ended))
        await clients.producer(wire, "till", SHARED)
        wire.write(frame(6) + frame(5) + frame(6) + frame(7))
        await clients.broker.until(lambda: len(clients.answered["c0"]) == 6)
        assert clients.answered["c0"][2:] == [(6, None), (5, ServerError.CHECKSUM), (6, None), (7, None)]
        await stored(clients, 4, 6, 7)

    deduplicated(scenario)


def test_chunks_that_come_again_are_stored_once() -> None:
    """Some of a message before its producer is opened again, and all of them afterwards."""

    async def scenario(clients: Clients, wire: Wire) -> None:
        chunks = chunk_frames(0, 1, [(b"k", 10), (b"k", 11), (b"k", 12)], now=1)
        wire.write(frame(0) + chunks[0] + chunks[1])
        await clients.broker.until(lambda: len(clients.answered["c0"]) == 3)
        await wire.ask("close_producer", producer_id=0)
        opened = await clients.producer(wire, "till", SHARED)
        assert opened.last_sequence_id == 0, "of the message in chunks one is missing"
        wire.write(b"".join((*chunks, *chunks, frame(2))))
        await clients.broker.until(lambda: len(clients.answered["c0"]) == 10)
        assert {error for _, error in clients.answered["c0"]} == {None}
        await stored(clients, 0, 10, 11, 12, 2)

    deduplicated(scenario)


def test_a_damaged_chunk_stops_those_behind_it() -> None:
    async def scenario(clients: Clients, wire: Wire) -> None:
        chunks = chunk_frames(0, 0, [(b"k", 10), (b"k", 11), (b"k", 12)], now=1)
        wire.write(chunks[0] + damaged(chunks[1]) + chunks[2])
        await clients.broker.until(lambda: bool(clients.ended))
        await clients.producer(wire, "till", SHARED)
        wire.write(chunks[1] + chunks[2])
        await clients.broker.until(lambda: len(clients.answered["c0"]) == 4)
        await stored(clients, 10, 11, 12)

    deduplicated(scenario)


def late(clients: Clients, number: int) -> bytes:
    """A SEND of one message that the topic refuses: it is delayed by too much."""
    due = clients.broker.ports.clock.now() + 60_000
    return batch_frame(0, number, [(b"k", number)], now=1, due=due, by_key=False)


@pytest.mark.parametrize("gathered", [False, True], ids=["one by one", "in one read"])
@pytest.mark.parametrize("first", [4, 40], ids=["few", "many"])
def test_send_refused_by_the_topic_stops_later_ones(first: int, gathered: bool) -> None:
    """The topic says no when the runs behind that one are under way already. What is before it is stored."""

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.producer(wire, "till", SHARED)
        frames = [*map(frame, range(first)), late(clients, first), frame(first + 1)]
        for one in [b"".join(frames)] if gathered else frames:
            wire.write(one)
            await clients.broker.quiet(1)
        await clients.broker.until(lambda: bool(clients.ended))
        fine: list[tuple[int, int | None]] = [(number, None) for number in range(first)]
        assert clients.answered["c0"] == [*fine, (first, ServerError.CHECKSUM)]
        await clients.producer(wire, "till", SHARED)
        wire.write(frame(first) + frame(first + 1))
        await clients.broker.until(lambda: clients.answered["c0"][-1] == (first + 1, None))
        await stored(clients, *range(first + 2))

    with_gateways(scenario, topic=TOPIC | {"max_delay_ms": 1_000})


@pytest.mark.parametrize("count", [5, 50], ids=["few", "many"])
@pytest.mark.parametrize("refused", [{0}, {3}, {2, 4}])
def test_send_refused_by_the_topic_fails_alone(refused: set[int], count: int) -> None:
    """Without deduplication. The frames were read at once, and are published together."""

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.producer(wire, "till", SHARED)
        wire.write(b"".join(late(clients, n) if n in refused else frame(n) for n in range(count)))
        await clients.broker.until(lambda: len(clients.answered["c0"]) == count)
        said = dict(clients.answered["c0"])
        assert said == {number: ServerError.CHECKSUM if number in refused else None for number in range(count)}
        await stored(clients, *(number for number in range(count) if number not in refused))

    with_gateways(scenario, topic={"max_delay_ms": 1_000})


def test_a_mark_in_the_midst_of_chunks_is_not_complete() -> None:
    assert last_complete(-1) == -1
    assert last_complete(end_of(7)) == 7
    assert last_complete(end_of(7) + 2) == 7


def test_skipped_numbers_are_not_covered() -> None:
    """However many are skipped: what is forgotten counts as not sent."""
    numbers = Numbers()
    for number in range(0, 4 * MOST_SPANS, 2):
        numbers.add(number << 16, end_of(number))
    last = 4 * MOST_SPANS - 2
    assert numbers.cover(last << 16, end_of(last))
    assert not numbers.cover(last - 1 << 16, end_of(last - 1))
    assert not numbers.cover(0, end_of(0))
    assert len(numbers._spans) == MOST_SPANS
