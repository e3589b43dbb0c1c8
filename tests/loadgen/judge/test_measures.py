"""Rates and latencies from histories; parts add up to the whole."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sluice.loadgen.base.history import DELIVERIES, SENT
from sluice.loadgen.judge.measures import MAX_LATENCY_US, Histogram, Measures, Span, measure, record
from sluice.storage.format.position import position

START = 1_700_000_000_000_000


def sent_row(entry: int, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "producer": "p",
        "partition": 0,
        "key": b"k",
        "key_seq": entry,
        "sequence": entry,
        "position": position(1, entry),
        "status": "ok",
        "sent_at": START + entry * 1000,
        "confirmed_at": START + entry * 1000 + 400,
        "deliver_at": 0,
        "hash": 1,
    }
    return row | changes


def delivered_row(entry: int, after: int, **changes: Any) -> dict[str, Any]:
    received = START + entry * 1000 + after
    row: dict[str, Any] = {
        "consumer": "c",
        "session": 1,
        "partition": 0,
        "position": position(1, entry),
        "key": b"k",
        "key_seq": entry,
        "redelivery": 0,
        "epoch": 1,
        "dispatch": entry,
        "received_at": received,
        "acked_at": received + 100,
        "negative": False,
        "bytes": 10,
        "hash": 1,
    }
    return row | changes


def tables(sent: list[dict[str, Any]], delivered: list[dict[str, Any]]) -> tuple[pa.Table, pa.Table]:
    return pa.Table.from_pylist(sent, SENT), pa.Table.from_pylist(delivered, DELIVERIES)


def test_latency_is_from_sending_to_the_first_delivery() -> None:
    span = Span(START, 100_000, 4)
    delivered = [delivered_row(0, 2_000), delivered_row(0, 90_000), delivered_row(1, 4_000), delivered_row(2, 8_000)]
    result = measure(*tables([sent_row(entry) for entry in range(3)], delivered), span)
    assert result.histogram.get_total_count() == 3
    assert result.histogram.get_value_at_percentile(100) == pytest.approx(8_000, rel=0.002)
    assert result.histogram.get_value_at_percentile(1) == pytest.approx(2_000, rel=0.002)
    assert result.publish.get_value_at_percentile(50) == pytest.approx(400, rel=0.002)
    assert result.lateness.get_total_count() == 0
    assert result.delivered.tolist() == [4, 0, 0, 0]
    assert result.bytes == 30
    assert result.first_sent == START
    assert result.last_confirmed == START + 2_400


def test_a_delayed_message_is_late_from_its_due_time() -> None:
    due = START // 1000 + 300
    sent, delivered = tables([sent_row(0, deliver_at=due)], [delivered_row(0, 305_000)])
    result = measure(sent, delivered, Span(START, 100_000, 8))
    assert result.lateness.get_value_at_percentile(100) == pytest.approx(5_000, rel=0.002)
    assert result.histogram.get_value_at_percentile(100) == pytest.approx(5_000, rel=0.002)


def test_unconfirmed_sends_and_stray_deliveries_have_no_latency() -> None:
    sent, delivered = tables([sent_row(0, status="info", position=-1, partition=-1)], [delivered_row(3, 10)])
    result = measure(sent, delivered, Span(START, 100_000, 2))
    assert result.histogram.get_total_count() == 0
    assert result.confirmed.sum() == 0
    assert result.delivered.sum() == 1


def test_an_act_ends_with_its_last_acknowledgement() -> None:
    """A message that was given back, or held by a dead consumer, is acknowledged when it comes again, and only then."""
    given_back = delivered_row(1, 1_000, negative=True)
    again = [delivered_row(1, 50_000, consumer="d"), delivered_row(2, 70_000, consumer="d")]
    rows = [delivered_row(0, 1_000), given_back, delivered_row(2, 1_000, acked_at=0), *again]
    lost = delivered_row(3, 1_000, acked_at=0)
    result = measure(*tables([sent_row(entry) for entry in range(4)], [*rows, lost]), Span(START, 100_000, 4))
    (act,) = result.acts
    assert (act.confirmed, act.acked) == (4, 3)
    assert act.last_acked == result.last_acked == START + 2_000 + 70_000 + 100
    assert result.acked.sum() == 3


def test_nothing_at_all() -> None:
    result = measure(SENT.empty_table(), DELIVERIES.empty_table(), Span.over(0, 1))
    assert result.first_sent == result.last_acked == 0


def test_parts_add_up_and_survive_pickling() -> None:
    span = Span(START, 1_000, 40)
    sent = [sent_row(entry, key=b"k%d" % (entry % 2)) for entry in range(30)]
    delivered = [delivered_row(entry, 500 * entry + 1, consumer=f"c{entry % 3}") for entry in range(30)]
    whole = measure(*tables(sent, delivered), span)
    added = Measures(span)
    for part in (0, 1):
        piece = measure(*tables(sent[part::2], delivered[part::2]), span)
        added.merge(pickle.loads(pickle.dumps(piece)))
    for name in ("confirmed", "delivered", "acked", "latency"):
        assert (getattr(added, name) == getattr(whole, name)).all()
    for name in ("bytes", "first_sent", "last_confirmed", "last_acked"):
        assert getattr(added, name) == getattr(whole, name)
    assert [(act.confirmed, act.acked, act.rates()) for act in added.acts] == [
        (act.confirmed, act.acked, act.rates()) for act in whole.acts
    ]
    for percent in (1, 50, 99, 100):
        assert added.histogram.get_value_at_percentile(percent) == whole.histogram.get_value_at_percentile(percent)
    assert {name: int(counts.sum()) for name, counts in added.shares.items()} == {"c0": 10, "c1": 10, "c2": 10}


def test_percentiles_over_time_are_those_of_each_step() -> None:
    span = Span(START, 10_000, 3)
    sent = [sent_row(entry, sent_at=START) for entry in range(40)]
    delivered = [delivered_row(entry, 0, received_at=START + 5_000 + 100 * entry) for entry in range(40)]
    values = measure(*tables(sent, delivered), span).percentile_over_time(50)
    assert values[0] == pytest.approx(7, rel=0.1)
    assert np.isnan(values[1:]).all()


@pytest.mark.parametrize("latency", [100, 5_000, 900_000, 17_000_000, 1_800_000_000])
def test_percentiles_reach_from_microseconds_to_half_an_hour(latency: int) -> None:
    received = START + latency
    sent, delivered = tables([sent_row(0, sent_at=START)], [delivered_row(0, 0, received_at=received)])
    span = Span.over(START, received)
    values = measure(sent, delivered, span).percentile_over_time(99)
    assert values[-1] == pytest.approx(latency / 1000, rel=0.1)


@pytest.mark.parametrize("value", [1, 999, 1_025, 70_001, 12_345_678])
def test_recording_keeps_three_digits(value: int) -> None:
    histogram = Histogram()
    record(histogram, np.full(1_000, value))
    assert histogram.get_total_count() == 1_000
    assert histogram.get_value_at_percentile(50) == pytest.approx(value, rel=0.002)


def test_impossible_latencies_are_kept_at_the_borders() -> None:
    histogram = Histogram()
    record(histogram, np.array([-5, 0, MAX_LATENCY_US * 2]))
    assert histogram.get_total_count() == 3


@pytest.mark.parametrize("seconds", [0, 1, 3, 600, 86_400])
def test_span_covers_everything(seconds: int) -> None:
    span = Span.over(START, START + seconds * 1_000_000)
    steps = span.steps(np.array([START, START + seconds * 1_000_000]))
    assert steps.tolist() == [0, span.count - 1]
    assert span.count <= 330
