"""Cancelling and rescheduling many delayed messages in one call each, and what is delivered of the rest.

    .venv/bin/python benchmarks/cancelling.py [--messages N] [--small]

One partition, 1,000 keys, due times over ten minutes that lie an hour ahead. A tenth of the messages is cancelled and a
tenth rescheduled, each by a range of due times; then one key, a hundred single messages by their ids, and twenty each
by their sender's own id, without and with a key. In the end all that is left is rescheduled to now, and received.
Prints one JSON object: seconds, milliseconds of a single call, and counts, of which `wrong` (delivered although
cancelled, or before the new time) has to be 0.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.cluster.base.arguments import ArgumentParser, count
from sluice.cluster.client.client import Client
from sluice.cluster.client.message import MessageId
from sluice.cluster.launch import embedded
from sluice.cluster.settings.options import ClusterOptions

KEYS = 1_000
SPAN_MS = 600_000
TOPIC, SUBSCRIPTION = "delays", "s"
BATCH = 50_000


def measure(client: Client, messages: int) -> dict[str, Any]:
    """Publish, change, receive."""
    client.create_topic(TOPIC, 1)
    consumer = client.subscribe(TOPIC, SUBSCRIPTION, initial_position="earliest", receiver_queue_size=100_000)
    producer = client.create_producer(TOPIC)
    base = int(time.time() * 1000) + 3_600_000
    due = base + (np.arange(messages, dtype=np.int64) * SPAN_MS) // messages
    receipts = []
    for start in range(0, messages, BATCH):
        numbers = np.arange(start, min(start + BATCH, messages))
        rows = {"key": [b"%d" % (n % KEYS) for n in numbers], "payload": [b"%d" % n for n in numbers]}
        receipts.append(producer.send_batch(pa.table({**rows, "deliver_at": due[numbers]})))
    producer.flush()
    _until(lambda: _delayed(client) == messages)
    tenth = SPAN_MS // 10
    told: dict[str, Any] = {"benchmark": "cancelling", "messages": messages}
    half = base - 1_800_000
    cancelled = np.zeros(messages, np.bool_)
    moved = (due >= base + 5 * tenth) & (due < base + 6 * tenth)
    told["cancel_s"], rows_told = _timed(
        lambda: client.cancel_delayed(TOPIC, SUBSCRIPTION, due_from=base + tenth, due_to=base + 2 * tenth)
    )
    told["cancelled"] = rows_told[0]["cancelled"]
    cancelled |= (due >= base + tenth) & (due < base + 2 * tenth)
    told["reschedule_s"], rows_told = _timed(
        lambda: client.reschedule_delayed(
            TOPIC, SUBSCRIPTION, deliver_at=half, due_from=base + 5 * tenth, due_to=base + 6 * tenth
        )
    )
    told["rescheduled"] = rows_told[0]["rescheduled"]
    told["cancel_key_s"], _ = _timed(lambda: client.cancel_delayed(TOPIC, SUBSCRIPTION, key="7"))
    cancelled |= np.arange(messages) % KEYS == 7
    sent = min(messages, BATCH)
    ids = [(row, receipts[0].message_id(row)) for row in range(0, sent, sent // 100)]
    times = [_cancel_one(client, one) for _, one in ids]
    cancelled[[number for number, _ in ids]] = True
    told["cancel_one_ms"] = _percentiles(times)
    told["cancel_delay_id_ms"] = _percentiles(_cancel_named(client, producer, base, None))
    told["cancel_delay_id_of_key_ms"] = _percentiles(_cancel_named(client, producer, base, "8"))
    told["msgDelayed"] = _delayed(client)
    told["reschedule_rest_s"], _ = _timed(
        lambda: client.reschedule_delayed(TOPIC, SUBSCRIPTION, deliver_at=int(time.time() * 1000), due_from=base)
    )
    later = int(time.time() * 1000) + 15_000
    client.reschedule_delayed(TOPIC, SUBSCRIPTION, deliver_at=later, due_to=base)
    seen, early = _receive(consumer, int(messages - np.count_nonzero(cancelled)), moved, later)
    told["received"] = int(np.count_nonzero(seen))
    told["wrong"] = int(np.count_nonzero(seen & cancelled)) + early
    told["missing"] = int(np.count_nonzero(~seen & ~cancelled))
    return told


def _receive(consumer: Any, wanted: int, moved: np.ndarray, later: int) -> tuple[np.ndarray, int]:
    """Which messages came, bool (messages,), and how many came before their new time."""
    seen, early, count = np.zeros(len(moved), np.bool_), 0, 0
    while count < wanted:
        batch = consumer.receive_batch(60_000)
        numbers = np.array([int(value) for value in batch.rows.column("payload").to_pylist()])
        if int(time.time() * 1000) < later:
            early += int(np.count_nonzero(moved[numbers]))
        count += int(np.count_nonzero(~seen[numbers]))
        seen[numbers] = True
        consumer.acknowledge(batch)
    return seen, early


def _cancel_one(client: Client, message_id: MessageId) -> float:
    return _timed(lambda: client.cancel_delayed(TOPIC, SUBSCRIPTION, message_id=message_id))[0]


def _cancel_named(client: Client, producer: Any, due: int, key: str | None) -> list[float]:
    waiting, names = _delayed(client), [f"{key}-{number}" for number in range(20)]
    for name in names:
        producer.send_async(b"", partition_key=key, deliver_at=due, delay_id=name)
    producer.flush()
    _until(lambda: _delayed(client) == waiting + len(names))
    cancel = partial(client.cancel_delayed, TOPIC, SUBSCRIPTION, key=key)
    return [_timed(partial(cancel, delay_id=name))[0] for name in names]


def _percentiles(times: list[float]) -> dict[str, float]:
    return {f"p{q}": round(float(np.percentile(times, q)) * 1000, 2) for q in (50, 99)}


def _delayed(client: Client) -> int:
    return int(client.stats(TOPIC, SUBSCRIPTION)[0]["msgDelayed"])


def _until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.1)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return round(time.perf_counter() - began, 3), result


def main() -> None:
    """Parse the command line and print the result."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=count, default=1_000_000)
    parser.add_argument("--small", action="store_true", help="a run of a few seconds, for the tests")
    options = parser.parse_args()
    if options.small:
        options.messages = 20_000
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        running = embedded.running(ClusterOptions(data_dir=Path(folder) / "data"))
        with running as inner, Client(None, inner.net, inner.loop) as client:
            print(json.dumps(measure(client, options.messages)))


if __name__ == "__main__":
    main()
