"""The log of a worker whose handler fails."""

from __future__ import annotations

import pytest

import sluice
from sluice.cluster.client.message import Message
from sluice.cluster.workers.pool import Workers
from tests.cluster.helpers import eventually

pytestmark = pytest.mark.timeout(300)


def test_a_handler_that_raises_is_logged_twice(caplog: pytest.LogCaptureFixture) -> None:
    """With its traceback: at the first failure, and when its key is parked. Nothing was logged at any level."""

    def handle(message: Message) -> None:
        raise ValueError("never")

    with sluice.connect(embedded=True) as client:
        client.create_topic("orders")
        client.create_producer("orders").send(b"x", partition_key="key-1")
        pool = Workers("orders", "billing", handle, client=client, retry_delay_ms=1, max_redeliver_count=2)
        with pool:
            eventually(lambda: sum(row["keysParkedTotal"] for row in client.stats("orders", "billing")), "it is parked")
    told = [record.getMessage() for record in caplog.records if record.name == "sluice.pool"]
    assert len(told) == 2
    assert "the handler failed on key key-1; it comes again" in told[0]
    assert "the handler failed on key key-1 3 times; the key is parked" in told[1]
    assert all(text.rstrip().endswith("ValueError: never") for text in told)
