"""The record of one topic cannot be read: the controller names it, and everything else goes on."""

from __future__ import annotations

import pytest

from sluice.actors.controller.catalog import FRESH_MS
from sluice.actors.messages import ListTopics, LocateTopic
from sluice.storage.errors import Corrupt
from tests.actors.controller.test_controller import Stage, play


async def damage(stage: Stage) -> None:
    """Damage the record of the topic `bad`."""
    stage.world.meta.trouble.refused["read topic/bad"] = Corrupt
    await stage.client.clock.sleep(FRESH_MS + 1)


def test_the_other_topics_are_listed() -> None:
    """With the damaged one: it must not be taken for one that is not there."""

    async def scenario(stage: Stage) -> None:
        for topic in ("bad", "good"):
            await stage.create(topic, partitions=3)
        await damage(stage)
        listed = (await stage.ask(ListTopics())).topics
        assert (list(listed), listed["good"].partitions) == (["bad", "good"], 3)
        with pytest.raises(Corrupt, match="topic/bad"):
            await stage.ask(LocateTopic(topic="bad"))
        assert "topic/bad" in (row := await stage.row("topic/bad"))["problem"]
        assert row["state"] == "damaged"
        stage.world.meta.trouble.refused.clear()
        await stage.ask(LocateTopic(topic="bad"))
        assert "topic/bad" not in [row["name"] for row in (await stage.status())["actors"]]

    play(scenario)


def test_the_other_topics_get_their_copies() -> None:
    """The damaged one is short of copies until its record is mended: nobody is to take a node for one that is empty."""

    async def scenario(stage: Stage) -> None:
        for topic in ("bad", "good"):
            await stage.create_only(topic)
        await damage(stage)
        stage.broken["bookie-2"] = Corrupt("its disk is gone")
        for name in stage.world.alive("bookie-"):
            if stage.world.process(name).placed == ("bookie", {"bookie": "bookie-2"}):
                stage.world.crash(name)

        async def told(*topics: str) -> bool:
            return {name for name, lost in stage.told if lost == ["bookie-2"]} == {*topics}

        async def all_copied() -> bool:
            return bool((await stage.status())["underReplicated"] == 0)

        await stage.until(lambda: told("good/0"), "the good topic is not told", 120_000)
        await stage.client.clock.sleep(10_000)
        assert (await stage.status())["underReplicated"] == 1
        stage.world.meta.trouble.refused.clear()
        await stage.until(lambda: told("good/0", "bad/0"), "the mended topic is not told")
        await stage.until(all_copied, "it stays short of copies")

    play(scenario, lost_after_ms=5_000)
