"""A defect of ours in a client: nobody waits for ever for what its task would have done."""

from __future__ import annotations

from pathlib import Path

import pytest

import sluice
from sluice.actors.consumer.partition import PartitionConsumer
from sluice.storage.errors import Unavailable
from tests.cluster.helpers import PATIENCE_MS


async def test_a_defect_is_told_to_those_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a mistake of ours")

    async with await sluice.connect_async(embedded=True, data_dir=tmp_path) as client:
        await client.create_topic("orders")
        consumer = await client.subscribe("orders", "billing", initial_position="earliest")
        async with await client.create_producer("orders") as producer:
            monkeypatch.setattr(PartitionConsumer, "_take_delivery", broken)
            await producer.send(b"1")
            with pytest.raises(Unavailable, match="a mistake of ours"):
                await consumer.receive(PATIENCE_MS)
            monkeypatch.undo()
        other = await client.subscribe("orders", "audit", initial_position="earliest")
        assert (await other.receive(PATIENCE_MS)).data() == b"1"
