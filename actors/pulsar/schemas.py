"""Schemas of topics, as opaque versions: what clients registered, in order, each once.

A record per topic, `schema/<topic>`, whose value is the list of its versions; whoever adds one writes the record's next
number, and of two who do that at once the second looks again. Every schema is compatible with every other: what
Pulsar calls ALWAYS_COMPATIBLE.
"""

from __future__ import annotations

import struct
from typing import Any

import msgpack

from actors.ports import Ports
from actors.pulsar.fields import Schema, parse
from storage.errors import Corrupt, Invalid, NotFound, Unavailable

VERSION = struct.Struct(">q")
MAX_SCHEMA_BYTES = 256 * 1024
MAX_VERSIONS = 1_000
_TRIES = 20


class Schemas:
    """The schemas of all topics."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def put(self, topic: str, schema: Any) -> bytes:
        """The version of a schema, which is added if it is new. Raises Invalid, Unavailable."""
        encoded = _comparable(schema)
        for _ in range(_TRIES):
            number, versions = await self._read(topic)
            if encoded in versions:
                return VERSION.pack(versions.index(encoded))
            if len(versions) >= MAX_VERSIONS:
                raise Invalid(f"topic {topic} has {len(versions)} schemas already")
            await self._ports.meta.create(schema_key(topic), number + 1, msgpack.packb([*versions, encoded]))
        raise Unavailable(f"the schemas of {topic} are being changed by others; try again")

    async def get(self, topic: str, version: bytes) -> tuple[Any, bytes]:
        """A version and its number; the newest if none is named. Raises NotFound, Invalid, Unavailable."""
        if version and len(version) != VERSION.size:
            raise Invalid(f"a schema version has {VERSION.size} bytes, not {len(version)}")
        _, versions = await self._read(topic)
        place = VERSION.unpack(version)[0] if version else len(versions) - 1
        if not 0 <= place < len(versions):
            raise NotFound(f"topic {topic} has no such schema")
        return parse(Schema, versions[place]), VERSION.pack(place)

    async def _read(self, topic: str) -> tuple[int, list[bytes]]:
        found = await self._ports.meta.read(schema_key(topic))
        if found is None:
            return 0, []
        try:
            versions = [bytes(version) for version in msgpack.unpackb(found.value)]
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise Corrupt(f"the schemas of {topic} cannot be read: {error}") from error
        return found.number, versions


def schema_key(topic: str) -> str:
    """The metadata key of a topic's schemas."""
    return f"schema/{topic}"


def _comparable(schema: Any) -> bytes:
    """A schema as bytes that are equal where the schemas are. Raises Invalid if it is too large."""
    pairs = sorted((pair.key, pair.value) for pair in schema.properties)
    plain = Schema(name=schema.name, data=schema.data, type=schema.type)
    for key, value in pairs:
        plain.properties.add(key=key, value=value)
    encoded: bytes = plain.SerializeToString()
    if len(encoded) > MAX_SCHEMA_BYTES:
        raise Invalid(f"a schema has at most {MAX_SCHEMA_BYTES} bytes, not {len(encoded)}")
    return encoded
