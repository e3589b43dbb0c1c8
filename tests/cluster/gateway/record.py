"""Record the conversations: a real client, the gateway, and in between somebody who writes everything down."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pulsar

import sluice
from sluice.actors.pulsar.codec.frames import CommandFrame, Cutter, encode
from sluice.actors.pulsar.codec.protocol import Command, parse
from tests.cluster.gateway.conversation import FOLDER, UNASKED, URL, Line, line_of

EARLIEST = pulsar.InitialPosition.Earliest


class Recorder:
    """Stands between; every connection has a number."""

    def __init__(self, server: str) -> None:
        self._port = int(server.rpartition(":")[2])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"pulsar://127.0.0.1:{self._listener.getsockname()[1]}"
        self.lines: list[Line] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        number = 0
        while True:
            client, _ = self._listener.accept()
            number += 1
            server = socket.create_connection(("127.0.0.1", self._port))
            for who, source, target in ((f"C{number}", client, server), (f"S{number}", server, client)):
                threading.Thread(target=self._pump, args=(who, source, target), daemon=True).start()

    def _pump(self, who: str, source: socket.socket, target: socket.socket) -> None:
        cutter = Cutter()
        try:
            while data := source.recv(1 << 20):
                for frame in cutter.feed(data):
                    target.sendall(self._note(who, frame))
        except OSError:
            pass
        finally:
            for one in (source, target):
                one.close()

    def _note(self, who: str, frame: CommandFrame) -> bytes:
        line = line_of(who, frame)
        told = parse(Command, frame.command)
        if line.name == "lookup_answer":
            told.lookup_answer.url = URL
            line = line_of(who, CommandFrame(memoryview(told.SerializeToString()), memoryview(b"")))
            told.lookup_answer.url = self.url
        with self._lock:
            if line.name not in UNASKED:
                self.lines.append(line)
        if line.name == "lookup_answer":
            return encode(told)
        body = bytes(frame.rest)
        total = 4 + len(frame.command) + len(body)
        return total.to_bytes(4, "big") + len(frame.command).to_bytes(4, "big") + bytes(frame.command) + body


def batches_and_keys(client: pulsar.Client) -> None:
    """A keyed batch, a single message, acknowledgements, one given back."""
    consumer = client.subscribe(
        "orders", "billing", pulsar.ConsumerType.KeyShared, initial_position=EARLIEST, consumer_name="c",
        negative_ack_redelivery_delay_ms=100,
    )  # fmt: skip
    producer = client.create_producer(
        "orders", producer_name="till", batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=50, compression_type=pulsar.CompressionType.LZ4,
    )  # fmt: skip
    for number in range(6):
        producer.send_async(b"%d" % number, lambda *_: None, partition_key=f"k{number % 2}", properties={"n": "1"})
    producer.flush()
    messages = [consumer.receive(10_000) for _ in range(6)]
    for message in messages[:3]:
        consumer.acknowledge(message)
    for message in messages[3:]:
        consumer.negative_acknowledge(message)
    for message in [consumer.receive(10_000) for _ in range(3)]:
        consumer.acknowledge(message)
    time.sleep(0.3)  # acknowledgements are gathered by the client
    producer.close()
    consumer.unsubscribe()


def back_and_forth(client: pulsar.Client) -> None:
    """Seeks and a reader."""
    consumer = client.subscribe("log", "s", initial_position=EARLIEST, consumer_name="c")
    producer = client.create_producer("log", producer_name="till", batching_enabled=False)
    ids = [producer.send(b"%d" % number, event_timestamp=number + 1) for number in range(3)]
    for _ in ids:
        consumer.receive(10_000)
    consumer.seek(ids[0])
    consumer.receive(10_000)
    reader = client.create_reader("log", ids[0], reader_name="r", subscription_role_prefix="x")
    while reader.has_message_available():
        reader.read_next(10_000)
    reader.close()
    consumer.close()


def what_is_left(client: pulsar.Client) -> None:
    """Play a batch with some messages done, at two consumers with one of them active, after the other has left."""

    def subscribed(name: str) -> pulsar.Consumer:
        return client.subscribe(
            "left", "s", pulsar.ConsumerType.Failover, initial_position=EARLIEST, consumer_name=name,
            batch_index_ack_enabled=True,
        )  # fmt: skip

    first, second = subscribed("a"), subscribed("b")
    producer = client.create_producer(
        "left", producer_name="till", batching_enabled=True, batching_max_publish_delay_ms=10_000
    )
    for number in range(5):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    messages = [first.receive(10_000) for _ in range(5)]
    first.acknowledge(messages[0])
    first.acknowledge(messages[2])
    time.sleep(0.3)  # acknowledgements are gathered by the client
    first.close()
    for message in [second.receive(10_000) for _ in range(3)]:
        second.acknowledge(message)
    time.sleep(0.3)
    second.close()
    view = client.create_table_view("left")
    view.close()


SCENES: dict[str, Callable[[pulsar.Client], None]] = {
    "batches_and_keys": batches_and_keys,
    "back_and_forth": back_and_forth,
    "what_is_left": what_is_left,
}


def main() -> None:
    """Record the scenes that are named, or every one."""
    FOLDER.mkdir(exist_ok=True)
    for name, scene in SCENES.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        with sluice.connect(embedded=True, pulsar_port=0) as server:
            recorder = Recorder(server.pulsar_service_url)
            quiet: Any = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
            client = pulsar.Client(recorder.url, logger=quiet)
            scene(client)
            client.close()
            time.sleep(0.2)
            said = "\n".join(line.text() for line in recorder.lines)
        (FOLDER / f"{name}.txt").write_text(f"# {scene.__doc__} pulsar-client {pulsar.__version__}\n{said}\n")


if __name__ == "__main__":
    main()
