"""Schemas of topics: what clients registered, in order, each once.

A record per topic, `schema/<topic>`, whose value is the list of its versions; whoever adds one writes the record's next
number, and of two who do that at once the second looks again. Two schemas are the same if kind and definition are.
A new one must go with what is there, by the namespace's strategy (`compatibility.py`). That a topic's schema was
deleted is an empty version: as with Pulsar nobody finds what was before it any more, and what is registered again is
new, under a number that no earlier one had.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import msgpack

from actors.ports import Ports
from actors.pulsar.compatibility import ALWAYS, NEVER, check_definition, compatible
from actors.pulsar.fields import Schema, ServerError, parse
from actors.pulsar.namespaces import Namespaces
from actors.pulsar.records import revise, schema_key, value_of
from actors.pulsar.refusals import Refused
from storage.errors import Corrupt, Invalid, NotFound

VERSION = struct.Struct(">q")
MAX_SCHEMA_BYTES = 256 * 1024
"""How large a schema may be."""
MAX_VERSIONS = 1_000
"""How many schemas a topic may have had, those before a deletion among them."""
MOST_ABREAST = 4
"""So many records are read or written at once: one may be large, and there may be many who ask."""
DELETED = b""
"""The version that says that there is none."""
UNCHECKED = (0, 21)
"""Kinds of schemas that go with every other: bytes, and whatever the topic has."""
BACKWARD, ALL = "BACKWARD", "_TRANSITIVE"


class Schemas:
    """The schemas of all topics."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._abreast = asyncio.Semaphore(MOST_ABREAST)
        self._namespaces = Namespaces(ports.meta)

    async def put(self, topic: str, schema: Any) -> bytes:
        """The version of a schema, which is added if it is new. Raises Refused, Invalid, Unavailable."""
        _check_definition(schema)
        return await self._add(topic, _encoded(schema), await self.strategy(topic))

    async def strategy(self, topic: str) -> str:
        """By which a schema must go with those before it. Raises Unavailable."""
        return (await self._namespaces.of_topic(topic)).compatibility

    async def goes_with(self, topic: str, schema: Any) -> bool:
        """Whether a schema may follow those of a topic. Raises Refused if it is invalid, Unavailable."""
        _check_definition(schema)
        versions = await self._read(topic)
        try:
            _check(topic, await self.strategy(topic), schema, _pairs(versions[_begin(versions) :]))
        except Refused:
            return False
        return True

    async def check_reader(self, topic: str, schema: Any) -> None:
        """A consumer comes with this, which must read the newest; where there is none, it is added. Raises as put."""
        if schema.type in UNCHECKED:
            return
        _check_definition(schema)
        versions = await self._read(topic)
        earlier = _pairs(versions[_begin(versions) :])
        if not earlier:
            await self.put(topic, schema)
        elif (schema.type, schema.data) not in earlier:
            strategy = await self.strategy(topic)
            weaker = strategy if strategy in (ALWAYS, NEVER) or strategy.endswith(ALL) else BACKWARD
            _check(topic, weaker, schema, earlier)

    async def check_writer(self, topic: str) -> None:
        """A producer comes without a schema. Raises Refused where its namespace wants one, Unavailable."""
        if (await self._namespaces.of_topic(topic)).enforced:
            versions = await self._read(topic)
            if _pairs(versions[_begin(versions) :]):
                text = f"topic {topic} has a schema, and its namespace enforces that: produce with a schema"
                raise Refused(ServerError.INCOMPATIBLE_SCHEMA, text)

    async def delete(self, topic: str) -> bytes:
        """From now on the topic has no schema; the version that says so. Raises NotFound, Invalid, Unavailable."""
        await self.get(topic, b"")
        return await self._add(topic, DELETED, ALWAYS)

    async def _add(self, topic: str, encoded: bytes, strategy: str) -> bytes:
        def added(value: bytes | None) -> bytes:
            versions = _versions_in(topic, value)
            if value is not None and _place_of(encoded, versions) is not None:
                return value
            _check(topic, strategy, parse(Schema, encoded), _pairs(versions[_begin(versions) :]))
            if len(versions) >= MAX_VERSIONS:
                raise Invalid(f"topic {topic} has {len(versions)} schemas already")
            packed: bytes = msgpack.packb([*versions, encoded])
            return packed

        async with self._abreast:
            value = await revise(self._ports.meta, schema_key(topic), added, f"the schemas of {topic} are")
        return VERSION.pack(_place_of(encoded, _versions_in(topic, value)))

    async def version_of(self, topic: str, schema: Any) -> bytes:
        """The version of a schema that is there. Raises NotFound, Invalid, Unavailable."""
        versions = await self._read(topic)
        place = _place_of(_encoded(schema), versions)
        if place is None:
            raise NotFound(f"topic {topic} has no such schema")
        return VERSION.pack(place)

    async def all_of(self, topic: str) -> list[tuple[Any, bytes]]:
        """Every version since the last deletion, and its number. Raises Unavailable."""
        versions = await self._read(topic)
        begin = _begin(versions)
        return [(parse(Schema, version), VERSION.pack(begin + n)) for n, version in enumerate(versions[begin:])]

    async def get(self, topic: str, version: bytes) -> tuple[Any, bytes]:
        """A version and its number; the newest if none is named. Raises NotFound, Invalid, Unavailable."""
        if version and len(version) != VERSION.size:
            raise Invalid(f"a schema version has {VERSION.size} bytes, not {len(version)}")
        versions = await self._read(topic)
        place = VERSION.unpack(version)[0] if version else len(versions) - 1
        if not _begin(versions) <= place < len(versions):
            raise NotFound(f"topic {topic} has no such schema")
        return parse(Schema, versions[place]), VERSION.pack(place)

    async def _read(self, topic: str) -> list[bytes]:
        async with self._abreast:
            return _versions_in(topic, await value_of(self._ports.meta, schema_key(topic)))


