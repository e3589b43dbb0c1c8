"""What a producer refuses by itself, before anything is on its way."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from actors.producer.producer import Outgoing, PartitionProducer
from cluster.producer import Producer
from storage.errors import Invalid

NOW, LONGEST = 1_700_000_000_000, 10_000


class Loop:
    """Stands in for the client's thread: keeps what is queued."""

    def __init__(self) -> None:
        self.queued: list[tuple[int, Outgoing]] = []

    def soon(self, call: Callable[..., None], outgoing: list[tuple[int, Outgoing]]) -> None:
        self.queued += outgoing


def rows(*due: int) -> pa.RecordBatch:
    return pa.record_batch({"payload": ["x"] * len(due), "deliver_at": pa.array(due, pa.int64())})


def test_dl_12_a_delay_beyond_the_topics_limit_is_refused_and_leaves_no_gap() -> None:
    loop = Loop()
    ports = SimpleNamespace(clock=SimpleNamespace(now=lambda: NOW))
    producer = Producer(
        cast(Any, loop),
        cast(Any, ports),
        "orders",
        "p",
        [cast(PartitionProducer, SimpleNamespace(last_sequence=6))],
        initial_sequence_id=None,
        max_delay_ms=LONGEST,
        close=lambda _: None,
    )
    with pytest.raises(Invalid, match=r"^a delay of 10001 ms is beyond the topic's limit of 10000 ms$"):
        producer.send_batch(rows(0, NOW + LONGEST + 1, NOW + 5))
    with pytest.raises(Invalid, match="beyond the topic's limit"):
        producer.send_async("x", deliver_at=NOW + LONGEST + 1)
    assert loop.queued == []
    producer.send_batch(rows(0, NOW + LONGEST))
    ((_, outgoing),) = loop.queued
    assert (outgoing.first_sequence, len(outgoing.batch)) == (7, 2)
