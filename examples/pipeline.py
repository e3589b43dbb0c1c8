"""A pipeline of three topics, effectively once: it is killed in the middle and goes on, and each result is there once.

Orders become invoices, one for each item, and invoices become bookings, which have another key: the account.

.venv/bin/python examples/pipeline.py [FOLDER]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator

import sluice
from sluice import Client, Message

CUSTOMERS = ("ada", "ben", "cyd", "dot", "eve")
ORDERS = 40
"""Of each customer."""
STAGES = (("orders", "invoicing"), ("invoices", "booking"))


def invoices_of(order: Message) -> Iterator[str]:
    """An invoice for each item of an order: order number % 3 + 1 of them. They have the order's key, the customer."""
    number = int(order.data())
    for item in range(number % 3 + 1):
        yield f"{order.partition_key()} {number} {item}"


def booking_of(invoice: Message) -> sluice.Result:
    """Return what goes to the books, in order of the account. The message's id is the same each time it comes."""
    text = invoice.data().decode()
    account = f"account-{int(text.split()[1]) % 2}"
    return sluice.Result(text, key=account, properties={"invoice": str(invoice.message_id())})


def publish_orders(folder: str) -> None:
    """Make the topics; those that results go to deduplicate."""
    with sluice.connect(embedded=True, data_dir=folder) as client:
        client.create_topic("orders", partitions=2)
        client.create_topic("invoices", partitions=2, deduplication_enabled=True)
        client.create_topic("bookings", partitions=1, deduplication_enabled=True)
        with client.create_producer("orders") as producer:
            for number in range(ORDERS):
                for customer in CUSTOMERS:
                    producer.send_async(str(number), partition_key=customer)
            producer.flush()


def is_busy(client: Client, topic: str, subscription: str) -> bool:
    """Whether something is left to do; a pool that has just begun has not made its subscription yet."""
    if subscription not in client.subscriptions(topic):
        return True
    return any(row["msgBacklog"] for row in client.stats(topic, subscription))


def work(folder: str) -> None:
    """Handle what is there, and say after how many messages; in a process of its own."""
    with sluice.connect(embedded=True, data_dir=folder) as client:
        first = sluice.Workers("orders", "invoicing", invoices_of, client=client, min_workers=2, output="invoices")
        second = sluice.Workers("invoices", "booking", booking_of, client=client, concurrency=4, output="bookings")
        with first, second:
            while any(is_busy(client, *stage) for stage in STAGES):
                print(first.status().handled + second.status().handled, flush=True)
                time.sleep(0.01)


def killed_in_the_middle(folder: str) -> int:
    """Start the work, and kill it as soon as some messages are handled; returns how many."""
    with subprocess.Popen([sys.executable, __file__, folder, "work"], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        handled = next((int(line) for line in child.stdout if int(line) >= len(CUSTOMERS)), 0)
        child.kill()
    return handled


def look(folder: str) -> None:
    """Compare the bookings with what they should be."""
    wanted = [f"{customer} {n} {item}" for n in range(ORDERS) for customer in CUSTOMERS for item in range(n % 3 + 1)]
    with sluice.connect(embedded=True, data_dir=folder) as client:
        stored = [part for piece in client.stored("bookings") for part in client.read("bookings", piece)]
        found = [text.decode() for part in stored for text in part.rows.column("payload").to_pylist()]
    counts = Counter(found)
    print(f"bookings: {len(found)} of {len(wanted)}")
    print(f"there twice: {sum(count > 1 for count in counts.values())}, missing: {len(set(wanted) - set(found))}")
    for customer in CUSTOMERS:
        for account in range(2):
            mine = [tuple(map(int, text.split()[1:])) for text in found if text.startswith(customer)]
            booked = [place for place in mine if place[0] % 2 == account]
            if booked != sorted(booked):
                print(f"out of order: {customer} in account-{account}")


def main(folder: str) -> None:
    """Publish, work, die, work on, look."""
    publish_orders(folder)
    handled = killed_in_the_middle(folder)
    total = ORDERS * len(CUSTOMERS)
    print(f"killed in the middle: {'yes' if handled > 0 else 'no'}, before all {total} orders were handled")
    subprocess.run([sys.executable, __file__, folder, "work"], check=True, stdout=subprocess.DEVNULL)
    look(folder)


if __name__ == "__main__":
    if sys.argv[2:] == ["work"]:
        work(sys.argv[1])
    elif len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
