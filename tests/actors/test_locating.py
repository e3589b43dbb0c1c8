"""Finding the owner of one partition while another's cannot be started: the failover of one must not hold up all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from sluice.actors.lookup.directory import LOCATE_TIMEOUT, Directory
from sluice.actors.messages import AddPartitions, LocateSubscription, LocateTopic, RemoveTopic, SubscriptionSettings
from sluice.storage.errors import Invalid, NotFound, Unavailable
from tests.actors.controller.test_controller import CONTROLLER, Stage, play

PROMPT_MS = 1_000
Find = Callable[[Directory, int], Coroutine[Any, Any, str]]


async def topic_of(directory: Directory, partition: int) -> str:
    """The owner's address."""
    return await directory.topic("t", partition)


async def dispatcher_of(directory: Directory, partition: int) -> str:
    """The dispatcher's address."""
    return await directory.dispatcher("t", partition, "s", SubscriptionSettings())


@pytest.mark.parametrize(("name", "find"), [("t/1", topic_of), ("t/1/s", dispatcher_of)])
def test_one_partition_is_found_while_another_cannot_be_started(name: str, find: Find) -> None:
    """And that one as soon as it can."""

    async def scenario(stage: Stage) -> None:
        stage.broken[name] = Unavailable("no place")
        await stage.create_only(partitions=3)
        directory = Directory(stage.client, CONTROLLER)
        for partition in (0, 2):
            await stage.world.within(PROMPT_MS, find(directory, partition), f"partition {partition} is not found")
        del stage.broken[name]
        await stage.world.within(2 * PROMPT_MS, find(directory, 1), "partition 1 is not found")

    play(scenario)


def test_an_address_without_answer_is_asked_for_again() -> None:
    """Only the partition whose owner died is looked up."""

    async def scenario(stage: Stage) -> None:
        first, second = await stage.create(partitions=2)
        directory = Directory(stage.client, CONTROLLER)
        assert [await directory.topic("t", partition) for partition in range(2)] == [first, second]
        stage.world.crash(stage.process(second))
        await directory.suspect(second)
        again = await directory.topic("t", 1)
        assert again != second
        stage.world.crash("controller")  # nobody needs it for what is known
        assert [await directory.topic("t", partition) for partition in range(2)] == [first, again]

    play(scenario)


def test_partition_that_the_topic_does_not_have() -> None:
    """Refused in one line, whether the topic is known already or not."""

    async def scenario(stage: Stage) -> None:
        await stage.create(partitions=2)
        directory = Directory(stage.client, CONTROLLER)
        for _ in range(2):
            with pytest.raises(NotFound, match="there is no partition 2; there are 2"):
                await directory.topic("t", 2)
            await directory.topic("t", 0)
        with pytest.raises(NotFound, match="there is no partition -1"):
            await stage.ask(LocateTopic(topic="t", partition=-1))

    play(scenario)


@pytest.mark.parametrize("find", [topic_of, dispatcher_of])
def test_many_partitions_are_found_with_few_questions(find: Find) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create_only(partitions=60)
        directory = _CountedDirectory(stage.client, CONTROLLER)
        found = await asyncio.gather(*(find(directory, partition) for partition in range(60)))
        assert len(set(found)) == 60
        assert 1 <= directory.asked <= 10
        assert [await find(directory, partition) for partition in range(60)] == found
        with pytest.raises(NotFound, match="there is no partition 60; there are 60"):
            await find(directory, 60)

    play(scenario)


def test_partitions_asked_for_together_wait_for_no_broken_one() -> None:
    async def scenario(stage: Stage) -> None:
        stage.broken["t/1/s"] = Unavailable("no place")
        await stage.create_only(partitions=4)
        directory = Directory(stage.client, CONTROLLER)
        stage.world.background(_refused(dispatcher_of(directory, 1)), "asks for the broken one")

        async def others() -> None:
            await asyncio.gather(*(dispatcher_of(directory, partition) for partition in (0, 2, 3)))

        await stage.world.within(PROMPT_MS, others(), "the others are not found")
        del stage.broken["t/1/s"]
        await stage.world.within(2 * PROMPT_MS, dispatcher_of(directory, 1), "partition 1 is not found")

    play(scenario)


