"""Handlers of typed values: the annotation is enough."""

from __future__ import annotations

import dataclasses
import queue
from typing import Any

import pyarrow
import pytest

import sluice
from sluice.cluster.client.client import Client
from sluice.cluster.workers.options import WorkersOptions
from sluice.cluster.workers.typed_handlers import with_schema
from sluice.storage.errors import Invalid


@dataclasses.dataclass
class Order:
    """A value."""

    article: str


SEEN: queue.Queue[Any] = queue.Queue()


def handle(order: Order) -> None:
    SEEN.put(order)


async def handle_in_a_task(order: Order) -> None:
    SEEN.put(order)


def handle_any(order: Any) -> None:
    SEEN.put(order)


class Handler:
    """A handler that is made once in each worker."""

    def __call__(self, order: Order) -> None:
        SEEN.put(order)


def handle_message(message: sluice.Message[Order]) -> None:
    SEEN.put(message.value())


@pytest.mark.parametrize("handler", [handle, handle_in_a_task, handle_any, Handler, handle_message])
def test_a_handler_gets_the_value_that_it_names(client: Client, handler: Any) -> None:
    given = {"schema": Order} if handler in (handle_any, handle_message) else {}
    with sluice.Workers("orders", "s", handler, client=client, **given):  # type: ignore[arg-type]
        client.create_producer("orders", schema=Order).send(Order("pen"))
        assert SEEN.get(timeout=60) == Order("pen")


def test_a_handler_of_columns_has_no_schema(client: Client) -> None:
    with pytest.raises(Invalid, match="leave batch_size, or schema"):
        sluice.Workers("orders", "s", handle, client=client, batch_size=10).start()


def handle_plain_message(message: sluice.Message) -> None:
    SEEN.put(message.data())


def handle_batch(batch: sluice.Batch) -> None:
    SEEN.put(batch)


def handle_columns(rows: pyarrow.RecordBatch) -> None:
    SEEN.put(rows)


def handle_unnamed(message) -> None:  # type: ignore[no-untyped-def]
    SEEN.put(message)


@pytest.mark.parametrize(
    "handler", [handle_plain_message, handle_message, handle_batch, handle_columns, handle_any, handle_unnamed]
)
def test_an_annotation_that_is_no_schema_leaves_payloads(handler: Any) -> None:
    assert with_schema(handler, WorkersOptions()).schema is None


def test_a_handler_of_messages_gets_payloads_without_a_schema(client: Client) -> None:
    with sluice.Workers("orders", "s", handle_plain_message, client=client):
        client.create_producer("orders").send(b"pen")
        assert SEEN.get(timeout=60) == b"pen"


@pytest.mark.parametrize("kind", [sluice.Message, sluice.Batch])
def test_a_type_of_the_client_is_refused_as_a_schema(client: Client, kind: type) -> None:
    with pytest.raises(Invalid, match="a schema is a dataclass"):
        client.create_producer("orders", schema=kind)
