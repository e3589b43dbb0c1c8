"""Checks what users give to the client: names, types and combinations of settings, keys and payloads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import msgspec
import pyarrow as pa

from sluice.actors.controller.catalog import check_dead_letters
from sluice.actors.messages import DELAY_ID, SubscriptionSettings
from sluice.actors.ownership.names import check_name
from sluice.cluster.client.typed_settings import ConsumerSettings, OwnConsumerSettings
from sluice.storage.errors import Invalid


def check_whole(name: str, value: object, least: int, most: int) -> None:
    """Raises Invalid unless it is a whole number within these limits."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise Invalid(f"{name} is a whole number, {least} to {most}, not {value!r}")


def check_timeout(name: str, value: object) -> None:
    """Raises Invalid unless it is a number or None, which is without end."""
    if value is not None and (not isinstance(value, int | float) or value != value):
        raise Invalid(f"{name} is a number, not {value!r}")


def check_columns(data: object) -> None:
    """Raises Invalid unless these are messages as columns."""
    if not isinstance(data, pa.RecordBatch | pa.Table):
        raise Invalid(f"a batch is a pyarrow.RecordBatch or Table, not {type(data).__name__}")


def check_callback(name: str, value: object, count: int) -> None:
    """Raises Invalid unless it can be called with so many arguments, or is None."""
    if value is None:
        return
    if not callable(value):
        raise Invalid(f"{name} is a function, not {value!r}")
    if not _takes(value, count):
        raise Invalid(f"{name} is called with {count} argument{'s' * (count > 1)}, and {value!r} does not take that")


def _takes(function: Callable[..., object], count: int) -> bool:
    """Whether a function can be called with so many arguments; a built-in one that does not tell can."""
    code = getattr(function, "__code__", None)
    bound = getattr(function, "__self__", None) is not None
    if code is not None and code.co_argcount - bound == count and not code.co_kwonlyargcount:
        return True  # most are: a look at the signature takes as long as much else that is done for a message
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def as_bytes(value: str | bytes | None) -> bytes | None:
    """A key or a payload as messages carry it. Raises Invalid for text that is none."""
    try:
        return value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise Invalid(f"{str(value)[:40]!r} is not Unicode text: give bytes instead") from None


def as_payload(content: object) -> bytes:
    """A payload. Raises Invalid for what is neither bytes nor text."""
    if isinstance(content, bytes | str):
        return bytes(as_bytes(content) or b"")
    raise Invalid(f"a payload is bytes or text, not {type(content).__name__}")


def check_known(what: str, values: Collection[str], kind: Any) -> None:
    """Raises Invalid for a name that is no field of the struct; what: the word for these names."""
    _check_names(what, values, {field.name for field in msgspec.structs.fields(kind)})


def _check_names(what: str, values: Collection[str], known: set[str]) -> None:
    unknown = sorted(set(values) - known)
    if unknown:
        raise Invalid(f"unknown {what} {unknown[0]!r}; there are {', '.join(sorted(known)) or 'none'}")


def check_names(what: str, values: Collection[str], kind: type[Mapping[str, object]]) -> None:
    """Raises Invalid for a name that is no key of the TypedDict; what: the word for these names."""
    _check_names(what, values, set(kind.__annotations__))


def divided(settings: ConsumerSettings) -> tuple[OwnConsumerSettings, dict[str, Any]]:
    """Divide what `subscribe` was given into the consumer's own settings, and those of its subscription."""
    own = {name: value for name, value in settings.items() if name in OwnConsumerSettings.__annotations__}
    return cast("OwnConsumerSettings", own), {name: value for name, value in settings.items() if name not in own}


def wanted_settings(values: dict[str, Any], kind: Any) -> Any:
    """Check settings by name and type. Raises Invalid naming the wrong one."""
    check_known("setting", values, kind)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise Invalid(str(error)) from None


def wanted_subscription(
    values: dict[str, Any], topics: Sequence[str], subscription: str, *, named: bool
) -> SubscriptionSettings:
    """A subscription's settings; the dead letter topic gets its short name. named: the consumer has a name of its own.

    Raises Invalid, also where nothing could ever be written to the dead letter topic.
    """
    wanted: SubscriptionSettings = wanted_settings(values, SubscriptionSettings)
    if wanted.grace_ms > 0 and not named:
        raise Invalid("grace_ms keeps hashes for a consumer that comes back under its name: give it a consumer_name")
    for topic in topics:
        check_dead_letters(topic, subscription, wanted)
    if wanted.dead_letter_topic:
        wanted = msgspec.structs.replace(wanted, dead_letter_topic=check_name("topic", wanted.dead_letter_topic))
    return wanted


def named(
    delay_id: str | None,
    properties: dict[str, str] | None,
    key: str | bytes | None,
    ordering_key: str | bytes | None,
) -> tuple[dict[str, str] | None, str | bytes | None]:
    """Return properties and ordering key of a message with a name of its sender: without a key it hashes by that."""
    if delay_id is None:
        return properties, ordering_key
    all_properties = {**(properties or {}), DELAY_ID: delay_id}
    return all_properties, delay_id if key is None and ordering_key is None else ordering_key
