"""Answers of the schema registry to clients that speak Sluice's own protocol: the records are those of all clients."""

from __future__ import annotations

from sluice.actors.messages import ReadSchema, RegisterSchema, SchemaRead, SchemaVersion
from sluice.actors.ports import Ports
from sluice.actors.pulsar.codec.protocol import Schema
from sluice.actors.pulsar.codec.schema_versions import VERSION
from sluice.actors.pulsar.conversation.gateway.schemas import Schemas
from sluice.actors.pulsar.refusals import CommandRefused
from sluice.storage.errors import Invalid


class SchemaRequests:
    """See actors.controller.schema_registry.SchemaRegistry."""

    def __init__(self, ports: Ports) -> None:
        self._schemas = Schemas(ports)

    async def register(self, request: RegisterSchema) -> SchemaVersion:
        """See messages.RegisterSchema. Raises Invalid, Unavailable."""
        schema = Schema(name=request.name, data=request.definition, type=request.kind)
        try:
            if request.reads:
                await self._schemas.check_reader(request.topic, schema)
                return SchemaVersion(version=-1)
            return SchemaVersion(version=VERSION.unpack(await self._schemas.put(request.topic, schema))[0])
        except CommandRefused as refused:
            raise Invalid(str(refused)) from None

    async def read(self, request: ReadSchema) -> SchemaRead:
        """See messages.ReadSchema. Raises NotFound, Unavailable."""
        schema, _ = await self._schemas.get(request.topic, VERSION.pack(request.version))
        return SchemaRead(kind=schema.type, definition=bytes(schema.data))
