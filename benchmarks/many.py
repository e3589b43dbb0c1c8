"""Measures what many topics, partitions of a topic or consumers of a subscription cost, with Pulsar beside it.

    .venv/bin/python benchmarks/many.py [--work topics,partitions,consumers,unused,existing,silence]
                                        [--sides embedded,ray,pulsar]
                                        [--topics N,N] [--partitions N,N] [--consumers N,N] [--unused N,N]
                                        [--existing N,N] [--silence N,N] [--pulsar FOLDER]

All use the same Python client of Pulsar, and each number has a broker of its own, started for it. `embedded` is Sluice
in one process, `ray` is Sluice in many; Pulsar is its binary distribution, unpacked in the folder that --pulsar or
SLUICE_PULSAR_HOME names. A side that is not there is named in one line and left out. Needs the packages of the extra
`peers`.

    topics      topics of one partition, each with a Key_Shared consumer and a producer
    partitions  one topic, one Key_Shared consumer, single messages
    consumers   one topic of one partition, one subscription
    unused      topics of a broker to which nobody is connected, and its restart until a message to one is confirmed
    existing    topics that nobody uses: records in a metadata file, without a broker
    silence     so many producers and as many Key_Shared consumers, a process each, as fast as they can: how long a
                consumer gets nothing, and how much of the time the broker's busiest thread worked, and waited for a
                processor

Processor time and memory are those of all processes of the broker, `idle` is in cores while everybody is connected and
nothing happens. Processor time says more than the clock where others use the machine. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np
import numpy.typing as npt

from benchmarks._peer_servers import GatewaySide, Missing, PulsarSide, Side, counts_of, names_of, print_compared
from sluice.actors.ledger.record import PartitionRecord, encode_record, record_key, unpack_record
from sluice.actors.messages import TopicSettings
from sluice.actors.ownership.record_scan import scan, value_in
from sluice.cluster.base.arguments import ArgumentParser, amount, count, count_or_none
from sluice.cluster.host.store_ports import AsyncMeta
from sluice.storage.stores.metadata_sqlite import SqliteMetadata

if TYPE_CHECKING:
    import pulsar

PAYLOAD = b"x" * 100
KEYS = 10_000
TOGETHER = 1_000
"""Records that are written or read in one go."""
FLOOD_KEYS = 1_000
ALONE = 200
"""Messages that are sent one at a time."""
WAIT_MS = 120_000

Figures = dict[str, float]


class Meter:
    """A meter of what a piece of work takes of a broker. each: the number by which the figures are divided."""

    def __init__(self, side: Side, each: int) -> None:
        self._side, self._each = side, each
        self._cpu, self._wall = side.cpu(), time.perf_counter()

    def cpu_ms(self) -> float:
        return (self._side.cpu() - self._cpu) * 1e3 / self._each

    def ms(self) -> float:
        return (time.perf_counter() - self._wall) * 1e3 / self._each

    def cores(self) -> float:
        return (self._side.cpu() - self._cpu) / (time.perf_counter() - self._wall)


def idle(side: Side, seconds: float) -> float:
    """Cores that a broker uses when nothing happens; what was begun before has a moment to end."""
    time.sleep(min(seconds / 2, 3))
    meter = Meter(side, 1)
    time.sleep(seconds)
    return meter.cores()


def topics(side: Side, client: pulsar.Client, number: int, options: argparse.Namespace) -> Iterator[Figures]:
    names = [side.make_topic(f"many-{number}-{one}", 1) for one in range(number)]
    before, meter = side.memory(), Meter(side, number)
    consumers = [_subscribe(client, name, 10) for name in names]
    yield {"subscribe_ms": meter.ms(), "subscribe_cpu_ms": meter.cpu_ms()}
    meter = Meter(side, number)
    # Ten thousand messages that are begun at once take longer than the client waits for one otherwise.
    of_one = {"batching_enabled": False, "send_timeout_millis": WAIT_MS}
    producers = [client.create_producer(name, **of_one) for name in names]
    yield {"producer_ms": meter.ms(), "producer_cpu_ms": meter.cpu_ms()}
    time.sleep(options.settle)
    yield {"idle_cores": idle(side, options.idle)}
    for which in ("first", "second", "third"):
        meter = Meter(side, number)
        for producer in producers:
            producer.send_async(PAYLOAD, _nothing, partition_key="k")
        for producer in producers:
            producer.flush()
        for consumer in consumers:
            consumer.acknowledge(consumer.receive(WAIT_MS))
        yield {f"{which}_ms": meter.ms(), f"{which}_cpu_ms": meter.cpu_ms()}
    time.sleep(options.settle)
    chosen, meter = random.Random(1), Meter(side, ALONE)
    for _ in range(ALONE):
        at = chosen.randrange(number)
        producers[at].send(PAYLOAD, partition_key="k")
        consumers[at].acknowledge(consumers[at].receive(WAIT_MS))
    yield {"alone_ms": meter.ms(), "alone_cpu_ms": meter.cpu_ms(), "kb_each": (side.memory() - before) / number / 1e3}


def partitions(side: Side, client: pulsar.Client, number: int, options: argparse.Namespace) -> Iterator[Figures]:
    name = side.make_topic(f"wide-{number}", number)
    before, meter = side.memory(), Meter(side, 1)
    consumer = _subscribe(client, name, 1_000)
    yield {"subscribe_ms": meter.ms(), "subscribe_cpu_ms": meter.cpu_ms()}
    yield {"idle_cores": idle(side, options.idle), "mb": (side.memory() - before) / 1e6}
    meter = Meter(side, options.messages)
    producer = client.create_producer(name, batching_enabled=False, block_if_queue_full=True)
    for one in range(options.messages):
        producer.send_async(PAYLOAD, _nothing, partition_key=f"key-{one % KEYS}")
    producer.flush()
    yield {"sent_ms": meter.ms(), "sent_cpu_ms": meter.cpu_ms()}
    meter = Meter(side, options.messages)
    for _ in range(options.messages):
        consumer.acknowledge(consumer.receive(WAIT_MS))
    yield {"received_ms": meter.ms(), "received_cpu_ms": meter.cpu_ms(), "mb_after": (side.memory() - before) / 1e6}


def consumers(side: Side, client: pulsar.Client, number: int, options: argparse.Namespace) -> Iterator[Figures]:
    """Attach `number` consumers to one subscription; the last tenth of them is what one more costs."""
    name = side.make_topic(f"shared-{number}", 1)
    before, last = side.memory(), max(number // 10, 1)
    attached = [_subscribe(client, name, 10) for _ in range(number - last)]
    meter = Meter(side, last)
    attached += [_subscribe(client, name, 10) for _ in range(last)]
    yield {"one_more_ms": meter.ms(), "one_more_cpu_ms": meter.cpu_ms()}
    yield {"idle_cores": idle(side, options.idle), "kb_each": (side.memory() - before) / number / 1e3}


def unused(side: Side, _: pulsar.Client, number: int, options: argparse.Namespace) -> Iterator[Figures]:
    """Make `number` topics and do not use them. A restart is measured from the end of the broker before it."""
    before, meter = side.memory(), Meter(side, number)
    names = [side.make_topic(f"unused-{one}", 1) for one in range(number)]
    yield {"create_ms": meter.ms(), "create_cpu_ms": meter.cpu_ms()}
    yield {"idle_cores": idle(side, options.idle), "kb_each": (side.memory() - before) / number / 1e3}
    side.stop()
    began = time.perf_counter()
    side.start()
    started = time.perf_counter()
    client = _client(side)
    client.create_producer(names[number // 2]).send(PAYLOAD)
    confirmed = time.perf_counter()
    client.close()
    figures = {"restart_ms": (started - began) * 1e3, "until_confirmed_ms": (confirmed - began) * 1e3}
    yield figures | {"restart_cpu_ms": side.cpu() * 1e3, "mb_after": side.memory() / 1e6}


def existing(number: int, folder: Path) -> Figures:
    """The records of as many topics of one partition in a metadata file, which are written, listed, and read as the
    controller reads them.
    """
    store = SqliteMetadata(folder / "metadata.db")
    keys = [record_key(f"many-{one}", 0) for one in range(number)]
    record = PartitionRecord(topic="many-0", partition=0, settings=TopicSettings(), highest_ledger=1)
    value = msgpack.packb(encode_record(record))
    groups = [keys[first : first + TOGETHER] for first in range(0, number, TOGETHER)]

    def write() -> None:
        for group in groups:
            store.create_many([(key, 1, value) for key in group])

    async def read() -> None:
        async for group in scan(AsyncMeta(store), keys):
            for _, found in group:
                unpack_record(value_in(found) or b"")

    works: dict[str, Callable[[], object]] = {
        "write_cpu_ms": write,
        "list_cpu_ms": lambda: store.keys("partition/"),
        "read_cpu_ms": lambda: asyncio.run(read()),
    }
    figures: Figures = {}
    for name, work in works.items():
        cpu = time.process_time()
        work()
        figures[name] = (time.process_time() - cpu) * 1e3 / number
    figures["kb_each"] = sum(file.stat().st_size for file in folder.iterdir()) / number / 1e3
    store.close()
    return figures


def silence(side: Side, _: pulsar.Client, number: int, options: argparse.Namespace) -> Iterator[Figures]:
    """Run `number` producers and consumers of one topic at full speed, and measure how long each consumer waits."""
    name = side.make_topic(f"full-{number}", 4)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2 * number, mp_context=spawn) as pool:
        receiving = [pool.submit(_receive, side.url, name, options.flood) for _ in range(number)]
        meter, threads, began = Meter(side, 1), side.threads(), time.perf_counter()
        list(pool.map(_flood, [side.url] * number, [name] * number, [options.flood] * number))
        waits = [each.result() for each in receiving]
        cpu = meter.cpu_ms()
        worked, waited = _busiest(threads, side.threads(), time.perf_counter() - began)
    whole = np.concatenate(waits)
    yield {
        "messages_s": len(whole) / options.flood,
        "cpu_us": cpu * 1e3 / len(whole),
        "longest_ms": float(whole.max()),
        "longest_of_each_ms": float(np.median([each.max() for each in waits])),
        "over_100_ms": float((whole > 100).sum()) / number,
        "busiest_worked": worked,
        "busiest_waited": waited,
    }


def _busiest(
    before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]], seconds: float
) -> tuple[float, float]:
    """Return the shares of the time in which a broker's busiest thread worked, and waited for its turn."""
    shares = []
    for thread, (ran, waited) in after.items():
        known = before.get(thread, (0.0, 0.0))
        shares.append(((ran - known[0]) / seconds, (waited - known[1]) / seconds))
    return max(shares)


