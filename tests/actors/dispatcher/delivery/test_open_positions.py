"""Messages that a defect took out of every table come all the same, and are counted."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.actors.dispatcher import Dispatcher
from sluice.actors.dispatcher.delivery.open_positions import LOOK_MS
from sluice.storage.format.position import EARLIEST, Positions
from tests.scenarios.key_shared.broker import Broker, play
from tests.sim.loop import SimFailure
from tests.sim.runner import fail_where_lost

TWO_LOOKS = 3 * LOOK_MS


def dispatcher_of(broker: Broker) -> Dispatcher:
    """The only one."""
    (name,) = broker.world.alive("dispatcher-")
    actor = broker.world.process(name).actor
    assert isinstance(actor, Dispatcher)
    return actor


def open_in(dispatcher: Dispatcher) -> Positions:
    """Return the open positions of one ledger."""
    return dispatcher.parts.context.cursor.open_from(EARLIEST, dispatcher.parts.reader.end, 1_000)


@pytest.mark.parametrize("delay_key_policy", ["pass", "block_key"])
@pytest.mark.parametrize("tracker", ["bucket", "memory"])
def test_a_delayed_message_that_no_table_knows_comes(tracker: str, delay_key_policy: str) -> None:
    """The index forgets three of six messages. One of them is due later than the watch needs."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        delays = [10_000, 0, 10_000, 2 * TWO_LOOKS, 10_000, 10_000]
        await broker.publish(*"abcdef", delay=delays)
        await broker.until(lambda: len(client.got) == 1)
        parts = dispatcher_of(broker).parts
        lost = open_in(dispatcher_of(broker))[[0, 2, 3]]
        assert parts.context.tracker.untrack(lost) == 3
        parts.context.core.remove(lost)
        await broker.quiet(20_000)
        assert sorted(client.came()) == ["b", "e", "f"]
        await broker.until(lambda: len(client.got) == 5, TWO_LOOKS)
        assert sorted(client.came()) == ["a", "b", "c", "e", "f"]
        assert (await broker.stats())["msgReadAgainTotal"] == 3
        assert sum(": read_again " in line for line in broker.world.story) == 1
        await broker.until(lambda: len(client.got) == 6, 2 * TWO_LOOKS)
        await broker.quiet(TWO_LOOKS)
        stats = await broker.stats()
        assert (stats["msgBacklog"], stats["msgReadAgainTotal"]) == (0, 3)

    play(scenario, delayed_tracker=tracker, delay_key_policy=delay_key_policy)


def test_a_message_that_the_window_lost_comes_once() -> None:
    """Others of its ledger are held, given back and delayed meanwhile, and come no oftener than they should."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", acking=False, queue=2)
        await broker.publish(*"abcdef")
        await broker.until(lambda: len(client.got) == 6)
        await client.nack(client.got[1], delay=5 * TWO_LOOKS)
        dispatcher = dispatcher_of(broker)
        lost = np.array([client.got[4].position])
        client.ack(*client.got[2:4])
        core = dispatcher.parts.context.core
        core.acknowledge(lost)
        await broker.quiet(TWO_LOOKS)
        assert client.came() == [*"abcdef", "e"]
        assert dispatcher.parts.open_positions.read_again == 1

    play(scenario)


def test_a_message_read_again_fails_a_world() -> None:
    async def scenario(broker: Broker) -> None:
        fail_where_lost(broker.world)
        client = await broker.join("c", acking=False)
        await broker.publish("a")
        await broker.until(lambda: len(client.got) == 1)
        dispatcher_of(broker).parts.context.core.acknowledge(open_in(dispatcher_of(broker)))
        await broker.quiet(TWO_LOOKS)

    with pytest.raises(SimFailure, match="L3"):
        play(scenario)


def test_a_position_between_two_tables_for_one_look_is_not_lost() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.join("c")
        await broker.publish("a", delay=10 * LOOK_MS)
        await broker.until(lambda: bool(len(open_in(dispatcher_of(broker)))))
        parts = dispatcher_of(broker).parts
        there = open_in(dispatcher_of(broker))
        tracker, watch = parts.context.tracker, parts.open_positions
        tracker.untrack(there)
        await broker.until(lambda: bool(len(watch._suspected)), 2 * LOOK_MS)
        due = np.array([parts.context.ports.clock.now() + 5 * LOOK_MS])
        assert tracker.add(there, np.ones(1, np.uint32), due, parts.context.ports.clock.now()).all()
        await broker.quiet(2 * LOOK_MS)
        assert (watch.read_again, len(watch._suspected)) == (0, 0)

    play(scenario)
