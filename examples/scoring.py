"""Scoring with a model that each worker loads once: messages come as columns, of each customer in order.

.venv/bin/python examples/scoring.py [FOLDER]

In one process the workers are threads. With `ray_actor_options={"num_gpus": 1}` they are actors that Ray places, and
nothing else changes.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import sluice
from sluice import Client

PAYMENTS, CUSTOMERS, WORKERS = 2_000, 50, 2
LOADED: list[str] = []
"""Which threads have loaded the model."""


class Scorer:
    """Says for each payment how unusual it is for its customer, by the average of those before: the order matters."""

    model = "model.npz"

    def __init__(self) -> None:
        with np.load(self.model) as stored:  # what takes long is done here, once in each worker
            self.weight, self.limit = float(stored["weight"]), float(stored["limit"])
        self.averages: dict[bytes, float] = {}
        LOADED.append(threading.current_thread().name)

    def __call__(self, rows: pa.RecordBatch) -> None:
        """Score a batch. What it raises would give the batch back."""
        amounts = np.frombuffer(b"".join(rows.column("payload").to_pylist()), np.float64)
        for customer, amount in zip(rows.column("key").to_pylist(), amounts.tolist(), strict=True):
            average = self.averages.get(customer, amount)
            if amount > self.limit * average:
                print(f"{customer.decode()} paid {amount:.0f}, {amount / average:.1f} times the usual", flush=True)
            self.averages[customer] = average + self.weight * (amount - average)


def publish(client: Client) -> None:
    """Payments of every customer in turn; customer-7 pays 50 times as much at last."""
    keys = [f"customer-{number % CUSTOMERS}".encode() for number in range(PAYMENTS)]
    amounts = np.full(PAYMENTS, 20.0)
    amounts[PAYMENTS - CUSTOMERS + 7] = 1_000.0
    columns = pa.record_batch({"key": keys, "payload": [amount.tobytes() for amount in amounts]})
    with client.create_producer("payments") as producer:
        producer.send_batch(columns).result(60)


def main() -> None:
    """Store a model, publish, and score, in a folder that is given or in a temporary one."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        Scorer.model = str(folder / "model.npz")
        np.savez(Scorer.model, weight=0.1, limit=10.0)
        with sluice.connect(embedded=True, data_dir=folder / "data") as client:
            client.create_topic("payments", partitions=4)
            publish(client)
            pool = sluice.Workers("payments", "scoring", Scorer, client=client, min_workers=WORKERS, batch_size=500)
            with pool:
                while pool.status().handled < PAYMENTS:
                    time.sleep(0.05)
        print(f"{PAYMENTS} payments scored; the model was loaded {len(LOADED)} times")


if __name__ == "__main__":
    main()
