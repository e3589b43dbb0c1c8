"""What the consumer that users hold refuses by itself, before anything is sent."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cluster.consumer import Consumer
from cluster.loop import LoopThread
from storage.errors import Invalid


class Silent:
    """A loop on which nothing may be run."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of the loop was asked for")


def test_kst_7_a_cumulative_acknowledgement_is_refused_clearly() -> None:
    consumer = Consumer(
        cast(LoopThread, Silent()),
        "orders",
        "billing",
        "c1",
        negative_ack_redelivery_delay_ms=60_000,
        queue_size=1_000,
        on_ranges=None,
        close=lambda consumer: None,
    )
    with pytest.raises(Invalid) as refused:
        consumer.acknowledge_cumulative(cast(Any, None))
    assert str(refused.value).count("\n") == 0
    assert "acknowledge each message" in str(refused.value)
