"""Single messages gathered into columns are the same batch, value for value, as make_batch makes of the same rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.cluster.client.receipts import SCALAR, MessageContainer
from sluice.storage.errors import Invalid
from sluice.storage.format.batch import (
    LAST_TIME,
    MAX_KEY_BYTES,
    MAX_MESSAGE_BYTES,
    UnbuiltBatch,
    joined,
    make_batch,
)

KEYS = st.none() | st.binary(max_size=9)
MESSAGES = st.fixed_dictionaries(
    {
        "payload": st.binary(max_size=20),
        "key": KEYS,
        "publish_time": st.integers(0, LAST_TIME),
        "ordering_key": KEYS,
        "properties": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        "event_time": st.none() | st.integers(0, 1 << 50),
        "deliver_at": st.sampled_from([0, 0, 0, 1_700_000_000_000]),
    }
)
TYPES = {
    "payload": pa.binary(),
    "key": pa.binary(),
    "publish_time": pa.int64(),
    "ordering_key": pa.binary(),
    "properties": pa.map_(pa.string(), pa.string()),
    "event_time": pa.int64(),
    "deliver_at": pa.int64(),
}


def columns(messages: list[dict[str, object]]) -> pa.RecordBatch:
    rows = [{**one, "properties": list(one["properties"].items()) or None} for one in messages]  # type: ignore[attr-defined]
    return pa.record_batch({name: pa.array([row[name] for row in rows], kind) for name, kind in TYPES.items()})


@settings(deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=12), st.booleans())
def test_container_builds_the_same_batch_as_make_batch(messages: list[dict[str, object]], many: bool) -> None:
    messages = messages * (SCALAR // len(messages) + 2 if many else 1)
    container = MessageContainer()
    for number, message in enumerate(messages):
        assert container.add(**message) == number  # type: ignore[arg-type]
    built = container.build("p", 41)
    wanted = make_batch(columns(messages), now=0, producer="p", first_sequence=41)
    assert built.rows.equals(wanted.rows)
    assert np.array_equal(built.hashes, wanted.hashes)
    assert (built.deliver_at is None) == (wanted.deliver_at is None)
    if built.deliver_at is not None and wanted.deliver_at is not None:
        assert built.deliver_at.tolist() == wanted.deliver_at.tolist()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"payload": b"x" * (MAX_MESSAGE_BYTES + 1), "key": None}, "column 'payload' holds"),
        ({"payload": b"", "key": b"k" * (MAX_KEY_BYTES + 1)}, "column 'key' holds"),
        ({"payload": b"", "key": None, "ordering_key": b"k" * (MAX_KEY_BYTES + 1)}, "column 'ordering_key' holds"),
        ({"payload": b"", "key": None, "ordering_key": b"o", "properties": {"a": 1}}, "maps text to text"),
        ({"payload": b"", "key": None, "ordering_key": b"o", "event_time": -1}, "event_timestamp = -1"),
        ({"payload": b"", "key": None, "properties": {"a": "b"}, "deliver_at": 1 << 63}, "deliver_at = 9"),
        ({"payload": b"", "key": [1, 2]}, "column 'key' holds bytes or text, not list"),
        ({"payload": b"", "key": bytearray(b"k")}, "column 'key' holds bytes or text, not bytearray"),
        ({"payload": b"", "key": 5}, "column 'key' holds bytes or text, not int"),
        ({"payload": b"", "key": None, "ordering_key": ("o",)}, "column 'ordering_key' holds bytes or text, not tuple"),
        ({"payload": b"", "key": None, "event_time": True}, "event_timestamp = True"),
        ({"payload": b"", "key": None, "deliver_at": ""}, "deliver_at = : times are milliseconds"),
        ({"payload": b"", "key": None, "properties": [("a", "b")]}, "maps text to text"),
    ],
)
def test_refused_message_leaves_no_trace_in_the_container(message: dict[str, object], words: str) -> None:
    container = MessageContainer()
    container.add(b"before", b"k", 1)
    with pytest.raises(Invalid, match=words):
        container.add(**message, publish_time=2)  # type: ignore[arg-type]
    container.add(b"after", b"k", 3)
    assert container.build("p", 0).rows.column("payload").to_pylist() == [b"before", b"after"]
    assert container.build("p", 0).rows.schema.names == ["key", "payload", "publish_time"]


@settings(deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=12))
def test_joined_containers_are_the_joined_batches(messages: list[dict[str, object]]) -> None:
    built = []
    for number, message in enumerate(messages):
        container = MessageContainer()
        container.add(**{**message, "properties": None, "ordering_key": None, "event_time": None})  # type: ignore[arg-type]
        built.append(container.build("p", number))
    whole = joined(built)
    rows = pa.concat_batches([batch.rows for batch in built])
    assert whole.rows.equals(rows)
    assert whole.schema.equals(rows.schema)
    assert whole.hashes.tolist() == [int(batch.hashes[0]) for batch in built]
    times = [0 if batch.deliver_at is None else int(batch.deliver_at[0]) for batch in built]
    assert (whole.deliver_at is None) == (not any(times))
    if whole.deliver_at is not None:
        assert whole.deliver_at.tolist() == times


def test_rows_of_a_container_are_made_once_and_with_others() -> None:
    built = []
    for number in range(3):
        container = MessageContainer()
        container.add(b"%d" % number, b"k", 1)
        built.append(container.build("p", number))
    whole = joined(built)
    assert isinstance(whole, UnbuiltBatch)
    assert whole.rows is whole.rows
    assert whole.rows.column("payload").to_pylist() == [b"0", b"1", b"2"]
    assert [whole.slice(1, 3).rows.column("payload").to_pylist(), len(whole)] == [[b"1", b"2"], 3]


def test_rows_that_were_made_already_are_not_made_again() -> None:
    built = []
    for number in range(2):
        container = MessageContainer()
        container.add(b"%d" % number, b"k", 1)
        built.append(container.build("p", number))
        assert built[-1].rows.num_rows == 1
    whole = joined(built)
    assert not isinstance(whole, UnbuiltBatch)
    assert whole.rows.column("payload").to_pylist() == [b"0", b"1"]
