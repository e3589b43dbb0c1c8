"""Makes columns of what payloads say, by the Avro and JSON schemas that a topic has had.

The fields of a schema's record become columns of the history (storage.history.part), beside the payload: whole numbers,
numbers, text, bytes, truth values, days and times. What is nested, or may be of several types, becomes JSON text. All
versions of the schema have their columns in each file that is written from then on, null where a message's own version
has no such field. A column is named as its field is; one that is taken, by a column of the history or by the same field
with another type in an earlier version, is named otherwise, always in the same way. So columns are only ever added.

A payload that does not decode is null in all of these, and counted. It came from a client, so nothing in it may cost
more than its size: definitions that hold themselves, or what takes no bytes, have no columns.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

JSON, AVRO = 2, 4
"""Kinds of schemas, by their number on the wire."""
MOST_FIELDS = 200
"""Columns of a topic; fields beyond these have none."""
NO_VERSION = -1
_TIME = pa.timestamp("us", "UTC")
_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_TIMES = {"timestamp-millis": 1_000, "timestamp-micros": 1}
"""Microseconds of one."""
_SUFFIXES = {pa.bool_(): "flag", pa.int64(): "long", pa.float64(): "double", pa.string(): "text", pa.binary(): "bytes"}
_SUFFIXES |= {_TIME: "time", pa.date32(): "day"}
_DEEPEST = 32
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_NOTHING = type(None)
_NUMBERS = {kind: {int, _NOTHING} for kind in (pa.int64(), _TIME, pa.date32())} | {pa.float64(): {int, float, _NOTHING}}
"""What Arrow would take for a number is not only that."""

Value = Any
"""What a payload has in a field, as a library decodes it."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A version of a topic's schema. kind: see JSON, AVRO; others have no columns."""

    version: int
    kind: int
    data: bytes


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of one version. factor: of a time, its unit in microseconds. as_text: nested, or of several types."""

    name: str
    column: str
    type: pa.DataType
    factor: int = 0
    as_text: bool = False


@dataclass(frozen=True, slots=True)
class _Version:
    """How payloads of one version are read; decode gives the fields, and raises whatever the library raises."""

    fields: list[_Field]
    decode: Callable[[bytes], dict[str, Value]]


class SchemaFields:
    """The columns of all versions. taken: names of columns that are something else."""

    def __init__(self, definitions: Sequence[Definition], taken: Sequence[str]) -> None:
        self._taken = {name.lower() for name in taken}
        self._types: dict[str, pa.DataType] = {}
        self._lower: dict[str, str] = {}
        self._versions: dict[int, _Version] = {}
        self._others: dict[int, None] = {}
        for one in definitions:
            made = self._version(one)
            if made is not None:
                self._versions[one.version] = made
            else:
                self._others[one.version] = None
        self.schema = pa.schema(list(self._types.items()))

    def columns(self, payloads: pa.Array, versions: npt.NDArray[np.int64]) -> tuple[list[pa.Array], int]:
        """The columns of `schema` for some payloads, and how many of these did not decode.

        versions: of each; NO_VERSION has no columns, and one that is not known did not decode.
        """
        order: list[npt.NDArray[np.int64]] = []
        found: list[list[pa.Array]] = [[] for _ in self.schema]
        failed = 0
        for version in np.unique(versions).tolist():
            rows = np.flatnonzero(versions == version)
            order.append(rows)
            known = self._versions.get(version)
            given: dict[str, pa.Array] = {}
            if known is not None:
                given, bad = _decoded(known, payloads.take(pa.array(rows)).to_pylist())
                failed += bad
            elif version != NO_VERSION and version not in self._others:
                failed += len(rows)
            for columns, field in zip(found, self.schema, strict=True):
                columns.append(given.get(field.name, pa.nulls(len(rows), field.type)))
        if not order:
            return [pa.nulls(0, field.type) for field in self.schema], 0
        back = pa.array(np.argsort(np.concatenate(order), kind="stable"))
        return [pa.concat_arrays(columns).take(back) for columns in found], failed

    # -- what a definition says --------------------------------------------------------------------------------------

    def _version(self, one: Definition) -> _Version | None:
        """None if its payloads have no columns."""
        if one.kind not in (JSON, AVRO):
            return None
        try:
            schema = json.loads(one.data)
            if not isinstance(schema, dict) or schema.get("type") != "record":
                return None
            _check(schema, {})
            decode = _json if one.kind == JSON else _avro(_without_logical(schema))
            fields = [self._field(field, one.kind) for field in schema["fields"]]
        except Exception:  # whatever a client's definition and a library make of each other
            return None
        return _Version([field for field in fields if field is not None], decode)

    def _field(self, field: dict[str, Any], kind: int) -> _Field | None:
        name = str(field["name"])
        found, factor, as_text = _type_of(field["type"])
        if found is None:
            return None
        if kind == JSON and found == pa.binary():
            found = pa.string()
        column = self._column(name, found)
        return None if column is None else _Field(name, column, found, factor, as_text)

    def _column(self, name: str, kind: pa.DataType) -> str | None:
        """The column of a field with this type; None if there are too many, or another one has its name."""
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        if plain.lower() in self._taken or plain.lower().startswith("field_") or not plain:
            plain = f"field_{plain}"
        for wanted in (plain, f"{plain}_{_SUFFIXES[kind]}"):
            known = self._lower.get(wanted.lower())
            if known is not None and self._types[known] == kind and known == wanted:
                return known
            if known is None and len(self._types) < MOST_FIELDS:
                self._types[wanted], self._lower[wanted.lower()] = kind, wanted
                return wanted
        return None


def _type_of(schema: Any) -> tuple[pa.DataType | None, int, bool]:
    """The column's type, the unit of a time, and whether it is text of what is nested; no type for nothing but null."""
    if isinstance(schema, list):
        kinds = [one for one in schema if one != "null"]
        return _type_of(kinds[0]) if len(kinds) == 1 else (pa.string() if kinds else None, 0, bool(kinds))
    if isinstance(schema, dict):
        logical, inner = schema.get("logicalType"), schema.get("type")
        if logical in _TIMES and inner == "long":
            return _TIME, _TIMES[logical], False
        if logical == "date" and inner == "int":
            return pa.date32(), 0, False
        return _type_of(inner) if isinstance(inner, (str, dict, list)) else (pa.string(), 0, True)
    if schema == "null":
        return None, 0, False
    return (_PLAIN[schema], 0, False) if schema in _PLAIN else (pa.string(), 0, True)


