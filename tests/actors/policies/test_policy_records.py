"""Records that gateways change: of several who do at once none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sluice.actors.policies.backlog_quotas import Quota, Quotas
from sluice.actors.policies.policy_records import (
    DAMAGED_MS,
    QUOTAS,
    SeldomRead,
    decoded,
    forget_topic,
    of_topic,
    revise,
    schema_key,
    value_of,
)
from sluice.actors.ports import Version
from sluice.storage.errors import Corrupt, NotFound, Unavailable
from tests.kit.clocks import HandMovedClock
from tests.kit.meta import MemoryMeta


class _Overtaken(MemoryMeta):
    """A store in which another writer is always first."""

    tries = 0

    async def create(self, key: str, number: int, value: bytes) -> bool:
        self.tries += 1
        return False

    async def read(self, key: str) -> Version | None:
        return Version(self.tries + 1, b"another")


async def test_changes_at_once_are_all_kept() -> None:
    meta = MemoryMeta()
    letters = [b"a", b"b", b"c", b"d", b"e"]

    def adding(letter: bytes) -> Callable[[bytes | None], bytes]:
        return lambda value: (value or b"") + letter

    await asyncio.gather(*(revise(meta, "k", adding(letter), "k is") for letter in letters))
    value = await value_of(meta, "k")
    assert value is not None
    assert sorted(value) == sorted(b"abcde")
    assert len(meta.records["k"]) == 5


async def test_unchanged_record_is_not_written() -> None:
    meta = MemoryMeta()
    for _ in range(2):
        assert await revise(meta, "k", lambda _: b"same", "k is") == b"same"
    assert meta.records["k"] == [b"same"]


async def test_a_change_that_cannot_be_made_writes_nothing() -> None:
    meta = MemoryMeta()

    def refused(value: bytes | None) -> bytes:
        raise NotFound(f"there is {value!r}")

    with pytest.raises(NotFound, match="None"):
        await revise(meta, "k", refused, "k is")
    assert meta.records == {}


async def test_writer_always_overtaken_is_told_to_try_again() -> None:
    meta = _Overtaken()
    with pytest.raises(Unavailable, match="the quota of a is being changed by others; try again"):
        await revise(meta, "k", lambda _: b"mine", "the quota of a is")
    assert meta.tries > 1


async def test_unreadable_record_is_named() -> None:
    with pytest.raises(Corrupt, match="the quota of a cannot be read: "):
        decoded(b'{"limit": "much"}', Quota, "the quota of a")


async def test_a_topic_that_is_no_more_leaves_nothing() -> None:
    meta = MemoryMeta()
    await Quotas(meta).set(of_topic("gone"), Quota(1, "producer_exception"))
    await Quotas(meta).set(of_topic("stays"), Quota(2, "producer_exception"))
    await revise(meta, schema_key("gone"), lambda _: b"a", "it is")
    await forget_topic(meta, "gone")
    assert await meta.keys("") == ["quota/topic/stays"]


async def test_record_that_is_no_text_cannot_be_read() -> None:
    with pytest.raises(Corrupt, match="the quota of a cannot be read: "):
        decoded(b'{"policy": "\x80"}', Quota, "the quota of a")


async def test_a_damaged_quota_is_no_answer_for_the_others() -> None:
    """The last known quota of the damaged record stays in force, and setting another quota works."""
    meta = MemoryMeta()
    here, there = Quotas(meta), Quotas(meta)
    await there.set(of_topic("odd"), Quota(1, "producer_exception"))
    assert await here.refresh() == []
    meta.records[QUOTAS + of_topic("odd")].append(b"?")
    await there.set(of_topic("other"), Quota(2, "producer_exception"))
    for quotas in (here, there):
        (damage,) = await quotas.refresh()
        assert "topic/odd" in str(damage)
        assert (quotas.that_holds("odd"), quotas.that_holds("other")) == (
            Quota(1, "producer_exception"),
            Quota(2, "producer_exception"),
        )


async def test_damaged_record_is_read_seldom() -> None:
    """Each owner of a namespace's topics asks for it again and again, and all of them share a store."""
    clock, reads = HandMovedClock(), list[str]()
    known = SeldomRead[int](clock)

    async def read() -> int:
        reads.append("read")
        raise Corrupt("it cannot be read")

    async def mended() -> int:
        return 7

    for _ in range(DAMAGED_MS // 100):
        with pytest.raises(Corrupt, match="it cannot be read"):
            await known.get(read)
        clock.passed += 100
    assert len(reads) == 1
    assert await known.get(mended) == 7