def _versions_in(topic: str, value: bytes | None) -> list[bytes]:
    """What the record of a topic's schemas says. Raises Corrupt."""
    try:
        return [] if value is None else [bytes(version) for version in msgpack.unpackb(value)]
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Corrupt(f"the schemas of {topic} cannot be read: {error}") from error


def _place_of(encoded: bytes, versions: list[bytes]) -> int | None:
    """Where a version is among those since the last deletion; None if it is new."""
    begin = _begin(versions)
    if encoded == DELETED:
        return begin - 1 if 0 < begin == len(versions) else None
    wanted = _meaning(encoded)
    return next((place for place in range(begin, len(versions)) if _meaning(versions[place]) == wanted), None)


def _begin(versions: list[bytes]) -> int:
    """The first place after the last deletion."""
    return max((place + 1 for place, version in enumerate(versions) if version == DELETED), default=0)


def _pairs(versions: list[bytes]) -> list[tuple[int, bytes]]:
    meanings = (_meaning(version) for version in versions)
    return [(kind, data) for kind, data in meanings if kind not in UNCHECKED]


def _check_definition(schema: Any) -> None:
    """Raises Refused, as Pulsar does, if a schema is invalid whatever the topic has, Invalid if it is too large."""
    if len(schema.data) > MAX_SCHEMA_BYTES:
        raise Invalid(f"a schema has at most {MAX_SCHEMA_BYTES} bytes, not {len(schema.data)}")
    try:
        check_definition(schema.type, schema.data)
    except ValueError as error:
        raise Refused(ServerError.INCOMPATIBLE_SCHEMA, f"the schema is invalid: {error}") from error


def _check(topic: str, strategy: str, schema: Any, earlier: list[tuple[int, bytes]]) -> None:
    """Raises Refused if a schema does not go with the earlier ones."""
    if schema.type not in UNCHECKED and not compatible(strategy, schema.type, schema.data, earlier):
        text = f"the schema does not go with that of topic {topic}: the strategy of its namespace is {strategy}"
        raise Refused(ServerError.INCOMPATIBLE_SCHEMA, text)


def _meaning(encoded: bytes) -> tuple[int, bytes]:
    """What makes schemas the same."""
    schema = parse(Schema, encoded)
    return schema.type, schema.data


def _encoded(schema: Any) -> bytes:
    """A schema as it is kept. Raises Invalid if it is too large."""
    plain = Schema(name=schema.name, data=schema.data, type=schema.type)
    for pair in schema.properties:
        plain.properties.add(key=pair.key, value=pair.value)
    encoded: bytes = plain.SerializeToString()
    if len(encoded) > MAX_SCHEMA_BYTES:
        raise Invalid(f"a schema has at most {MAX_SCHEMA_BYTES} bytes, not {len(encoded)}")
    return encoded