def _check(schema: Any, known: dict[str, bool], depth: int = 0) -> None:
    """Raises ValueError for what a payload could make endless: every value takes a byte, and no type holds itself.

    known: the named types so far, by the last part of their names, and whether they are complete.
    """
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    if isinstance(schema, list):
        for one in schema:
            if one != "null":
                _check(one, known, depth + 1)
        return
    kind = schema["type"] if isinstance(schema, dict) else schema
    if not isinstance(kind, str):
        _check(kind, known, depth + 1)
    elif kind in ("record", "error", "enum", "fixed"):
        name = str(schema["name"]).rpartition(".")[2]
        if name in known or not (schema.get("fields") or schema.get("symbols") or schema.get("size")):
            raise ValueError(f"{name} is there twice, or takes no bytes")
        known[name] = False
        for field in schema.get("fields") or ():
            _check(field["type"], known, depth + 1)
        known[name] = True
    elif kind in ("array", "map"):
        _check(schema["items" if kind == "array" else "values"], known, depth + 1)
    elif kind not in _PLAIN and not known.get(kind.rpartition(".")[2], False):
        raise ValueError(f"{kind} takes no bytes, holds itself, or is not known")


def _without_logical(schema: Any) -> Any:
    """A schema without logical types: values are as they are written."""
    if isinstance(schema, list):
        return [_without_logical(one) for one in schema]
    if isinstance(schema, dict):
        return {name: _without_logical(one) for name, one in schema.items() if name != "logicalType"}
    return schema


# -- what payloads say -------------------------------------------------------------------------------------------------


def _json(payload: bytes) -> dict[str, Value]:
    return _OBJECT.decode(payload)


def _avro(schema: Any) -> Callable[[bytes], dict[str, Value]]:
    from fastavro import parse_schema, schemaless_reader

    parsed = parse_schema(schema)

    def decode(payload: bytes) -> dict[str, Value]:
        source = io.BytesIO(payload + b"\0")  # whoever reads beyond the end of a payload is found out by that
        value: Any = schemaless_reader(source, parsed, None)
        if source.tell() != len(payload):
            raise ValueError("it is longer or shorter than what it holds")
        return dict(value)

    return decode


def _decoded(version: _Version, payloads: list[bytes]) -> tuple[dict[str, pa.Array], int]:
    """Columns by name, and how many payloads did not decode."""
    records: list[dict[str, Value] | None] = []
    for payload in payloads:
        try:
            records.append(version.decode(payload))
        except Exception:  # of a library that is given any bytes: none of its errors may stop the others
            records.append(None)
    try:
        found = _arrays(version.fields, records)
    except _UNFIT:
        records = [record if record is not None and _fits(version.fields, record) else None for record in records]
        found = _arrays(version.fields, records)
    return found, records.count(None)


_UNFIT = (pa.lib.ArrowException, TypeError, ValueError, OverflowError, RecursionError)


def _arrays(fields: list[_Field], records: list[dict[str, Value] | None]) -> dict[str, pa.Array]:
    """Raises one of _UNFIT."""
    return {
        one.column: _array(one, [None if record is None else record.get(one.name) for record in records])
        for one in fields
    }


def _array(field: _Field, values: list[Value]) -> pa.Array:
    """Values of one field as its column. Raises one of _UNFIT."""
    if field.as_text:
        return pa.array([_text(value) for value in values], pa.string())
    if field.type in _NUMBERS and not {type(value) for value in values} <= _NUMBERS[field.type]:
        raise TypeError("it is no such number")
    if field.factor:
        return pc.multiply_checked(pa.array(values, pa.int64()), field.factor).cast(_TIME)
    if field.type == pa.date32():
        return pa.array(values, pa.int32()).cast(pa.date32())
    if field.type == pa.float64():
        return pa.array([value if value is None else float(value) for value in values], pa.float64())
    return pa.array(values, field.type)


def _text(value: Value) -> str | None:
    """Return a nested value as JSON text; text and None stay as they are."""
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def _fits(fields: list[_Field], record: dict[str, Value]) -> bool:
    """Whether a payload's values are those of its fields."""
    for field in fields:
        try:
            _array(field, [record.get(field.name)])
        except _UNFIT:
            return False
    return True
