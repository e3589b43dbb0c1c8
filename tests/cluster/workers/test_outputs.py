"""Results that handlers may give back to be published, and the way from results to rows."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from sluice.actors.consumer.unacked_messages import Received
from sluice.cluster.client.message import Batch, Message
from sluice.cluster.workers.outputs import MOST_RESULTS, Result, results_of, rows_of_several
from sluice.storage.errors import Invalid
from sluice.storage.format.batch import StoredBatch, make_batch
from sluice.storage.format.position import position


def message(key: bytes | None = b"k", ordering_key: bytes | None = None) -> Message:
    columns = {"key": pa.array([key], pa.binary()), "payload": pa.array([b"p"], pa.binary())}
    if ordering_key is not None:
        columns["ordering_key"] = pa.array([ordering_key], pa.binary())
    stored = make_batch(pa.table(columns), now=1, producer="p")
    at, none = np.array([position(3, 7)], np.int64), np.zeros(1, np.int64)
    part = Received(stored.rows, 1, at, none, np.zeros(1, np.uint8), none, 1, 1)
    return Message(Batch("orders", part, cast(Any, None)), 0)


def rows_of_results(
    one: Message, subscription: str, results: list[Result], outputs: list[str], now: int
) -> list[tuple[str, StoredBatch]]:
    """Return the rows for the results of one message alone."""
    return [(rows.topic, rows.batch) for rows in rows_of_several([(one, results)], subscription, outputs, now)]


@pytest.mark.parametrize(
    ("returned", "results"),
    [
        (None, []),
        (b"a", [Result(b"a")]),
        ("a", [Result("a")]),
        (("key", "a"), [Result("a", "key")]),
        (Result("a", topic="t"), [Result("a", topic="t")]),
        ([b"a", ("key", b"b"), Result(b"c")], [Result(b"a"), Result(b"b", "key"), Result(b"c")]),
        ((one for one in "ab"), [Result("a"), Result("b")]),
    ],
)
def test_allowed_results_become_rows(returned: Any, results: list[Result]) -> None:
    assert results_of(returned) == results


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (7, "not int"),
        ({"a": 1}, "not dict"),
        ([None], "not NoneType"),
        ((1, 2, 3), "a tuple of 3"),
        ((str(number) for number in range(MOST_RESULTS + 1)), f"at most {MOST_RESULTS}"),
    ],
)
def test_forbidden_results_are_refused(returned: Any, told: str) -> None:
    with pytest.raises(Invalid, match=told):
        results_of(returned)


def test_results_have_the_key_of_their_message_or_their_own() -> None:
    given = [Result("a"), Result("b", key="own", properties={"x": "y"}, event_timestamp=5, deliver_at=9)]
    [(topic, batch)] = rows_of_results(message(ordering_key=b"o"), "s", given, ["out"], 1_000)
    assert topic == "out"
    assert batch.rows.to_pylist() == [
        {
            "key": b"k", "payload": b"a", "publish_time": 1_000, "ordering_key": b"o", "properties": None,
            "event_time": None,
        },
        {
            "key": b"own", "payload": b"b", "publish_time": 1_000, "ordering_key": None, "properties": [("x", "y")],
            "event_time": 5,
        },
    ]  # fmt: skip
    assert batch.deliver_at is not None
    assert batch.deliver_at.tolist() == [0, 9]


def test_results_of_a_message_without_key_hash_alike_each_time() -> None:
    """Else they would go to another partition when the message comes again."""
    hashes = [
        rows_of_results(message(None), "s", [Result("a"), Result("b")], ["out"], now)[0][1].hashes.tolist()
        for now in (1, 2)
    ]
    assert hashes[0] == hashes[1]
    assert hashes[0][0] != hashes[0][1]


def test_results_go_to_the_output_that_they_name() -> None:
    rows = rows_of_results(message(), "s", [Result("a", topic="x"), Result("b", topic="y")], ["x", "y"], 1)
    assert [(topic, batch.rows.column("payload").to_pylist()) for topic, batch in rows] == [
        ("x", [b"a"]),
        ("y", [b"b"]),
    ]
    for result, told in [(Result("a"), "say which"), (Result("a", topic="z"), "'z' is none of the outputs")]:
        with pytest.raises(Invalid, match=told):
            rows_of_results(message(), "s", [result], ["x", "y"], 1)


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (Result(cast(Any, 7)), "payload of a result is bytes or text, not int"),
        (Result("a", key=cast(Any, 7)), "key of a result is bytes or text, not int"),
        (Result("a", properties=cast(Any, {"x": 7})), "properties"),
        (Result("a", deliver_at=cast(Any, "soon")), "times in milliseconds"),
        (Result("a", key="k" * 2_000), "key"),
    ],
)
def test_a_result_that_no_topic_takes_is_told(result: Result, told: str) -> None:
    with pytest.raises(Invalid, match=told):
        rows_of_results(message(), "s", [result], ["out"], 1)


@pytest.mark.parametrize("first", [message(), message(None)], ids=["with a key", "without a key"])
def test_rows_made_together_are_those_made_alone(first: Message) -> None:
    """Columns that only another message's results need are empty."""
    made = [
        (first, [Result("a", topic="x"), Result("b", topic="y"), Result("c", topic="x")]),
        (message(b"other", b"o"), [Result("d", topic="x"), Result("e", "own", {"p": "q"}, "x", 5, 9)]),
        (message(b"last"), []),
    ]
    together = rows_of_several(made, "s", ["x", "y"], 1_000)
    for number, (one, results) in enumerate(made):
        for topic, wanted in rows_of_results(one, "s", results, ["x", "y"], 1_000):
            [batch] = [
                rows.batch.take(np.flatnonzero(rows.owners == number))
                for rows in together
                if rows.topic == topic and number in rows.owners
            ]
            for column in set(batch.rows.schema.names) | set(wanted.rows.schema.names):
                values = [
                    each.rows.column(column).to_pylist() if column in each.rows.schema.names else [None] * len(each)
                    for each in (batch, wanted)
                ]
                assert values[0] == values[1]
            assert batch.hashes.tolist() == wanted.hashes.tolist()
            delays = [None if each.deliver_at is None else each.deliver_at.tolist() for each in (batch, wanted)]
            assert delays[0] == delays[1]
    assert all(2 not in rows.owners for rows in together)
