"""A seek while a consumer holds messages, as its program hears of it."""

from __future__ import annotations

import pytest

import sluice

pytestmark = pytest.mark.timeout(300)


def test_error_of_lost_acknowledgements_names_a_seek() -> None:
    with sluice.connect(embedded=True) as client:
        client.create_topic("orders")
        consumer = client.subscribe("orders", "billing", initial_position="earliest")
        with client.create_producer("orders") as producer:
            producer.send(b"1", partition_key="k")
        held = consumer.receive(60_000)
        client.admin("orders", "billing", "seek", message_id="earliest")
        consumer.acknowledge(held)
        with pytest.raises(sluice.Fenced, match="a seek"):
            consumer.wait_acknowledged(60_000)
        consumer.wait_acknowledged(60_000)
        again = consumer.receive(60_000)
        assert again.data() == b"1", "it was not done"
        consumer.acknowledge(again)
        consumer.wait_acknowledged(60_000)
        assert client.stats("orders", "billing")[0]["msgBacklog"] == 0
