"""A deletion by the controller holds, no matter which client asks for the deleted object meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluice.actors.controller.catalog import TopicCatalog
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import (
    CreateTopic,
    DeleteSubscription,
    LocateSubscription,
    LocateTopic,
    RemoveSubscription,
    RemoveTopic,
    SubscriptionSettings,
    TopicSettings,
)
from sluice.actors.ports import Unknown
from sluice.storage.errors import Corrupt, Invalid, NotFound, Unavailable
from tests.actors.controller.test_controller import CONTROLLER, GIVE_UP, Stage, play
from tests.actors.dispatcher.late_topic import delay_ends
from tests.scenarios.key_shared.broker import TOPIC, Broker
from tests.scenarios.key_shared.broker import play as play_broker
from tests.sim.places import SimPlaces


def test_a_deleted_topic_does_not_come_back() -> None:
    """Neither by itself nor when a bookie is lost afterwards."""

    async def scenario(stage: Stage) -> None:
        await stage.create("kept")
        await stage.create("gone")
        await stage.ask(RemoveTopic(topic="gone"))
        stage.broken["bookie-0"] = Corrupt("the disk was emptied")
        for name in stage.world.alive("bookie-"):
            if stage.world.process(name).placed == ("bookie", {"bookie": "bookie-0"}):
                stage.world.crash(name)

        async def told() -> bool:
            return ("kept/0", ["bookie-0"]) in stage.told

        await stage.until(told, "the topics are not told")
        assert [row["name"] for row in (await stage.status())["actors"] if row["kind"] == "topic"] == ["topic/kept/0"]
        with pytest.raises(NotFound, match="there is no topic 'gone'"):
            await stage.locate("gone")

    play(scenario)


def test_deletion_is_not_undone_by_consumers_that_come_back() -> None:
    """Consumers that are sent away come back at once, and to a part of what is there while the rest goes."""

    async def scenario(stage: Stage) -> None:
        subscribe = LocateSubscription(topic="t", subscription="s", settings=SubscriptionSettings())
        ask_only = LocateSubscription(topic="t", subscription="s")
        unsubscribe = RemoveSubscription(topic="t", subscription="s", force=True)
        delete = RemoveTopic(topic="t", force=True)

        async def refused(after: int, *requests: Any) -> None:
            await stage.world.loop.pause(after)
            for request in requests:
                with pytest.raises(Unavailable, match="is being deleted"):
                    await stage.ask(request)

        await stage.create(partitions=2)
        await stage.ask(subscribe)
        await stage.client.meta.create("subscription/t/0/s", 1, b"of the dispatcher")
        stage.slow_ms = 3_000
        stage.world.background(stage.ask(unsubscribe), "unsubscribe")
        await refused(1_000, subscribe, ask_only)
        await refused(3_000, subscribe, ask_only, unsubscribe)
        await stage.world.loop.pause(3_000)
        assert (stage.starts["t/0/s"], stage.starts["t/1/s"]) == (1, 1)
        await stage.ask(subscribe)
        assert (stage.starts["t/0/s"], stage.starts["t/1/s"]) == (2, 2)
        stage.world.background(stage.ask(delete), "delete")
        await refused(1_000, subscribe, ask_only)
        await stage.locate("t")
        await refused(6_000, subscribe, LocateTopic(topic="t"))
        await refused(3_000, delete, subscribe, LocateTopic(topic="t"))
        await stage.world.loop.pause(3_000)
        with pytest.raises(NotFound, match="there is no topic 't'"):
            await stage.locate("t")
        assert [stage.starts[name] for name in ("t/0", "t/1", "t/0/s", "t/1/s")] == [1, 1, 2, 2]
        assert {row["kind"] for row in (await stage.status())["actors"]} == {"bookie"}

    play(scenario)


def test_a_topic_that_is_made_while_it_is_deleted_is_there() -> None:
    """A client that gave up waiting for the deletion makes the topic again, and is not told that the old one is
    there.
    """

    async def scenario(stage: Stage) -> None:
        await stage.create()
        stage.slow_ms = 6_000
        stage.world.background(stage.ask(RemoveTopic(topic="t")), "delete")
        await stage.world.loop.pause(1_000)
        again = CreateTopic(topic="t", settings=TopicSettings())
        await stage.world.within(30_000, Directory(stage.client, CONTROLLER).ask_controller(again), "it is not made")
        await stage.world.loop.pause(30_000)
        await stage.locate("t")

    play(scenario)


def test_request_just_before_a_deletion_starts_nothing_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check whether the topic may be made may take longer than the start of the deletion."""
    check = TopicCatalog.check_can_be_made

    async def slow(catalog: TopicCatalog, topic: str) -> None:
        await check(catalog, topic)
        await asyncio.sleep(1)

    async def scenario(stage: Stage) -> None:
        await stage.create()
        monkeypatch.setattr(TopicCatalog, "check_can_be_made", slow)
        stage.slow_ms = 3_000
        stage.world.background(stage.ask(RemoveTopic(topic="t")), "delete")
        settings = SubscriptionSettings(max_redeliver_count=1)
        with pytest.raises(Unavailable, match="is being deleted"):
            await stage.ask(LocateSubscription(topic="t", subscription="s", settings=settings))
        assert "t/0/s" not in stage.starts

    play(scenario)


