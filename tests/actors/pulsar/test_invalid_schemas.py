"""Schemas that are invalid are refused before anything is kept of them, and so are more than a topic may have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.actors.policies import schema_compatibility
from sluice.actors.policies.schema_compatibility import AVRO, JSON, PROTOBUF
from sluice.actors.ports import Ports, at_once
from sluice.actors.pulsar.codec.protocol import Schema, ServerError
from sluice.actors.pulsar.conversation.gateway import schemas
from sluice.actors.pulsar.conversation.gateway.schemas import MAX_SCHEMA_BYTES, Schemas
from sluice.actors.pulsar.refusals import CommandRefused
from sluice.storage.errors import Invalid
from tests.kit.meta import MemoryMeta

FIELD = {"name": "next", "type": ["null", "Node"]}
NODE = {"type": "record", "name": "Node", "namespace": "a.b", "fields": [FIELD, {"name": "n", "type": "int"}]}
DATE = {"type": "int", "logicalType": "date"}
VALID: list[Any] = [
    "string",
    ["null", "int"],
    NODE,
    DATE,
    {"type": "array", "items": {"type": "map", "values": DATE}},
    {"type": "record", "name": "R", "fields": [{"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A"]}}]},
    {"type": "fixed", "name": "F", "size": 16},
]
INVALID: list[bytes] = [
    b"",
    b"not JSON",
    b"\xff\xfe",
    b"5",
    b"null",
    b"{}",
    b'"Unknown"',
    b'{"type": "wrong"}',
    b'{"type": "record", "name": "R"}',
    b'{"type": "record", "name": 5, "fields": []}',
    b'{"type": "record", "name": "R", "fields": [5]}',
    b'{"type": "record", "name": "R", "fields": [{"name": "f", "type": "what"}]}',
    b'{"type": "array"}',
    b'{"type": "map", "values": 5}',
    b'{"type": "enum", "name": "E", "symbols": [5]}',
    b'{"type": "fixed", "name": "F", "size": "x"}',
    b"[" * 100_000,
]


def made() -> tuple[Schemas, Any]:
    """The schemas of topics, and the metadata that they are kept in."""
    meta = MemoryMeta()
    return Schemas(cast(Ports, SimpleNamespace(meta=meta, work=at_once))), meta


def schema(kind: int, data: bytes) -> Any:
    return Schema(name="s", type=kind, data=data)


@pytest.mark.parametrize("definition", VALID, ids=range(len(VALID)))
@pytest.mark.parametrize("kind", [JSON, PROTOBUF, AVRO])
async def test_a_valid_definition_is_kept(kind: int, definition: Any) -> None:
    topics, _ = made()
    wanted = schema(kind, json.dumps(definition).encode())
    version = await topics.put("t", wanted)
    assert (await topics.get("t", version))[0].data == wanted.data


@pytest.mark.parametrize("definition", INVALID, ids=range(len(INVALID)))
@pytest.mark.parametrize("kind", [JSON, PROTOBUF, AVRO])
@pytest.mark.parametrize("asked", ["put", "check_reader", "goes_with"])
async def test_an_invalid_definition_is_refused(asked: str, kind: int, definition: bytes) -> None:
    topics, meta = made()
    with pytest.raises(CommandRefused) as refused:
        await getattr(topics, asked)("t", schema(kind, definition))
    assert refused.value.code == ServerError.INCOMPATIBLE_SCHEMA
    assert await meta.keys("schema") == []


@pytest.mark.parametrize("kind", [-1, 22, 99])
async def test_a_type_that_there_is_not_is_refused(kind: int) -> None:
    topics, meta = made()
    with pytest.raises(CommandRefused, match=f"no type {kind}") as refused:
        await topics.put("t", schema(kind, b""))
    assert refused.value.code == ServerError.INCOMPATIBLE_SCHEMA
    assert await meta.keys("schema") == []


async def test_json_schema_is_known_for_json_alone() -> None:
    topics, _ = made()
    old = b'{"type": "object", "id": "urn:jsonschema:Order", "properties": {}}'
    assert await topics.put("t", schema(JSON, old)) == bytes(8)
    with pytest.raises(CommandRefused):
        await topics.put("u", schema(AVRO, old))


async def test_a_schema_that_is_too_large_is_refused() -> None:
    topics, meta = made()
    with pytest.raises(Invalid, match="at most"):
        await topics.put("t", schema(1, b"x" * (MAX_SCHEMA_BYTES + 1)))
    assert await meta.keys("schema") == []


async def test_a_topic_has_so_many_schemas_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "MAX_VERSIONS", 3)
    topics, _ = made()
    for number in range(3):
        await topics.put("t", schema(1, b"%d" % number))
    with pytest.raises(Invalid, match="3 schemas already"):
        await topics.put("t", schema(1, b"one more"))
    assert len([one async for one in topics.all_of("t")]) == 3


def union_of(count: int, name: str) -> bytes:
    """A definition with a field of so many types, each a record of its own."""
    kinds = [{"type": "record", "name": f"{name}{n}", "fields": [{"name": "n", "type": "int"}]} for n in range(count)]
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "f", "type": kinds}]}).encode()


def record_of(count: int) -> bytes:
    """A definition of so many fields."""
    fields = [{"name": f"f{number}", "type": "int"} for number in range(count)]
    return json.dumps({"type": "record", "name": "R", "fields": fields}).encode()


@pytest.mark.parametrize("made_of", [lambda n: union_of(n, "a"), record_of], ids=["branches", "fields"])
@pytest.mark.parametrize("asked", ["put", "check_reader"])
async def test_schema_too_long_to_compare_is_refused(
    asked: str, made_of: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few hundred thousand bytes could take an hour, and nothing else would go on meanwhile."""
    monkeypatch.setattr(schema_compatibility, "MOST_STEPS", 1_000)
    monkeypatch.setattr(schema_compatibility, "FIELDS_OF_A_STEP", 4)
    topics, _ = made()
    await topics.put("t", schema(AVRO, made_of(100)))
    with pytest.raises(CommandRefused, match="too complex") as refused:
        await getattr(topics, asked)("t", schema(AVRO, made_of(101)))
    assert refused.value.code == ServerError.INCOMPATIBLE_SCHEMA
    assert not await topics.goes_with("t", schema(AVRO, made_of(101)))
    await topics.put("u", schema(AVRO, made_of(5)))
    await topics.put("u", schema(AVRO, made_of(5) + b" "))


