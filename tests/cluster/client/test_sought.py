"""A seek while a consumer holds messages, as its program hears of it."""

from __future__ import annotations

import time

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


def test_reader_that_sought_a_time_behind_the_end_has_no_more() -> None:
    """A caller that asks before each read would wait for ever."""
    with sluice.connect(embedded=True) as client:
        client.create_topic("orders", partitions=2)
        with client.create_producer("orders") as producer:
            for number in range(8):
                producer.send(b"x", partition_key=str(number))
            with client.create_reader("orders", sluice.MessageId.earliest) as reader:
                reader.seek(time.time_ns() // 1_000_000 + 30_000)
                assert not reader.has_message_available()
                producer.send(b"later", partition_key="3")
                assert reader.has_message_available()
                assert reader.read_next(20_000).data() == b"later"
                assert not reader.has_message_available()
                reader.seek(0)
                read = 0
                while reader.has_message_available():
                    reader.read_next(20_000)
                    read += 1
                assert read == 9


def test_reader_waits_for_no_message_that_was_trimmed() -> None:
    with sluice.connect(embedded=True) as client:
        client.create_topic("orders", roll_entries=5, retention_ms=0)
        consumer = client.subscribe("orders", "billing", initial_position="earliest")
        with client.create_producer("orders") as producer:
            for _ in range(5):
                producer.send(b"x")
            for _ in range(5):
                consumer.acknowledge(consumer.receive(20_000))
            deadline = time.monotonic() + 60
            while client.stats("orders")[0]["numberOfEntries"]:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            with client.create_reader("orders", sluice.MessageId.earliest) as reader:
                assert not reader.has_message_available()
                producer.send(b"next")
                assert reader.has_message_available()
                assert reader.read_next(20_000).data() == b"next"


def test_reader_reads_partitions_that_are_added() -> None:
    with sluice.connect(embedded=True) as client:
        client.create_topic("orders", partitions=2)
        with client.create_reader("orders", sluice.MessageId.earliest) as reader:
            client.add_partitions("orders", 3)
            assert not reader.has_message_available()
