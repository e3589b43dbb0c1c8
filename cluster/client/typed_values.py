"""Typed values of one topic: a producer's and a consumer's schema in the registry, and payloads as values.

The registry gives a producer's schema its version, which travels with each message in the column that Pulsar's clients
use for it. Payloads in Avro are read by the schema that they were written with. A consumer asks the registry for a
version when the first message of it arrives, before a user can receive that one; so `value` never waits.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.messages import ReadSchema, RegisterSchema
from sluice.actors.ports.wire import Request
from sluice.cluster.client.message import Message
from sluice.cluster.typed.codecs import AVRO, Codec, SchemaType, codec_of
from sluice.storage.errors import Invalid, NotFound, SluiceError

V = TypeVar("V")


class AsksController(Protocol):
    """A client, as far as typed values need one."""

    async def ask_controller(self, request: Request[Any]) -> Any: ...


class TypedValues(Generic[V]):
    """The schema of one producer or consumer."""

    def __init__(self, client: AsksController, topic: str, codec: Codec[V]) -> None:
        self._client, self._topic, self._codec = client, topic, codec
        self._written: dict[int, bytes] = {}
        """Definitions by version, of messages in Avro that have arrived."""
        self._failed: dict[int, SluiceError] = {}
        """Versions that the registry did not give, and why."""

    async def register(self) -> bytes:
        """Register the schema of a producer. Return what stands in the column `pulsar` of its messages.

        Raises Invalid for one that does not go with those before it, Unavailable.
        """
        from sluice.actors.pulsar.codec.protocol import Metadata
        from sluice.actors.pulsar.codec.schema_versions import VERSION

        version = (await self._client.ask_controller(self._request())).version
        encoded: bytes = Metadata(schema_version=VERSION.pack(version)).SerializeToString()
        return encoded

    async def check(self) -> None:
        """Check that a consumer's schema reads the newest of the topic; register it where there is none. Raises Invalid
        for one that does not, Unavailable.
        """
        await self._client.ask_controller(self._request(reads=True))

    def _request(self, *, reads: bool = False) -> RegisterSchema:
        codec = self._codec
        return RegisterSchema(
            topic=self._topic, kind=codec.number, name=codec.kind.__name__, definition=codec.definition, reads=reads
        )

    def encode(self, value: object) -> bytes:
        """Return the payload of a value. Raises Invalid for another type."""
        return self._codec.encode(value)

    def unknown_in(self, part: Received) -> list[int]:
        """Return the versions of messages that have just arrived and whose definitions are not here."""
        if self._codec.number != AVRO or "pulsar" not in part.rows.schema.names:
            return []
        from sluice.actors.pulsar.codec.schema_versions import versions_of

        refused = {version for version, error in self._failed.items() if isinstance(error, NotFound | Invalid)}
        known = self._written.keys() | refused  # of others the answer may be another one by now
        return sorted({int(one) for one in versions_of(part.rows.column("pulsar")) if one >= 0} - known)

    async def load(self, versions: list[int]) -> None:
        """Ask the registry for definitions. A message whose version it does not give cannot be read."""
        for version in versions:
            try:
                found = await self._client.ask_controller(ReadSchema(topic=self._topic, version=version))
            except SluiceError as error:
                self._failed[version] = error
            else:
                self._written[version] = found.definition
                self._failed.pop(version, None)

    def value_of(self, message: Message[Any]) -> V:
        """Return the value of a message. Raises Invalid for a payload that is none."""
        written = None
        if self._codec.number == AVRO and (rest := message.batch.cell("pulsar", message.row)) is not None:
            written = self._definition(message, bytes(rest))
        try:
            return self._codec.decode(message.data(), written)
        except ValueError as error:
            name = self._codec.kind.__name__
            raise Invalid(f"message {message.message_id()} of {self._topic} is no {name}: {error}") from error

    def _definition(self, message: Message[Any], rest: bytes) -> bytes | None:
        from sluice.actors.pulsar.codec.schema_versions import version_of

        version = version_of(rest)
        if version in self._failed:
            why = f"version {version} of its schema is not to be had: {self._failed[version]}"
            raise Invalid(f"message {message.message_id()} of {self._topic} cannot be read: {why}")
        return self._written.get(version)


def typed_values(
    client: AsksController, topic: object, schema: type[V] | None, schema_type: SchemaType
) -> TypedValues[V] | None:
    """Return the typed values of a topic; None without a schema. Raises Invalid for a type that is no schema."""
    if schema is None:
        return None
    if not isinstance(topic, str):
        raise Invalid("schema= is of one topic, named by its text; subscribe to each topic by itself")
    return TypedValues(client, topic, codec_of(schema, schema_type))
