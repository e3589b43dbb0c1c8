"""The contents of a subscription's record. A new owner begins with all of them."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest

from sluice.actors.dispatcher import Dispatcher
from sluice.actors.messages import LocateSubscription, Suspect
from sluice.storage.errors import Corrupt
from sluice.storage.format.position import position
from tests.actors.dispatcher.test_rejoin import new_owner
from tests.scenarios.key_shared.broker import CONTROLLER, SUBSCRIPTION, TOPIC, Broker, play
from tests.sim.clock import EPOCH_MS

FIELDS = [
    *("settings", "cursor", "members", "paused", "known", "by_index", "apart"),
    *("redeliveries_at", "redeliveries", "delayedChanges", "parked", "places", "assignments"),
    *("epoch", "owner"),
]
"""What every release writes and reads; `redeliveries_at` is beside delays alone. Earlier ones know neither it nor
`assignments`."""


def owner(broker: Broker) -> Dispatcher:
    actor = broker.world.process(broker.world.alive("dispatcher-")[0]).actor
    assert isinstance(actor, Dispatcher)
    return actor


async def record(broker: Broker, actor: Dispatcher) -> dict[str, Any]:
    await actor.parts.context.store.barrier()
    newest = await broker.ports.meta.read(actor.identity.key)
    assert newest is not None
    found: dict[str, Any] = msgpack.unpackb(newest.value)
    return found


def test_a_new_owner_begins_with_all_that_is_recorded() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", acking=False)
        await broker.publish("a", "b")
        await broker.until(lambda: len(client.got) == 2)
        context = owner(broker).parts.context
        context.changed_delays.cancel(np.array([position(1, 5)]))
        failed = client.got[0].position
        context.core.parking.load([(b"a", 1, 7, failed)])
        await client.nack(client.got[1], delay=60_000)
        before = await record(broker, owner(broker))
        assert list(before) == FIELDS
        assert before["redeliveries"]
        assert before["parked"] == [[b"a", 1, 7, failed]]
        await new_owner(broker)
        after = await record(broker, owner(broker))
        assert after["epoch"] == before["epoch"] + 1
        assert {name: after[name] for name in FIELDS[8:12]} == {name: before[name] for name in FIELDS[8:12]}
        assert owner(broker).parts.context.changed_delays.now.cancelled.contains(np.array([position(1, 5)])).all()

    play(scenario, nack_order="key", dead_letter_policy="park", max_redeliver_count=3, grace_ms=30_000)


def test_empty_fields_stand_in_no_record() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.join("c")
        found = await record(broker, owner(broker))
        some = ("redeliveries_at", "delayedChanges", "parked", "places")
        assert list(found) == [name for name in FIELDS if name not in some]

    play(scenario)


@pytest.mark.parametrize("field", ["settings", "members", "redeliveries_at", "delayedChanges", "places"])
def test_a_field_of_another_kind_is_damage(field: str) -> None:
    """A request for the subscription raises Corrupt. The subscription goes on when its record is mended."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        actor = owner(broker)
        before = await record(broker, actor)
        broker.world.crash(broker.world.alive("dispatcher-")[0])
        newest = await broker.ports.meta.read(actor.identity.key)
        assert newest is not None
        odd = msgpack.packb({**before, field: [7]})
        assert await broker.ports.meta.create(actor.identity.key, newest.number + 1, odd)
        await broker.ports.net.call(CONTROLLER, Suspect(address=actor.ports.me), 60_000)
        request = LocateSubscription(topic=TOPIC, subscription=SUBSCRIPTION)
        with pytest.raises(Corrupt, match="the record of a subscription"):
            await broker.ports.net.call(CONTROLLER, request, 60_000)
        assert await broker.ports.meta.create(actor.identity.key, newest.number + 2, newest.value)
        await broker.publish("a")
        await broker.until(lambda: client.came() == ["a"], 60_000)

    play(scenario, grace_ms=30_000)


def test_a_rescheduled_message_overtakes_none_that_holds_its_key() -> None:
    """The message's due time is in the record, and over. The new owner knew it before it had read earlier messages."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.publish("k", "k", delay=[40_000, 30_000])
        await broker.quiet(500)
        now = EPOCH_MS + broker.world.loop.now
        moved = await broker.admin("reschedule_delayed", due_to=now + 35_000, deliver_at=now + 2_000)
        assert moved["rescheduled"] == 1
        await broker.quiet(3_000)
        assert client.got == [], "the first one holds its key"
        await new_owner(broker)
        await broker.until(lambda: len(client.got) == 2, 60_000)
        assert [message.number for message in client.got] == [0, 1]

    play(scenario, delay_key_policy="block_key")