def _flood(url: str, topic: str, seconds: float) -> None:
    """A process that sends as fast as it can, with the client's own batching for each key."""
    import pulsar

    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        block_if_queue_full=True,
        max_pending_messages=10_000,
        send_timeout_millis=0,
    )
    end, sent = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        for _ in range(TOGETHER):
            producer.send_async(PAYLOAD, _nothing, partition_key=f"key-{sent % FLOOD_KEYS}")
            sent += 1
    producer.flush()  # one that is closed before logs a line for each confirmation that still comes
    client.close()


def _receive(url: str, topic: str, seconds: float) -> npt.NDArray[np.float64]:
    """A process that receives and acknowledges; milliseconds from each message to the next, from the first one on."""
    import pulsar

    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = _subscribe(client, topic, 1_000)
    consumer.acknowledge(consumer.receive(WAIT_MS))
    begun = time.perf_counter()
    times = [begun]
    while times[-1] < begun + seconds * 0.9:  # the producers go on until then
        consumer.acknowledge(consumer.receive(WAIT_MS))
        times.append(time.perf_counter())
    client.close()
    return np.diff(np.array(times)) * 1e3


WORKS: dict[str, Callable[..., Iterator[Figures]]] = {
    "topics": topics,
    "partitions": partitions,
    "consumers": consumers,
    "unused": unused,
    "silence": silence,
}


