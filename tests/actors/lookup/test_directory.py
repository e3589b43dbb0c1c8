"""Asking the owner of a partition, or of a subscription on it, through hints that may be old."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.lookup.directory import BOOKIES_TIMEOUT, LOCATE_TIMEOUT, Directory, KnownOwners
from sluice.actors.messages import (
    ClaimPool,
    Done,
    DrainPool,
    ListTopics,
    Ping,
    PoolWanted,
    RemoveSubscription,
    RemoveTopic,
    ReportPool,
    Skip,
    Stats,
    SubscriptionSettings,
)
from sluice.storage.errors import Fenced, NotFound, Unavailable
from tests.actors.controller.test_controller import CONTROLLER, GIVE_UP, Stage, play


@pytest.mark.parametrize("subscription", [None, "s"])
def test_caller_with_an_ended_owner_asks_the_next_one(subscription: str | None) -> None:
    async def scenario(stage: Stage) -> None:
        directory, first = await known(stage, subscription)
        stage.world.crash(stage.process(first))
        asked = directory.ask_owner("t", 0, subscription, Stats())
        told = json.loads((await stage.world.within(GIVE_UP, asked, "nobody answers")).json)
        assert told != first
        assert stage.asked == [told]

    play(scenario)


def test_an_owner_that_is_none_any_more_is_no_answer() -> None:
    """The old owner lives, so it is not missed, and answers itself that there is another one."""

    async def scenario(stage: Stage) -> None:
        directory, first = await known(stage, None)
        stage.broken[first] = Fenced("there is a newer owner")
        stage.world.loop.after(1_000, stage.world.crash, stage.process(first))
        asked = directory.ask_owner("t", 0, None, Stats())
        told = json.loads((await stage.world.within(GIVE_UP, asked, "nobody answers")).json)
        assert set(stage.asked) == {first, told}
        assert told != first

    play(scenario)


def test_unrepeatable_request_is_sent_once() -> None:
    """The question goes to the current owner alone, and counts as perhaps done if that does not answer."""

    async def scenario(stage: Stage) -> None:
        directory, first = await known(stage, "s")
        stage.world.crash(stage.process(first))
        other = Directory(stage.client, CONTROLLER)
        await other.suspect(first)
        now = await other.dispatcher("t", 0, "s")
        with pytest.raises(Unavailable):
            await directory.ask_owner("t", 0, "s", Skip(messages=1))
        assert now != first
        assert stage.asked == [now]

    play(scenario)


def test_an_owner_that_nobody_can_start_is_waited_for_so_long() -> None:
    async def scenario(stage: Stage) -> None:
        stage.broken["t/0"] = Unavailable("no place")
        await stage.create_only()
        directory = Directory(stage.client, CONTROLLER)
        began = stage.client.clock.monotonic()
        with pytest.raises(Unavailable, match="no place"):
            await directory.ask_owner("t", 0, None, Stats(), patience=5_000)
        assert stage.client.clock.monotonic() - began >= 5_000
        with pytest.raises(NotFound):
            await directory.ask_owner("u", 0, None, Stats())

    play(scenario)


def test_known_bookies_spare_the_wait_for_a_lost_controller() -> None:
    """The list that it heard last is good enough: a writer that replaces a bookie must not wait for another
    controller.
    """

    async def scenario(stage: Stage) -> None:
        directory = Directory(stage.client, CONTROLLER)
        clock = stage.client.clock
        assert (await directory.bookies()).ids
        stage.world.pause("controller")
        began = clock.monotonic()
        with pytest.raises(Unavailable, match="the controller does not answer"):
            await directory.bookies()
        assert clock.monotonic() - began == BOOKIES_TIMEOUT
        with pytest.raises(Unavailable):
            await Directory(stage.client, CONTROLLER).bookies()
        assert clock.monotonic() - began >= BOOKIES_TIMEOUT + LOCATE_TIMEOUT, "this one knows none"

    play(scenario)


async def known(stage: Stage, subscription: str | None) -> tuple[Directory, str]:
    """A directory that knows the owner of a topic's partition, or of a subscription on it; and where that is."""
    await stage.create()
    directory = Directory(stage.client, CONTROLLER)
    if subscription is None:
        return directory, await directory.topic("t", 0)
    await stage.client.meta.create(f"subscription/t/0/{subscription}", 1, b"of the dispatcher")
    return directory, await directory.dispatcher("t", 0, subscription, SubscriptionSettings())


def test_a_controller_that_comes_again_is_waited_for() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create_only()
        stage.world.crash("controller")
        stage.world.background(_later(stage, 3_000, stage.begin()), "begin")
        asked = Directory(stage.client, CONTROLLER).ask_controller(ListTopics())
        assert list((await stage.world.within(10_000, asked, "nobody answers")).topics) == ["t"]
        stage.world.crash("controller")
        with pytest.raises(Unavailable, match="the controller does not answer"):
            await stage.world.within(1_000, Directory(stage.client, CONTROLLER).ask_controller(Ping(), patience=0), "")

    play(scenario)


