"""A subscription that is deleted by name or by verb, and a topic that is, in one process."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow as pa
import pytest

import sluice
from sluice.cluster.history.scan import StoreUrls, stored_topics
from sluice.storage.errors import Invalid, NotFound, SluiceError
from sluice.storage.format.hashing import masked_hash
from tests.cluster.helpers import eventually

pytestmark = pytest.mark.timeout(300)


def test_a_deletion_by_verb_is_that_of_the_controller(tmp_path: Path) -> None:
    """If the verb deleted only the owners, the controller would find them gone and start them again."""
    with sluice.connect(embedded=True, data_dir=tmp_path) as client:
        client.create_topic("orders", 2)
        consumer = client.subscribe("orders", "billing")
        with pytest.raises(Invalid, match="consumers are connected"):
            client.admin("orders", "billing", "delete")
        assert client.subscriptions("orders") == ["billing"]
        consumer.close()
        assert client.admin("orders", "billing", "delete") == [{"deleted": True}] * 2
        assert client.subscriptions("orders") == []
        assert not any(row["kind"] == "dispatcher" for row in client.status()["actors"])
        with pytest.raises(NotFound, match="has no subscription 'billing'"):
            client.admin("orders", "billing", "delete", force=True)


def test_a_topic_that_was_deleted_is_no_table(tmp_path: Path) -> None:
    """The records of a deleted topic stay; a query of a similar name would fail on missing data."""
    with sluice.connect(embedded=True, data_dir=tmp_path / "data") as client:
        for topic in ("kept", "gone"):
            client.create_topic(topic, 2)
            client.create_producer(topic).send(b"payload")
        client.delete_topic("gone")
        assert stored_topics(StoreUrls.in_folder(tmp_path / "data")) == ["kept"]


def test_a_consumer_goes_on_when_its_topic_is_made_again(tmp_path: Path) -> None:
    """Receiving says that there is none meanwhile, and so does a receiver that waits."""
    with sluice.connect(embedded=True, data_dir=tmp_path) as client:
        client.create_topic("orders", 2)
        producer = client.create_producer("orders")
        with client.subscribe("orders", "billing", initial_position="earliest", nack_order="key") as consumer:
            producer.send(b"first", partition_key="a")
            consumer.acknowledge(consumer.receive(60_000))
            consumer.wait_acknowledged(60_000)
            client.delete_topic("orders", force=True)
            with pytest.raises(NotFound, match="there is no topic 'orders'"):
                consumer.receive(60_000)
            with pytest.raises(NotFound, match="there is no topic 'orders'"):
                consumer.receive(0)
            client.create_topic("orders", 2)
            producer.send(b"second", partition_key="a")

            def received() -> bool:
                try:
                    message = consumer.receive(1_000)
                except NotFound:
                    return False
                consumer.acknowledge(message)
                return message.data() == b"second"

            eventually(received, "the consumer does not go on")
            consumer.wait_acknowledged(60_000)


@pytest.mark.parametrize("partitions", [1, 2, 5])
@pytest.mark.parametrize("seen", [False, True])
def test_a_consumer_has_each_partition_of_a_remade_topic(tmp_path: Path, partitions: int, seen: bool) -> None:
    """Whether it saw the deletion or not."""
    keys = [f"k{number}" for number in range(20)]
    with sluice.connect(embedded=True, data_dir=tmp_path) as client:
        client.create_topic("orders", 2)
        with client.subscribe("orders", "billing", initial_position="earliest") as consumer:
            client.delete_topic("orders", force=True)
            if seen:
                with pytest.raises(NotFound):
                    consumer.receive(60_000)
            client.create_topic("orders", partitions)
            with client.create_producer("orders") as producer:
                for key in keys:
                    producer.send(b"second", partition_key=key)
            came: list[str] = []

            def all_came() -> bool:
                with contextlib.suppress(SluiceError):
                    message = consumer.receive(1_000)
                    consumer.acknowledge(message)
                    came.append(message.partition_key())
                return len(came) >= len(keys)

            eventually(all_came, lambda: f"some do not come: {came}")
            assert sorted(came) == sorted(keys)


@pytest.mark.parametrize("partitions", [1, 2, 5])
@pytest.mark.parametrize("seen", [False, True])
def test_a_producer_divides_by_a_remade_topics_partitions(tmp_path: Path, partitions: int, seen: bool) -> None:
    """From its first message on, whether it saw the deletion or not: a key's messages come to one partition."""
    keys = [f"k{number}" for number in range(12)]
    homes = {key: masked_hash(key.encode()) % partitions for key in keys}
    with sluice.connect(embedded=True, data_dir=tmp_path) as client:
        client.create_topic("orders", 2)
        with client.create_producer("orders") as producer:
            for key in keys:
                producer.send(b"first", partition_key=key)
            client.delete_topic("orders", force=True)
            if seen:
                with pytest.raises(NotFound, match="there is no topic 'orders'"):
                    producer.send(b"nowhere", partition_key=keys[0])
            client.create_topic("orders", partitions)
            sent = [producer.send_async(b"second", partition_key=key) for key in keys]
            columns = pa.table({"payload": [b"third"] * len(keys), "key": [key.encode() for key in keys]})
            receipt = producer.send_batch(columns)
            producer.flush(60)
            assert {
                key: one.result().message_id().partition_index for key, one in zip(keys, sent, strict=True)
            } == homes
            assert [receipt.message_id(row).partition_index for row in range(len(keys))] == list(homes.values())
            assert producer.partitions == partitions
            with client.create_producer("orders") as other:
                for key in keys:
                    other.send(b"fourth", partition_key=key)
            with client.subscribe("orders", "billing", initial_position="earliest") as consumer:
                came: dict[str, list[bytes]] = {}
                while sum(map(len, came.values())) < 3 * len(keys):
                    message = consumer.receive(60_000)
                    came.setdefault(message.partition_key(), []).append(message.data())
                    consumer.acknowledge(message)
            assert came == {key: [b"second", b"third", b"fourth"] for key in keys}