@pytest.mark.parametrize("vanishing", ["done", "undone"])
def test_owner_that_ends_before_its_answer_is_not_restarted(vanishing: str) -> None:
    async def scenario(stage: Stage) -> None:
        subscribe = LocateSubscription(topic="t", subscription="s", settings=SubscriptionSettings())
        unsubscribe = RemoveSubscription(topic="t", subscription="s")
        await stage.create()
        await stage.ask(subscribe)
        await stage.client.meta.create("subscription/t/0/s", 1, b"of the dispatcher")
        stage.vanishing = vanishing
        if vanishing == "done":
            await stage.ask(unsubscribe)
        else:
            with pytest.raises(Unavailable, match="delete again"):
                await stage.ask(unsubscribe)
        await stage.world.loop.pause(GIVE_UP)
        assert stage.starts["t/0/s"] == 1
        stage.vanishing = ""
        if vanishing == "undone":
            await stage.ask(unsubscribe)
            assert stage.starts["t/0/s"] == 2

    play(scenario)


def test_deletion_by_another_controller_starts_nothing_again() -> None:
    """The other controller was asked earlier, and this one sees the owner end."""

    async def scenario(stage: Stage) -> None:
        await stage.create()
        subscribe = LocateSubscription(topic="t", subscription="s", settings=SubscriptionSettings())
        (address,) = (await stage.ask(subscribe)).addresses
        await stage.client.meta.create("subscription/t/0/s", 1, b"of the dispatcher")
        stage.vanishing = "stopped"
        await stage.client.net.call(address, DeleteSubscription(), 1_000)
        await stage.world.loop.pause(GIVE_UP)
        assert stage.starts["t/0/s"] == 2, "one that took its place would make it anew, and is not tried again"
        assert not any(row["kind"] == "dispatcher" for row in (await stage.status())["actors"])
        await stage.ask(subscribe)
        assert stage.starts["t/0/s"] == 3

    play(scenario)


@pytest.mark.parametrize("force", [False, True])
def test_late_subscriber_leaves_nothing_to_the_next_topic(monkeypatch: pytest.MonkeyPatch, force: bool) -> None:
    """The owner of the subscription has asked the topic where it ends, and writes its record when the topic goes."""

    async def scenario(broker: Broker) -> None:
        async def ask(request: Any) -> Any:
            reply = await broker.ports.net.call(CONTROLLER, request, 60_000)
            assert not isinstance(reply, Unknown)
            return reply

        await ask(RemoveTopic(topic=TOPIC, force=True))
        await ask(CreateTopic(topic=TOPIC, settings=broker.topic))
        await ask(LocateTopic(topic=TOPIC))
        delay_ends(monkeypatch, 3)
        subscribe = LocateSubscription(topic=TOPIC, subscription="new", settings=SubscriptionSettings(), waits=False)
        await ask(subscribe)
        await broker.quiet(1_500)
        if not force:
            with pytest.raises(Invalid, match="new"):
                await ask(RemoveTopic(topic=TOPIC))
        await ask(RemoveTopic(topic=TOPIC, force=True))
        await broker.quiet(10_000)
        assert await broker.ports.meta.keys("subscription/") == []
        await ask(CreateTopic(topic=TOPIC, settings=broker.topic))

    play_broker(scenario)


def test_possibly_replaced_controller_removes_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller was frozen in the middle: the next one has deleted the topic, and it was made again."""

    async def scenario(stage: Stage) -> None:
        await stage.create()
        acts = [False]

        async def told(_: SimPlaces) -> bool:
            return acts[0]

        monkeypatch.setattr(SimPlaces, "acts", told)
        with pytest.raises(Unavailable, match="may have been replaced"):
            await stage.ask(RemoveTopic(topic="t"))
        acts[0] = True
        await stage.locate("t")
        await stage.ask(RemoveTopic(topic="t"))
        with pytest.raises(NotFound):
            await stage.locate("t")

    play(scenario)