def test_opening_waits_as_long_as_it_may() -> None:
    """Also where another controller is long in coming; what is refused is not waited for."""

    async def scenario(stage: Stage) -> None:
        await stage.create_only()
        stage.world.crash("controller")
        stage.world.background(_later(stage, 60_000, stage.begin()), "begin")
        asked = Directory(stage.client, CONTROLLER).settings_within("t", 120_000, now=True)
        assert (await stage.world.within(90_000, asked, "nobody answers")).partitions == 1
        with pytest.raises(NotFound):
            await stage.world.within(1_000, Directory(stage.client, CONTROLLER).settings_within("u", 120_000), "")
        stage.world.crash("controller")
        began = stage.client.clock.monotonic()
        with pytest.raises(Unavailable, match="the controller does not answer"):
            await Directory(stage.client, CONTROLLER).settings_within("t", 5_000)
        assert stage.client.clock.monotonic() - began >= 5_000

    play(scenario)


def test_a_long_deletion_is_waited_for() -> None:
    """The caller asks again while the deletion goes on; NotFound then means that it was deleted."""

    async def scenario(stage: Stage) -> None:
        await subscribed(stage)
        directory = Directory(stage.client, CONTROLLER)
        stage.slow_ms, stage.vanishing = 4_000, "done"
        for request in (RemoveSubscription(topic="t", subscription="s"), RemoveTopic(topic="t")):
            await stage.world.within(30_000, directory.ask_controller(request, timeout=1_000), "it is not deleted")
            with pytest.raises(NotFound):
                await directory.ask_controller(request)

    play(scenario)


def test_a_drain_whose_answer_is_lost_is_done() -> None:
    """The pool has ended when the drain is asked for again."""

    async def scenario(stage: Stage) -> None:
        await stage.create_only()
        keeper = stage.world.client("keeper")
        claim = ClaimPool(
            name="p", topic="t", subscription="s", kind="program", version="1", min_workers=1, max_workers=1
        )
        epoch = (await stage.ask(claim)).epoch
        network = stage.world.network

        async def end() -> None:
            told = await keeper.net.call(CONTROLLER, ReportPool(name="p", epoch=epoch, ended=True), 1_000)
            assert isinstance(told, PoolWanted)
            assert told.draining
            network.join("controller", "client")

        network.cut("controller", "client")
        stage.world.background(_later(stage, 500, end()), "the pool ends")
        directory = Directory(stage.client, CONTROLLER)
        drained = directory.ask_controller(DrainPool(name="p"), timeout=1_000)
        assert await stage.world.within(30_000, drained, "it is not drained") == Done()
        with pytest.raises(NotFound):
            await directory.ask_controller(DrainPool(name="p"))

    play(scenario)


def test_a_deletion_finds_the_owner_after_one_that_ended() -> None:
    async def scenario(stage: Stage) -> None:
        stage.world.crash(stage.process(await subscribed(stage)))
        request = RemoveSubscription(topic="t", subscription="s")
        await Directory(stage.client, CONTROLLER).ask_controller(request)
        assert stage.starts["t/0/s"] == 2, "the part of it that is there was deleted by the owner after it"

    play(scenario)


async def subscribed(stage: Stage) -> str:
    """A topic with a subscription that has a record; where its owner is."""
    return (await known(stage, "s"))[1]


async def _later(stage: Stage, ms: int, work: Coroutine[Any, Any, None]) -> None:
    await stage.world.loop.pause(ms)
    await work


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("tu"), st.sampled_from([None, "s"]), st.integers(0, 2))))
def test_owners_are_known_by_name_and_by_address(steps: list[tuple[int, str, str | None, int]]) -> None:
    """Compared with a plain table, which looks through everything."""
    known, table = KnownOwners(), dict[tuple[str, str | None, int], str]()
    for number, (do, topic, subscription, partition) in enumerate(steps):
        address, name = f"p/{number}", (topic, subscription, partition)
        if do == 0:
            known.add(topic, subscription, {partition: address})
            table[name] = address
        elif do == 1:
            known.replace(topic, subscription, {partition: address})
            table = {key: value for key, value in table.items() if key[:2] != name[:2]} | {name: address}
        elif do == 2:
            known.discard(topic)
            table = {key: value for key, value in table.items() if key[0] != topic}
        elif do == 3:
            known.forget_subscriptions(topic)
            table = {key: value for key, value in table.items() if key[0] != topic or key[1] is None}
        else:
            gone = table.pop(name, "nobody")
            known.suspect(gone)
        assert len(known) == len(table)
        for (topic, subscription, partition), value in table.items():
            assert known.get(topic, subscription, partition) == value
            assert known.addresses(topic, subscription)[partition] == value
        assert not known.get(topic, subscription, 3)
