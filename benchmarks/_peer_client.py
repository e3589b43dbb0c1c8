"""One process of the comparison with other brokers: a client of one of them, or the process that keeps a Sluice.

It stands alone, because it also runs under the Python of another checkout of Sluice. Commands come as JSON lines, and
each is answered by one: when it began and ended (seconds since 1970), the processor time of this process.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAIT_MS = 60_000


class SluiceLink:
    """Sluice."""

    def __init__(self, options: dict[str, Any]) -> None:
        from sluice import connect

        self._client: Any = connect(options["url"])
        topic = options["topic"]
        self._client.create_topic(topic, partitions=options["partitions"])
        if options["consume"]:
            self._consumer = self._client.subscribe(
                topic, "sink", initial_position="earliest", receiver_queue_size=100_000
            )
        if options["produce"]:
            self._producer = self._client.create_producer(topic)

    def send(self, payload: bytes, key: str) -> None:
        self._producer.send(payload, partition_key=key)

    def send_async(self, payload: bytes, key: str) -> None:
        self._producer.send_async(payload, partition_key=key)

    def flush(self) -> None:
        self._producer.flush()

    def receive(self, timeout_ms: int) -> Any:
        from sluice import Timeout

        try:
            message = self._consumer.receive(timeout_millis=timeout_ms)
        except Timeout:
            return None
        message.data()
        return message

    def acknowledge(self, message: Any) -> None:
        self._consumer.acknowledge(message)

    def settle(self) -> None:
        self._consumer.wait_acknowledged()


class PulsarLink(SluiceLink):
    """Pulsar's Python client, Key_Shared. Its acknowledgements cannot be waited for; handing them over is all."""

    def __init__(self, options: dict[str, Any]) -> None:
        import pulsar

        self._timeout = pulsar.Timeout
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self._client = pulsar.Client(options["url"], logger=quiet)
        if options["consume"]:
            self._consumer = self._client.subscribe(
                options["topic"],
                "sink",
                consumer_type=pulsar.ConsumerType.KeyShared,
                initial_position=pulsar.InitialPosition.Earliest,
            )
        if options["produce"]:
            self._producer = self._client.create_producer(
                options["topic"],
                batching_enabled=options["batching"] != "none",
                batching_type=pulsar.BatchingType.KeyBased,
                batching_max_messages=1_000,
                batching_max_publish_delay_ms=1,
                block_if_queue_full=True,
                max_pending_messages=100_000,
                max_pending_messages_across_partitions=1_000_000,
                send_timeout_millis=0,
            )

    def send_async(self, payload: bytes, key: str) -> None:
        self._producer.send_async(payload, _nothing, partition_key=key)

    def receive(self, timeout_ms: int) -> Any:
        try:
            message = self._consumer.receive(timeout_ms)
        except self._timeout:
            return None
        message.data()
        return message

    def settle(self) -> None:
        """See PulsarLink."""


def _nothing(_result: Any, _message_id: Any) -> None:
    """The callback that send_async of Pulsar's client wants."""


def paced(link: SluiceLink, messages: int, every_ms: float) -> dict[str, Any]:
    """One message at each intended time: until confirmed, until received; microseconds, as lists."""
    confirmed: list[int] = []
    delivered: list[int] = []
    begun = time.perf_counter_ns() // 1000 + 50_000

    def receive() -> None:
        for number in range(messages):
            message = link.receive(WAIT_MS)
            delivered.append(time.perf_counter_ns() // 1000 - begun - int(number * every_ms * 1000))
            link.acknowledge(message)

    receiver = threading.Thread(target=receive)
    receiver.start()
    for number in range(messages):
        at = begun + int(number * every_ms * 1000)
        time.sleep(max(at - time.perf_counter_ns() // 1000, 0) / 1e6)
        link.send(b"x" * 100, f"key-{number % 100}")
        confirmed.append(time.perf_counter_ns() // 1000 - at)
    receiver.join()
    link.settle()
    return {"confirmed": confirmed, "delivered": delivered}


def send(link: SluiceLink, messages: int, keys: int, size: int) -> dict[str, Any]:
    """Single messages of `size` bytes as fast as the client takes them."""
    names, payload = [f"key-{number:06d}" for number in range(keys)], b"x" * size
    for number in range(messages):
        link.send_async(payload, names[number % keys])
    link.flush()
    return {}


def receive(link: SluiceLink, messages: int) -> dict[str, Any]:
    """Single messages as fast as the client gives them, each acknowledged."""
    for _ in range(messages):
        link.acknowledge(link.receive(WAIT_MS))
    link.settle()
    return {}


DOINGS: dict[str, Callable[..., dict[str, Any]]] = {"paced": paced, "send": send, "receive": receive}


def serve(link: SluiceLink) -> None:
    """Answer commands until the input ends."""
    for line in sys.stdin:
        wanted = json.loads(line)
        do, began, cpu = wanted.pop("do"), time.time(), time.process_time()
        told = DOINGS[do](link, **wanted)
        told |= {"began": began, "ended": time.time(), "cpu": time.process_time() - cpu}
        print(json.dumps(told), flush=True)


def keep(folder: Path) -> None:
    """Run a Sluice until nobody wants it any more."""
    from sluice.cluster.launch import launch

    with launch.local(folder) as running:
        print(json.dumps({"url": running.address}), flush=True)
        sys.stdin.read()


def keep_gateway(folder: Path, *, one_process: bool) -> None:
    """Run a Sluice that serves Pulsar's clients; makes the topics that lines on stdin name."""
    from sluice import connect
    from sluice.cluster.base.collector import collect_seldom
    from sluice.cluster.gateway.ports import service_url
    from sluice.cluster.launch import launch

    with contextlib.ExitStack() as stack:
        if one_process:
            collect_seldom()  # as `./sluice up --embedded` does
            broker = stack.enter_context(connect(embedded=True, data_dir=folder, pulsar_port=0))
        else:
            running = stack.enter_context(launch.local(folder, pulsar_port=0))
            broker = stack.enter_context(connect(running.address))
        print(json.dumps({"url": service_url(folder, 0)}), flush=True)
        for line in sys.stdin:
            topic = json.loads(line)
            broker.create_topic(topic["topic"], partitions=topic["partitions"])
            print("{}", flush=True)


def main() -> None:
    """The one argument: the options as JSON."""
    options = json.loads(sys.argv[1])
    if "gateway" in options:
        keep_gateway(Path(options["gateway"]), one_process=options["one_process"])
        return
    if "keep" in options:
        keep(Path(options["keep"]))
        return
    link = (PulsarLink if options["kind"] == "pulsar" else SluiceLink)(options)
    print('{"ready": true}', flush=True)
    serve(link)


if __name__ == "__main__":
    main()
