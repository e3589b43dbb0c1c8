"""Measure Spark's reads of a topic: through brokers, and from the object store without a broker, in one run.

    .venv/bin/python -m benchmarks.spark_history [--messages N] [--bytes N] [--keys N] [--rounds N] [--folder PATH]

The messages are published as of one day, evenly, in order of time, and every ledger but the newest leaves for the
object store, while bookies keep their copies. Then a Spark of two cores

    brokers  counts by key, read by the brokers from bookies
    store    counts the same by key, read from the object store after the broker has ended
    frame    counts the same by key, as `./sluice sql --history only` does (loadgen.spark.topic_frame)
    parquet  counts the same by key, with Spark's own reader of Parquet over the folder
    hour     takes one hour of the day from the object store, all columns
    day      takes all of it, all columns

Each count is done once before, for Spark's own start, and then --rounds times, the quick ones from `frame` on three
times as often; the medians count. `least` is how long Spark takes to count by key what it has in memory, which no
source can undercut. Processor time is that of all processes: Spark's Java, its Python workers, and the broker's one
process. Bytes are those that are asked of objects. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from pyspark.sql.types import StructType

import sluice
from sluice.cluster.base.arguments import ArgumentParser, count
from sluice.cluster.history.log_read import LogRead
from sluice.cluster.launch import standalone
from sluice.cluster.node.folder import read_state
from sluice.cluster.settings.config import load
from sluice.loadgen.spark.datasource import SluiceDataSource
from sluice.loadgen.spark.java import ensure_java
from sluice.loadgen.spark.session import SparkStart, session_of
from sluice.loadgen.spark.topic_frame import topic_frame

BATCH, AHEAD = 20_000, 8
DAY_MS = 86_400_000
DAY = 1_700_006_400_000
"""The first millisecond of a day."""
HOUR = 13
KEYED = "key binary"
WHOLE = "key binary, payload binary, publish_time timestamp, properties map<string, string>, position long"
TIMED = {
    "startingTimestamp": str(DAY + HOUR * DAY_MS // 24),
    "endingTimestamp": str(DAY + (HOUR + 1) * DAY_MS // 24),
}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=count, default=10_000_000)
    parser.add_argument("--bytes", type=count, default=100, help="of a payload, which cannot be compressed")
    parser.add_argument("--keys", type=count, default=1_000)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--folder", type=Path, help="where to put the data; default: a temporary folder")
    options = parser.parse_args()
    os.environ.update(ensure_java())
    folder = Path(tempfile.mkdtemp(prefix="sluice-spark-", dir=options.folder))
    try:
        print(json.dumps(measured(options, folder)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measured(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures."""
    data = folder / "data"
    place = {"topic": "t", "dataDir": str(data)}
    only = {**place, "history": "only"}
    told: dict[str, Any] = {"messages": options.messages, "payload_bytes": options.bytes, "keys": options.keys}
    with session(folder / "spark") as spark:
        spark.dataSource.register(SluiceDataSource)
        with running(data) as broker:
            published(options, data)
            told |= offloaded(data)
            # Nobody reads bookies' copies but through brokers; what is on bookies alone is in no count.
            end = last_stored(only)
            brokers = {**place, "history": "off", "endingOffsets": end}
            by_key(frame(spark, KEYED, **{**brokers, "endingOffsets": "1:200000"}))
            told["brokers"] = repeated(options.rounds, lambda: by_key(frame(spark, KEYED, **brokers)), broker)
        by_key(frame(spark, KEYED, **only))
        told["store"] = repeated(options.rounds, lambda: by_key(frame(spark, KEYED, **only)), None)
        told["store"] |= objects_of(only, KEYED)
        files = str(data / "objects" / "history+" / "t+")

        def parquet() -> Any:
            return spark.read.option("recursiveFileLookup", "true").parquet(files)

        def anew(way: Callable[[], Any]) -> list[int]:
            return by_key(way())

        frame_of = functools.partial(topic_frame, spark, {"key": "binary"}, only)
        ways: dict[str, Callable[[], Any]] = {"frame": frame_of, "parquet": parquet}
        for name, way in ways.items():
            anew(way)
            told[name] = repeated(3 * options.rounds, functools.partial(anew, way), None)
        kept = parquet().select("key").cache()
        kept.count()
        told["least"] = repeated(3 * options.rounds, lambda: by_key(kept), None)
        kept.unpersist()
        answers = [told[name]["answer"] for name in ("brokers", "store", *ways, "least")]
        if answers[1:] != answers[:-1]:
            raise SystemExit(f"the counts differ: {told}")
        for name, more in (("hour", TIMED), ("day", {})):
            told[name] = costs(functools.partial(counted, spark, only | more), None) | objects_of(only | more, WHOLE)
    for name in ("store", *ways, "least"):
        for what in ("seconds", "cpu_s"):
            told[f"{name}_{what}_of_brokers"] = round(told[name][what] / told["brokers"][what], 3)
    told["hour_bytes_of_day"] = round(told["hour"]["bytes"] / told["day"]["bytes"], 3)
    return told


