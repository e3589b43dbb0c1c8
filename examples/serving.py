"""A deployment of Ray Serve as the handler: its replicas score, and the pool keeps each customer in order.

    pip install "ray[serve]"
    .venv/bin/python examples/serving.py [FOLDER]

Serve has as many replicas as it likes, and none of them knows of an order. A worker asks them for many customers at
once, and for the next payment of a customer when the score of the last one is stored.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from typing import Any

from ray import serve

import sluice
from sluice import Client, Message

PAYMENTS, CUSTOMERS, REPLICAS = 600, 20, 2


@serve.deployment(num_replicas=REPLICAS, ray_actor_options={"num_cpus": 0}, max_ongoing_requests=16)
class Scoring:
    """A model behind Serve."""

    def __call__(self, amount: int) -> tuple[int, float]:
        """The replica's process, and the score."""
        return os.getpid(), amount / PAYMENTS


class Score:
    """The handler: made once in each worker, it finds the deployment by its name."""

    def __init__(self) -> None:
        self.scoring = serve.get_app_handle("scoring")

    async def __call__(self, message: Message) -> str:
        """Return what is published: the payment, its score, and the process that scored it."""
        process, score = await self.scoring.remote(int(message.data()))
        return f"{message.data().decode()} {score:.3f} {process}"


def publish(client: Client) -> None:
    """Payments of every customer in turn."""
    client.create_topic("payments", partitions=2)
    client.create_topic("scores", partitions=2, deduplication_enabled=True)
    with client.create_producer("payments") as producer:
        for number in range(PAYMENTS):
            producer.send_async(str(number), partition_key=f"customer-{number % CUSTOMERS}")
        producer.flush()


def main(folder: str) -> None:
    """Publish, serve, score, and look at the scores."""
    with sluice.connect(data_dir=folder) as client:
        publish(client)
        serve.start(proxy_location="Disabled")  # nobody asks over HTTP
        serve.run(Scoring.bind(), name="scoring", route_prefix=None)
        place: dict[str, Any] = {"connect": {"data_dir": folder}, "ray_actor_options": {"num_cpus": 0.2}}
        with sluice.Workers("payments", "scoring", Score, concurrency=16, output="scores", **place) as workers:
            while workers.status().handled < PAYMENTS:
                time.sleep(0.1)
        serve.shutdown()
        stored = [part for piece in client.stored("scores") for part in client.read("scores", piece)]
        lines = [bytes(text).decode().split() for part in stored for text in part.rows.column("payload").to_pylist()]
    numbers = [int(number) for number, _, _ in lines]
    wrong = sum(mine != sorted(mine) for mine in ([n for n in numbers if n % CUSTOMERS == c] for c in range(CUSTOMERS)))
    print(f"scores: {len(numbers)} of {PAYMENTS}, there twice: {len(numbers) - len(set(numbers))}")
    print(f"customers out of order: {wrong}, replicas that scored: {len({process for _, _, process in lines})}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else temporary)
