"""Codecs: values of one Python type as payloads in JSON or Avro, and back.

msgspec encodes dataclasses and Structs, pydantic its own models, fastavro the records of Avro. A value that was written
with another version of the schema is read as the type: a field that it lacks gets its default, and one that the type
lacks is dropped.
"""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Callable
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from sluice.cluster.base.extras import require
from sluice.cluster.typed.definition import definition_of, is_model
from sluice.storage.errors import Invalid

V = TypeVar("V")
SchemaType = Literal["json", "avro"]
JSON, AVRO = 2, 4
"""Kinds of schemas, by their number in Pulsar's protocol."""
_KEPT = (bytes, datetime.datetime, datetime.date)
"""Types of values that the library of Avro takes as they are."""


class Codec(Protocol[V]):
    """The payloads of one type. number: of its kind of schema. definition: as the registry keeps it."""

    number: int
    kind: type[V]
    definition: bytes

    def encode(self, value: object) -> bytes:
        """Return the payload. Raises Invalid for a value of another type."""

    def decode(self, payload: bytes, written: bytes | None) -> V:
        """Return the value. written: the definition with which it was written, if that is another one.

        Raises ValueError for a payload that is none.
        """


def codec_of(kind: type[V], schema_type: SchemaType) -> Codec[V]:
    """Return the codec of a type. Raises Invalid, also where the library of Avro is missing."""
    if schema_type == "json":
        return JsonCodec(kind)
    if schema_type == "avro":
        return AvroCodec(kind)
    raise Invalid(f"schema_type is json or avro, not {schema_type!r}")


class _OfType(Generic[V]):
    """A codec of one type."""

    def __init__(self, kind: type[V], *, avro: bool) -> None:
        self.kind = kind
        self.definition = json.dumps(definition_of(kind, avro=avro), separators=(",", ":")).encode()

    def _check(self, value: object) -> None:
        if not isinstance(value, self.kind):
            raise Invalid(f"messages of this producer are {self.kind.__name__}, not {type(value).__name__}")


class JsonCodec(_OfType[V]):
    """Values in JSON. The names of fields stand in each, so that any version is read with any other."""

    number = JSON

    def __init__(self, kind: type[V]) -> None:
        super().__init__(kind, avro=False)
        model: Any = kind
        self._encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
        if is_model(kind):
            self._encode = lambda value: value.model_dump_json(by_alias=True).encode()
            self._decode: Callable[[bytes], V] = model.model_validate_json
        else:
            self._decode = msgspec.json.Decoder(kind).decode

    def encode(self, value: object) -> bytes:
        self._check(value)
        try:
            return self._encode(value)
        except (TypeError, ValueError) as error:
            raise Invalid(f"this {self.kind.__name__} cannot be written as JSON: {error}") from None

    def decode(self, payload: bytes, written: bytes | None) -> V:
        return self._decode(payload)


class AvroCodec(_OfType[V]):
    """Values in Avro, which are read by the schema that they were written with."""

    number = AVRO

    def __init__(self, kind: type[V]) -> None:
        require("a schema in Avro", "fastavro")
        super().__init__(kind, avro=True)
        from fastavro import parse_schema

        self._own: Any = parse_schema(json.loads(self.definition))
        self._written: dict[bytes, Any] = {}

    def encode(self, value: object) -> bytes:
        from fastavro import schemaless_writer

        self._check(value)
        dumped = value.model_dump(by_alias=True) if is_model(self.kind) else value  # type: ignore[attr-defined]
        payload = io.BytesIO()
        try:
            schemaless_writer(payload, self._own, msgspec.to_builtins(dumped, builtin_types=_KEPT))
        except (TypeError, ValueError, OverflowError) as error:
            raise Invalid(f"this {self.kind.__name__} cannot be written as Avro: {error}") from None
        return payload.getvalue()

    def decode(self, payload: bytes, written: bytes | None) -> V:
        from fastavro import schemaless_reader

        try:
            found: Any = schemaless_reader(io.BytesIO(payload), self._parsed(written), self._own)
        except (EOFError, IndexError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        model: Any = self.kind
        if is_model(model):
            found = model.model_validate(found)
        else:
            found = msgspec.convert(found, model, builtin_types=_KEPT)
        return found  # type: ignore[no-any-return]

    def _parsed(self, written: bytes | None) -> Any:
        """The schema that a value was written with. Records may have other names, as with Pulsar's clients."""
        if written is None or written == self.definition:
            return self._own
        if written not in self._written:
            from fastavro import parse_schema

            given = json.loads(written)
            given.pop("namespace", None)
            self._written[written] = parse_schema({**given, "name": self._own["name"]})
        return self._written[written]
