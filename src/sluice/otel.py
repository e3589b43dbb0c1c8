"""Traces of messages with OpenTelemetry (`pip install 'sluice[otel]'`), by its conventions for messaging.

    import sluice.otel

    sluice.otel.instrument()

From then on this process makes a span for each message that it sends by itself (`send`, `send_async`), for its wait
until `receive` returned it or a pool's handler got it, and for each one that a pool's handler handles. The context
travels in the message's properties, so a trace goes on at the receiver, also behind the gateway and in clients of
Pulsar that are traced. Batches of columns are not traced.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

from sluice.cluster.base import tracing
from sluice.cluster.base.extras import named_extras
from sluice.cluster.client.message import Message

with named_extras():
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider

SYSTEM = "sluice"


def instrument(tracer_provider: TracerProvider | None = None) -> None:
    """Trace the messages of this process. tracer_provider: by default the global one, also if it is set later."""
    tracing.ACTIVE = _Traced(trace.get_tracer("sluice", tracer_provider=tracer_provider))


def uninstrument() -> None:
    """Trace no more messages. Pools that were started before go on as they are."""
    tracing.ACTIVE = None


@contextlib.contextmanager
def process(message: Message[Any], subscription: str = "") -> Iterator[Span]:
    """Make a span for what a `with` block does with a received message. The span of its sender is the parent."""
    active = tracing.ACTIVE if isinstance(tracing.ACTIVE, _Traced) else _Traced(trace.get_tracer("sluice"))
    with _within(active.begun(message, subscription, "")) as span:
        yield span


class _Traced:
    """The tracer of this process. Implements tracing.Tracing."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def publishing(
        self, producer: tracing.Producing, payload: bytes, properties: tracing.Properties, callback: tracing.Callback
    ) -> tuple[tracing.Properties, tracing.Callback]:
        """See tracing.Tracing."""
        topic = producer.topic()
        span = self._tracer.start_span(
            f"send {topic}",
            kind=SpanKind.PRODUCER,
            attributes={
                "messaging.system": SYSTEM,
                "messaging.operation.name": "send",
                "messaging.operation.type": "send",
                "messaging.destination.name": topic,
                "messaging.client.id": producer.producer_name(),
                "messaging.message.body.size": len(payload),
            },
        )
        carried = dict(properties or {})
        propagate.inject(carried, trace.set_span_in_context(span))

        def settled(error: Exception | None, message_id: Any) -> None:
            if error is not None:
                _fail(span, error)
            else:
                span.set_attribute("messaging.message.id", str(message_id))
                span.set_attribute("messaging.destination.partition.id", str(message_id.partition()))
            span.end()
            if callback is not None:
                callback(error, message_id)

        return carried, settled

    def handled(self, call: Callable[[Any], Any], subscription: str, worker: str) -> Callable[[Any], Any]:
        """See tracing.Tracing."""

        @functools.wraps(call, updated=())
        def handle(message: Any) -> Any:
            if not isinstance(message, Message):
                return call(message)
            self.received(message, subscription, worker)
            span = self.begun(message, subscription, worker)
            try:
                with trace.use_span(span, set_status_on_exception=False):
                    returned = call(message)
            except BaseException as error:
                _fail(span, error)
                span.end()
                raise
            if inspect.isawaitable(returned):
                return _awaited(span, returned)
            if inspect.isgenerator(returned):
                return _generated(span, returned)
            span.end()
            return returned

        return handle

    def received(self, message: Message[Any], subscription: str, worker: str = "") -> None:
        """Note the wait of a message: from its publishing until now, with the reason."""
        now, published = time.time_ns(), message.publish_timestamp() * 1_000_000
        since = min(published, now)  # the clock of its sender may be ahead
        self._begin("receive", message, subscription, worker, start_time=since).end(now)

    def begun(self, message: Message[Any], subscription: str, worker: str) -> Span:
        """Begin the span of a message that is handled; how long it waited, and for which reason, are attributes."""
        return self._begin("process", message, subscription, worker)

    def _begin(
        self, verb: str, message: Message[Any], subscription: str, worker: str, start_time: int | None = None
    ) -> Span:
        now, published, due = time.time_ns() // 1_000_000, message.publish_timestamp(), message.deliver_at()
        delayed = max(due - published, 0) if due else 0
        redeliveries = message.redelivery_count()
        attributes: dict[str, Any] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": verb,
            "messaging.operation.type": verb,
            "messaging.destination.name": message.topic_name(),
            "messaging.destination.partition.id": str(message.message_id().partition()),
            "messaging.message.id": str(message.message_id()),
            "messaging.message.body.size": len(message.data()),
            "sluice.redelivery_count": redeliveries,
            "sluice.wait.reason": "redelivered" if redeliveries else "delayed" if delayed else "queued",
            "sluice.wait.delayed_ms": delayed,
            "sluice.wait.queued_ms": max(now - published - delayed, 0),
        }
        given = {"messaging.destination.subscription.name": subscription, "messaging.client.id": worker}
        attributes.update((name, value) for name, value in given.items() if value)
        return self._tracer.start_span(
            f"{verb} {message.topic_name()}",
            context=propagate.extract(message.properties()),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            start_time=start_time,
        )


@contextlib.contextmanager
def _within(span: Span) -> Iterator[Span]:
    """The span as the current one, which ends with the block and notes its error."""
    try:
        with trace.use_span(span, set_status_on_exception=False):
            yield span
    except BaseException as error:
        _fail(span, error)
        raise
    finally:
        span.end()


async def _awaited(span: Span, returned: Any) -> Any:
    with _within(span):
        return await returned


def _generated(span: Span, returned: Generator[Any, Any, Any]) -> Iterator[Any]:
    with _within(span):
        yield from returned


def _fail(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(Status(StatusCode.ERROR, str(error)))
