"""A nightly batch with Ray Data: the orders of a day, read past all subscriptions, become one total a customer.

.venv/bin/python examples/nightly.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import sluice

CUSTOMERS = 20
ORDERS = 1_000


def numbers(batch: dict[str, Any]) -> dict[str, Any]:
    """Customer and amount of each order, from key and payload."""
    keys = [bytes(key).decode() for key in batch["key"]]
    return {"customer": keys, "amount": [int(bytes(payload)) for payload in batch["payload"]]}


def main(folder: str) -> None:
    """Publish two days of orders, add up the second one, publish the totals, and read them as any consumer does."""
    with sluice.connect(data_dir=folder) as client:  # a cluster of processes: tasks of Ray connect to it
        for topic in ("orders", "totals"):
            client.create_topic(topic, partitions=2)
        midnight = 0
        with client.create_producer("orders") as producer:
            for day in range(2):
                for number in range(ORDERS):
                    producer.send_async(str(number), partition_key=f"customer-{number % CUSTOMERS:02}")
                producer.flush()
                if day == 0:
                    time.sleep(0.01)
                    midnight = int(time.time() * 1000)

        connect = {"data_dir": folder}
        orders = sluice.read_dataset("orders", midnight, client=client, connect=connect, messages_per_task=400)
        totals = orders.map_batches(numbers).groupby("customer", num_partitions=2).sum("amount")
        rows = totals.map(lambda row: {"customer": row["customer"], "payload": str(row["sum(amount)"])})
        rows.write_datasink(sluice.SluiceSink("totals", key_column="customer", name="nightly", connect=connect))

        found: dict[str, int] = {}
        with client.subscribe("totals", "report", initial_position="earliest") as consumer:
            while len(found) < CUSTOMERS:
                message = consumer.receive(timeout_millis=60_000)
                found[message.partition_key()] = int(message.data())
                consumer.acknowledge(message)
    wanted = {f"customer-{one:02}": sum(range(one, ORDERS, CUSTOMERS)) for one in range(CUSTOMERS)}
    print(f"orders of the day: {orders.count()}")
    print(f"totals: {len(found)}, right: {sum(found[name] == wanted[name] for name in found)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else temporary)
