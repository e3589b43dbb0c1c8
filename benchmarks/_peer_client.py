"""One process of the comparison with other brokers: a client of one of them, or the process that keeps a Sluice.

It stands alone, because it also runs under the Python of another checkout of Sluice. Commands come as JSON lines, and
each is answered by one: the count, when it began and ended (seconds since 1970), the processor time of this process.
"""

from __future__ import annotations

import contextlib
import gc
import json
import mmap
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 1_000
LARGE = 10_000
WAIT_MS = 60_000
POLL_MS = 200
"""How long a consumer without messages waits before it looks whether the others have all that is missing."""


class Tally:
    """How many messages each of several consumers has received: a number each in a file that their processes share.

    Of a subscription one consumer may have nothing for as long as the others have all the keys that are left. So the
    end is not silence, but that together they have what was sent. file: of 8 bytes for each of `of` consumers.
    """

    def __init__(self, file: str, number: int, of: int, messages: int) -> None:
        with open(file, "r+b") as shared:
            self._counts = memoryview(mmap.mmap(shared.fileno(), 8 * of)).cast("q")
        self._number, self._messages = number, messages

    def received(self, count: int) -> None:
        """This consumer has so many by now."""
        self._counts[self._number] = count

    def total(self) -> int:
        """How many all of them have."""
        return sum(self._counts)

    def drain(self, take: Callable[[int], int]) -> tuple[int, float]:
        """Take until nothing is missing, or nothing has come to anybody for WAIT_MS; (messages, time of the last one).

        take: waits for so many milliseconds at most, and returns how many messages it has taken.
        """
        count, last = 0, time.time()
        seen, since = self.total(), time.monotonic()
        while True:
            if taken := take(POLL_MS):
                count, last = count + taken, time.time()
                self.received(count)
                continue
            total = self.total()
            if total >= self._messages:
                return count, last
            if total != seen:
                seen, since = total, time.monotonic()
            elif (time.monotonic() - since) * 1000 >= WAIT_MS:
                return count, last


class SluiceLink:
    """Sluice."""

    def __init__(self, options: dict[str, Any]) -> None:
        from sluice import connect

        self._client = connect(options["url"])
        topic = options["topic"]
        self._client.create_topic(topic, partitions=options["partitions"])
        if options["consume"]:
            queue = 160_000 if options["large"] else 100_000
            limits = {"max_unacked_messages_per_consumer": 0, "max_unacked_messages_per_subscription": 0}
            look_ahead = {"look_ahead_per_consumer": 50_000, "look_ahead_per_subscription": 400_000}
            more: dict[str, Any] = {**limits, **look_ahead} if options["large"] else {}
            self._consumer = self._client.subscribe(
                topic, "sink", initial_position="earliest", receiver_queue_size=queue, **more
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

    def publish(self, keys: list[str], chosen: np.ndarray[Any, Any], size: int) -> Iterator[None]:
        import pyarrow as pa

        rng, names, batches = np.random.default_rng(1), pa.array(keys), []
        for start in range(0, len(chosen), LARGE):
            part = chosen[start : start + LARGE]
            column = pa.py_buffer(rng.bytes(size * len(part)))
            payload = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(part), [None, column])
            rows = {"key": names.take(pa.array(part)), "payload": payload.cast(pa.binary())}
            batches.append(pa.record_batch(rows))
        gc.freeze()
        yield
        for receipt in [self._producer.send_batch(batch) for batch in batches]:
            receipt.result(300)

    def drain(self, tally: Tally) -> tuple[int, float]:
        gc.freeze()

        def take(wait: int) -> int:
            batch = self._consumer.receive_batch(wait)
            if batch is None:
                return 0
            self._consumer.acknowledge(batch)
            return len(batch)

        drained = tally.drain(take)
        self.settle()
        return drained


