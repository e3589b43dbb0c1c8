"""Fields of Avro and JSON schemas as columns: their names and types over versions, and payloads that are anything."""

from __future__ import annotations

import datetime
import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from sluice.storage.history.schema_fields import AVRO, JSON, MOST_FIELDS, NO_VERSION, Definition, SchemaFields

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
ORDER = [
    {"name": "amount", "type": "int"},
    {"name": "key", "type": ["null", "string"]},
    {"name": "price", "type": "double"},
    {"name": "at", "type": MILLIS},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    {"name": "raw", "type": "bytes"},
    {"name": "lines", "type": {"type": "array", "items": "string"}},
    {"name": "either", "type": ["string", "long"]},
]
VALUES = {
    "amount": 5, "key": "k", "price": 1.5, "at": 1_700_000_000_000, "day": 3, "kind": "B", "raw": b"\xff",
    "lines": ["x", "y"], "either": 7,
}  # fmt: skip
COLUMNS = {
    "amount": 5, "field_key": "k", "price": 1.5, "day": datetime.date(1970, 1, 4), "kind": "B", "raw": b"\xff",
    "lines": '["x","y"]', "either": "7", "at": datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC),
}  # fmt: skip


def definition(version: int, fields: list[Any], kind: int = AVRO) -> Definition:
    """A version whose record has these fields."""
    return Definition(version, kind, json.dumps({"type": "record", "name": "Order", "fields": fields}).encode())


def encoded(fields: list[Any], values: dict[str, Any]) -> bytes:
    """A payload in Avro."""
    sink = io.BytesIO()
    schema = [
        {**field, "type": "long" if field["type"] == MILLIS else field["type"]} for field in fields
    ]  # numbers as they are
    schema = [{**field, "type": "int" if field["name"] == "day" else field["type"]} for field in schema]
    schemaless_writer(sink, parse_schema({"type": "record", "name": "Order", "fields": schema}), values)
    return sink.getvalue()


def rows(fields: SchemaFields, payloads: list[bytes], versions: list[int]) -> tuple[list[dict[str, Any]], int]:
    """Return the columns as a dict for each row, without nulls, and the number of rows that did not decode."""
    columns, failed = fields.columns(pa.array(payloads, pa.binary()), np.array(versions, np.int64))
    table = pa.Table.from_arrays(columns, schema=fields.schema)
    return [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()], failed


def test_every_type_has_its_column() -> None:
    fields = SchemaFields([definition(0, ORDER)], ["key", "payload"])
    assert rows(fields, [encoded(ORDER, VALUES)] * 2, [0, NO_VERSION]) == ([COLUMNS, {}], 0)


def test_versions_only_add_columns() -> None:
    """One more field, one with another type, one that is gone: each row has those of its version, in any order."""
    versions = [
        definition(0, [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]),
        definition(1, [{"name": "a", "type": "string"}, {"name": "c", "type": "boolean"}], JSON),
        definition(3, [{"name": "A", "type": "long"}, {"name": "c", "type": ["null", "boolean"]}], JSON),
    ]
    fields = SchemaFields(versions, [])
    assert fields.schema.names == ["a", "b", "a_text", "c", "A_long"]
    first = encoded([{"name": "a", "type": "int"}, {"name": "b", "type": "string"}], {"a": 1, "b": "x"})
    payloads = [b'{"a": "one", "c": true}', first, b'{"A": 3}', first, b"{}"]
    assert rows(fields, payloads, [1, 0, 3, 2, 3]) == (
        [{"a_text": "one", "c": True}, {"a": 1, "b": "x"}, {"A_long": 3}, {}, {}],
        1,  # version 2 is not known
    )
    earlier = SchemaFields(versions[:2], [])
    assert list(earlier.schema) == list(fields.schema)[:4]


def test_undecodable_payload_is_null_and_counted() -> None:
    fields = SchemaFields([definition(0, ORDER), definition(1, ORDER, JSON)], ["key"])
    good = encoded(ORDER, VALUES)
    wrong = [good[:-1], good + b"\0", b"", good[:3], b"\xff" * 20]
    found, failed = rows(fields, [*wrong, good], [0] * 6)
    assert (found, failed) == ([{}] * 5 + [COLUMNS], 5)
    wrong = [b"", b"[1]", b'{"amount": "5"}', b'{"amount": true}', b'{"price": "1.5"}', b'{"at": 9e99}', b"\xff"]
    wrong += [
        b'{"at": 9000000000000000000}',
        b'{"amount": 99999999999999999999}',
        b'{"day": 3000000000}',
        b'{"kind": 1}',
    ]
    found, failed = rows(fields, [*wrong, b'{"amount": 5, "price": 2}'], [1] * (len(wrong) + 1))
    assert (found, failed) == ([{}] * len(wrong) + [{"amount": 5, "price": 2.0}], len(wrong))


@given(st.lists(st.tuples(st.binary(max_size=40), st.integers(-2, 2)), max_size=20))
def test_any_bytes_are_taken(payloads: list[tuple[bytes, int]]) -> None:
    fields = SchemaFields([definition(0, ORDER), definition(1, ORDER, JSON)], [])
    found, failed = rows(fields, [payload for payload, _ in payloads], [version for _, version in payloads])
    assert len(found) == len(payloads) >= failed


@pytest.mark.parametrize(
    "fields",
    [
        [{"name": "next", "type": ["null", "Order"]}],
        [{"name": "next", "type": ["null", "other.Order"]}],
        [{"name": "many", "type": {"type": "array", "items": "null"}}],
        [{"name": "many", "type": {"type": "array", "items": {"type": "record", "name": "E", "fields": []}}}],
        [{"name": "many", "type": {"type": "array", "items": {"type": "fixed", "name": "E", "size": 0}}}],
        [{"name": "strange", "type": "nowhere"}],
        [{"name": "strange"}],
        "none",
    ],
)
def test_unbounded_schema_has_no_columns(fields: Any) -> None:
    found = SchemaFields([definition(0, fields), Definition(1, AVRO, b"\xff"), Definition(2, 1, b"")], [])
    assert found.schema.names == []
    assert rows(found, [b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"] * 3, [0, 1, 2]) == ([], 0)


def test_there_are_so_many_columns_and_no_more() -> None:
    many = [{"name": f"f{number}", "type": "int"} for number in range(MOST_FIELDS + 5)]
    fields = SchemaFields([definition(0, many, JSON)], [])
    assert len(fields.schema) == MOST_FIELDS
    assert rows(fields, [b'{"f3": 1, "f204": 2}'], [0]) == ([{"f3": 1}], 0)
