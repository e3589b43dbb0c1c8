"""Orders by customer, in one process and across a restart: what is done stays done, the rest comes in each one's order.

.venv/bin/python examples/orders.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile

import sluice

CUSTOMERS = ("ada", "ben", "cyd")
STEPS = ("placed", "paid", "shipped")


def publish_and_begin(folder: str) -> None:
    """Publish all orders, handle the first one, and stop with the others unhandled."""
    with sluice.connect(embedded=True, data_dir=folder) as client:
        client.create_topic("orders", partitions=4)
        with client.create_producer("orders") as producer:
            for step in STEPS:
                for customer in CUSTOMERS:
                    producer.send_async(step, partition_key=customer)
            producer.flush()  # from here on all of them are on the disks of two bookies
        with client.subscribe("orders", "billing", initial_position="earliest") as consumer:
            message = consumer.receive(timeout_millis=30_000)
            print(f"before the restart: {message.partition_key()} {message.data().decode()}")
            consumer.acknowledge(message, ack_receipt=True)  # waits until this is durable, too


def go_on(folder: str) -> None:
    """Open the same data again and handle what is left."""
    left = len(CUSTOMERS) * len(STEPS) - 1
    with sluice.connect(embedded=True, data_dir=folder) as client:
        # Key_Shared: more consumers of "billing" would share the customers, each of whom stays with one at a time.
        consumer = client.subscribe("orders", "billing")
        for _ in range(left):
            message = consumer.receive(timeout_millis=30_000)
            print(f"after the restart: {message.partition_key()} {message.data().decode()}")
            consumer.acknowledge(message)
        consumer.wait_acknowledged()


def main() -> None:
    """Do both, in a folder that is given or in a temporary one."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = sys.argv[1] if len(sys.argv) > 1 else temporary
        publish_and_begin(folder)
        go_on(folder)


if __name__ == "__main__":
    main()
