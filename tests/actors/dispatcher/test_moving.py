"""Moving a subscription: where a skip ends, and what an outage leaves of a seek or of a cleared backlog."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.directory import Directory
from actors.dispatcher.moving import behind
from actors.messages import Admin, Ends, SubscriptionSettings, TopicSettings
from storage.cursor import Cursor
from storage.errors import Unavailable
from storage.position import position
from tests.sim.world import World
from tests.sim.worlds.broker import CONTROLLER, SUBSCRIPTION, TOPIC, Course, Size
from tests.sim.worlds.clients import Traffic


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=4),
    st.sets(st.integers(0, 23)),
    st.integers(1, 30),
)
def test_a_skip_counts_messages_that_are_not_done_over_ledger_ends(
    counts: list[int], done: set[int], messages: int
) -> None:
    """Whatever the ledgers hold (also nothing) and whatever is acknowledged: exactly so many, or all there are."""
    every = [position(ledger * 2 + 1, entry) for ledger, count in enumerate(counts) for entry in range(count)]
    chain: list[tuple[int, int | None]] = [(ledger * 2 + 1, count - 1) for ledger, count in enumerate(counts)]
    chain[-1] = (chain[-1][0], None)
    cursor = Cursor()
    cursor.chain(chain, complete=True)
    acknowledged = [every[index] for index in sorted(done) if index < len(every)]
    cursor.acknowledge(np.array(acknowledged, np.int64))
    end = position(chain[-1][0], counts[-1])
    ends = Ends(first=position(1, 0), last=every[-1] if every else -1, next=end, ledgers=chain)
    target = behind(cursor, ends, messages)
    open_ones = [at for at in every if at not in set(acknowledged)]
    assert len([at for at in open_ones if at < target]) == min(messages, len(open_ones))
    assert target <= end or not every


@pytest.mark.parametrize(
    ("verb", "arguments"), [("seek", {"message_id": "earliest"}), ("clear_backlog", {})], ids=["seek", "clear"]
)
def test_what_an_outage_of_the_store_interrupts_leaves_nothing_behind(verb: str, arguments: dict[str, Any]) -> None:
    """The operator is told that it did not work out; afterwards everything that is not done is delivered (L1, L3)."""
    settings = SubscriptionSettings(
        initial_position="earliest", delayed_tracker="bucket", delayed_delivery_min_index_count_per_bucket=5
    )
    traffic = Traffic(
        TOPIC, 1, SUBSCRIPTION, settings, CONTROLLER, sends=60, delayed=0.3, delay_ms=2_000, negative=0.0, think_ms=30
    )
    topic = TopicSettings(partitions=1, ensemble=1, write_quorum=1, ack_quorum=1, retention_ms=3_600_000)
    world = World(7)
    size = Size(1, topic, traffic, producers=1, consumers=2, trouble_ms=8_000, dense=False)
    course = Course(world, [], {}, size)
    course.excused |= {"unexplained_redelivery", "acked_redelivered", "lost"}

    async def interrupt() -> None:
        await world.loop.pause(3_000)
        ports = world.client("operator")
        address = await Directory(ports, CONTROLLER).dispatcher(TOPIC, 0, SUBSCRIPTION, settings)
        world.meta.trouble.cut["broker-0"] = 1
        with pytest.raises(Unavailable):
            await ports.net.call(address, Admin(verb=verb, arguments=json.dumps(arguments)), 20_000)
        del world.meta.trouble.cut["broker-0"]
        if verb == "clear_backlog":
            course.past.finish([(send[2], send[3]) for send in course.past.sends])
        course.counters["interrupted"] = 1

    course.begun = lambda: world.background(interrupt(), "an outage")
    world.play(lambda _: course.run())
    assert course.counters["interrupted"] == 1
    assert course.counters["messages"] > 100
