"""Access modes of a program's producers: one has the topic to itself, and the others are refused or wait."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import sluice
from sluice.cluster.client.client import Client
from sluice.storage.errors import Conflict, ProducerFenced
from tests.cluster.helpers import PATIENCE_MS, PATIENCE_S


def test_an_exclusive_producer_keeps_the_others_out(client: Client) -> None:
    client.create_topic("parts", 3)
    with client.create_producer("parts", access_mode="exclusive") as alone:
        with pytest.raises(ProducerFenced, match="Topic has existing producers"):
            client.create_producer("parts", access_mode="exclusive")
        with pytest.raises(Conflict, match="Topic has an existing exclusive producer"):
            client.create_producer("parts")
        for number in range(6):
            alone.send(b"x", partition_key=f"k{number}")
    with client.create_producer("parts") as shared:
        shared.send(b"y")


def test_a_shared_producer_is_refused_behind_an_exclusive_one(client: Client) -> None:
    shared = client.create_producer("orders")
    shared.send(b"before")
    alone = client.create_producer("orders", access_mode="exclusive")
    with pytest.raises(ProducerFenced):
        shared.send(b"between")
    alone.send(b"after")
    consumer = client.subscribe("orders", "s", initial_position="earliest")
    assert [consumer.receive(PATIENCE_MS).data() for _ in range(2)] == [b"before", b"after"]


def test_a_waiting_producer_gets_its_turn(client: Client) -> None:
    alone = client.create_producer("orders", access_mode="exclusive")
    order: list[str] = []

    def wait() -> None:
        with client.create_producer("orders", access_mode="wait_for_exclusive") as patient:
            order.append("its turn")
            patient.send(b"second")

    thread = threading.Thread(target=wait)
    thread.start()
    alone.send(b"first")
    order.append("closes")
    alone.close()
    thread.join(PATIENCE_S)
    assert order == ["closes", "its turn"]


def test_a_fencing_producer_ends_the_exclusive_one(client: Client) -> None:
    older = client.create_producer("orders", access_mode="exclusive")
    newer = client.create_producer("orders", access_mode="exclusive_with_fencing")
    with pytest.raises(ProducerFenced):
        older.send(b"late")
    newer.send(b"in time")
    older.close()
    newer.send(b"still its own")


def test_producers_on_tasks_wait_for_their_turn_and_give_up(tmp_path: Path) -> None:
    async def run() -> None:
        async with await sluice.connect_async(embedded=True, data_dir=tmp_path) as client:
            await client.create_topic("orders", 2)
            alone = await client.create_producer("orders", access_mode="exclusive")
            waits = [
                asyncio.create_task(client.create_producer("orders", access_mode="wait_for_exclusive"))
                for _ in range(2)
            ]
            await alone.send(b"x")
            waits[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits[0]
            assert not waits[1].done()
            await alone.close()
            async with await waits[1] as patient:
                await patient.send(b"y")
            async with await client.create_producer("orders") as shared:
                await shared.send(b"z")

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


def test_pulsars_client_and_a_producer_here_keep_each_other_out(tmp_path: Path) -> None:
    pulsar = pytest.importorskip("pulsar")
    with sluice.connect(embedded=True, data_dir=tmp_path, pulsar_port=0) as client:
        client.create_topic("orders")
        theirs = pulsar.Client(client.pulsar_service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        exclusive = pulsar.ProducerAccessMode.Exclusive
        try:
            with client.create_producer("orders", access_mode="exclusive"), pytest.raises(pulsar.ProducerFenced):
                theirs.create_producer("orders", access_mode=exclusive)
            alone = theirs.create_producer("orders", access_mode=exclusive)
            with pytest.raises(ProducerFenced, match="Topic has existing producers"):
                client.create_producer("orders", access_mode="exclusive")
            with pytest.raises(Conflict, match="Topic has an existing exclusive producer"):
                client.create_producer("orders")
            alone.close()
            client.create_producer("orders", access_mode="exclusive").send(b"x")
        finally:
            theirs.close()
