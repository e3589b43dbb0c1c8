"""Requests about the schemas of topics, from clients that send and receive typed values."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from sluice.actors.messages.limits import Name
from sluice.actors.ports.wire import Reply, Request

MOST_DEFINITION = 256 * 1024
"""Bytes of a definition."""


class SchemaVersion(Reply, kw_only=True):
    """The number of a schema among those of its topic; -1 where it was only compared."""

    version: int


class RegisterSchema(Request[SchemaVersion], kw_only=True):
    """Add a schema to those of a topic, or find its version. Invalid if it does not go with those before it.

    kind: its number in Pulsar's protocol. reads: a consumer reads with it; it is added only where there is none.
    """

    reply: ClassVar[type[Reply]] = SchemaVersion
    topic: Name
    kind: int
    name: Annotated[str, Meta(max_length=1024)]
    definition: Annotated[bytes, Meta(max_length=MOST_DEFINITION)]
    reads: bool = False


class SchemaRead(Reply, kw_only=True):
    """A schema of a topic."""

    kind: int
    definition: bytes


class ReadSchema(Request[SchemaRead], kw_only=True):
    """Return a version of a topic's schema. NotFound, also for one that was deleted."""

    reply: ClassVar[type[Reply]] = SchemaRead
    topic: Name
    version: Annotated[int, Meta(ge=0)]
