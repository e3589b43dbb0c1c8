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


def test_reader_that_sought_knows_whether_there_is_more() -> None:
    """A caller that asks before each read would wait for ever for what never comes."""
    with sluice.connect(embedded=True) as client:
        client.create_topic("orders", partitions=2)
        with client.create_producer("orders") as producer:
            places = [producer.send(b"x", partition_key=str(number)) for number in range(8)]
        with client.create_reader("orders", sluice.MessageId.earliest) as reader:
            for to, count in ((None, 8), (places[0], 0), (sluice.MessageId.latest, 0), (sluice.MessageId.earliest, 8)):
                if to is not None:
                    reader.seek(to)
                if to == places[0]:
                    count = sum(one.partition_index == to.partition_index for one in places)
                read = 0
                while reader.has_message_available():
                    reader.read_next(20_000)
                    read += 1
                assert (to, read) == (to, count)


def test_reader_reads_partitions_that_are_added() -> None:
    with sluice.connect(embedded=True) as client:
        client.create_topic("orders", partitions=2)
        with client.create_reader("orders", sluice.MessageId.earliest) as reader:
            client.add_partitions("orders", 3)
            assert not reader.has_message_available()