def _client(side: Side) -> pulsar.Client:
    import pulsar

    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(side.url, logger=quiet, operation_timeout_seconds=240)


def _subscribe(client: pulsar.Client, topic: str, queue: int) -> pulsar.Consumer:
    import pulsar

    return client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.KeyShared,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=queue,
    )


def _nothing(_result: Any, _message_id: Any) -> None:
    """The callback that send_async wants."""


def _side(name: str, folder: Path, options: argparse.Namespace) -> Side:
    if name == "pulsar":
        return PulsarSide(name, folder, options.pulsar)
    return GatewaySide(name, folder, one_process=name == "embedded")


def play(work: str, name: str, number: int, options: argparse.Namespace) -> Figures:
    """Play one work on a broker of its own. Raises Missing."""
    with tempfile.TemporaryDirectory(prefix="sluice-many-") as folder:
        if work == "existing":
            return existing(number, Path(folder))
        side = _side(name, Path(folder) / name, options)
        try:
            side.start()
            client = _client(side)
            figures: Figures = {}
            for more in WORKS[work](side, client, number, options):
                figures |= more
                told = ", ".join(f"{figure} {value:.3g}" for figure, value in more.items())
                print(f"{number} {work}, {name}: {told}", file=sys.stderr, flush=True)
            client.close()
            return figures
        finally:
            side.stop()


