"""Frames of several producers that were read together are published together, and stay in order if that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluice.actors.ports import Ports, Unknown
from sluice.actors.producer import producer, waves
from sluice.actors.pulsar.codec.frames import encode_message
from sluice.actors.pulsar.codec.loop_decoder import VECTORIZED_FROM
from sluice.actors.pulsar.codec.protocol import Metadata, ServerError, command
from sluice.actors.pulsar.codec.send_decoder import hash_without_key
from sluice.actors.pulsar.conversation.producing import joint_sends
from sluice.actors.runtime import waiting
from sluice.storage.errors import Conflict, SluiceError
from sluice.storage.format.frame import MAX_SEGMENTS
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.sim.worlds.wire import Wire, batch_frame

PRODUCERS = 5


class Publishes:
    """The number of producers in each run that was published. first: takes the place of the first outcome, if it is
    not None.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: Unknown | SluiceError | None = None) -> None:
        self.joint: list[int] = []
        self.alone = 0
        asked = waiting.ask

        def ask(ports: Ports, to: str, request: Any, timeout: int, on_answer: Callable[[Any], None]) -> None:
            self.joint.append(len(request.producers))
            replaced = first if len(self.joint) == 1 else None
            asked(ports, to, request, timeout, on_answer if replaced is None else lambda _: on_answer(replaced))

        def ask_alone(*given: Any) -> None:
            self.alone += 1
            asked(*given)

        monkeypatch.setattr(waves, "ask", ask)
        monkeypatch.setattr(producer, "ask", ask_alone)


def frame(number_of: int, number: int, *, key: bytes | None = b"k", due: int = 0) -> bytes:
    """A SEND of one message, whose text is its number."""
    if key is not None:
        return batch_frame(number_of, number, [(key, number)], now=1, due=due, by_key=False)
    metadata = Metadata(producer_name=b"model", sequence_id=number, publish_time=1)
    told = command("send", producer_id=number_of, sequence_id=number, num_messages=1)
    return encode_message(told.SerializeToString(), metadata.SerializeToString(), b"%d" % number)


async def joined(clients: Clients, count: int = PRODUCERS) -> Wire:
    """A client with this many producers on the one partition."""
    wire = await clients.join("c0", GATEWAYS[0])
    for number in range(count):
        await clients.producer(wire, f"till-{number}", SHARED, producer_id=number)
    return wire


async def stored(clients: Clients, count: int) -> list[int]:
    """The numbers of all messages that are stored, in their order; there must be so many."""
    reader = await clients.join("reader", GATEWAYS[1])
    await clients.consumer(reader, 0, "r")
    await clients.broker.until(lambda: len(clients.numbers("reader")) >= count)
    await clients.broker.quiet(500)
    return clients.numbers("reader")


def test_producers_that_wait_publish_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Publishes(monkeypatch)

    async def scenario(clients: Clients) -> None:
        wire = await joined(clients)
        for turn in range(3):
            wire.write(b"".join(frame(number, 10 * turn + number) for number in range(PRODUCERS)))
            await clients.broker.until(lambda: len(clients.receipts) == PRODUCERS * (turn + 1))  # noqa: B023
        assert asked.joint == 3 * [PRODUCERS]
        assert asked.alone == 0
        came = await stored(clients, 3 * PRODUCERS)
        assert sorted(came) == [10 * turn + number for turn in range(3) for number in range(PRODUCERS)]

    with_gateways(scenario, vectorized_from=VECTORIZED_FROM)


