"""Traces of messages, by the SDK of OpenTelemetry."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import sluice
import sluice.otel
from tests.cluster.helpers import eventually


@dataclasses.dataclass
class Order:
    """A value."""

    article: str


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """The spans of this process that have ended."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    sluice.otel.instrument(provider)
    yield exporter
    sluice.otel.uninstrument()


@pytest.fixture
def client() -> Iterator[sluice.Client]:
    """A client of a broker of the test's own."""
    with sluice.connect(embedded=True) as client:
        client.create_topic("orders")
        yield client


def ended(spans: InMemorySpanExporter, count: int, name: str) -> list[ReadableSpan]:
    """Wait for so many spans of a name."""
    eventually(lambda: len([span for span in spans.get_finished_spans() if span.name == name]) >= count, name)
    return [span for span in spans.get_finished_spans() if span.name == name]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def plain(message: sluice.Message) -> None: ...


def by_value(order: Order) -> None: ...


async def in_a_task(message: sluice.Message) -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("handler", [plain, by_value, in_a_task])
def test_a_handler_goes_on_with_the_trace_of_the_sender(
    spans: InMemorySpanExporter, client: sluice.Client, handler: Any
) -> None:
    current: list[Any] = []

    if handler is plain:

        def handler(message: sluice.Message) -> None:
            current.append(trace.get_current_span().get_span_context())

    sent = client.create_producer("orders", schema=Order).send(Order("pen"), properties={"a": "b"})
    with sluice.Workers("orders", "billing", handler, client=client):
        (handled,) = ended(spans, 1, "process orders")
    (began,) = ended(spans, 1, "send orders")
    (waited,) = ended(spans, 1, "receive orders")
    assert (began.kind, handled.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
    assert handled.parent is not None
    assert (handled.parent.trace_id, handled.parent.span_id) == (began.context.trace_id, began.context.span_id)
    assert [one.span_id for one in current] in ([], [handled.context.span_id])
    assert waited.parent == handled.parent
    for span, verb in ((began, "send"), (waited, "receive"), (handled, "process")):
        told = attributes(span)
        assert told["messaging.system"] == "sluice"
        assert told["messaging.operation.type"] == verb
        assert told["messaging.destination.name"] == "orders"
        assert told["messaging.message.id"] == str(sent)
        assert told["messaging.message.body.size"] == len(b'{"article":"pen"}')
    told = attributes(handled)
    assert told["messaging.destination.subscription.name"] == "billing"
    assert told["sluice.wait.reason"] == "queued"


def test_a_wait_has_its_reason(spans: InMemorySpanExporter, client: sluice.Client) -> None:
    failed: list[bytes] = []

    def handle(message: sluice.Message) -> None:
        if message.data() == b"fails" and not failed:
            failed.append(message.data())
            raise ValueError("once")

    producer = client.create_producer("orders")
    producer.send(b"fails", partition_key="a")
    producer.send(b"later", partition_key="b", deliver_after=timedelta(milliseconds=50))
    with sluice.Workers("orders", "billing", handle, client=client, retry_delay_ms=1):
        handled = ended(spans, 3, "process orders")
    reasons = [attributes(span)["sluice.wait.reason"] for span in handled]
    assert sorted(reasons) == ["delayed", "queued", "redelivered"]
    (late,) = [attributes(span) for span in handled if attributes(span)["sluice.wait.reason"] == "delayed"]
    assert late["sluice.wait.delayed_ms"] == 50
    (broken,) = [span for span in handled if span.status.status_code is trace.StatusCode.ERROR]
    assert attributes(broken)["error.type"] == "ValueError"
    assert [event.name for event in broken.events] == ["exception"]


def test_a_span_within_a_loop_of_ones_own(spans: InMemorySpanExporter, client: sluice.Client) -> None:
    consumer = client.subscribe("orders", "billing")
    client.create_producer("orders").send(b"x")
    message = consumer.receive()
    assert set(message.properties()) == {"traceparent"}
    with sluice.otel.process(message, "billing") as span:
        assert trace.get_current_span() is span
    (handled,) = ended(spans, 1, "process orders")
    (began,) = ended(spans, 1, "send orders")
    assert handled.parent is not None
    assert handled.parent.span_id == began.context.span_id


def test_a_message_that_fails_has_an_error_in_its_span(spans: InMemorySpanExporter, client: sluice.Client) -> None:
    producer = client.create_producer("orders")
    client.terminate_topic("orders")
    with pytest.raises(sluice.Terminated):
        producer.send(b"x")
    (span,) = ended(spans, 1, "send orders")
    assert attributes(span)["error.type"] == "Terminated"
    assert span.status.status_code is trace.StatusCode.ERROR


def test_results_are_read_within_the_span(spans: InMemorySpanExporter, client: sluice.Client) -> None:
    within: list[int] = []

    def handle(message: sluice.Message) -> Iterator[bytes]:
        within.append(trace.get_current_span().get_span_context().span_id)
        yield b"bill"

    client.create_topic("bills", deduplication_enabled=True)
    client.create_producer("orders").send(b"x")
    with sluice.Workers("orders", "billing", handle, client=client, output="bills"):
        (handled,) = ended(spans, 1, "process orders")
    assert within == [handled.context.span_id]


def test_a_received_message_has_a_span_of_its_wait(spans: InMemorySpanExporter, client: sluice.Client) -> None:
    with client.subscribe("orders", "billing") as consumer, client.create_producer("orders") as producer:
        sent = producer.send(b"later", deliver_after=timedelta(milliseconds=50))
        consumer.receive()
    (began,) = ended(spans, 1, "send orders")
    (waited,) = ended(spans, 1, "receive orders")
    assert (waited.parent and waited.parent.span_id) == began.context.span_id
    assert attributes(waited)["messaging.message.id"] == str(sent)
    assert attributes(waited)["messaging.destination.subscription.name"] == "billing"
    assert attributes(waited)["sluice.wait.reason"] == "delayed"
    assert (waited.end_time or 0) - (waited.start_time or 0) >= 50_000_000


async def test_an_asyncio_program_is_traced(spans: InMemorySpanExporter) -> None:
    async with await sluice.connect_async(embedded=True) as client:
        await client.create_topic("orders")
        async with await client.create_producer("orders") as producer:
            consumer = await client.subscribe("orders", "billing")
            with trace.get_tracer("test", tracer_provider=None).start_as_current_span("request"):
                await producer.send(b"x")
            await consumer.receive()
    assert [span.name for span in spans.get_finished_spans()] == ["send orders", "receive orders"]


SENT = """
import sys, sluice
with sluice.connect(embedded=True) as client:
    client.create_topic("orders")
    client.create_producer("orders").send(b"x")
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
sys.modules["opentelemetry"] = None
try:
    import sluice.otel
except sluice.Invalid as error:
    print(error)
"""


def test_a_program_that_is_not_traced_imports_nothing_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", SENT], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "opentelemetry is not installed: pip install 'sluice[otel]'\n", done.stderr


def test_without_a_tracer_a_message_carries_nothing(client: sluice.Client) -> None:
    consumer = client.subscribe("orders", "billing")
    client.create_producer("orders").send(b"x")
    assert consumer.receive().properties() == {}
