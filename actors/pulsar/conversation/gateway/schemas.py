"""The schemas that clients registered for topics, in order, each once.

The record `schema/<topic>` lists a topic's versions: of each its kind and digests. What a version says is a record of
its own, `schema-definition/<topic>/<digest>`, which is written first and never changed. A gateway that adds a version
writes the list's next number; if two do that at once the second looks again. Lists of earlier releases hold the schemas
themselves; they are read as they are, and the next added version gives each a record. Two schemas are the same if kind
and definition are.
A new one must go with what is there, by the namespace's strategy (`compatibility.py`). That a topic's schema was
deleted is an empty version: as with Pulsar nobody finds what was before it any more, and what is registered again is
new, under a number that no earlier one had.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgpack

from sluice.actors.policies.namespaces import ALWAYS, NEVER, Namespaces
from sluice.actors.policies.policy_records import definition_key, schema_key, value_of
from sluice.actors.policies.schema_compatibility import (
    AVRO,
    JSON,
    Effort,
    TooComplex,
    check_definition,
    compatible,
)
from sluice.actors.ports import Ports
from sluice.actors.pulsar.codec.protocol import Schema, ServerError, parse
from sluice.actors.pulsar.codec.schema_versions import VERSION
from sluice.actors.pulsar.refusals import CommandRefused
from sluice.storage.errors import Corrupt, Invalid, NotFound, Unavailable

MAX_SCHEMA_BYTES = 256 * 1024
"""How large a schema may be."""
MAX_VERSIONS = 1_000
"""How many schemas a topic may have had, those before a deletion among them."""
MAX_TOPIC_BYTES = 16 * 1024 * 1024
"""How large all schemas of a topic may be, those before a deletion among them."""
MOST_COMPARED = 2
"""The most schemas of a gateway that are compared at once, each with one other: parsed by Avro they need far more."""
MOST_AT_ONCE = 4
"""The most records that are read or written at once: one may be large, and many clients may ask."""
DELETED = b""
"""The version that says that there is none."""
UNCHECKED = (0, 21)
"""Kinds of schemas that go with every other: bytes, and whatever the topic has."""
BACKWARD, ALL = "BACKWARD", "_TRANSITIVE"
_TRIES = 20


@dataclass(frozen=True, slots=True)
class ListedSchema:
    """A version in a topic's list. encoded: the schema itself, in lists of earlier releases.

    meaning: digest of what makes schemas the same. digest: of the whole schema, with its size; empty if this says that
    there is none.
    """

    kind: int
    meaning: bytes
    digest: str
    encoded: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes of the schema; 0 if an earlier release listed it, which did not write that down."""
        return len(self.encoded) if self.encoded is not None else int(self.digest.partition("-")[2] or 0)


