"""The largest message is what the settings say: clients are told, and keep to it or are closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pulsar
import pyarrow as pa
import pytest

import sluice
from sluice.actors.pulsar.codec.compression import ZSTD
from sluice.actors.pulsar.codec.frames import HEADROOM, U32, encode_message
from sluice.actors.pulsar.codec.protocol import Metadata, command
from sluice.cluster.gateway.ports import service_url
from sluice.cluster.launch.embedded import running
from sluice.cluster.settings.config import LEAST_MESSAGE_BYTES, load
from sluice.cluster.settings.options import ClusterOptions
from tests.cluster.gateway.clients import EARLIEST, PATIENCE
from tests.cluster.gateway.raw import HELLO, Raw

pytestmark = pytest.mark.timeout(240)
LARGEST = 100_000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a gateway that takes no larger messages than LARGEST."""
    data = tmp_path_factory.mktemp("small")
    with running(ClusterOptions(data_dir=data, pulsar_port=0, pulsar_max_message_bytes=LARGEST)):
        yield service_url(data, 0)


def test_clients_are_told_and_keep_to_it(url: str) -> None:
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=60)
    consumer = client.subscribe("small", "s", initial_position=EARLIEST)
    producer = client.create_producer("small", batching_enabled=False)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(b"x" * (LARGEST + 1))
    producer.send(b"x" * (LARGEST - 1_000))
    assert len(consumer.receive(PATIENCE).data()) == LARGEST - 1_000
    chunks = client.create_producer("small", batching_enabled=False, chunking_enabled=True)
    chunks.send(b"y" * (3 * LARGEST))
    assert consumer.receive(PATIENCE).data() == b"y" * (3 * LARGEST)
    client.close()


def test_client_over_the_limit_is_closed(url: str) -> None:
    for total, fits in ((LARGEST + HEADROOM, True), (LARGEST + HEADROOM + 1, False)):
        raw = Raw(url)
        raw.send(HELLO)
        assert raw.read().connected.max_message_size == LARGEST
        raw.send(U32.pack(total))
        if not fits:
            assert raw.closed()
        raw.close()


@pytest.mark.parametrize("size", [LARGEST, LARGEST + 1, 3 * LARGEST])
@pytest.mark.parametrize("about", [100, 2 * HEADROOM])
def test_compressed_message_stays_compressed(url: str, size: int, about: int) -> None:
    """A client hangs up on a frame that is larger than it was told, and is sent the frame again when it comes back."""
    topic, text = f"compressed-{size}-{about}", b"z" * size
    small = pa.Codec("zstd").compress(text, asbytes=True)
    with Raw(url) as raw:
        raw.limit(LARGEST + HEADROOM)
        raw.greet()
        raw.say("subscribe", topic=topic, subscription="s", type=1, consumer_id=1, request_id=1)
        raw.next("success")
        raw.say("flow", consumer_id=1, permits=10)
        raw.say("producer", topic=topic, producer_id=1, request_id=2)
        raw.next("producer_success")
        metadata = Metadata(producer_name=b"p", sequence_id=1, publish_time=5, compression=ZSTD, uncompressed_size=size)
        metadata.properties.add(key=b"about", value=b"x" * about)
        told = command("send", producer_id=1, sequence_id=1)
        raw.send(encode_message(told.SerializeToString(), metadata.SerializeToString(), small))
        raw.next("send_receipt")
        assert raw.next("message").consumer_id == 1
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=60)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    message = reader.read_next(PATIENCE)
    assert (message.data(), message.properties()) == (text, {"about": "x" * about})
    client.close()


def test_there_is_a_least_and_a_most(tmp_path: Path) -> None:
    assert load(None, data_dir=tmp_path, pulsar_max_message_bytes="1MB").values.pulsar_max_message_bytes == 1 << 20
    for wrong in (LEAST_MESSAGE_BYTES - 1, (5 << 20) + 1):
        with pytest.raises(sluice.Invalid, match="pulsar_max_message_bytes"):
            load(None, data_dir=tmp_path, pulsar_max_message_bytes=wrong)
