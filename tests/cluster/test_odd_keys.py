"""Keys of any bytes: who publishes them can ask about them, as a command's argument or as bytes."""

from __future__ import annotations

import os

import pytest

from sluice.cluster.client.client import Client
from sluice.storage.errors import Invalid
from tests.cluster.test_parking import consumer_of, stats

pytestmark = pytest.mark.timeout(300)

KEY = b"a\xff b"


@pytest.fixture
def filled(client: Client) -> Client:
    """One delayed message of the key, and another one that is held."""
    consumer = client.subscribe("orders", "billing", initial_position="earliest")
    producer = client.create_producer("orders")
    producer.send(b"now", partition_key=KEY)
    consumer.receive(60_000)
    producer.send(b"later", partition_key=KEY, deliver_at=4_000_000_000_000)
    return client


@pytest.mark.parametrize("key", [KEY, os.fsdecode(KEY)], ids=["bytes", "argument"])
def test_a_key_that_is_no_text_can_be_asked_about(filled: Client, key: str | bytes) -> None:
    told = filled.explain("orders", "billing", key=key)
    assert (told["verdict"], told["pending"]) == ("delivered", 1)
    assert filled.admin("orders", "billing", "owner", key=key)[0]["hash"] == told["hash"]
    (row,) = filled.cancel_delayed("orders", "billing", key=key, dry_run=True)
    assert row["cancelled"] == 1, row
    assert filled.erase("orders", key)[0]["keys"] == 1
    assert not filled.cancel_delayed("orders", "billing", key="a", dry_run=True)[0]["cancelled"]


def test_a_key_that_stands_for_no_bytes_is_refused(filled: Client) -> None:
    for ask in (
        lambda: filled.explain("orders", "billing", key="\ud800"),
        lambda: filled.admin("orders", "billing", "owner", key="\ud800"),
        lambda: filled.cancel_delayed("orders", "billing", key="\ud800"),
        lambda: filled.erase("orders", "\ud800"),
    ):
        with pytest.raises(Invalid, match="is no text"):
            ask()


@pytest.mark.parametrize(("key", "how"), [(KEY, "--message-id 1:0:0"), (b"a 'b", "--key 'a '\"'\"'b'")])
def test_the_command_for_a_parked_key_can_be_typed(client: Client, key: bytes, how: str) -> None:
    client.create_producer("orders").send(b"x", partition_key=key)
    with consumer_of(client) as consumer:
        while not stats(client)["keysParkedTotal"]:
            consumer.negative_acknowledge(consumer.receive(60_000))
    told = client.explain("orders", "billing", key=key)
    assert f"sluice subscriptions redrive orders billing {how}`," in told["reasons"][0]["unblocks"]