@pytest.mark.parametrize("partitions", [1, 5])
def test_answers_are_of_all_partitions_of_a_remade_topic(tmp_path: Path, partitions: int) -> None:
    """Also those that a client gets that asked before."""
    with sluice.connect(embedded=True, data_dir=tmp_path) as client:
        client.create_topic("orders", 2)
        client.subscribe("orders", "billing").close()
        assert len(client.stats("orders")) == len(client.stats("orders", "billing")) == 2
        client.delete_topic("orders", force=True)
        client.create_topic("orders", partitions)
        assert len(client.stats("orders")) == partitions
        with pytest.raises(NotFound, match="has no subscription 'billing'"):
            client.stats("orders", "billing")
        client.subscribe("orders", "billing").close()
        assert len(client.stats("orders", "billing")) == partitions


@pytest.mark.parametrize("partitions", [1, 5])
def test_dead_letters_go_to_a_dead_letter_topic_made_again(tmp_path: Path, partitions: int) -> None:
    """The dispatcher published to the earlier topic, which had two partitions."""
    keys = [f"k{number}" for number in range(6)]
    with sluice.connect(embedded=True, data_dir=tmp_path) as client:
        client.create_topic("orders")
        client.create_topic("dead", 2)
        producer = client.create_producer("orders")
        with client.subscribe(
            "orders",
            "billing",
            initial_position="earliest",
            max_redeliver_count=1,
            dead_letter_topic="dead",
            negative_ack_redelivery_delay_ms=0,
        ) as consumer:
            for made in (2, partitions, partitions):
                if made != 2:
                    client.delete_topic("dead", force=True)
                    client.create_topic("dead", made)
                for key in keys:
                    producer.send(key.encode(), partition_key=key)
                for _ in range(2 * len(keys)):
                    consumer.negative_acknowledge(consumer.receive(60_000))
                with client.subscribe("dead", "look", initial_position="earliest") as look:
                    came = {(one := look.receive(60_000)).partition_key(): one.message_id() for _ in keys}
                homes = {key: place.partition_index for key, place in came.items()}
                assert homes == {key: masked_hash(key.encode()) % made for key in keys}
