"""Seeks, readers, last messages and `unsubscribe`: names of Pulsar's client that both faces have."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import sluice
from sluice.cluster.client.blocking import Consumer
from sluice.cluster.client.client import Client
from sluice.storage.errors import Invalid, Timeout
from tests.cluster.helpers import PATIENCE_MS, eventually

pytestmark = pytest.mark.timeout(300)

COUNT = 20


def sent(client: Client, count: int = COUNT, first: int = 0) -> list[sluice.MessageId]:
    """Send numbers under one key; their places."""
    with client.create_producer("orders") as producer:
        return [producer.send(str(number), partition_key="k") for number in range(first, first + count)]


def received(consumer: Consumer, count: int) -> list[int]:
    """Receive and acknowledge so many numbers."""
    got = []
    for _ in range(count):
        message = consumer.receive(PATIENCE_MS)
        consumer.acknowledge(message)
        got.append(int(message.data()))
    return got


def test_a_seek_to_an_id_starts_over_at_it(client: Client) -> None:
    consumer = client.subscribe("orders", "s", initial_position="earliest")
    ids = sent(client)
    assert received(consumer, COUNT) == list(range(COUNT))
    consumer.seek(ids[7])
    assert received(consumer, COUNT - 7) == list(range(7, COUNT))


def test_a_seek_of_ones_own_is_no_lost_lease(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    consumer = client.subscribe("orders", "s", initial_position="earliest")
    consumer.seek(sluice.MessageId.earliest)
    assert "the lease was lost" not in caplog.text
    eventually(consumer.is_connected, "attached again")
    client.admin("orders", "s", "seek", message_id="earliest")
    eventually(lambda: "the lease was lost" in caplog.text, "a seek of somebody else's")


@pytest.mark.parametrize("held", [0, 5])
def test_nothing_from_before_a_seek_is_received(client: Client, held: int) -> None:
    ids = sent(client)
    consumer = client.subscribe("orders", "s", initial_position="earliest")
    assert received(consumer, 1 + held) == list(range(1 + held))
    consumer.seek(ids[15])
    assert received(consumer, 5) == list(range(15, COUNT))
    consumer.seek(sluice.MessageId.latest)
    with pytest.raises(Timeout):
        consumer.receive(100)
    sent(client, 2, first=COUNT)
    assert received(consumer, 2) == [COUNT, COUNT + 1]
    consumer.seek(sluice.MessageId.earliest)
    assert received(consumer, COUNT) == list(range(COUNT))


def test_a_seek_to_a_time_starts_over_behind_it(client: Client) -> None:
    consumer = client.subscribe("orders", "s", initial_position="earliest")
    sent(client, 5)
    assert received(consumer, 5) == list(range(5))
    between = int(time.time() * 1000) + 1
    while int(time.time() * 1000) <= between:
        pass
    sent(client, 5, first=5)
    assert received(consumer, 5) == list(range(5, 10))
    consumer.seek(between)
    assert received(consumer, 5) == list(range(5, 10))
    with pytest.raises(Invalid, match="seek to a MessageId, or to a time"):
        consumer.seek("earliest")  # type: ignore[arg-type]
    for never in (-60_000, 1 << 63):
        with pytest.raises(Invalid, match="seek to a MessageId, or to a time"):
            consumer.seek(never)


def test_the_last_message_of_each_partition_is_told(client: Client) -> None:
    consumer = client.subscribe("orders", "s")
    assert consumer.get_last_message_id().position == -1
    ids = sent(client, 3)
    assert consumer.get_last_message_id() == ids[-1]
    client.create_topic("two", 2)
    with pytest.raises(Invalid, match="2 partitions"):
        client.subscribe("two", "s").get_last_message_id()


def test_unsubscribe_deletes_the_subscription(client: Client) -> None:
    first, second = (client.subscribe("orders", "s") for _ in "ab")
    with pytest.raises(Invalid, match="1 consumers are connected"):
        first.unsubscribe()
    assert client.subscriptions("orders") == ["s"]
    second.unsubscribe()
    assert client.subscriptions("orders") == []


def test_a_reader_reads_from_its_place_and_leaves_nothing(client: Client) -> None:
    ids = sent(client)
    for inclusive, first in ((False, 8), (True, 7)):
        with client.create_reader("orders", ids[7], start_message_id_inclusive=inclusive) as reader:
            got = []
            while reader.has_message_available():
                got.append(int(reader.read_next(PATIENCE_MS).data()))
            assert got == list(range(first, COUNT))
            reader.seek(ids[18])
            assert [int(reader.read_next(PATIENCE_MS).data()) for _ in range(2)] == [18, 19]
            assert not reader.has_message_available()
    with pytest.raises(Invalid, match="a reader starts at a MessageId"):
        client.create_reader("orders", "earliest")  # type: ignore[arg-type]
    assert client._core.opened == {}
    assert client.subscriptions("orders") == []


def test_a_reader_of_the_tail_gets_what_comes(client: Client) -> None:
    sent(client, 3)
    with client.create_reader("orders", sluice.MessageId.latest) as reader:
        assert not reader.has_message_available()
        with pytest.raises(Timeout):
            reader.read_next(50)
        sent(client, 3, first=3)
        assert reader.has_message_available()
        coming = iter(reader)
        assert [int(next(coming).data()) for _ in range(3)] == [3, 4, 5]
    with client.create_reader("orders", sluice.MessageId.earliest) as reader:
        assert [int(reader.read_next(PATIENCE_MS).data()) for _ in range(6)] == list(range(6))


def test_tasks_seek_and_read_too(tmp_path: Path) -> None:
    async def run() -> None:
        async with await sluice.connect_async(embedded=True, data_dir=tmp_path / "data") as client:
            await client.create_topic("orders")
            producer = await client.create_producer("orders")
            ids = [await producer.send(str(number), partition_key="k") for number in range(COUNT)]
            async with await client.create_reader("orders", ids[16]) as reader:
                assert await reader.has_message_available()
                got = []
                async for message in reader:
                    got.append(int(message.data()))
                    if not await reader.has_message_available():
                        break
                assert got == [17, 18, 19]
                await reader.seek(sluice.MessageId.earliest)
                assert (await reader.read_next(PATIENCE_MS)).data() == b"0"
            consumer = await client.subscribe("orders", "s")
            await consumer.seek(ids[19])
            assert (await consumer.receive(PATIENCE_MS)).message_id() == await consumer.get_last_message_id()
            await consumer.unsubscribe()
            assert await client.subscriptions("orders") == []

    asyncio.run(run())