def test_caller_of_one_partition_is_told_of_no_other() -> None:
    async def scenario(stage: Stage) -> None:
        addresses = await stage.create(partitions=3)
        located = await stage.ask(LocateTopic(topic="t", partitions=[2, 0], only=True))
        assert located.addresses == [addresses[2], addresses[0]]
        with pytest.raises(NotFound, match="there is no partition 3; there are 3"):
            await stage.ask(LocateTopic(topic="t", partition=3, only=True))

    play(scenario)


class _CountedDirectory(Directory):
    """Counts the questions to the controller."""

    asked = 0

    async def _ask(self, *arguments: Any) -> Any:
        self.asked += 1
        return await super()._ask(*arguments)


async def _refused(work: Coroutine[Any, Any, str]) -> None:
    with contextlib.suppress(Unavailable):
        await work


def test_an_unstartable_subscription_is_not_tried_endlessly() -> None:
    """Neither the partition that was asked for nor the others."""

    async def scenario(stage: Stage) -> None:
        await stage.create(partitions=2)
        for partition in range(2):
            stage.broken[f"t/{partition}/s"] = Invalid("no such policy")
        asked = LocateSubscription(topic="t", subscription="s", settings=SubscriptionSettings(), partition=0)
        with pytest.raises(Invalid, match="no such policy"):
            await stage.ask(asked)
        await stage.client.clock.sleep(5_000)
        assert {name: stage.starts.get(name) for name in stage.broken} == {"t/0/s": 1, "t/1/s": 1}

    play(scenario)


def test_new_settings_of_one_partition_do_not_wait_for_another() -> None:
    """The other dispatcher is frozen, and gets the settings when a consumer asks for it."""

    async def scenario(stage: Stage) -> None:
        await stage.create(partitions=2)
        first = LocateSubscription(topic="t", subscription="s", settings=SubscriptionSettings())
        frozen = (await stage.ask(first)).addresses[1]
        stage.world.pause(stage.process(frozen))
        directory = Directory(stage.client, CONTROLLER)
        changed = SubscriptionSettings(max_redeliver_count=5)
        await stage.world.within(PROMPT_MS, directory.dispatcher("t", 0, "s", changed), "partition 0 is not found")

    play(scenario)


def test_joining_consumer_asks_once_and_waits_for_no_owner() -> None:
    """Told is who is there and works with these settings; who is not is being started, or asked for by partition."""

    async def scenario(stage: Stage) -> None:
        stage.broken["t/1/s"] = Unavailable("no place")
        await stage.create_only(partitions=3)
        settings, directory = SubscriptionSettings(), Directory(stage.client, CONTROLLER)
        topic = await stage.world.within(PROMPT_MS, directory.join("t", "s", settings), "joining waits")
        assert topic.partitions == 3
        for partition in (0, 2):
            asked = LocateSubscription(topic="t", subscription="s", settings=settings, partition=partition)
            await stage.world.within(PROMPT_MS, stage.ask(asked), f"partition {partition} is not found")
        assert await directory.join("t", "s", settings) == topic
        stage.world.crash("controller")  # nobody needs it for what was told
        assert all([await directory.dispatcher("t", partition, "s", settings) for partition in (0, 2)])
        with pytest.raises(Unavailable):
            await directory.dispatcher("t", 1, "s", settings)

    play(scenario)


