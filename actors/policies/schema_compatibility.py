"""Whether a schema may follow another one on a topic.

Two schemas of different kinds are never compatible. If both definitions are Avro's, a strategy says which schema must
be able to read messages of which other one, by Avro's rules of schema resolution. Other kinds are not compared, as with
Pulsar.
"""

from __future__ import annotations

import json
from typing import Any

JSON, PROTOBUF, AVRO = 2, 3, 4
"""Kinds of schemas, by their number on the wire, whose definition is Avro's."""
KINDS = range(22)
"""Every kind of schema that there is, by its number on the wire."""
PROTOBUF_NATIVE = 20
"""Where two say the same message, protobuf's own rules let them follow each other."""
ALWAYS, NEVER = "ALWAYS_COMPATIBLE", "ALWAYS_INCOMPATIBLE"
DEFAULT = "FULL"
STRATEGIES = (
    ALWAYS, NEVER, "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
)  # fmt: skip
_WIDER = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
"""What else a reader may take a written value for."""
_NAMED = ("record", "error", "enum", "fixed")
_PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


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
            _WellFormed().check(schema)
    except KeyError as error:
        raise ValueError(f"its definition lacks {error}") from error
    except RecursionError as error:
        raise ValueError("its definition is nested too deeply") from error


class _WellFormed:
    """Checks a definition by Avro's specification. A name may be used where the definition has introduced it."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def check(self, schema: Any) -> None:
        """Raises ValueError or KeyError if this is not a type."""
        if isinstance(schema, list):
            for branch in schema:
                self.check(branch)
        elif isinstance(schema, str):
            if schema not in _PRIMITIVE and _own(schema) not in self._names:
                raise ValueError(f"its definition names an unknown type: {schema[:40]!r}")
        elif isinstance(schema, dict):
            self._object(schema)
        else:
            raise ValueError("its definition is not an Avro schema")

    def _object(self, schema: dict[str, Any]) -> None:
        kind = schema["type"]
        if not isinstance(kind, str):
            self.check(kind)
            return
        if kind in _NAMED:
            self._names.add(_own(_expect(schema, "name", str)))
        match kind:
            case "record" | "error":
                for field in _expect(schema, "fields", list):
                    if not isinstance(field, dict):
                        raise ValueError("a field in its definition is not an object")
                    _expect(field, "name", str)
                    self.check(field["type"])
            case "array":
                self.check(schema["items"])
            case "map":
                self.check(schema["values"])
            case "enum":
                if not all(isinstance(symbol, str) for symbol in _expect(schema, "symbols", list)):
                    raise ValueError("a symbol in its definition is not a string")
            case "fixed":
                _expect(schema, "size", int)
            case _:
                self.check(kind)


def _expect(schema: dict[str, Any], key: str, kind: type[Any]) -> Any:
    """What a definition says under a key. Raises KeyError if it says nothing, ValueError if it is of another kind."""
    if not isinstance(schema[key], kind):
        raise ValueError(f"{key!r} in its definition has a wrong value")
    return schema[key]


def compatible(strategy: str, kind: int, new: bytes, earlier: list[tuple[int, bytes]]) -> bool:
    """Whether a schema may follow those that a topic has, the newest last; kind: its number on the wire."""
    if strategy == ALWAYS or not earlier:
        return True
    if strategy == NEVER or earlier[-1][0] != kind:
        return False
    if kind == PROTOBUF_NATIVE:
        return _message_of(new) == _message_of(earlier[-1][1])
    if kind not in (JSON, AVRO):
        return True
    before = earlier if strategy.endswith("_TRANSITIVE") else earlier[-1:]
    return all(_goes_with(strategy, new, definition) for known, definition in before if known == kind)


def _message_of(definition: bytes) -> object:
    """Which message a definition of protobuf is of."""
    try:
        return json.loads(definition)["rootMessageTypeName"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return definition


def _goes_with(strategy: str, new: bytes, old: bytes) -> bool:
    try:
        after, before = Definition(json.loads(new)), Definition(json.loads(old))
        backward = strategy.startswith("FORWARD") or after.reads(before)
        return backward and (strategy.startswith("BACKWARD") or before.reads(after))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return new == old  # it is none of Avro's definitions


class Definition:
    """A schema in Avro's JSON. Raises TypeError, KeyError and similar errors if it is not one."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._names: dict[str, Any] = {}
        self._learn(schema)

    def _learn(self, schema: Any) -> None:
        """Remember what names stand for: where a named type comes again, only its name does."""
        if isinstance(schema, list):
            for branch in schema:
                self._learn(branch)
        elif isinstance(schema, dict):
            if schema["type"] in _NAMED:
                self._names[_own(schema["name"])] = schema
            for inner in (schema["type"], schema.get("items"), schema.get("values"), *schema.get("fields", ())):
                if isinstance(inner, dict | list):
                    self._learn(inner)

    def whole(self, schema: Any) -> Any:
        """A type as a list of branches, a name, or an object whose type is a word."""
        if isinstance(schema, str):
            return self._names.get(_own(schema), schema)
        if isinstance(schema, dict) and not isinstance(schema["type"], str):
            return self.whole(schema["type"])
        return schema

    def reads(self, writer: Definition) -> bool:
        """Whether what was written with the other can be read with this one."""
        return _Reading(self, writer).can(self._schema, writer._schema)


class _Reading:
    """Whether one schema reads another. Recursive types count as compatible while they are being compared."""

    def __init__(self, reader: Definition, writer: Definition) -> None:
        self._reader, self._writer = reader, writer
        self._found: dict[tuple[str, str], bool] = {}

    def can(self, reader: Any, writer: Any) -> bool:
        to, of = self._reader.whole(reader), self._writer.whole(writer)
        if isinstance(of, list):
            return all(self.can(to, branch) for branch in of)
        if isinstance(to, list):
            return any(self.can(branch, of) for branch in to)
        kinds = _kind(to), _kind(of)
        if kinds[0] != kinds[1]:
            return kinds[0] in _WIDER.get(kinds[1], ())
        match kinds[0]:
            case "record" | "error":
                return self._record(to, of)
            case "array":
                return self.can(to["items"], of["items"])
            case "map":
                return self.can(to["values"], of["values"])
            case "enum":
                return "default" in to or set(of["symbols"]) <= set(to["symbols"])
            case "fixed":
                return bool(to["size"] == of["size"])
        return True

    def _record(self, to: Any, of: Any) -> bool:
        pair = _own(to["name"]), _own(of["name"])
        if pair not in self._found:
            self._found[pair] = True
            written = {field["name"]: field for field in of["fields"]}
            self._found[pair] = all(self._field(field, written) for field in to["fields"])
        return self._found[pair]

    def _field(self, field: Any, written: dict[str, Any]) -> bool:
        names = [field["name"], *field.get("aliases", ())]
        found = next((written[name] for name in names if name in written), None)
        return "default" in field if found is None else self.can(field["type"], found["type"])


def _kind(schema: Any) -> str:
    return schema if isinstance(schema, str) else str(schema["type"])


def _own(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition(".")[2]
