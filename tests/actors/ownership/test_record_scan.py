"""A scan of all topics reads their records together, and what all of them share only once."""

from __future__ import annotations

import asyncio

import pytest

from sluice.actors.ownership.record_scan import TOGETHER, MetaOfOneLook, scan, value_in
from sluice.actors.ports import Version
from sluice.storage.errors import AccessDenied, Corrupt, Unavailable
from tests.kit.meta import MemoryMeta

DAMAGED = "partition/damaged/0"
REFUSED = "partition/refused"


class _Asked(MemoryMeta):
    """Counts what is read, and how much of it at once."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.under_way = self.most = 0

    async def read(self, key: str) -> Version | None:
        self.asked.append(key)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if key == DAMAGED:
            raise Corrupt("it is damaged")
        if key.startswith(REFUSED):
            raise AccessDenied("it is refused")
        return await super().read(key)


async def test_every_record_is_read_in_order_some_at_once() -> None:
    meta = _Asked()
    keys = [f"partition/{number}/0" for number in range(2 * TOGETHER + 1)]
    for key in keys[1:]:
        await meta.create(key, 1, key.encode())
    found = [(key, value_in(one)) async for group in scan(meta, keys) for key, one in group]
    assert found == [(keys[0], None), *((key, key.encode()) for key in keys[1:])]
    assert (len(meta.asked), meta.most) == (len(keys), TOGETHER)


async def test_a_damaged_record_hides_no_others() -> None:
    keys = ["partition/a/0", DAMAGED, "partition/b/0"]
    found = dict([pair async for group in scan(_Asked(), keys) for pair in group])
    assert list(found) == keys
    with pytest.raises(Corrupt):
        value_in(found[DAMAGED])
    assert value_in(found["partition/b/0"]) is None


async def test_a_refused_record_hides_no_others() -> None:
    keys = [f"{REFUSED}/0", "partition/b/0"]
    found = dict([pair async for group in scan(_Asked(), keys) for pair in group])
    with pytest.raises(AccessDenied):
        value_in(found[keys[0]])
    assert value_in(found["partition/b/0"]) is None


async def test_a_store_that_answers_nothing_ends_the_scan() -> None:
    meta, keys = _Asked(), [f"{REFUSED}{number}/0" for number in range(3 * TOGETHER)]
    with pytest.raises(Unavailable):
        [group async for group in scan(meta, keys)]
    assert len(meta.asked) == TOGETHER


async def test_listed_records_are_read_once_and_the_rest_never() -> None:
    meta = _Asked()
    await meta.create("quota/topic/a", 1, b"1")
    await meta.create("lifetime/topic/a", 1, b"2")
    look = await MetaOfOneLook.scan(meta, ("quota/", "limits/"))
    await meta.create("quota/topic/late", 1, b"3")
    for _ in range(2):
        newest = await look.read("quota/topic/a")
        assert newest is not None
        assert newest.value == b"1"
        for key in ("quota/topic/late", "quota/topic/b", "lifetime/topic/a"):
            assert await look.read(key) is None
    assert meta.asked == ["quota/topic/a"]
