"""Schemas and new subscriptions by HTTP, with the paths and bodies of `pulsar-admin`.

GET    /admin/v2/schemas/public/default/{topic}/schema    the newest; 404 if there is none, or it was deleted
GET    .../{topic}/schema/{version}                       an earlier one, also if it was deleted since
GET    .../{topic}/schemas                                all of them
POST   .../{topic}/schema                                 {"type": "AVRO", "schema": "...", "properties": {}}
POST   .../{topic}/compatibility | version                the same body; any two schemas are compatible
DELETE .../{topic}/schema                                 what was stored under it can be read all the same
PUT    /admin/v2/persistent/public/default/{topic}/subscription/{sub}
       where it begins: {"ledgerId": L, "entryId": E, "partitionIndex": P}; earliest is -1 and -1, latest 2^63-1
       twice, which is also where it begins without a body. 409 if there is one of that name. A subscription is on
       all partitions: with an id, which wants the name of one, it begins at the latest on the others.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from aiohttp import web

from actors.directory import Directory
from actors.messages import Seek, SubscriptionSettings
from actors.names import check_name
from actors.ports import Ports
from actors.pulsar.topics import find_place, settings_of, split_name
from storage.errors import Conflict, Invalid
from storage.position import MAX_ENTRY, MAX_LEDGER

if TYPE_CHECKING:
    from actors.pulsar.schemas import Schemas

SCHEMA = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
EARLIEST, LATEST = -1, (1 << 63) - 1
TYPES = (
    "BYTES", "STRING", "JSON", "PROTOBUF", "AVRO", "BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE",
    "DATE", "TIME", "TIMESTAMP", "KEY_VALUE", "INSTANT", "LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME",
    "PROTOBUF_NATIVE",
)  # fmt: skip
"""Kinds of schemas as Pulsar's tools name them, by the number that stands on the wire."""


class PulsarAdmin:
    """These routes. body: reads a request's body as text. subscriptions: the names of a topic's."""

    def __init__(
        self,
        ports: Ports,
        directory: Directory,
        *,
        body: Callable[[web.Request], Awaitable[str]],
        subscriptions: Callable[[str], Awaitable[list[str]]],
        ask: Callable[[str, Any], Awaitable[Any]],
    ) -> None:
        self._ports, self._directory = ports, directory
        self._body, self._subscriptions, self._ask = body, subscriptions, ask

    def routes(self, subscription: str) -> list[web.RouteDef]:
        """subscription: the path of one."""
        return [
            web.get(f"{SCHEMA}/schema", self._newest),
            web.get(f"{SCHEMA}/schema/{{version}}", self._version),
            web.get(f"{SCHEMA}/schemas", self._all),
            web.post(f"{SCHEMA}/schema", self._put),
            web.delete(f"{SCHEMA}/schema", self._delete),
            web.post(f"{SCHEMA}/compatibility", self._compatible),
            web.post(f"{SCHEMA}/version", self._version_of),
            web.put(subscription, self._subscribe),
        ]

    # -- schemas --------------------------------------------------------------------------------------------------

    @cached_property
    def _schemas(self) -> Schemas:
        from actors.pulsar.schemas import Schemas  # only who asks for schemas pays for protobuf

        return Schemas(self._ports)

    async def _topic(self, request: web.Request) -> str:
        """The topic that a path names, which is there; all partitions have its schemas."""
        topic, _ = _named(request)
        await settings_of(self._directory, topic, create=False)
        return topic

    async def _newest(self, request: web.Request) -> web.Response:
        return web.json_response(_shown(*await self._schemas.get(await self._topic(request), b"")))

    async def _version(self, request: web.Request) -> web.Response:
        number = request.match_info["version"]
        if not (number.isascii() and number.isdecimal() and len(number) < 10):
            raise Invalid(f"a schema version is a number, not {number[:40]!r}")
        found = await self._schemas.get(await self._topic(request), int(number).to_bytes(8, "big"))
        return web.json_response(_shown(*found))

    async def _all(self, request: web.Request) -> web.Response:
        found = await self._schemas.all_of(await self._topic(request))
        return web.json_response({"getSchemaResponses": [_shown(schema, version) for schema, version in found]})

    async def _put(self, request: web.Request) -> web.Response:
        schema = _schema_of(await self._body(request))
        version = await self._schemas.put(await self._topic(request), schema)
        return web.json_response({"version": {"version": _number(version)}}, status=202)

    async def _delete(self, request: web.Request) -> web.Response:
        version = await self._schemas.delete(await self._topic(request))
        return web.json_response({"version": {"version": _number(version)}})

    async def _compatible(self, request: web.Request) -> web.Response:
        _schema_of(await self._body(request))
        await self._topic(request)
        return web.json_response({"compatibility": True, "schemaCompatibilityStrategy": "ALWAYS_COMPATIBLE"})

    async def _version_of(self, request: web.Request) -> web.Response:
        schema = _schema_of(await self._body(request))
        version = await self._schemas.version_of(await self._topic(request), schema)
        return web.json_response({"version": _number(version)})

    # -- subscriptions --------------------------------------------------------------------------------------------

    async def _subscribe(self, request: web.Request) -> web.Response:
        topic, partition = _named(request)
        count = (await settings_of(self._directory, topic, create=False)).partitions
        name = check_name("subscription", request.match_info["subscription"])
        start = _start_of(await self._body(request))
        if partition is not None:
            await find_place(self._directory, f"{topic}-partition-{partition}", create=False)
        elif isinstance(start, str) and count > 1:
            raise Invalid("a message id begins a subscription on one partition: name it, or give earliest or latest")
        if name in await self._subscriptions(topic):
            raise Conflict(f"subscription {name} exists on {topic} already")
        first = "earliest" if start == EARLIEST else "latest"
        settings = SubscriptionSettings(initial_position=first)
        addresses = [await self._directory.dispatcher(topic, number, name, settings) for number in range(count)]
        if isinstance(start, str):
            await self._ask(addresses[partition or 0], Seek(message_id=start))
        return web.Response(status=204)


