"""Pools that a task opens and closes with `async with`."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sluice.cluster.client.client import Client
from sluice.cluster.client.message import Message
from sluice.cluster.workers.pool import Workers
from tests.cluster.helpers import PATIENCE_S

pytestmark = pytest.mark.timeout(300)


def test_a_task_has_a_pool_within_its_block(client: Client) -> None:
    async def run() -> None:
        handled, loop = asyncio.Event(), asyncio.get_running_loop()

        def handle(message: Message) -> None:
            loop.call_soon_threadsafe(handled.set)

        async with Workers("orders", "billing", handle, client=client) as workers:
            client.create_producer("orders").send_async(b"1", partition_key="k")
            await asyncio.wait_for(handled.wait(), PATIENCE_S)
        assert workers.status().workers == {}
        assert client.stats("orders", "billing")[0]["consumersCount"] == 0

    asyncio.run(run())


def test_a_cancelled_start_leaves_no_worker(client: Client) -> None:
    async def run() -> None:
        pool = Workers("orders", "billing", lambda message: None, client=client)
        starting = asyncio.ensure_future(pool.__aenter__())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(run())
    if "billing" in client.subscriptions("orders"):
        assert client.stats("orders", "billing")[0]["consumersCount"] == 0
    assert not [one for one in threading.enumerate() if one.name == "billing-workers"]
