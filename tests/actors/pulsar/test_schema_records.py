"""How the schemas of topics are kept: each in a record of its own, and those of earlier releases as they are."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgpack
import pytest

from sluice.actors.policies.policy_records import forget_topic
from sluice.actors.ports import Ports, at_once
from sluice.actors.pulsar.codec.protocol import Schema
from sluice.actors.pulsar.conversation.gateway.schemas import Schemas
from sluice.storage.errors import NotFound
from tests.kit.meta import MemoryMeta

STRING = 1
LARGE = 250_000


class _Counting(MemoryMeta):
    """Counts the bytes that are written."""

    written = 0

    async def create(self, key: str, number: int, value: bytes) -> bool:
        done = await super().create(key, number, value)
        self.written += len(value) if done else 0
        return done


def over(meta: MemoryMeta) -> Schemas:
    return Schemas(cast(Ports, SimpleNamespace(meta=meta, work=at_once)))


def schema(text: str) -> Any:
    return Schema(name="s", type=STRING, data=text.encode())


async def test_metadata_grows_by_what_is_new() -> None:
    meta = _Counting()
    topics = over(meta)
    for number in range(60):
        await topics.put("t", schema(f"{number:03}" + "x" * LARGE))
    assert meta.written < 61 * (LARGE + 100) + 60 * 60 * 120
    assert [one.data[:3] async for one, _ in topics.all_of("t")] == [b"%03d" % number for number in range(60)]


async def test_schemas_of_earlier_releases_open() -> None:
    meta = MemoryMeta()
    topics = over(meta)
    old = [schema("gone").SerializeToString(), b"", schema("a").SerializeToString(), schema("b").SerializeToString()]
    await meta.create("schema/t", 1, msgpack.packb(old))
    for added in (False, True):
        assert [one.data async for one, _ in topics.all_of("t")][:2] == [b"a", b"b"]
        assert await topics.version_of("t", schema("b")) == (3).to_bytes(8, "big")
        with pytest.raises(NotFound):
            await topics.get("t", bytes(8))
        if not added:
            assert await topics.put("t", schema("c")) == (4).to_bytes(8, "big")
    assert len(meta.records["schema/t"][-1]) < 5 * 120
    assert len(await meta.keys("schema-definition/t/")) == 4


async def test_schemas_that_come_at_once_are_all_kept() -> None:
    topics = over(MemoryMeta())
    versions = await asyncio.gather(*(topics.put("t", schema(text)) for text in "abcab"))
    assert sorted(set(versions)) == [number.to_bytes(8, "big") for number in range(3)]
    assert [versions[0], versions[1]] == [versions[3], versions[4]]
    assert sorted([one.data async for one, _ in topics.all_of("t")]) == [b"a", b"b", b"c"]


async def test_a_removed_topic_leaves_no_schema() -> None:
    meta = MemoryMeta()
    topics = over(meta)
    for topic in ("t", "t/u", "tt"):
        await topics.put(topic, schema("a"))
        await topics.put(topic, schema("b"))
    await topics.delete("t")
    await topics.put("t", schema("a"))
    await forget_topic(meta, "t")
    assert await meta.keys("schema/") == ["schema/t/u", "schema/tt"]
    definitions = [key.rpartition("/")[0] for key in await meta.keys("schema-definition/")]
    assert definitions == ["schema-definition/t/u", "schema-definition/t/u"] + ["schema-definition/tt"] * 2
    with pytest.raises(NotFound):
        await topics.get("t", b"")
    assert await topics.put("t", schema("b")) == bytes(8)