class Schemas:
    """The schemas of all topics."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._at_once = asyncio.Semaphore(MOST_AT_ONCE)
        self._compared = asyncio.Semaphore(MOST_COMPARED)
        self._namespaces = Namespaces(ports.meta)

    async def put(self, topic: str, schema: Any) -> bytes:
        """Return the version of a schema, which is added if it is new. Raises CommandRefused, Invalid, Unavailable."""
        _check_definition(schema)
        return await self._add(topic, _encoded(schema), await self.strategy(topic))

    async def strategy(self, topic: str) -> str:
        """By which a schema must go with those before it. Raises Unavailable."""
        return (await self._namespaces.of_topic(topic)).compatibility

    async def goes_with(self, topic: str, schema: Any) -> bool:
        """Return whether a schema may follow a topic's own. Raises CommandRefused if it is invalid, Unavailable."""
        _check_definition(schema)
        versions = await self._read(topic)
        try:
            strategy = await self.strategy(topic)
            await self._check(topic, strategy, schema, versions)
        except CommandRefused:
            return False
        return True

    async def check_reader(self, topic: str, schema: Any) -> None:
        """A consumer comes with this, which must read the newest; where there is none, it is added. Raises as put."""
        if schema.type in UNCHECKED:
            return
        _check_definition(schema)
        versions = await self._read(topic)
        if not _checked(versions):
            await self.put(topic, schema)
        elif _number_of(_listed(_encoded(schema)), versions) is None:
            strategy = await self.strategy(topic)
            weaker = strategy if strategy in (ALWAYS, NEVER) or strategy.endswith(ALL) else BACKWARD
            await self._check(topic, weaker, schema, versions)

    async def check_writer(self, topic: str) -> None:
        """A producer comes without a schema. Raises CommandRefused where its namespace wants one, Unavailable."""
        if (await self._namespaces.of_topic(topic)).enforced:
            versions = await self._read(topic)
            if _checked(versions):
                text = f"topic {topic} has a schema, and its namespace enforces that: produce with a schema"
                raise CommandRefused(ServerError.INCOMPATIBLE_SCHEMA, text)

    async def delete(self, topic: str) -> bytes:
        """From now on the topic has no schema; the version that says so. Raises NotFound, Invalid, Unavailable."""
        await self.get(topic, b"")
        return await self._add(topic, DELETED, ALWAYS)

    async def _add(self, topic: str, encoded: bytes, strategy: str) -> bytes:
        new, key = _listed(encoded), schema_key(topic)
        for _ in range(_TRIES):
            async with self._at_once:
                found = await self._ports.meta.read(key)
            number, versions = (0, []) if found is None else (found.number, versions_in(topic, found.value))
            known = _number_of(new, versions)
            if known is not None:
                return VERSION.pack(known)
            await self._check(topic, strategy, parse(Schema, encoded), versions)
            if len(versions) >= MAX_VERSIONS:
                raise Invalid(f"topic {topic} has {len(versions)} schemas already")
            if (size := sum(version.size for version in versions)) + new.size > MAX_TOPIC_BYTES:
                raise Invalid(
                    f"all schemas of a topic have at most {MAX_TOPIC_BYTES} bytes, and those of {topic} {size}"
                )
            versions.append(new)
            for version in versions:
                await self._keep(topic, version)
            packed = msgpack.packb([[one.kind, one.meaning, one.digest] for one in versions])
            async with self._at_once:
                added = await self._ports.meta.create(key, number + 1, packed)
            if added:
                await self._keep(topic, new)  # the topic may have been removed, with its definitions, meanwhile
                return VERSION.pack(len(versions) - 1)
        raise Unavailable(f"the schemas of {topic} are being changed by others; try again")

    async def _keep(self, topic: str, version: ListedSchema) -> None:
        """Give a version that is not DELETED a record of its own, if it has none. Raises Unavailable."""
        if version.digest and version.encoded is not None:
            async with self._at_once:
                await self._ports.meta.create(definition_key(topic, version.digest), 1, version.encoded)

    async def _encoded_of(self, topic: str, version: ListedSchema) -> bytes:
        """Return the encoded schema of a version. Raises Corrupt, Unavailable."""
        if version.encoded is not None:
            return version.encoded
        async with self._at_once:
            value = await value_of(self._ports.meta, definition_key(topic, version.digest))
        if value is None:
            raise Corrupt(f"a schema of {topic} is listed and not there: {version.digest}")
        return value

    async def _check(self, topic: str, strategy: str, schema: Any, versions: list[ListedSchema]) -> None:
        """Compare a schema with the newest or all of those before it, one at a time and beside other work: that may
        take a while. Raises CommandRefused if it does not go with them, Corrupt, Unavailable.
        """
        checked, effort = _checked(versions), Effort()
        if strategy == ALWAYS or schema.type in UNCHECKED:
            return
        every = strategy.endswith(ALL) and schema.type in (JSON, AVRO)
        earlier = [one for one in checked[:-1] if one.kind == schema.type] if every else []
        for version in [*checked[-1:], *reversed(earlier)]:
            async with self._compared:
                one = _meaning(await self._encoded_of(topic, version))
                await self._ports.work(partial(_check, topic, strategy, schema, one, effort))

    async def version_of(self, topic: str, schema: Any) -> bytes:
        """Return the version of a registered schema. Raises NotFound, Invalid, Unavailable."""
        versions = await self._read(topic)
        number = _number_of(_listed(_encoded(schema)), versions)
        if number is None:
            raise NotFound(f"topic {topic} has no such schema")
        return VERSION.pack(number)

    async def all_of(self, topic: str) -> AsyncIterator[tuple[Any, bytes]]:
        """Every version since the last deletion, and its number, each read when it is asked for. Raises Unavailable."""
        versions = await self._read(topic)
        for number in range(_begin(versions), len(versions)):
            yield parse(Schema, await self._encoded_of(topic, versions[number])), VERSION.pack(number)

    async def get(self, topic: str, version: bytes) -> tuple[Any, bytes]:
        """Return a version and its number; the newest if none is named. Raises NotFound, Invalid, Unavailable."""
        if version and len(version) != VERSION.size:
            raise Invalid(f"a schema version has {VERSION.size} bytes, not {len(version)}")
        versions = await self._read(topic)
        number = VERSION.unpack(version)[0] if version else len(versions) - 1
        if not _begin(versions) <= number < len(versions):
            raise NotFound(f"topic {topic} has no such schema")
        return parse(Schema, await self._encoded_of(topic, versions[number])), VERSION.pack(number)

    async def _read(self, topic: str) -> list[ListedSchema]:
        async with self._at_once:
            return versions_in(topic, await value_of(self._ports.meta, schema_key(topic)))


