"""Columns of the payloads of a topic whose clients registered Avro or JSON schemas: implements PayloadColumns.

Registered schemas are read again for each file (actors.pulsar.conversation.gateway.schemas keeps the records). A
message names the version that it was written with, which was registered before; schemas that were deleted since count
as well.
"""

from __future__ import annotations

import pyarrow as pa

from sluice.actors.policies.policy_records import definition_key, schema_key
from sluice.actors.pulsar.codec.protocol import Schema, parse
from sluice.actors.pulsar.codec.schema_versions import versions_of
from sluice.actors.pulsar.conversation.gateway.schemas import versions_in
from sluice.cluster.history.scan import StoreUrls
from sluice.cluster.host.stores import read_metadata
from sluice.storage.history.part import SCHEMA
from sluice.storage.history.schema_fields import Definition, SchemaFields
from sluice.storage.stores.metadata import Metadata


class SchemaColumns:
    """See storage.history.part.PayloadColumns."""

    def __init__(self, definitions: list[Definition]) -> None:
        self._fields = SchemaFields(definitions, SCHEMA.names)
        self.schema = self._fields.schema

    @classmethod
    def of_topic(cls, urls: StoreUrls, topic: str) -> SchemaColumns | None:
        """Read the columns of a topic; None if it has no fields. Raises NotFound, Unavailable, Corrupt."""
        with read_metadata(urls.metadata, urls.endpoint) as store:
            found = cls(_definitions(store, topic))
        return found if len(found.schema) else None

    def decode(self, rows: pa.Table) -> tuple[list[pa.Array], int]:
        versions = versions_of(rows.column("pulsar").combine_chunks())
        return self._fields.columns(rows.column("payload").combine_chunks(), versions)


def _definitions(store: Metadata, topic: str) -> list[Definition]:
    """Every version that a topic has had, in order; without those that are listed and not there."""
    listed = store.read(schema_key(topic))
    found = []
    for number, one in enumerate([] if listed is None else versions_in(topic, listed.value)):
        encoded = one.encoded
        if encoded is None:
            version = store.read(definition_key(topic, one.digest))
            encoded = None if version is None else version.value
        if encoded:
            schema = parse(Schema, encoded)
            found.append(Definition(number, schema.type, bytes(schema.data)))
    return found
