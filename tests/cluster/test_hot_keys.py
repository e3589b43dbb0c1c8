"""The heaviest keys of a skewed load are named, by messages and by bytes, on each interface."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sluice
from tests.cluster.helpers import eventually

pytestmark = pytest.mark.timeout(300)

MESSAGES = 30_000


def test_the_heaviest_keys_of_a_skewed_load_are_named() -> None:
    ranks = np.random.default_rng(3).zipf(1.5, MESSAGES)
    keys = [f"customer-{rank}" for rank in ranks.tolist()]
    heaviest = [f"customer-{rank}" for rank in (1, 2, 3)]
    with sluice.connect(embedded=True) as client:
        client.create_topic("orders", 1)
        consumer = client.subscribe("orders", "billing", initial_position="earliest", receiver_queue_size=50_000)
        producer = client.create_producer("orders")
        producer.send_batch(pa.table({"key": keys, "payload": [b"x"] * MESSAGES}))
        for _ in range(20):
            producer.send(b"y" * 200_000, partition_key="heavy")
        producer.flush()

        def told() -> dict[str, Any]:
            return dict(client.admin("orders", "billing", "hot_keys", top=3)[0])

        eventually(lambda: told()["counted"] == MESSAGES + 20, lambda: str(told()))
        found = told()
        assert [row["key"] for row in found["messages"]] == heaviest
        first = found["messages"][0]
        assert first["count"] <= keys.count(heaviest[0]) <= first["countAtMost"]
        assert found["bytes"][0]["key"] == "heavy"
        assert found["memoryBytes"] < 20_000
        assert client.stats("orders", "billing")[0]["hottestKeyShare"] == pytest.approx(first["share"])
        consumer.close()
