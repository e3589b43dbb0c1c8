"""Typed values of Sluice's client and Pulsar's, in JSON and in Avro, either way."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import pulsar
import pytest
from pulsar.schema import AvroSchema, JsonSchema, Long, Record, String

from sluice.cluster.client.client import Client
from tests.cluster.gateway.clients import EARLIEST, PATIENCE

pytestmark = pytest.mark.timeout(120)


class PulsarOrder(Record):  # type: ignore[misc]
    """An order as Pulsar's client has it."""

    article = String(required=True)
    count = Long(required=True)


@dataclasses.dataclass
class Order:
    """The same order."""

    article: str
    count: int


@dataclasses.dataclass
class LargerOrder:
    """A later version."""

    article: str
    count: int
    note: str = "none"


FORMS: list[tuple[Literal["json", "avro"], Any]] = [("json", JsonSchema), ("avro", AvroSchema)]


@pytest.mark.parametrize(("form", "theirs"), FORMS)
def test_pulsars_client_reads_typed_values(
    server: Client, client: pulsar.Client, form: Literal["json", "avro"], theirs: Any
) -> None:
    topic = f"ours-{form}"
    server.create_topic(topic)
    server.create_producer(topic, schema=Order, schema_type=form).send(Order("pen", 3), partition_key="k")
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, schema=theirs(PulsarOrder))
    message = consumer.receive(PATIENCE)
    assert (message.value().article, message.value().count, message.partition_key()) == ("pen", 3, "k")
    assert message.schema_version() == "\0" * 8


@pytest.mark.parametrize(("form", "theirs"), FORMS)
def test_typed_values_of_pulsars_client_are_read(
    server: Client, client: pulsar.Client, form: Literal["json", "avro"], theirs: Any
) -> None:
    topic = f"theirs-{form}"
    server.create_topic(topic)
    producer = client.create_producer(topic, schema=theirs(PulsarOrder))
    producer.send(PulsarOrder(article="ink", count=2))
    consumer = server.subscribe(topic, "s", initial_position="earliest", schema=LargerOrder, schema_type=form)
    assert consumer.receive(PATIENCE).value() == LargerOrder("ink", 2, "none")