def test_joining_with_other_settings_omits_owners_without_them() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create(partitions=2)
        first = LocateSubscription(topic="t", subscription="s", settings=SubscriptionSettings())
        before = (await stage.ask(first)).addresses
        changed = SubscriptionSettings(max_redeliver_count=5)
        ask = LocateSubscription(topic="t", subscription="s", settings=changed, waits=False)
        assert (await stage.ask(ask)).addresses == ["", ""]
        for partition in range(2):
            await stage.ask(msgspec.structs.replace(ask, partition=partition, waits=True))
        assert (await stage.ask(ask)).addresses == before

    play(scenario)


def test_joining_a_grown_or_deleted_topic_learns_it() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create(partitions=2)
        settings, directory = SubscriptionSettings(), Directory(stage.client, CONTROLLER)
        assert (await directory.join("t", "s", settings)).partitions == 2
        await directory.topic("t", 1)
        await stage.ask(AddPartitions(topic="t", partitions=4))
        assert (await directory.join("t", "s", settings)).partitions == 4
        await directory.topic("t", 3)
        await stage.ask(RemoveTopic(topic="t", force=True))
        with pytest.raises(NotFound, match="there is no topic 't'"):
            await directory.join("t", "s", settings)

    play(scenario)


def test_new_controller_serves_while_a_bookie_takes_long() -> None:
    """An owner may have died as well, and its clients wait."""

    async def scenario(stage: Stage) -> None:
        (topic,) = await stage.create()
        bookie = (await stage.row("bookie/bookie-0"))["address"]
        stage.start_ms["bookie-0"] = 20_000
        for name in ("controller", stage.process(bookie), stage.process(topic)):
            stage.world.crash(name)
        await stage.begin()
        directory = Directory(stage.client, CONTROLLER)
        await stage.world.within(PROMPT_MS, directory.topic("t", 0), "the topic is not found")
        assert (await stage.row("bookie/bookie-0"))["state"] == "starting"

        async def back() -> bool:
            return bool((await stage.row("bookie/bookie-0"))["state"] == "running")

        await stage.until(back, "the bookie is not started")

    play(scenario)


@pytest.mark.parametrize("partition", [0, None])
def test_slow_owner_start_is_answered_before_callers_give_up(partition: int | None) -> None:
    """The answer comes before each caller gives up by itself, including the first; the one start goes on."""

    async def scenario(stage: Stage) -> None:
        await stage.create_only()
        stage.start_ms["t/0"] = 3 * LOCATE_TIMEOUT
        answers: list[Unavailable] = []

        async def ask() -> None:
            with pytest.raises(Unavailable, match="is being started") as caught:
                await stage.ask(LocateTopic(topic="t", partition=partition))
            answers.append(caught.value)

        for _ in range(2):
            for number in range(3):
                stage.world.background(ask(), f"caller {number}")
            await stage.world.loop.pause(LOCATE_TIMEOUT)
        assert len(answers) == 6
        directory = Directory(stage.client, CONTROLLER)
        assert await stage.world.within(2 * LOCATE_TIMEOUT, located(directory), "the owner is not found")
        assert stage.starts["t/0"] == 1

    play(scenario)


async def located(directory: Directory) -> str:
    """The owner's address, however often that is to be asked."""
    while True:
        with contextlib.suppress(Unavailable):
            return await directory.topic("t", 0)


def test_all_who_wait_for_one_start_learn_why_it_failed() -> None:
    """The start is not tried again for each of them."""

    async def scenario(stage: Stage) -> None:
        await stage.create_only()
        stage.start_ms["t/0"], stage.broken["t/0"] = 1_000, Invalid("no such policy")
        answers: list[Invalid] = []

        async def ask() -> None:
            with pytest.raises(Invalid, match="no such policy") as caught:
                await stage.ask(LocateTopic(topic="t", partition=0))
            answers.append(caught.value)

        for number in range(3):
            stage.world.background(ask(), f"caller {number}")
        await stage.world.loop.pause(1_500)
        assert len(answers) == 3
        assert stage.starts["t/0"] == 1

    play(scenario)
