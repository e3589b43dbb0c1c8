"""Consumers that restart, through the client: who comes back in time finds its keys, in one process."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sluice.cluster.client.blocking import Consumer
from sluice.cluster.client.client import Client
from sluice.storage.errors import Invalid
from tests.cluster.helpers import eventually

pytestmark = pytest.mark.timeout(300)

WORKERS = 12
GRACE_MS = 3_600_000
"""Longer than any test takes: what is kept is kept."""
KEYS = [b"key-%d" % number for number in range(500)]


def worker(client: Client, name: str) -> Consumer:
    """One consumer of the deployment."""
    return client.subscribe(
        "orders", "billing", consumer_name=name, initial_position="earliest", grace_ms=GRACE_MS, lease_ms=60_000
    )


def send(client: Client) -> None:
    """A message a key."""
    producer = client.create_producer("orders")
    producer.send_batch(pa.record_batch({"key": KEYS, "payload": KEYS})).result(60)
    producer.close()


def take(consumers: dict[str, Consumer], count: int) -> dict[bytes, str]:
    """Receive and acknowledge so many messages; by key, who had it."""
    had: dict[bytes, str] = {}

    def some() -> bool:
        for name, consumer in consumers.items():
            while (batch := consumer.receive_batch(0)) is not None:
                had.update(dict.fromkeys((message.data() for message in batch.messages()), name))
                consumer.acknowledge(batch)
        return len(had) >= count

    eventually(some, "all messages came")
    for consumer in consumers.values():
        consumer.wait_acknowledged(60_000)
    return had


def moved(client: Client) -> int:
    """Hashes that changed from one consumer to another."""
    return int(client.stats("orders", "billing")[0]["hashesMovedTotal"])


@pytest.mark.parametrize("planned", [False, True])
def test_a_rolling_restart_moves_no_hash(client: Client, planned: bool) -> None:
    consumers = {f"worker-{number}": worker(client, f"worker-{number}") for number in range(WORKERS)}
    send(client)
    before, at_start = take(consumers, len(KEYS)), moved(client)
    for name, old in list(consumers.items()):
        if planned:
            old.hand_over()
            consumers[name] = worker(client, name)
            eventually(old.is_handed_over, f"{name} has handed over")
            old.close()
        else:
            old.close()
            consumers[name] = worker(client, name)
    send(client)
    assert take(consumers, len(KEYS)) == before
    assert moved(client) == at_start
    stats = client.stats("orders", "billing")[0]
    assert (stats["keptHashes"], stats["handOversTotal" if planned else "placesReturnedTotal"]) == (0, WORKERS)


def test_consumer_that_leaves_for_good_frees_its_keys(client: Client) -> None:
    stays, leaves = worker(client, "stays"), worker(client, "leaves")
    leaves.close(for_good=True)
    send(client)
    assert len(take({"stays": stays}, len(KEYS))) == len(KEYS)


def test_grace_without_a_name_is_refused(client: Client) -> None:
    with pytest.raises(Invalid, match="give it a consumer_name"):
        client.subscribe("orders", "billing", grace_ms=1_000)


def test_a_hand_over_without_grace_is_refused(client: Client) -> None:
    with (
        client.subscribe("orders", "billing", consumer_name="worker") as consumer,
        pytest.raises(Invalid, match="grace_ms > 0"),
    ):
        consumer.hand_over("other")


def test_explain_says_for_whom_a_key_is_kept(client: Client) -> None:
    with worker(client, "stays"), worker(client, "leaves"):
        pass
    send(client)
    reason = client.explain("orders", "billing", key=KEYS[0])["reasons"][0]
    assert reason["gate"] in ("kept_for_owner", "nothing_to_deliver"), "what nobody asks for is not read"
    with worker(client, "stays"):
        eventually(lambda: "kept_for_owner" in gates(client), "a key waits for its owner")


def gates(client: Client) -> set[str]:
    """Why keys wait."""
    rows = client.admin("orders", "billing", "blocked_keys", top=len(KEYS))[0]
    return {row["reasons"][0]["gate"] for row in rows}
