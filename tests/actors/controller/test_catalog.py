"""Records of topics: of several who write at once one wins, and what goes meanwhile is no error."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from sluice.actors.controller.catalog import FRESH_MS, MOST_FRESH, TopicCatalog, check_settings
from sluice.actors.messages import TopicSettings
from sluice.actors.policies.namespaces import Namespaces
from sluice.actors.ports import Version
from sluice.storage.errors import Conflict, Invalid, NotFound, Unavailable
from tests.kit.clocks import HandMovedClock
from tests.kit.meta import MemoryMeta

TWO, FOUR = TopicSettings(partitions=2), TopicSettings(partitions=4)


class _Vanishing(MemoryMeta):
    """A topic is there when its name is listed, and no more when it is read."""

    async def read(self, key: str) -> Version | None:
        return None if key == "topic/gone" else await super().read(key)


class _Counting(MemoryMeta):
    """Counts what is read of topics, and is as slow at that as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.found, self.slow = asyncio.Event(), asyncio.Event()
        self.slow.set()

    async def read(self, key: str) -> Version | None:
        self.reads += key.startswith("topic/")
        found = await super().read(key)
        if key.startswith("topic/"):
            self.found.set()
            await self.slow.wait()
        return found


async def _read_late(topics: TopicCatalog, meta: _Counting) -> asyncio.Task[TopicSettings]:
    """A read of a new topic's settings that has found them, and hears of it when `meta.slow` is set."""
    await topics.create("t", TWO)
    meta.slow.clear()
    meta.found.clear()
    late = asyncio.create_task(topics.settings("t"))
    await meta.found.wait()
    return late


class _Refusing(MemoryMeta):
    """Once a key cannot be removed. comes: one that somebody writes just before the topic's record goes."""

    def __init__(self, key: str, comes: str = "") -> None:
        super().__init__()
        self._key, self._comes = key, comes

    async def remove(self, key: str, number: int | None = None) -> bool:
        if key == self._key:
            self._key = ""
            raise Unavailable(f"{key} cannot be removed now")
        if key == "topic/t" and self._comes:
            self.records[self._comes] = [b""]
        return await super().remove(key, number)


def catalog(meta: MemoryMeta, clock: HandMovedClock | None = None) -> TopicCatalog:
    return TopicCatalog(meta, lambda event, **values: None, clock or HandMovedClock())


async def test_a_topic_is_made_once() -> None:
    topics = catalog(MemoryMeta())
    await topics.create("t", TWO)
    await topics.create("t", TWO)
    with pytest.raises(Conflict, match="topic t exists with other settings"):
        await topics.create("t", FOUR)
    assert await topics.all() == {"t": TWO}


async def test_no_topic_is_made_in_a_namespace_that_is_not_there() -> None:
    meta = MemoryMeta()
    topics = catalog(meta)
    with pytest.raises(NotFound, match="Namespace sales/eu does not exist"):
        await topics.create("sales..eu..orders", TWO)
    assert meta.records == {}
    await Namespaces(meta).create("sales/eu")
    await topics.create("sales..eu..orders", TWO)
    assert await topics.all() == {"sales..eu..orders": TWO}


async def test_a_topic_outlives_what_is_known_of_its_namespace() -> None:
    """One that was made before namespaces were looked at can be asked for again."""
    meta = MemoryMeta()
    topics = catalog(meta)
    await meta.create("topic/sales..eu..orders", 1, msgspec.json.encode(TWO))
    await topics.create("sales..eu..orders", TWO)
    with pytest.raises(Conflict, match="other settings"):
        await topics.create("sales..eu..orders", FOUR)


async def test_topic_deleted_during_a_listing_is_not_listed() -> None:
    topics = catalog(_Vanishing())
    await topics.create("stays", TWO)
    await topics.create("gone", TWO)
    assert await topics.names() == ["gone", "stays"]
    assert await topics.all() == {"stays": TWO}


async def test_change_of_a_changed_topic_is_refused() -> None:
    topics = catalog(MemoryMeta())
    await topics.create("t", TWO)
    number, _ = await topics.record("t")
    await topics.replace("t", number, FOUR)
    with pytest.raises(Unavailable, match="changed by somebody else"):
        await topics.replace("t", number, TopicSettings(partitions=8))
    assert await topics.settings("t") == FOUR


