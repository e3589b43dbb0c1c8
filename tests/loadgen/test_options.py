"""Options are checked before anything starts, and every refusal says what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.options import UNPACED, FloodOptions
from storage.errors import Invalid


def test_defaults_are_those_of_the_readme() -> None:
    options = FloodOptions.of()
    assert (options.partitions, options.messages, options.size, options.keys) == (4, 1_000_000, 100, 10_000)
    assert (options.consumers, options.restarts, options.policy) == (4, 3, "draining_hashes")


def test_loose_values_are_made_right() -> None:
    options = FloodOptions.of(restarts=True, data_dir="x", payload_columns="a, b,", input="f", key_column="k")
    assert options.restarts == 3
    assert options.data_dir == Path("x").absolute()
    assert options.payload_columns == ["a", "b"]
    assert FloodOptions.of(restarts=False).restarts == 0
    assert FloodOptions.of(messages=None).messages == 1_000_000


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"partitions": 0}, "--partitions must be at least 1"),
        ({"consumers": 0}, "--consumers"),
        ({"bookies": 1}, "--bookies must be at least 2"),
        ({"rate": -1.0}, "--rate"),
        ({"policy": "fair"}, "--policy is one of"),
        ({"input": "x.csv"}, "--key-column"),
        ({"key_column": "x"}, "belong to --input"),
        ({"minutes": 0.0}, "--minutes"),
        ({"faults": ["x"], "fault_every_ms": 5}, "ten times a second"),
        ({"faults": ["kill-topic", "s3-down"]}, "s3-down needs s3_endpoint_url"),
        ({"messages": 0}, "messages"),
        ({"size": 3}, "bytes"),
        ({"objects": "s3://bucket", "address": "h:1"}, "--objects is for the cluster that is started"),
        ({"colour": "red"}, "no option 'colour'"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, Any], word: str) -> None:
    with pytest.raises(Invalid, match=word):
        FloodOptions.of(**values)


def test_minutes_set_the_number_of_messages() -> None:
    assert FloodOptions.of(minutes=2.0, rate=500.0).workload().messages == 60_000
    assert FloodOptions.of(minutes=1.0).workload().messages == 60 * UNPACED


def test_description_is_plain() -> None:
    described = FloodOptions.of(seed=9, data_dir="/tmp/x").describe()
    assert described["seed"] == 9
    assert described["data_dir"] == "/tmp/x"