class PulsarLink:
    """Pulsar's Python client, Key_Shared. Its acknowledgements cannot be waited for; handing them over is all."""

    def __init__(self, options: dict[str, Any]) -> None:
        import pulsar

        self._timeout = pulsar.Timeout
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self._client = pulsar.Client(options["url"], logger=quiet)
        kinds = {"key": pulsar.BatchingType.KeyBased, "default": pulsar.BatchingType.Default}
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
                batching_type=kinds.get(options["batching"], pulsar.BatchingType.Default),
                batching_max_messages=BATCH,
                batching_max_publish_delay_ms=1,
                block_if_queue_full=True,
                max_pending_messages=100_000,
                max_pending_messages_across_partitions=1_000_000,
                send_timeout_millis=0,
            )

    def send(self, payload: bytes, key: str) -> None:
        self._producer.send(payload, partition_key=key)

    def send_async(self, payload: bytes, key: str) -> None:
        self._producer.send_async(payload, _nothing, partition_key=key)

    def flush(self) -> None:
        self._producer.flush()

    def receive(self, timeout_ms: int) -> Any:
        try:
            message = self._consumer.receive(timeout_ms)
        except self._timeout:
            return None
        message.data()
        return message

    def acknowledge(self, message: Any) -> None:
        self._consumer.acknowledge(message)

    def settle(self) -> None:
        """See Link."""

    def publish(self, keys: list[str], chosen: np.ndarray[Any, Any], size: int) -> Iterator[None]:
        payloads = [np.random.default_rng(number).bytes(size) for number in range(1024)]
        names = [keys[key] for key in chosen]
        yield
        for number, key in enumerate(names):
            self.send_async(payloads[number & 1023], key)
        self.flush()

    def drain(self, tally: Tally) -> tuple[int, float]:
        def take(wait: int) -> int:
            message = self.receive(wait)
            if message is None:
                return 0
            self.acknowledge(message)
            return 1

        return tally.drain(take)


def _nothing(_result: Any, _message_id: Any) -> None:
    """The callback that send_async of Pulsar's client wants."""


Link = SluiceLink | PulsarLink
LINKS: dict[str, Any] = {"sluice": SluiceLink, "pulsar": PulsarLink}


def paced(link: Link, messages: int, every_ms: float) -> dict[str, Any]:
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
    return {"count": messages, "confirmed": confirmed, "delivered": delivered}


def send(link: Link, messages: int, keys: int) -> dict[str, Any]:
    """Single messages as fast as the client takes them."""
    names, payload = [f"key-{number:06d}" for number in range(keys)], b"x" * 100
    for number in range(messages):
        link.send_async(payload, names[number % keys])
    link.flush()
    return {"count": messages}


def receive(link: Link, messages: int) -> dict[str, Any]:
    """Single messages as fast as the client gives them, each acknowledged."""
    for _ in range(messages):
        link.acknowledge(link.receive(WAIT_MS))
    link.settle()
    return {"count": messages}


def prepare(link: Link, messages: int, keys: int, size: int, seed: int) -> Iterator[None]:
    """Make what is published in the largest way; keys as Zipf's law has them."""
    chosen = (np.random.default_rng(seed).zipf(1.2, messages) - 1) % keys
    work = link.publish([f"key-{number:06d}" for number in range(keys)], chosen, size)
    next(work)
    return work


DOINGS: dict[str, Callable[..., dict[str, Any]]] = {"paced": paced, "send": send, "receive": receive}


def serve(link: Link) -> None:
    """Answer commands until there are no more."""
    made: Iterator[None] = iter(())
    for line in sys.stdin:
        wanted = json.loads(line)
        do, began, cpu = wanted.pop("do"), time.time(), time.process_time()
        ended = None
        told: dict[str, Any] = {}
        if do == "prepare":
            made = prepare(link, **wanted)
        elif do == "publish":
            next(made, None)
        elif do == "drain":
            count, ended = link.drain(Tally(**wanted))
            told = {"count": count}
        else:
            told = DOINGS[do](link, **wanted)
        told |= {"began": began, "ended": ended or time.time(), "cpu": time.process_time() - cpu}
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
    link = LINKS[options["kind"]](options)
    print('{"ready": true}', flush=True)
    serve(link)


if __name__ == "__main__":
    main()
