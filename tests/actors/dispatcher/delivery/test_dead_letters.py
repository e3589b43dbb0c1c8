"""The additions to a dead letter, and the work that waits for it. World dead_letters shows that none is lost."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.dispatcher.delivery.dead_letters import DeadLetterMover, _with_origin
from sluice.actors.dispatcher.delivery.subscription import PartitionSubscription
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import SubscriptionSettings
from sluice.storage.format.batch import make_batch
from sluice.storage.format.position import position
from tests.scenarios.key_shared.broker import Broker, play
from tests.sim.world import World

KIND = pa.map_(pa.string(), pa.string())


def _received(properties: pa.Array | None) -> Received:
    columns = {"key": pa.array(["a", "b", "c"]), "payload": pa.array(["1", "2", "3"])}
    if properties is not None:
        columns["properties"] = properties
    rows = make_batch(pa.table(columns), now=5, producer="p").rows
    at = np.array([position(3, 7), position(3, 8), position(4, 0)])
    zeros = np.zeros(3, np.int64)
    return Received(rows, 2, at, zeros, zeros.astype(np.uint8), zeros, 1, 1)


def _origin(place: str) -> list[tuple[str, str]]:
    return [("REAL_TOPIC", "orders"), ("ORIGIN_MESSAGE_ID", place)]


def test_a_dead_letter_tells_where_it_comes_from() -> None:
    rows = _with_origin(_received(None), "orders")
    assert rows.column("properties").to_pylist() == [_origin("3:7:2"), _origin("3:8:2"), _origin("4:0:2")]
    assert rows.column("payload").to_pylist() == [b"1", b"2", b"3"]
    assert make_batch(rows, now=9, producer="q").rows.column("publish_time").to_pylist() == [5, 5, 5]


def test_dead_letter_keeps_properties_and_an_earlier_origin() -> None:
    earlier = [("x", "y"), ("REAL_TOPIC", "first"), ("ORIGIN_MESSAGE_ID", "1:1:0")]
    received = _received(pa.array([[("a", "b"), ("c", "d")], None, earlier], KIND))
    told = [[("a", "b"), ("c", "d"), *_origin("3:7:2")], _origin("3:8:2"), earlier]
    assert _with_origin(received, "orders").column("properties").to_pylist() == told
    cut = replace(received, rows=received.rows.slice(1), positions=received.positions[1:])
    assert _with_origin(cut, "orders").column("properties").to_pylist() == told[1:]


def test_a_message_with_one_of_its_origins_gets_the_other_one() -> None:
    topic, place = ("REAL_TOPIC", "first"), ("ORIGIN_MESSAGE_ID", "1:1:0")
    rows = _with_origin(_received(pa.array([[topic], [("x", "y"), place], []], KIND)), "orders")
    assert rows.column("properties").to_pylist() == [
        [topic, ("ORIGIN_MESSAGE_ID", "3:7:2")],
        [("x", "y"), place, ("REAL_TOPIC", "orders")],
        _origin("4:0:2"),
    ]


class _Core:
    """A core without dead messages that counts how often it is asked for them."""

    asked = 0

    def dead_letters(self) -> list[int]:
        self.asked += 1
        return []


def test_one_move_goes_at_a_time() -> None:
    core, nothing = _Core(), cast(Any, None)

    async def run(world: World) -> None:
        ports = world.client("dispatcher")
        context: Any = SimpleNamespace(
            ports=ports,
            directory=Directory(ports, "controller"),
            core=core,
            runs=nothing,
            identity=PartitionSubscription("orders", 0, "billing"),
            settings=SubscriptionSettings(),
            payloads=lambda: nothing,
            store=nothing,
        )
        letters = DeadLetterMover(context, nothing)
        letters.wake()
        letters.wake()
        await world.loop.pause(1)
        assert core.asked == 1
        letters.wake()
        await world.loop.pause(1)
        assert core.asked == 2

    World(1).play(run)


def test_a_key_waits_until_its_dead_letter_is_durably_done() -> None:
    """With `nack_order=key`, the next owner would send the message again, behind later ones of its key."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", queue=1, acking=False, taking=False)

        async def fail() -> None:
            message = client.got[-1]
            broker.world.background(client.nack(message), "nack")
            await broker.quiet(500)  # else the permit is there first
            client.parts[0].taken(message.part)
            await broker.quiet(500)

        await broker.publish("k", "k", "k")
        await broker.until(lambda: len(client.got) == 1)
        for _ in range(3):  # the dead letter topic is there now
            await fail()
        assert [message.number for message in client.got] == [0, 0, 1, 1]
        broker.world.meta.trouble.cut["broker"] = 1
        await fail()
        assert len(client.got) == 4, "it is not durable that it has left"
        client.crash()
        broker.world.crash(broker.world.alive("dispatcher-")[0])
        broker.world.meta.trouble.cut.clear()
        last = await broker.join("d")
        await broker.until(lambda: 2 in [message.number for message in last.got], 60_000)
        assert [message.number for message in last.got] == [1, 2]

    play(scenario, lease_ms=20_000, nack_order="key", max_redeliver_count=1)
