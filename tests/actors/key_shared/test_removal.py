"""OT, CL-2, CL-4: what is removed while somebody holds it or adds to it.

OT: messages that are skipped or expire while consumers hold them, in a Shared subscription (KS-45, KS-48).

There everything settles at once, since no order hangs on what a consumer still holds. The real actors do it, because
the dispatcher has to bring the decision core, the cursor and the record together. OT-1 for the core alone is in
`test_limits`, and what differs under Key_Shared in `test_draining`.
"""

from __future__ import annotations

import msgspec
import pytest

from sluice.actors.dispatcher import Dispatcher
from sluice.actors.dispatcher.delivery.progress import EXPIRE_MS
from sluice.actors.messages import Attach, Attached, Detach, FindTime, PositionFound, TopicSettings
from sluice.actors.policies import policy_records
from sluice.storage.errors import Corrupt, Invalid
from tests.actors.key_shared.test_reading import dispatcher
from tests.scenarios.key_shared.broker import KEYS, Broker, Client, play

TEN = KEYS[:10]
BETWEEN_MS = 5_000


async def ten_pending(broker: Broker) -> tuple[Client, int]:
    """Five messages, a while, and five more, all with one consumer; returns it and the time in between."""
    client = await broker.join("c1", queue=100, acking=False, taking=False)
    await broker.publish(*TEN[:5])
    await broker.quiet(BETWEEN_MS)
    between = broker.ports.clock.now()
    await broker.quiet(BETWEEN_MS)
    await broker.publish(*TEN[5:])
    await broker.until(lambda: len(client.got) == 10)
    await broker.quiet(100)
    assert await _counts(broker) == (10, 10, 10)
    return client, between


async def _counts(broker: Broker) -> tuple[int, int, int]:
    """Unacknowledged by the consumer's counter and by the subscription's, and the backlog."""
    stats = await broker.stats()
    (row,) = stats["consumers"]
    return row["unackedMessages"], stats["unackedMessages"], stats["msgBacklog"]


async def settled(broker: Broker, client: Client) -> None:
    """Half of them are gone; what is said of those changes nothing, and the others are done by and by."""
    assert await _counts(broker) == (5, 5, 5)
    client.ack(*client.got[:5])
    await broker.quiet(200)
    assert await _counts(broker) == (5, 5, 5)
    client.ack(*client.got[5:])
    await broker.quiet(200)
    assert await _counts(broker) == (0, 0, 0)
    assert len(client.got) == 10, "none of them came again"


def test_clearing_tells_how_many_unread_messages_it_cleared() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.address()
        await broker.publish(*TEN)
        assert (await broker.admin("clear_backlog"))["skipped"] == 10
        assert (await broker.admin("clear_backlog"))["skipped"] == 0
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario)


def test_ot_1_skipping_settles_every_counter() -> None:
    async def scenario(broker: Broker) -> None:
        client, _ = await ten_pending(broker)
        assert (await broker.admin("skip", messages=5))["skipped"] == 5
        await settled(broker, client)

    play(scenario, type="shared")


def test_ot_2_expiring_settles_every_counter() -> None:
    async def scenario(broker: Broker) -> None:
        client, between = await ten_pending(broker)
        assert (await broker.admin("expire", before=between))["skipped"] == 5
        await settled(broker, client)

    play(scenario, type="shared")


def expiring(broker: Broker, actor: Dispatcher, settings: TopicSettings, patch: pytest.MonkeyPatch, age: int) -> None:
    """From now on the topic's messages live for `age` ms."""
    young = msgspec.structs.replace(settings, ttl_ms=age)

    async def limited(topic: str) -> TopicSettings:
        return young

    patch.setattr(actor.directory, "settings", limited)
    patch.setattr(policy_records, "LOOK_MS", 0)


def test_ot_3_what_is_evicted_for_its_age_settles_every_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream evicts by size and by time. Here a topic keeps what is not done, unless it is older than its ttl."""

    async def scenario(broker: Broker) -> None:
        client, between = await ten_pending(broker)
        actor = await dispatcher(broker)
        settings = await actor.directory.settings("orders")
        assert settings.ttl_ms == 0
        await actor.parts.seeker.expire_old()
        assert await _counts(broker) == (10, 10, 10), "without a ttl nothing is evicted"
        expiring(broker, actor, settings, monkeypatch, broker.ports.clock.now() - between)
        await broker.until(lambda: actor.parts.context.state.cursor.mark_delete & 0xFFFFFFFF == 4, EXPIRE_MS + 500)
        monkeypatch.undo()
        await broker.quiet(1_000)
        assert (await broker.stats())["totalMsgExpired"] == 5
        await settled(broker, client)

    play(scenario, type="shared")


def test_expiring_goes_on_after_a_topic_that_could_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker) -> None:
        client, _ = await ten_pending(broker)
        actor = await dispatcher(broker)
        topic = broker.world.at(await broker.directory.topic("orders", 0))
        assert topic is not None
        find, refused = topic.actor.on_find_time, [0]  # type: ignore[union-attr]

        async def damaged(request: FindTime) -> PositionFound:
            refused[0] += 1
            if refused[0] <= 3:
                raise Corrupt("a run is damaged")
            found: PositionFound = await find(request)
            return found

        topic.actor.on_find_time = damaged  # type: ignore[union-attr]
        expiring(broker, actor, await actor.directory.settings("orders"), monkeypatch, 1)
        await broker.until(lambda: actor.parts.context.state.cursor.mark_delete & 0xFFFFFFFF == 9)
        assert refused[0] > 3
        client.ack()

    play(scenario, type="shared")


def test_cl_2_consumers_count_alike_and_without_any_it_can_go() -> None:
    async def scenario(broker: Broker) -> None:
        address, actor = await broker.address(), await dispatcher(broker)
        replies: list[Attached] = []

        async def attach() -> None:
            reply = await broker.ports.net.call(address, Attach(consumer="c1", incarnation="c1.0"), 5_000)
            assert isinstance(reply, Attached)
            replies.append(reply)

        def listed() -> list[int]:
            parts = actor.parts
            members = parts.context.state.membership
            return [len(found) for found in (parts.context.core.consumers(), parts.context.sessions.all(), members)]

        for _ in range(3):
            broker.world.background(attach(), "attach")
        await broker.until(lambda: len(replies) == 3)
        assert len({reply.session for reply in replies}) == 1
        assert listed() == [1, 1, 1], "it came three times and is there once"
        with pytest.raises(Invalid, match="1 consumers are connected"):
            await broker.admin("delete")
        for _ in range(2):
            await broker.ports.net.call(address, Detach(session=replies[0].session), 1_000)
        assert listed() == [0, 0, 0]
        assert await broker.admin("delete") == {"deleted": True}
        await broker.quiet(100)
        await broker.directory.suspect(address)

    play(scenario, policy="read_position")


def test_cl_4_adding_delayed_messages_while_they_are_cleared() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.join("c1")
        published = 0

        async def publish() -> None:
            nonlocal published
            for _ in range(20):
                await broker.publish(*TEN, delay=600_000)
                published += 10

        broker.world.background(publish(), "publish")
        cleared = 0
        while published < 200:
            cleared += (await broker.admin("clear_backlog"))["skipped"]
            stats = await broker.stats()
            assert 0 <= stats["msgDelayed"] <= stats["msgBacklog"]
        await broker.quiet(100)
        cleared += (await broker.admin("clear_backlog"))["skipped"]
        stats = await broker.stats()
        assert (stats["msgDelayed"], stats["msgBacklog"], cleared) == (0, 0, 200)

    play(scenario, policy="read_position")
