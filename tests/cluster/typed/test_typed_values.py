"""Typed values through a broker: three kinds of types, JSON and Avro, and schemas that follow each other."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from typing import Any, Literal

import msgspec
import pydantic
import pytest

import sluice
from sluice.cluster.client.client import Client
from sluice.storage.errors import Invalid
from tests.cluster.helpers import PATIENCE_MS

pytestmark = pytest.mark.timeout(120)

NOW = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=datetime.UTC)


class Colour(enum.Enum):
    """A choice."""

    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Line:
    """A part of an order."""

    article: str
    count: int = 1


@dataclasses.dataclass
class Order:
    """An order as a dataclass."""

    number: int
    total: float
    lines: list[Line]
    paid: bool = False
    note: str | None = None
    colour: Colour = Colour.RED
    at: datetime.datetime = NOW
    extra: dict[str, int] = dataclasses.field(default_factory=dict)


class StructLine(msgspec.Struct):
    """A part of an order."""

    article: str
    count: int = 1


class StructOrder(msgspec.Struct):
    """An order as a Struct."""

    number: int
    total: float
    lines: list[StructLine]
    data: bytes = b""


class ModelLine(pydantic.BaseModel):
    """A part of an order."""

    article: str
    count: int = pydantic.Field(default=1, gt=0)


class ModelOrder(pydantic.BaseModel):
    """An order as a model of pydantic."""

    number: int
    total: float
    lines: list[ModelLine] = []
    colour: Colour = Colour.BLUE
    at: datetime.datetime | None = None


VALUES: list[Any] = [
    Order(7, 9.5, [Line("pen"), Line("ink", 3)], extra={"a": 1}),
    StructOrder(7, 9.5, [StructLine("pen"), StructLine("ink", 3)], data=b"\xff\0"),
    ModelOrder(number=7, total=9.5, lines=[ModelLine(article="pen")], at=NOW),
]
FORMS: list[Literal["json", "avro"]] = ["json", "avro"]


@pytest.mark.parametrize("schema_type", FORMS)
@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_arrives_as_it_was_sent(client: Client, schema_type: Literal["json", "avro"], value: Any) -> None:
    kind = type(value)
    producer = client.create_producer("orders", schema=kind, schema_type=schema_type)
    consumer = client.subscribe("orders", "s", initial_position="earliest", schema=kind, schema_type=schema_type)
    producer.send(value, partition_key="k")
    message = consumer.receive(PATIENCE_MS)
    assert (message.value(), message.partition_key()) == (value, "k")
    with client.create_reader("orders", sluice.MessageId.earliest, schema=kind, schema_type=schema_type) as reader:
        assert reader.read_next(PATIENCE_MS).value() == value


@pytest.mark.parametrize("schema_type", FORMS)
async def test_tasks_await_typed_values(schema_type: Literal["json", "avro"], tmp_path: Any) -> None:
    async with await sluice.connect_async(embedded=True, data_dir=tmp_path / "data") as client:
        await client.create_topic("orders")
        producer = await client.create_producer("orders", schema=Order, schema_type=schema_type)
        consumer = await client.subscribe("orders", "s", schema=Order, schema_type=schema_type)
        await producer.send(VALUES[0])
        assert (await consumer.receive(PATIENCE_MS)).value() == VALUES[0]


def versions(*fields: Any, name: str = "Order") -> type[Any]:
    """A version of a dataclass."""
    return dataclasses.make_dataclass(name, fields)


FIRST = versions(("number", int), ("article", str))
ADDED = versions(("number", int), ("article", str), ("count", int, dataclasses.field(default=5)))
REMOVED = versions(("number", int))


@pytest.mark.parametrize("schema_type", FORMS)
def test_an_added_field_with_a_default_is_read_either_way(client: Client, schema_type: Literal["json", "avro"]) -> None:
    old = client.subscribe("orders", "old", schema=FIRST, schema_type=schema_type)
    client.create_producer("orders", schema=FIRST, schema_type=schema_type).send(FIRST(1, "pen"))
    client.create_producer("orders", schema=ADDED, schema_type=schema_type).send(ADDED(2, "ink", 9))
    new = client.subscribe("orders", "new", initial_position="earliest", schema=ADDED, schema_type=schema_type)
    assert [new.receive(PATIENCE_MS).value() for _ in range(2)] == [ADDED(1, "pen", 5), ADDED(2, "ink", 9)]
    assert [old.receive(PATIENCE_MS).value() for _ in range(2)] == [FIRST(1, "pen"), FIRST(2, "ink")]


@pytest.mark.parametrize("schema_type", FORMS)
def test_a_removed_field_is_refused_in_one_line(client: Client, schema_type: Literal["json", "avro"]) -> None:
    client.create_producer("orders", schema=FIRST, schema_type=schema_type)
    with pytest.raises(Invalid, match=r"does not go with that of topic orders: .* is FULL$"):
        client.create_producer("orders", schema=REMOVED, schema_type=schema_type)
    larger = versions(("number", int), ("article", str), ("count", int))
    with pytest.raises(Invalid, match="does not go with"):
        client.subscribe("orders", "refused", schema=larger, schema_type=schema_type)
    assert client.subscriptions("orders") == []


def test_a_payload_of_another_kind_is_refused_with_its_place(client: Client) -> None:
    consumer = client.subscribe("orders", "s", schema=Order)
    sent = client.create_producer("orders").send(b"no order")
    with pytest.raises(Invalid, match=f"message {sent} of orders is no Order: "):
        consumer.receive(PATIENCE_MS).value()


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (int, "a schema is a dataclass, a msgspec.Struct or a pydantic model, not <class 'int'>"),
        (versions(("odd", complex)), "Order.odd has a type that a schema cannot say: <class 'complex'>"),
        (versions(("odd", list[int] | dict[str, int])), "Order.odd may be one of several types"),
    ],
)
def test_a_type_without_schema_is_refused_in_one_line(client: Client, kind: Any, why: str) -> None:
    with pytest.raises(Invalid) as refused:
        client.create_producer("orders", schema=kind)
    assert str(refused.value).startswith(why)
    assert "\n" not in str(refused.value)


def test_a_value_of_another_type_is_refused(client: Client) -> None:
    producer = client.create_producer("orders", schema=Line)
    with pytest.raises(Invalid, match="messages of this producer are Line, not bytes"):
        producer.send(b"pen")  # type: ignore[arg-type]
