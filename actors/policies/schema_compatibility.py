"""Whether a schema may follow another one on a topic.

Two schemas of different kinds are never compatible. If both definitions are Avro's, a strategy says which schema must
be able to read the other one's messages, by Avro's rules of schema resolution. Other kinds are not compared, as with
Pulsar.
"""

from __future__ import annotations

import json
from typing import Any

from avro.compatibility import (
    ReaderWriterCompatibilityChecker,
    SchemaCompatibilityResult,
    SchemaCompatibilityType,
)
from avro.errors import AvroException
from avro.name import Names
from avro.schema import RecordSchema, Schema, make_avsc_object

from sluice.actors.policies.namespaces import ALWAYS, NEVER

JSON, PROTOBUF, AVRO = 2, 3, 4
"""Kinds of schemas, by their number on the wire, whose definition is Avro's."""
KINDS = range(22)
"""Every kind of schema that there is, by its number on the wire."""
PROTOBUF_NATIVE = 20
"""Where two say the same message, protobuf's own rules let them follow each other."""
MOST_STEPS = 200_000
"""Steps of some ten microseconds that the comparison of a schema with those before it may take."""
FIELDS_OF_A_STEP = 500
"""So many fields are looked at in a step while another one is looked for."""

_MALFORMED = (AvroException, ValueError, TypeError, KeyError, RecursionError)
"""What Avro's library raises where a definition is none."""


def check_definition(kind: int, definition: bytes) -> None:
    """Check that a schema is of a known kind, and that a definition which should be Avro's is.

    Pulsar's oldest clients describe JSON by a JSON Schema, whose type is "object"; Pulsar accepts that, and so does
    this. Raises ValueError with the reason.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no type {kind}")
    if kind not in (JSON, PROTOBUF, AVRO):
        return
    try:
        schema = json.loads(definition.decode())
        if not (kind == JSON and isinstance(schema, dict) and schema.get("type") == "object"):
            _avro(schema)
    except RecursionError as error:
        raise ValueError("its definition is nested too deeply") from error
    except _MALFORMED as error:
        raise ValueError(f"its definition is not an Avro schema: {error}") from error


class TooComplex(Exception):
    """Two schemas cannot be compared in reasonable time."""


class _Checker(ReaderWriterCompatibilityChecker):  # type: ignore[misc]
    """Avro's own, which takes no more steps than are left."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def calculate_compatibility(self, reader: Schema, writer: Schema, location: list[str]) -> SchemaCompatibilityResult:
        """See the base. Raises TooComplex."""
        self.left -= 1
        if isinstance(reader, RecordSchema) and isinstance(writer, RecordSchema):
            self.left -= len(reader.fields) * len(writer.fields) // FIELDS_OF_A_STEP
        if self.left < 0:
            raise TooComplex("it is too complex to be compared with the one before it")
        return super().calculate_compatibility(reader, writer, location)


class Effort:
    """The steps that are left for the comparison of one schema with all earlier ones."""

    def __init__(self) -> None:
        self.checker = _Checker(MOST_STEPS)


def compatible(
    strategy: str, kind: int, new: bytes, earlier: list[tuple[int, bytes]], effort: Effort | None = None
) -> bool:
    """Whether a schema may follow those that a topic has, the newest last; kind: its number on the wire.

    effort: shared by the calls where a few of them are compared at a time. Raises TooComplex.
    """
    if strategy == ALWAYS or not earlier:
        return True
    if strategy == NEVER or earlier[-1][0] != kind:
        return False
    if kind == PROTOBUF_NATIVE:
        return _message_of(new) == _message_of(earlier[-1][1])
    if kind not in (JSON, AVRO):
        return True
    before = earlier if strategy.endswith("_TRANSITIVE") else earlier[-1:]
    checker = (effort or Effort()).checker
    return all(_goes_with(checker, strategy, new, definition) for known, definition in before if known == kind)


def _message_of(definition: bytes) -> object:
    """Which message a definition of protobuf is of."""
    try:
        return json.loads(definition)["rootMessageTypeName"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return definition


def _goes_with(checker: _Checker, strategy: str, new: bytes, old: bytes) -> bool:
    try:
        after, before = _avro(json.loads(new)), _avro(json.loads(old))
        backward = strategy.startswith("FORWARD") or _reads(checker, after, before)
        return backward and (strategy.startswith("BACKWARD") or _reads(checker, before, after))
    except (*_MALFORMED, AttributeError):
        return new == old  # it is none of Avro's definitions


def _avro(schema: Any) -> Schema:
    """Raises one of `_MALFORMED` if this is none."""
    return make_avsc_object(schema, Names(validate_names=False), validate_enum_symbols=False, validate_names=False)


def _reads(checker: _Checker, reader: Schema, writer: Schema) -> bool:
    """Whether what was written with one can be read with the other. A record may have another name, as with Pulsar."""
    if isinstance(reader, RecordSchema) and isinstance(writer, RecordSchema):
        reader.set_prop("aliases", [*(reader.get_prop("aliases") or ()), writer.fullname])
    checker.memoize_map.clear()
    found = checker.get_compatibility(reader, writer)
    return bool(found.compatibility is SchemaCompatibilityType.compatible)
