"""Handlers of typed values: the schema that a handler's annotation names, and the call with a value."""

from __future__ import annotations

import inspect
from typing import Any, get_origin, get_type_hints

import msgspec

from sluice.cluster.client.message import Message
from sluice.cluster.client.settings_input import check_callback
from sluice.cluster.typed.definition import is_typed
from sluice.cluster.workers.options import WorkersOptions
from sluice.storage.errors import Invalid


def check_handler(handler: Any) -> None:
    """Raises Invalid unless it can be called with a message. A class is made once, and its object is called."""
    if inspect.isclass(handler):
        call = next((vars(one)["__call__"] for one in handler.__mro__ if "__call__" in vars(one)), None)
        check_callback("__call__ of a handler", call, 2)
    else:
        check_callback("a handler", handler, 1)


def with_schema(handler: Any, options: WorkersOptions) -> WorkersOptions:
    """Return the options with the schema that the handler's annotation names, if none is given. Raises Invalid."""
    kind = annotation_of(handler)
    if options.schema is None and not _is_message(kind) and is_typed(kind):
        options = msgspec.structs.replace(options, schema=kind)
    if options.schema is not None and options.batch_size:
        raise Invalid("a handler of columns gets payloads: leave batch_size, or schema")
    return options


def by_value(call: Any, options: WorkersOptions) -> Any:
    """Return what a worker calls with each message: the handler, or with a schema one that hands it the value.

    A handler that is annotated with Message gets the message, whose `value` is typed.
    """
    kind = annotation_of(call)
    if options.schema is None or _is_message(kind):
        return call
    return lambda message: call(message.value())


def _is_message(kind: Any) -> bool:
    return (get_origin(kind) or kind) is Message


def annotation_of(handler: Any) -> Any:
    """Return the annotation of a handler's first argument; None where there is none, or none that can be read."""
    called = handler if inspect.isroutine(handler) else getattr(handler, "__call__", None)  # noqa: B004
    if inspect.isclass(handler):
        called = handler.__dict__.get("__call__")
    try:
        names = [name for name in inspect.signature(called).parameters if name != "self"]  # type: ignore[arg-type]
        return get_type_hints(called).get(names[0])
    except (TypeError, ValueError, NameError, IndexError):
        return None