def compare(options: argparse.Namespace) -> dict[str, Any]:
    measured: dict[str, dict[str, dict[int, Figures]]] = {}
    missing: dict[str, str] = {}
    for work in options.work:
        sides = measured.setdefault(work, {})
        for number in getattr(options, work):
            for name in options.sides if work in WORKS else ["metadata"]:
                if name in missing:
                    continue
                try:
                    sides.setdefault(name, {})[number] = play(work, name, number, options)
                except Missing as error:
                    missing[name] = str(error)
                    sides.pop(name, None)
                    print(f"{name}: left out: {error}", flush=True)
        print("\n".join(table(work, sides)), flush=True)
    if len(missing) == len(options.sides):
        raise Missing(next(iter(missing.values())))
    return {"benchmark": "many", "load": round(os.getloadavg()[0], 1), "works": measured}


def table(work: str, sides: dict[str, dict[int, Figures]]) -> list[str]:
    """Lines: a figure in each, a side with a number in each column."""
    columns = [(name, number) for name, numbers in sides.items() for number in numbers]
    lines = [f"{work:20}" + "".join(f"{f'{name} {number}':>16}" for name, number in columns)]
    for figure in next(iter(next(iter(sides.values())).values())) if columns else ():
        lines.append(f"  {figure:18}" + "".join(f"{sides[name][number][figure]:>16,.3f}" for name, number in columns))
    return lines


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sides = ["embedded", "ray", "pulsar"]
    parser.add_argument("--work", type=names_of([*WORKS, "existing"]), default=[*WORKS, "existing"])
    parser.add_argument("--sides", type=names_of(sides), default=sides)
    parser.add_argument(
        "--topics", type=counts_of, default=[100, 500], metavar="N,N", help="how many, for example 10,100"
    )
    parser.add_argument("--partitions", type=counts_of, default=[4, 64, 1_024], metavar="N,N")
    parser.add_argument("--consumers", type=counts_of, default=[16, 300], metavar="N,N")
    parser.add_argument("--unused", type=counts_of, default=[100, 10_000], metavar="N,N")
    parser.add_argument("--existing", type=counts_of, default=[10_000, 100_000], metavar="N,N")
    parser.add_argument(
        "--silence", type=counts_of, default=[2], metavar="N,N", help="how many producers and consumers"
    )
    parser.add_argument("--flood", type=amount, default=20.0, help="seconds of full speed")
    parser.add_argument("--messages", type=count, default=100_000, help="to the topic of many partitions")
    parser.add_argument("--idle", type=amount, default=15.0, help="seconds in which nothing happens")
    parser.add_argument(
        "--settle",
        type=count_or_none,
        default=0,
        help="seconds of rest before that is measured of topics, and before messages are sent one at a time",
    )
    parser.add_argument("--pulsar", metavar="FOLDER", help="Pulsar's unpacked distribution")
    parser.add_argument("--small", action="store_true", help="a run of a few seconds, for the tests")
    options = parser.parse_args()
    if options.small:
        options.sides, options.topics, options.partitions, options.consumers = ["embedded"], [3], [4], [3]
        options.messages, options.idle, options.unused, options.existing = 200, 0.5, [3], [100]
        options.silence, options.flood = [1], 1.0
    print_compared(compare, options)


if __name__ == "__main__":
    main()
