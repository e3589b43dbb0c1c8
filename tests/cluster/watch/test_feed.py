"""The feed asks while somebody looks, and only then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from sluice.actors.ports import Ports
from sluice.cluster.watch.feed import SLOW, Feed
from sluice.storage.errors import NotFound
from tests.cluster.watch.test_story import consumer, dispatcher, status, topic


class Owners:
    """Answers with one partition whose consumers the test chooses."""

    def __init__(self) -> None:
        self.consumers = ["a"]
        self.asked = asyncio.Event()
        self.rounds = 0
        self.error: NotFound | None = None
        self.pools: list[dict[str, Any]] = []
        self.actors: list[str] = []

    async def dispatchers(self, topic: str, subscription: str) -> list[dict[str, Any] | None]:
        self.rounds += 1
        self.asked.set()
        if self.error is not None:
            raise self.error
        return [dispatcher(consumers=[consumer(name, [[1, 2]]) for name in self.consumers])]

    async def topics(self, name: str) -> list[dict[str, Any] | None]:
        return [topic()]

    async def delayed(self, topic: str, subscription: str) -> list[dict[str, Any] | None]:
        return [{"count": 3, "histogram": [[1, 2, 3]]}]

    async def status(self) -> dict[str, Any]:
        others = [
            {"kind": name.partition("/")[0], "name": name, "state": "running", "problem": ""} for name in self.actors
        ]
        return {"actors": status()["actors"] + others, "workerPools": self.pools}


async def test_pools_of_the_subscription_are_shown(ports: Ports) -> None:
    owners = Owners()
    pools = [{"name": name, "topic": "orders", "subscription": name} for name in ("billing", "shipping")]
    owners.pools = pools
    seen = await following(Feed(ports, owners).follow("orders", "billing"), "picture")
    assert seen["pools"] == pools[:1]


async def test_owners_of_other_topics_are_not_told(ports: Ports) -> None:
    """A consumer of one topic may see its page, but not the names of other topics."""
    owners = Owners()
    own = ["topic/orders/0", "topic/orders", "dispatcher/orders/0/billing"]
    owners.actors = [
        *own,
        "topic/orders2/0",
        "topic/sales..eu..orders/0",
        "dispatcher/orders/0/shipping",
        "dispatcher/sales..eu..orders/0/billing",
    ]
    seen = await following(Feed(ports, owners).follow("orders", "billing"), "picture")
    assert [actor["name"] for actor in seen["actors"]] == ["bookie/b1", *own]


async def following(stream: AsyncGenerator[str], name: str) -> Any:
    """The data of the next event of a name."""
    async for text in stream:
        head, data = text.removesuffix("\n\n").split("\n")
        if head == f"event: {name}":
            return json.loads(data.removeprefix("data: "))
    raise AssertionError("the stream has ended")


async def test_a_viewer_sees_pictures_and_what_happened_between_them(ports: Ports) -> None:
    owners = Owners()
    stream = Feed(ports, owners).follow("orders", "billing")
    seen = await following(stream, "picture")
    assert seen["totals"]["backlog"] == 5
    assert seen["due"] == [[3, [[1, 2, 3]]]]
    owners.consumers = ["a", "b"]
    assert [event["text"] for event in await following(stream, "events")] == ["partition 0: b joined"]
    assert len((await following(stream, "picture"))["partitions"][0]["consumers"]) == 2
    await stream.aclose()


class Publishing(Owners):
    """A million messages more each time that the topic is asked."""

    published = 0

    async def topics(self, name: str) -> list[dict[str, Any] | None]:
        self.published += 1_000_000
        return [topic() | {"msgInCounter": self.published}]


async def test_the_rate_of_a_topic_is_shown_until_it_is_asked_again(ports: Ports) -> None:
    """Topics are asked every few rounds: a rate over a shorter time would jump between nothing and several times it."""
    stream = Feed(ports, Publishing()).follow("orders", "billing")
    pictures = [await following(stream, "picture") for _ in range(2 * SLOW)]
    rates = [seen["rates"]["published"] for seen in pictures]
    assert rates[:SLOW] == [0.0] * SLOW, "nothing is known yet"
    assert rates[SLOW] > 0
    assert rates[SLOW:] == [rates[SLOW]] * SLOW
    await stream.aclose()


async def test_all_viewers_share_one_round_of_questions(ports: Ports) -> None:
    owners = Owners()
    feed = Feed(ports, owners)
    streams = [feed.follow("orders", "billing") for _ in range(5)]
    await asyncio.gather(*(following(stream, "picture") for stream in streams))
    assert owners.rounds == 1
    for stream in streams:
        await stream.aclose()
    before = owners.rounds
    owners.asked.clear()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(owners.asked.wait(), 0.5)
    assert owners.rounds == before


async def test_trouble_is_told_and_the_feed_goes_on(ports: Ports) -> None:
    owners = Owners()
    owners.error = NotFound("topic orders does not exist")
    stream = Feed(ports, owners).follow("orders", "billing")
    assert await following(stream, "trouble") == {"reason": "topic orders does not exist"}
    owners.error = None
    assert (await following(stream, "picture"))["controller"]
    await stream.aclose()
