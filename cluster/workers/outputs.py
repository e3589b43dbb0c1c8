"""The results that a handler gives back to be published, as rows of the topics that they go to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.actors.producer.results import ResultRows, source_name
from sluice.cluster.client.message import Message
from sluice.storage.errors import Invalid
from sluice.storage.format.batch import make_batch

MOST_RESULTS = 10_000
"""Of one message. A handler that yields for ever is stopped there."""

Key = bytes | str | None
_SIZED = (str, bytes, bytearray, memoryview)
_Keyed = tuple["Result", bytes | None, bytes | None]
"""A result with the key and the ordering key that it is published with."""
_PROPERTIES = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True, slots=True)
class Result:
    """A message to be published. key: None is that of the message that it was made of, with its ordering key.

    topic: which output; may be left out where there is one. event_timestamp, deliver_at: ms since 1970; 0: none.
    """

    payload: bytes | str
    key: Key = None
    properties: dict[str, str] | None = None
    topic: str = ""
    event_timestamp: int = 0
    deliver_at: int = 0

    @property
    def size(self) -> int:
        """Bytes of what a user put into it, more or less: text counts by its letters, and what is wrong by none."""
        pairs = self.properties.items() if isinstance(self.properties, dict) else ()
        size = 0
        for part in (self.payload, self.key, *(text for pair in pairs for text in pair)):
            if isinstance(part, _SIZED):
                size += len(part)
        return size


def results_of(returned: Any) -> list[Result]:
    """Return the results that a handler returned or yielded: nothing, a payload, (key, payload), a Result, or several
    of them.

    Raises Invalid.
    """
    if returned is None:
        return []
    if isinstance(returned, bytes | str | Result | tuple):
        return [_result(returned)]
    if isinstance(returned, dict) or not isinstance(returned, Iterable):
        raise Invalid(f"a handler with output gives payloads, (key, payload) or sluice.Result, not {_kind(returned)}")
    found: list[Result] = []
    for one in returned:
        if len(found) == MOST_RESULTS:
            raise Invalid(f"a handler gives at most {MOST_RESULTS} results of one message")
        found.append(_result(one))
    return found


def _result(one: Any) -> Result:
    if isinstance(one, Result):
        return one
    if isinstance(one, bytes | str):
        return Result(one)
    if isinstance(one, tuple) and len(one) == 2:
        key, payload = one
        return Result(payload, key)
    raise Invalid(f"a result is a payload, (key, payload) or a sluice.Result, not {_kind(one)}")


def _kind(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__


def rows_of_several(
    made: Sequence[tuple[Message, Sequence[Result]]], subscription: str, outputs: Sequence[str], now: int
) -> list[ResultRows]:
    """The results of several messages as rows: they share columns, because a column of one value costs as much as one
    of a hundred. All rows of a message for an output are in one of these. now: ms since 1970. Raises Invalid if one of
    the results is wrong.

    The same results of the same message hash alike: without any key it is by the place of the message.
    """
    keyed: dict[str, list[_Keyed]] = {}
    owners: dict[str, list[int]] = {}
    alone: list[ResultRows] = []
    for number, (message, results) in enumerate(made):
        key, ordering_key = message.key(), message.batch.cell("ordering_key", message.row)
        without = key is None and ordering_key is None
        for topic, rows in _by_output(results, outputs).items():
            own = [(one, key, ordering_key) if one.key is None else (one, _bytes("key", one.key), None) for one in rows]
            if without and any(one.key is None for one in rows):
                batch = make_batch(_table(own), now=now, producer=_name_of(message, subscription))
                alone.append(ResultRows(topic, batch, np.full(len(rows), number)))
            else:
                keyed.setdefault(topic, []).extend(own)
                owners.setdefault(topic, []).extend([number] * len(rows))
    together = [
        ResultRows(topic, make_batch(_table(rows), now=now, producer=""), np.array(owners[topic]))
        for topic, rows in keyed.items()
    ]
    return together + alone


def _name_of(message: Message, subscription: str) -> str:
    at = message.message_id()
    return f"{source_name(message.topic_name(), subscription, at.partition_index)}/{at.position}"


def _by_output(results: Sequence[Result], outputs: Sequence[str]) -> dict[str, list[Result]]:
    by_topic: dict[str, list[Result]] = {}
    for result in results:
        if not result.topic and len(outputs) > 1:
            raise Invalid(f"there are {len(outputs)} outputs: say which in sluice.Result(..., topic=...)")
        topic = result.topic or outputs[0]
        if topic not in outputs:
            raise Invalid(f"{topic!r} is none of the outputs {', '.join(outputs)}")
        by_topic.setdefault(topic, []).append(result)
    return by_topic


def _table(keyed: Sequence[_Keyed]) -> pa.Table:
    results = [one for one, _, _ in keyed]
    columns: dict[str, pa.Array] = {
        "key": pa.array([key for _, key, _ in keyed], pa.binary()),
        "payload": pa.array([_bytes("payload", result.payload) for result in results], pa.binary()),
    }
    ordering = [one for _, _, one in keyed]
    if any(one is not None for one in ordering):
        columns["ordering_key"] = pa.array(ordering, pa.binary())
    try:
        if any(result.properties for result in results):
            properties = [list(one.properties.items()) if one.properties else None for one in results]
            columns["properties"] = pa.array(properties, _PROPERTIES)
        if any(result.event_timestamp for result in results):
            columns["event_time"] = pa.array([one.event_timestamp or None for one in results], pa.int64())
        if any(result.deliver_at for result in results):
            columns["deliver_at"] = pa.array([one.deliver_at for one in results], pa.int64())
    except (pa.ArrowInvalid, pa.ArrowTypeError, AttributeError, TypeError) as error:
        raise Invalid(f"a result has properties that are text, and times in milliseconds: {error}") from None
    return pa.table(columns)


def _bytes(what: str, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise Invalid(f"the {what} of a result is bytes or text, not {type(value).__name__}")
