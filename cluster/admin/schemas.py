"""Schemas of topics by HTTP.

GET    /admin/v2/schemas/public/default/{topic}/schema    the newest; 404 if there is none, or it was deleted
GET    .../{topic}/schema/{version}                       an earlier one; 404 if schemas were deleted since
GET    .../{topic}/schemas                                all of them
POST   .../{topic}/schema                                 {"type": "AVRO", "schema": "...", "properties": {}}
POST   .../{topic}/compatibility | version                the same body; 409 if it does not go with what is there
DELETE .../{topic}/schema                                 of all of them; what comes later has other numbers
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import cached_property
from typing import TYPE_CHECKING, Any

from aiohttp import web

from sluice.cluster.admin.broker import Broker, named
from sluice.cluster.http.responses import Pieces, large
from sluice.cluster.http.server import body_of, json_in
from sluice.storage.errors import Conflict, Invalid

if TYPE_CHECKING:
    from sluice.actors.pulsar.conversation.gateway.schemas import Schemas

SCHEMA = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
TYPES = (
    "BYTES", "STRING", "JSON", "PROTOBUF", "AVRO", "BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE",
    "DATE", "TIME", "TIMESTAMP", "KEY_VALUE", "INSTANT", "LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME",
    "PROTOBUF_NATIVE",
)  # fmt: skip
"""Kinds of schemas as Pulsar's tools name them, by the number that stands on the wire."""

KEY_VALUE = "KEY_VALUE"


class SchemasByHttp:
    """The routes of schemas."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(f"{SCHEMA}/schema", large(self._newest)),
            web.get(f"{SCHEMA}/schema/{{version}}", large(self._version)),
            web.get(f"{SCHEMA}/schemas", large(self._all)),
            web.post(f"{SCHEMA}/schema", self._put),
            web.delete(f"{SCHEMA}/schema", self._delete),
            web.post(f"{SCHEMA}/compatibility", self._compatible),
            web.post(f"{SCHEMA}/version", self._version_of),
        ]

    @cached_property
    def _schemas(self) -> Schemas:
        from sluice.actors.pulsar.conversation.gateway.schemas import (
            Schemas,  # only who asks for schemas pays for protobuf
        )

        return Schemas(self._broker.ports)

    async def _topic(self, request: web.Request) -> str:
        """The topic that a path names, which is there; all partitions have its schemas."""
        which = named(request)
        await self._broker.settings(which)
        return which.topic

    async def _newest(self, request: web.Request) -> web.Response:
        return web.json_response(_shown(*await self._schemas.get(await self._topic(request), b"")))

    async def _version(self, request: web.Request) -> web.Response:
        number = request.match_info["version"]
        if not (number.isascii() and number.isdecimal() and len(number) < 10):
            raise Invalid(f"a schema version is a number, not {number[:40]!r}")
        found = await self._schemas.get(await self._topic(request), int(number).to_bytes(8, "big"))
        return web.json_response(_shown(*found))

    async def _all(self, request: web.Request) -> web.StreamResponse:
        """A version at a time: a topic may have had many, and each may be large."""
        pieces = _listed(self._schemas.all_of(await self._topic(request)))
        first = await anext(pieces)  # raises what keeps the topic's from being read
        return Pieces(_behind(first, pieces), "application/json")

    async def _put(self, request: web.Request) -> web.Response:
        schema, topic = _schema_of(await body_of(request)), await self._topic(request)
        if not await self._schemas.goes_with(topic, schema):
            raise Conflict(f"Incompatible schema for topic {topic}: see its namespace's schemaCompatibilityStrategy")
        version = await self._schemas.put(topic, schema)
        return web.json_response({"version": {"version": _number(version)}}, status=202)

    async def _delete(self, request: web.Request) -> web.Response:
        version = await self._schemas.delete(await self._topic(request))
        return web.json_response({"version": _number(version)})

    async def _compatible(self, request: web.Request) -> web.Response:
        schema, topic = _schema_of(await body_of(request)), await self._topic(request)
        goes, strategy = await self._schemas.goes_with(topic, schema), await self._schemas.strategy(topic)
        return web.json_response({"compatibility": goes, "schemaCompatibilityStrategy": strategy})

    async def _version_of(self, request: web.Request) -> web.Response:
        schema = _schema_of(await body_of(request))
        version = await self._schemas.version_of(await self._topic(request), schema)
        return web.json_response({"version": _number(version)})


async def _listed(found: AsyncIterator[tuple[Any, bytes]]) -> AsyncGenerator[bytes]:
    """All versions as JSON, in pieces."""
    before = '{"getSchemaResponses": ['
    async for schema, version in found:
        yield (before + json.dumps(_shown(schema, version))).encode()
        before = ", "
    yield (("" if before == ", " else before) + "]}").encode()


async def _behind(first: bytes, pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(pieces):
        yield first
        async for piece in pieces:
            yield piece


def _shown(schema: Any, version: bytes) -> dict[str, Any]:
    """A version as Pulsar shows it. When it was registered is not known here."""
    kind = TYPES[schema.type] if 0 <= schema.type < len(TYPES) else "NONE"
    return {
        "version": _number(version),
        "type": kind,
        "timestamp": 0,
        "data": _pair_shown(schema.data) if kind == KEY_VALUE else _text(schema.data),
        "properties": {_text(pair.key): _text(pair.value) for pair in schema.properties},
    }


def _pair_shown(data: bytes) -> str:
    """The schemas of a key and a value, each behind its length, as JSON."""
    fields: dict[str, Any] = {}
    for name in ("key", "value"):
        size = max(int.from_bytes(data[:4], "big", signed=True), 0)
        part, data = _text(data[4 : 4 + size]), data[4 + size :]
        try:
            fields[name] = json_in(part)
        except ValueError:
            fields[name] = part
    return json.dumps(fields, separators=(",", ":"))


def _pair_of(text: str) -> bytes:
    """The same back. Raises ValueError, KeyError, TypeError."""
    given = json_in(text)
    parts = [given[name] for name in ("key", "value")]
    encoded = [part if isinstance(part, str) else json.dumps(part, separators=(",", ":")) for part in parts]
    return b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in encoded)


def _number(version: bytes) -> int:
    return int.from_bytes(version, "big")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _schema_of(body: str) -> Any:
    """The schema in a request's body, in the form that clients send. Raises Invalid."""
    from sluice.actors.pulsar.codec.protocol import Schema

    try:
        given = json_in(body)
        kind, properties = TYPES.index(given["type"]), given.get("properties") or {}
        data = _pair_of(given["schema"]) if given["type"] == KEY_VALUE else given["schema"].encode()
        schema = Schema(name="", data=data, type=kind)
        for key, value in properties.items():
            schema.properties.add(key=key.encode(), value=value.encode())
    except (ValueError, KeyError, TypeError, AttributeError):
        example = '{"type": "AVRO", "schema": "...", "properties": {}}'
        raise Invalid(f"the body must be a schema, for example {example}") from None
    return schema