async def test_settings_are_read_once_in_a_moment() -> None:
    meta, clock = _Counting(), HandMovedClock()
    topics = catalog(meta, clock)
    await topics.create("t", TWO)
    for passed, reads in ((0, 1), (FRESH_MS, 1), (FRESH_MS + 1, 2), (2 * FRESH_MS, 2)):
        clock.passed = passed
        assert await topics.settings("t") == TWO
        assert meta.reads == reads
    await meta.create("topic/t", 2, msgspec.json.encode(FOUR))  # by another catalog
    assert await topics.settings("t") == TWO
    clock.passed += FRESH_MS
    assert await topics.settings("t") == FOUR


async def test_own_change_counts_at_once() -> None:
    meta = _Counting()
    topics = catalog(meta)
    await topics.create("t", TWO)
    assert await topics.settings("t") == TWO
    meta.fail = ["after"]
    with pytest.raises(Unavailable):
        await topics.replace("t", 1, FOUR)
    assert await topics.settings("t") == FOUR
    await topics.remove("t")
    with pytest.raises(NotFound):
        await topics.settings("t")


async def test_a_read_that_a_removal_overtook_finds_no_topic() -> None:
    """Else its owners would be started, and be there with its settings when there is another one of its name."""
    meta = _Counting()
    topics = catalog(meta)
    late = await _read_late(topics, meta)
    await topics.remove("t")
    meta.slow.set()
    with pytest.raises(NotFound):
        await late


async def test_a_read_that_a_change_overtook_does_not_count() -> None:
    meta = _Counting()
    topics = catalog(meta)
    late = await _read_late(topics, meta)
    await topics.replace("t", 1, FOUR)
    meta.slow.set()
    assert await late == FOUR
    assert await topics.settings("t") == FOUR


async def test_settings_of_so_many_topics_are_kept() -> None:
    meta = _Counting()
    topics = catalog(meta)
    for number in range(MOST_FRESH + 1):
        await meta.create(f"topic/{number}", 1, msgspec.json.encode(TWO))
        await topics.settings(str(number))
    before = meta.reads
    await topics.settings(str(MOST_FRESH))
    assert meta.reads == before
    await topics.settings("0")
    assert meta.reads == before + 1


async def test_a_subscription_of_many_partitions_is_one() -> None:
    meta = MemoryMeta()
    topics = catalog(meta)
    await topics.create("t", TWO)
    for key in ("subscription/t/0/b", "subscription/t/1/b", "subscription/t/0/a", "subscription/tt/0/c"):
        await meta.create(key, 1, b"")
    assert await topics.subscriptions("t") == ["a", "b"]
    await topics.check_subscription_exists("t", "b")
    with pytest.raises(NotFound, match="topic 't' has no subscription 'c'"):
        await topics.check_subscription_exists("t", "c")
    with pytest.raises(NotFound, match="there is no topic 'tt'"):
        await topics.subscriptions("tt")


async def test_a_topic_that_is_removed_leaves_nothing() -> None:
    meta = MemoryMeta()
    topics = catalog(meta)
    await topics.create("t", TWO)
    await meta.create("schema/t", 1, b"")
    await topics.remove("t")
    assert meta.records == {}


@pytest.mark.parametrize("key", ["schema/t", "permission/topic/t", "topic/t"])
async def test_a_topic_that_is_half_removed_can_be_removed_again(key: str) -> None:
    """Else what was kept of it would be there for another topic of its name: who may do what, and schemas."""
    meta = _Refusing(key)
    topics = catalog(meta)
    await topics.create("t", TWO)
    for kept in ("schema/t", "permission/topic/t"):
        await meta.create(kept, 1, b"")
    with pytest.raises(Unavailable):
        await topics.remove("t")
    assert await topics.names() == ["t"]
    await topics.remove("t")
    assert [key for key in meta.records if key.endswith("/t")] == []


async def test_record_made_during_a_removal_is_removed_as_well() -> None:
    meta = _Refusing("", comes="schema/t")
    topics = catalog(meta)
    await topics.create("t", TWO)
    await topics.remove("t")
    assert meta.records == {}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"partitions": 0}, "partitions = 0: it is 1 to 1024"),
        ({"ensemble": 4, "write_quorum": 4}, "needs as many bookies; this cluster has 3"),
        ({"ensemble": 2, "write_quorum": 3}, "the quorums must satisfy"),
        ({"write_quorum": 1, "ack_quorum": 2}, "the quorums must satisfy"),
        ({"ack_quorum": 0}, "ack_quorum = 0: it is 1 to 64"),
    ],
)
def test_settings_that_could_never_be_written_are_refused(wrong: dict[str, Any], told: str) -> None:
    """Before anything is stored."""
    with pytest.raises(Invalid, match=told):
        check_settings(TopicSettings(**wrong), 3)
    check_settings(TopicSettings(ensemble=3, write_quorum=3, ack_quorum=3), 3)
