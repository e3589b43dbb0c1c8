"""An unchanged client, and the patience that its tests share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from sluice.cluster.client.client import Client

PATIENCE = 60_000
"""Milliseconds that a message may take on a busy machine."""
EARLIEST = pulsar.InitialPosition.Earliest
KEY_SHARED = pulsar.ConsumerType.KeyShared


def joined(server: Client, **options: Any) -> pulsar.Client:
    """A client of it, which says only what is wrong."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(server.pulsar_service_url, logger=quiet, operation_timeout_seconds=60, **options)


def received(consumer: Any, count: int) -> list[Any]:
    """Receive `count` messages, in order."""
    return [consumer.receive(PATIENCE) for _ in range(count)]


def nothing_comes(consumer: Any, milliseconds: int = 500) -> bool:
    """Whether no message comes for a while."""
    with pytest.raises(pulsar.Timeout):
        consumer.receive(milliseconds)
    return True


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must come true."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def backlog(server: Client, topic: str, subscription: str) -> int:
    """Messages of a subscription that are not done."""
    return sum(row["msgBacklog"] for row in server.stats(topic, subscription))