def _named(request: web.Request) -> tuple[str, int | None]:
    """The topic that a path names, and the partition if it names one. Raises Invalid, NotFound."""
    return split_name("persistent://{tenant}/{namespace}/{topic}".format(**request.match_info))


def _shown(schema: Any, version: bytes) -> dict[str, Any]:
    """A version as Pulsar shows it. When it was registered is not known here."""
    return {
        "version": _number(version),
        "type": TYPES[schema.type] if 0 <= schema.type < len(TYPES) else "NONE",
        "timestamp": 0,
        "data": _text(schema.data),
        "properties": {_text(pair.key): _text(pair.value) for pair in schema.properties},
    }


def _number(version: bytes) -> int:
    return int.from_bytes(version, "big")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _schema_of(body: str) -> Any:
    """What is posted, as clients say it on the wire. Raises Invalid."""
    from actors.pulsar.fields import Schema

    try:
        given = json.loads(body)
        kind, properties = TYPES.index(given["type"]), given.get("properties") or {}
        schema = Schema(name="", data=given["schema"].encode(), type=kind)
        for key, value in properties.items():
            schema.properties.add(key=key.encode(), value=value.encode())
    except (ValueError, KeyError, TypeError, AttributeError):
        example = '{"type": "AVRO", "schema": "...", "properties": {}}'
        raise Invalid(f"the body says a schema, for example {example}") from None
    return schema


def _start_of(body: str) -> int | str:
    """Where a subscription begins: EARLIEST, LATEST or a message id as verbs have it. Raises Invalid."""
    try:
        given = json.loads(body) if body.strip() else {"ledgerId": LATEST, "entryId": LATEST}
        if given in ("earliest", "latest"):
            return EARLIEST if given == "earliest" else LATEST
        ledger, entry, index = given["ledgerId"], given["entryId"], given.get("batchIndex") or 0
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Invalid('the body is a message id, for example {"ledgerId": -1, "entryId": -1}') from None
    for edge in (EARLIEST, LATEST):
        if ledger == entry == edge:
            return edge
    if not all(type(number) is int for number in (ledger, entry, index)):
        raise Invalid("a message id is made of numbers")
    row = entry + max(index, 0)
    if not (0 <= ledger <= MAX_LEDGER and 0 <= row <= MAX_ENTRY):
        raise Invalid("there is no such message id")
    return f"{ledger}:{row}"
