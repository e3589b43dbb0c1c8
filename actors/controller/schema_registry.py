"""The controller's door to the schema registry, which is the same for all clients (see actors.pulsar)."""

from __future__ import annotations

from typing import Protocol

from sluice.actors.controller.pools import WorkerPools
from sluice.actors.messages import ReadSchema, RegisterSchema, SchemaRead, SchemaVersion
from sluice.actors.ports import Ports
from sluice.storage.errors import Invalid


class SchemaRegistry(Protocol):
    """The schemas of topics. The controller does not import its code, which needs the protocol of Pulsar."""

    async def register(self, request: RegisterSchema) -> SchemaVersion:
        """See messages.RegisterSchema."""

    async def read(self, request: ReadSchema) -> SchemaRead:
        """See messages.ReadSchema."""


class OpenRegistry(Protocol):
    """A function that opens the registry when somebody asks for a schema first."""

    def __call__(self, ports: Ports, /) -> SchemaRegistry: ...


class TopicSchemas(WorkerPools):
    """The part of the controller that answers clients with typed values."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self.open_registry: OpenRegistry | None = None
        self._registry: SchemaRegistry | None = None

    async def on_register_schema(self, request: RegisterSchema) -> SchemaVersion:
        """See messages.RegisterSchema. Raises Invalid, Unavailable."""
        return await self._schemas().register(request)

    async def on_read_schema(self, request: ReadSchema) -> SchemaRead:
        """See messages.ReadSchema. Raises NotFound, Unavailable."""
        return await self._schemas().read(request)

    def _schemas(self) -> SchemaRegistry:
        if self._registry is None:
            if self.open_registry is None:
                raise Invalid("this cluster keeps no schemas")
            self._registry = self.open_registry(self.ports)
        return self._registry