@pytest.mark.parametrize(
    "outcome",
    [Conflict("somebody must come alone"), Unknown("nobody answered"), None],
    ids=["refused", "unknown", "fine"],
)
def test_later_frames_wait_behind_the_joint_ones(monkeypatch: pytest.MonkeyPatch, outcome: Any) -> None:
    """The outcome of the first attempt is another one than the owner gave; what is stored already is not stored twice.

    While it is under way each producer sends one more message, and one that is refused at once.
    """
    asked = Publishes(monkeypatch, outcome)

    async def scenario(clients: Clients) -> None:
        wire = await joined(clients)
        wire.write(b"".join(frame(number, number) for number in range(PRODUCERS)))
        wire.write(b"".join(frame(number, 10 + number) for number in range(PRODUCERS)))
        wire.write(b"".join(frame(number, 20 + number, key=b"k" * 2_000) for number in range(PRODUCERS)))
        await clients.broker.until(lambda: len(clients.answered["c0"]) == 3 * PRODUCERS)
        for number in range(PRODUCERS):
            own = [said for said in clients.answered["c0"] if said[0] % 10 == number]
            assert own == [(number, None), (10 + number, None), (20 + number, ServerError.CHECKSUM)]
        came = await stored(clients, 2 * PRODUCERS)
        assert sorted(came) == [*range(PRODUCERS), *range(10, 10 + PRODUCERS)]
        for number in range(PRODUCERS):
            assert came.index(number) < came.index(10 + number)

    with_gateways(scenario, vectorized_from=VECTORIZED_FROM)
    assert asked.joint


def test_one_message_is_refused_then_the_others_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Publishes(monkeypatch)

    async def scenario(clients: Clients) -> None:
        wire = await joined(clients)
        late = clients.broker.ports.clock.now() + 60_000
        wire.write(b"".join(frame(number, number, due=late * (number == 2)) for number in range(PRODUCERS)))
        await clients.broker.until(lambda: len(clients.answered["c0"]) == PRODUCERS)
        assert dict(clients.answered["c0"]) == {n: ServerError.CHECKSUM if n == 2 else None for n in range(PRODUCERS)}
        assert sorted(await stored(clients, PRODUCERS - 1)) == [0, 1, 3, 4]

    with_gateways(scenario, topic={"max_delay_ms": 1_000}, vectorized_from=VECTORIZED_FROM)
    assert asked.joint


def test_a_closed_producer_gets_no_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others, with which its message was under way, get theirs."""
    start, closed = joint_sends.JointSends.start, list[int]()

    def started(joint: joint_sends.JointSends) -> None:
        start(joint)
        joint._several[0][0].close()
        closed.append(joint._several[0][0].number)

    monkeypatch.setattr(joint_sends.JointSends, "start", started)

    async def scenario(clients: Clients) -> None:
        wire = await joined(clients)
        wire.write(b"".join(frame(number, number) for number in range(PRODUCERS)))
        await clients.broker.quiet(1_000)
        assert closed
        others = {*range(PRODUCERS)} - {*closed}
        assert sorted(number for number, _ in clients.answered["c0"]) == sorted(others)
        assert others <= {*await stored(clients, len(others))}

    with_gateways(scenario, vectorized_from=VECTORIZED_FROM)


def test_messages_without_keys_are_spread_by_their_own_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they would be if each had come alone."""
    made: set[int] = set()
    start = joint_sends.JointSends.start

    def started(joint: joint_sends.JointSends) -> None:
        assert joint.head is not None
        made.update(joint.head.batch.hashes.tolist())
        start(joint)

    monkeypatch.setattr(joint_sends.JointSends, "start", started)

    async def scenario(clients: Clients) -> None:
        wire = await joined(clients)
        wire.write(b"".join(frame(number, number, key=None) for number in range(PRODUCERS)))
        await clients.broker.until(lambda: len(clients.receipts) == PRODUCERS)

    with_gateways(scenario, vectorized_from=VECTORIZED_FROM)
    assert made == {hash_without_key(f"till-{number}", number) for number in range(PRODUCERS)}


def test_more_producers_than_a_run_holds_then_several_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, count = Publishes(monkeypatch), MAX_SEGMENTS + 7

    async def scenario(clients: Clients) -> None:
        wire = await joined(clients, count)
        wire.write(b"".join(frame(number, number) for number in range(count)))
        await clients.broker.until(lambda: len(clients.receipts) == count)
        assert sorted(await stored(clients, count)) == [*range(count)]

    with_gateways(scenario, vectorized_from=VECTORIZED_FROM)
    assert sorted(asked.joint) == [7, MAX_SEGMENTS]


def test_a_producer_alone_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Publishes(monkeypatch)

    async def scenario(clients: Clients) -> None:
        wire = await joined(clients, 1)
        wire.write(frame(0, 0) + frame(0, 1))
        await clients.broker.until(lambda: len(clients.receipts) == 2)

    with_gateways(scenario, vectorized_from=VECTORIZED_FROM)
    assert asked.joint == []
    assert asked.alone
