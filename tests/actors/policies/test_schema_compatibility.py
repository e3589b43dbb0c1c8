"""Which schema may follow which."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.actors.policies.schema_compatibility import AVRO, JSON, PROTOBUF_NATIVE, compatible

STRING = 1


def record(*fields: Any, name: str = "Order") -> dict[str, Any]:
    """fields: (name, type), or (name, type, default)."""
    made = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "fields": made}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def many(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


def enum(*symbols: str) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": symbols}


OLD = record(("a", "int"))
LIST = record(("value", "int"), ("next", ["null", "Order"]))


@pytest.mark.parametrize(
    ("old", "new", "backward", "forward"),
    [
        (OLD, OLD, True, True),
        (OLD, record(("a", "int"), ("b", "int")), False, True),
        (OLD, record(("a", "int"), ("b", "int", 0)), True, True),
        (OLD, record(), True, False),
        (OLD, record(("a", "long")), True, False),
        (OLD, record(("a", "string")), False, False),
        (OLD, record(("a", ["null", "int"])), True, False),
        (OLD, record(("a", "int"), name="Other"), True, True),
        (record(("a", ["null", "int"])), record(("a", ["null", "string"])), False, False),
        (record(("a", "string")), record(("a", "bytes")), True, True),
        (record(("a", array("int"))), record(("a", array("string"))), False, False),
        (record(("a", many("int"))), record(("a", many("long"))), True, False),
        (record(("a", {"type": "int", "logicalType": "date"})), OLD, True, True),
        (enum("x"), enum("x", "y"), True, False),
        ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 8}, False, False),
        (LIST, record(("value", "long"), ("next", ["null", "Order"])), True, False),
        (record(("a", OLD), ("b", "Order"), name="Two"), record(("b", OLD), ("a", "Order"), name="Two"), True, True),
        ("int", "double", True, False),
    ],
)  # fmt: skip
def test_strategies_follow_who_reads_whom(old: Any, new: Any, backward: bool, forward: bool) -> None:
    for kind in (AVRO, JSON):
        earlier = [(kind, json.dumps(old).encode())]
        after = json.dumps(new).encode()
        assert compatible("BACKWARD", kind, after, earlier) is backward
        assert compatible("FORWARD", kind, after, earlier) is forward
        assert compatible("FULL", kind, after, earlier) is (backward and forward)


def test_an_alias_names_a_field_as_it_was() -> None:
    new = record(("b", "int"))
    new["fields"][0]["aliases"] = ["a"]
    assert compatible("BACKWARD", AVRO, json.dumps(new).encode(), [(AVRO, json.dumps(OLD).encode())])


def test_all_earlier_ones_count_where_the_strategy_says_so() -> None:
    first, second, third = (json.dumps(one).encode() for one in (OLD, record(("a", "int", 0)), record()))
    earlier = [(AVRO, first), (AVRO, second)]
    assert compatible("FORWARD", AVRO, third, earlier)
    assert not compatible("FORWARD_TRANSITIVE", AVRO, third, earlier)


def test_kinds_do_not_mix_unless_everything_goes() -> None:
    earlier = [(STRING, b"")]
    assert compatible("FULL", STRING, b"", earlier)
    assert not compatible("FULL", AVRO, b'"int"', earlier)
    assert compatible("ALWAYS_COMPATIBLE", AVRO, b'"int"', earlier)
    assert not compatible("ALWAYS_INCOMPATIBLE", STRING, b"", earlier)
    assert compatible("ALWAYS_INCOMPATIBLE", STRING, b"", [])


@pytest.mark.parametrize("broken", [b"", b"{", b"[]", b'{"type": 7}', b'{"type": "record"}', b'{"fields": 3}'])
def test_invalid_definition_goes_with_itself_alone(broken: bytes) -> None:
    assert compatible("FULL", AVRO, broken, [(AVRO, broken)])
    assert not compatible("FULL", AVRO, broken, [(AVRO, b'"int"')])


def test_messages_of_protobuf_follow_themselves() -> None:
    first, later, other = (
        json.dumps({"fileDescriptorSet": files, "rootMessageTypeName": name}).encode()
        for files, name in (("a", "shop.Order"), ("b", "shop.Order"), ("a", "shop.Bill"))
    )
    assert compatible("FULL", PROTOBUF_NATIVE, later, [(PROTOBUF_NATIVE, first)])
    assert not compatible("FULL", PROTOBUF_NATIVE, other, [(PROTOBUF_NATIVE, first)])
    assert compatible("FULL", PROTOBUF_NATIVE, b"{", [(PROTOBUF_NATIVE, b"{")])
    assert not compatible("FULL", PROTOBUF_NATIVE, b"{", [(PROTOBUF_NATIVE, first)])