@pytest.mark.parametrize("asked", ["put", "check_reader", "goes_with"])
async def test_schemas_are_compared_beside_other_work(asked: str) -> None:
    topics, meta = made()
    await topics.put("t", schema(AVRO, record_of(1)))
    beside: list[Callable[[], Any]] = []

    async def work(call: Callable[[], Any]) -> Any:
        beside.append(call)
        return call()

    others = Schemas(cast(Ports, SimpleNamespace(meta=meta, work=work)))
    await getattr(others, asked)("t", schema(AVRO, record_of(1) + b" "))
    assert len(beside) == 1


async def test_earlier_schemas_are_compared_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Avro's objects they take far more memory than as they are kept, however many clients bring one."""
    looked: list[int] = []
    at_once: list[int] = []
    really = schema_compatibility.compatible

    def compared(strategy: str, kind: int, new: bytes, earlier: list[tuple[int, bytes]], effort: Any) -> bool:
        looked.append(len(earlier))
        return really(strategy, kind, new, earlier, effort)

    async def work(call: Callable[[], None]) -> None:
        at_once.append(topics._compared._value)
        await asyncio.sleep(0)
        call()

    topics, _ = made()
    topics._ports = cast(Ports, SimpleNamespace(meta=topics._ports.meta, work=work))

    async def strategy(topic: str) -> str:
        return "FULL_TRANSITIVE"

    monkeypatch.setattr(topics, "strategy", strategy)
    monkeypatch.setattr(schemas, "compatible", compared)
    for number in range(5):
        await topics.put("t", schema(AVRO, optional_of(number)))
    assert looked == [1] * (1 + 2 + 3 + 4)
    new = [topics.check_reader("t", schema(AVRO, optional_of(number))) for number in range(5, 10)]
    await asyncio.gather(*new)
    assert looked == [1] * (10 + 5 * 5)
    assert min(at_once) == 0, "as many at once as may be, and no more"


async def test_every_earlier_schema_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is the only one that the last does not go with."""
    topics, _ = made()
    for strategy, refused in (("BACKWARD", False), ("BACKWARD_TRANSITIVE", True)):

        async def chosen(topic: str, strategy: str = strategy) -> str:
            return strategy

        monkeypatch.setattr(topics, "strategy", chosen)
        topic = strategy.lower()
        await topics.put(topic, schema(AVRO, field_of("int")))
        await topics.put(topic, schema(AVRO, record_of(0)))
        last = topics.put(topic, schema(AVRO, field_of("string")))
        if refused:
            with pytest.raises(CommandRefused, match="does not go with"):
                await last
        else:
            await last


async def test_the_schemas_of_a_topic_have_so_many_bytes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "MAX_TOPIC_BYTES", 3_000)
    topics, meta = made()
    for number in range(2):
        await topics.put("t", schema(1, b"%d" % number * 1_200))
    with pytest.raises(Invalid, match="at most 3000 bytes, and those of t 24"):
        await topics.put("t", schema(1, b"x" * 1_200))
    assert len(await meta.keys("schema-definition/t/")) == 2
    assert await topics.put("t", schema(1, b"0" * 1_200)) == bytes(8), "what is there already is no more"
    await topics.put("u", schema(1, b"x" * 1_200))


def optional_of(number: int) -> bytes:
    """A record with a field of this name that may be left out."""
    fields = [{"name": f"f{number}", "type": "int", "default": 0}]
    return json.dumps({"type": "record", "name": "R", "fields": fields}).encode()


def field_of(kind: str) -> bytes:
    """A record with an optional field of a type."""
    default = 0 if kind == "int" else ""
    fields = [{"name": "f", "type": kind, "default": default}]
    return json.dumps({"type": "record", "name": "R", "fields": fields}).encode()