def versions_in(topic: str, value: bytes | None) -> list[ListedSchema]:
    """Return the versions in the record of a topic's schemas. Raises Corrupt."""
    try:
        items = [] if value is None else msgpack.unpackb(value)
        return [_listed(item) if isinstance(item, bytes) else ListedSchema(*item) for item in items]
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Corrupt(f"the schemas of {topic} cannot be read: {error}") from error


def _listed(encoded: bytes) -> ListedSchema:
    """Return how a schema is listed."""
    if encoded == DELETED:
        return ListedSchema(0, b"", "", DELETED)
    kind, data = _meaning(encoded)
    meaning = hashlib.sha256(b"%d:" % kind + data).digest()
    return ListedSchema(kind, meaning, f"{hashlib.sha256(encoded).hexdigest()}-{len(encoded)}", encoded)


def _number_of(wanted: ListedSchema, versions: list[ListedSchema]) -> int | None:
    """Return the number of a version since the last deletion; None if the version is new."""
    begin = _begin(versions)
    if not wanted.digest:
        return begin - 1 if 0 < begin == len(versions) else None
    return next((number for number in range(begin, len(versions)) if versions[number].meaning == wanted.meaning), None)


def _begin(versions: list[ListedSchema]) -> int:
    """Return the first place after the last deletion."""
    return max((number + 1 for number, version in enumerate(versions) if not version.digest), default=0)


def _checked(versions: list[ListedSchema]) -> list[ListedSchema]:
    """Return the versions since the last deletion that a new one must be compatible with."""
    return [version for version in versions[_begin(versions) :] if version.kind not in UNCHECKED]


def _check_definition(schema: Any) -> None:
    """Raise CommandRefused, as Pulsar does, if a schema by itself is invalid, Invalid if it is too large."""
    if len(schema.data) > MAX_SCHEMA_BYTES:
        raise Invalid(f"a schema has at most {MAX_SCHEMA_BYTES} bytes, not {len(schema.data)}")
    try:
        check_definition(schema.type, schema.data)
    except ValueError as error:
        raise CommandRefused(ServerError.INCOMPATIBLE_SCHEMA, f"the schema is invalid: {error}") from error


def _check(topic: str, strategy: str, schema: Any, earlier: tuple[int, bytes], effort: Effort) -> None:
    """Raise CommandRefused if a schema does not go with an earlier one."""
    try:
        goes = compatible(strategy, schema.type, schema.data, [earlier], effort)
    except TooComplex as error:
        raise CommandRefused(ServerError.INCOMPATIBLE_SCHEMA, f"the schema is refused: {error}") from error
    if not goes:
        text = f"the schema does not go with that of topic {topic}: the strategy of its namespace is {strategy}"
        raise CommandRefused(ServerError.INCOMPATIBLE_SCHEMA, text)


def _meaning(encoded: bytes) -> tuple[int, bytes]:
    """Return the part of a schema by which two are the same."""
    schema = parse(Schema, encoded)
    return schema.type, schema.data


def _encoded(schema: Any) -> bytes:
    """Return a schema as it is kept. Raises Invalid if it is too large."""
    plain = Schema(name=schema.name, data=schema.data, type=schema.type)
    for pair in schema.properties:
        plain.properties.add(key=pair.key, value=pair.value)
    encoded: bytes = plain.SerializeToString()
    if len(encoded) > MAX_SCHEMA_BYTES:
        raise Invalid(f"a schema has at most {MAX_SCHEMA_BYTES} bytes, not {len(encoded)}")
    return encoded
