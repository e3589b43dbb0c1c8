"""The hook of a tracer of messages. None: nothing is traced, and a message costs one look at this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Properties = dict[str, str] | None
Callback = Callable[..., None] | None


class Producing(Protocol):
    """A producer, as far as a tracer names it."""

    def topic(self) -> str: ...

    def producer_name(self) -> str: ...


class Tracing(Protocol):
    """A tracer of messages; `sluice.otel` has one."""

    def publishing(
        self, producer: Producing, payload: bytes, properties: Properties, callback: Callback
    ) -> tuple[Properties, Callback]:
        """A message begins its way. Returns the properties with which it travels, and what is called with (error,
        message id) at its end.
        """

    def received(self, message: Any, subscription: str) -> None:
        """A message was received by itself."""

    def handled(self, call: Callable[[Any], Any], subscription: str, worker: str) -> Callable[[Any], Any]:
        """Return a pool's handler of messages that is traced."""


ACTIVE: Tracing | None = None


def traced(call: Callable[[Any], Any], subscription: str, worker: str) -> Callable[[Any], Any]:
    """Return a pool's handler of messages, traced if anything is."""
    return call if ACTIVE is None else ACTIVE.handled(call, subscription, worker)
