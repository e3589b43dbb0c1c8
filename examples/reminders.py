"""Reminders that come when they are due and not before; what was settled meanwhile never comes, for it is taken back.

.venv/bin/python examples/reminders.py
"""

from __future__ import annotations

import time
from datetime import timedelta

import sluice

DUE = {"invoice-1": timedelta(seconds=1), "invoice-2": timedelta(hours=1), "invoice-3": timedelta(seconds=2)}


def main() -> None:
    """Ask to be reminded of three invoices. One of them is paid in time."""
    with sluice.connect(embedded=True) as client:  # its data lies in a temporary folder
        client.create_topic("reminders", partitions=2)
        consumer = client.subscribe("reminders", "dunning")
        producer = client.create_producer("reminders")
        began = time.time()
        for invoice, delay in DUE.items():
            producer.send("please pay", delay_id=invoice, deliver_after=delay)
        paid = "invoice-2"
        for row in client.cancel_delayed("reminders", delay_id=paid):
            print(f"{paid}: paid, reminder {row['messages'][0]['answer']}")
        for _ in range(len(DUE) - 1):
            message = consumer.receive(timeout_millis=30_000)
            invoice = message.properties()["delay_id"]
            early = time.time() - began < DUE[invoice].total_seconds()
            print(f"{invoice}: {message.data().decode()}{' (TOO EARLY)' if early else ''}")
            consumer.acknowledge(message)
        consumer.wait_acknowledged()


if __name__ == "__main__":
    main()
