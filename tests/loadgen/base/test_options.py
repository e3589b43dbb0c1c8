"""Options are checked before anything starts, and every refusal says what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.loadgen.base.acts import FIRST_PART
from sluice.loadgen.base.options import UNPACED, FloodOptions
from sluice.storage.errors import Invalid


def test_defaults_are_those_of_the_readme() -> None:
    options = FloodOptions.from_values()
    assert (options.partitions, options.messages, options.size, options.keys) == (4, 1_000_000, 100, 10_000)
    assert (options.consumers, options.restarts, options.policy) == (4, 5, "draining_hashes")


def test_loose_values_are_made_right() -> None:
    options = FloodOptions.from_values(restarts=True, data_dir="x", payload_columns="a, b,", input="f", key_column="k")
    assert options.restarts == 5
    assert options.data_dir == Path("x").absolute()
    assert options.payload_columns == ["a", "b"]
    assert FloodOptions.from_values(restarts=False).restarts == 0
    assert FloodOptions.from_values(messages=None).messages == 1_000_000


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"partitions": 0}, "--partitions must be at least 1"),
        ({"consumers": 0}, "--consumers"),
        ({"pool": True, "nack": 0.1}, "--nack does not go with --consumers ray"),
        ({"pool": True, "policy": "read_position"}, "--policy read_position does not go"),
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
def test_impossible_options_are_refused(values: dict[str, Any], word: str) -> None:
    with pytest.raises(Invalid, match=word):
        FloodOptions.from_values(**values)


def test_minutes_set_the_number_of_messages() -> None:
    assert FloodOptions.from_values(minutes=2.0, rate=500.0).workload().messages == 60_000
    assert FloodOptions.from_values(minutes=1.0).workload().messages == 60 * UNPACED


def test_description_is_plain() -> None:
    described = FloodOptions.from_values(seed=9, data_dir="/tmp/x").describe()
    assert described["seed"] == 9
    assert described["data_dir"] == "/tmp/x"


def test_acts_are_for_runs_without_rate_time_or_faults() -> None:
    """A rate means one act at this rate; the faults then still wait for each other."""
    plain = FloodOptions.from_values()
    assert (plain.in_acts, plain.first_part) == (True, FIRST_PART)
    assert FloodOptions.from_values(input="f", key_column="k").first_part == FIRST_PART
    paced = FloodOptions.from_values(rate=500.0)
    assert (paced.in_acts, paced.first_part) == (True, 0.0)
    for values in ({"minutes": 1.0}, {"faults": ["kill-topic"]}, {"workload": "joins"}):
        assert not FloodOptions.from_values(**values).in_acts


def test_a_pool_keeps_keys_in_order() -> None:
    assert FloodOptions.from_values(pool=True).nack_order == "key"