@contextlib.contextmanager
def session(folder: Path) -> Iterator[Any]:
    """A Spark as users have it: with Java's second compiler, which the one of short floods does without."""
    start = SparkStart(folder, cores=2, memory="2g", java="")
    try:
        yield session_of(start.context())
    finally:
        start.close()


def last_stored(options: dict[str, str]) -> str:
    """The position behind the last message in the object store."""
    last = LogRead.of(options, "t", unreachable, 1).present().ranges[-1]
    return f"{last.ledger}:{last.last + 1}"


def unreachable() -> Any:
    """A read of the store asks no broker."""
    raise AssertionError("a broker was asked")


def counted(spark: Any, options: dict[str, str]) -> int:
    """How many messages there are, all columns of which are read."""
    return int(frame(spark, WHOLE, **options).groupBy().count().collect()[0][0])


def frame(spark: Any, schema: str, **options: str) -> Any:
    """A read that is planned anew."""
    return spark.read.format("sluice").schema(schema).options(**options).load()


def by_key(messages: Any) -> list[int]:
    """How many keys there are, and how many messages they have."""
    return list(messages.groupBy("key").count().selectExpr("count(*)", "sum(count)").collect()[0])


@contextlib.contextmanager
def running(data: Path) -> Iterator[psutil.Process]:
    """A broker in one process of its own, which other processes reach."""
    standalone.up(load(None, data_dir=data).values)
    state = read_state(data) or {}
    try:
        yield psutil.Process(state["process"][0])
    finally:
        standalone.down(data)


def published(options: argparse.Namespace, data: Path) -> None:
    """The messages of a day."""
    chance = np.random.default_rng(7)
    with sluice.connect(data_dir=data) as client:
        client.create_topic("t", 1, roll_entries=max(1, options.messages // 20))
        producer = client.create_producer("t", "p")
        under_way: deque[Any] = deque()
        for first in range(0, options.messages, BATCH):
            rows = min(BATCH, options.messages - first)
            numbers = np.arange(first, first + rows)
            bytes_ = pa.py_buffer(chance.bytes(rows * options.bytes))
            ends = pa.py_buffer(np.arange(0, (rows + 1) * options.bytes, options.bytes, dtype=np.int32))
            keys = pa.array(numbers % options.keys).cast(pa.string()).cast(pa.binary())
            payload = pa.Array.from_buffers(pa.binary(), rows, [None, ends, bytes_])
            times = DAY + numbers * DAY_MS // options.messages
            under_way.append(producer.send_batch(pa.table({"key": keys, "payload": payload, "publish_time": times})))
            if len(under_way) > AHEAD:
                under_way.popleft().result(120)
        for receipt in under_way:
            receipt.result(120)


def offloaded(data: Path) -> dict[str, Any]:
    """Let everything leave."""
    began = time.perf_counter()
    with sluice.connect(data_dir=data) as client:
        client.offload("t")
        while (status := client.offload_status("t")[0])["asked"]:
            if status["error"]:
                raise SystemExit(f"offloading waits: {status['error']}")
            time.sleep(0.2)
    stored = sum(path.stat().st_size for path in (data / "objects").rglob("*.parquet"))
    return {"offload_s": round(time.perf_counter() - began, 1), "stored_bytes": stored}


def costs(work: Callable[[], Any], broker: psutil.Process | None) -> dict[str, Any]:
    """Time on the clock and of processors."""
    before, began = _processors(broker), time.perf_counter()
    answer = work()
    return {
        "answer": answer,
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_s": round(_processors(broker) - before, 2),
    }


def repeated(rounds: int, work: Callable[[], Any], broker: psutil.Process | None) -> dict[str, Any]:
    """The same of some rounds: the medians."""
    each = [costs(work, broker) for _ in range(rounds)]
    return each[0] | {what: round(statistics.median(one[what] for one in each), 2) for what in ("seconds", "cpu_s")}


def objects_of(options: dict[str, str], schema: str) -> dict[str, int]:
    """Bytes that the tasks of such a read ask of objects, found by doing in this process what they do."""
    reader = SluiceDataSource(dict(options)).reader(StructType.fromDDL(schema))
    tasks = reader.partitions()
    for task in tasks:
        for _ in reader.read(task):
            pass
    scans = {id(task.value.scan): task.value.scan for task in tasks}  # the tasks of a plan share one here
    return {"tasks": len(tasks), "bytes": sum(scan.bytes_read for scan in scans.values())}


def _processors(broker: psutil.Process | None) -> float:
    """Processor seconds so far of this process, its children, and the broker. Spark keeps its workers."""
    total = 0.0
    for process in [*psutil.Process().children(recursive=True), *([broker] if broker else [])]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:2])
    return total


if __name__ == "__main__":
    main()
