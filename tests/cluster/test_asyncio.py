"""The client of an asyncio program: in its caller's own loop, and with a cancellation at every step of every call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import accumulate, repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sluice
from sluice.cluster.client.async_client import AsyncClient
from sluice.cluster.client.async_consumer import AsyncConsumer
from sluice.cluster.client.async_producer import AsyncProducer
from sluice.cluster.launch import standalone
from sluice.storage.errors import Fenced, Invalid, NotFound, Timeout, Unavailable
from tests.cluster.helpers import PATIENCE_MS, PATIENCE_S, values

pytestmark = pytest.mark.timeout(300)

COUNT = 100
STEPS = (0, 1, 2, 3, *accumulate(repeat(1.6, 24), lambda step, more: round(step * more), initial=4))
"""Turns of the loop before a call is cancelled: each of the first, then ever fewer of the later ones."""


def played(play: Callable[[AsyncClient], Coroutine[Any, Any, None]], folder: Path) -> None:
    """Run a coroutine with a client of a cluster in its own loop; behind it nothing is left in the loop."""

    async def run() -> None:
        async with await sluice.connect_async(embedded=True, data_dir=folder / "data") as client:
            await client.create_topic("orders", 2)
            await play(client)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


async def cancelled(work: Coroutine[Any, Any, Any], step: int) -> bool:
    """Cancel a call after so many turns of the loop. Return whether it had ended by then."""
    task = asyncio.ensure_future(work)
    for _ in range(step):
        if task.done():
            break
        await asyncio.sleep(0)
    ended = task.done()
    task.cancel()
    outcome = (await asyncio.gather(task, return_exceptions=True))[0]
    assert ended or isinstance(outcome, asyncio.CancelledError) or not isinstance(outcome, BaseException)
    return ended


async def until(true: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    """Look again until it is so."""
    async with asyncio.timeout(60):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def both(client: AsyncClient, **settings: Any) -> AsyncIterator[tuple[AsyncProducer, AsyncConsumer]]:
    """A producer and a consumer of the topic."""
    async with (
        await client.create_producer("orders") as producer,
        await client.subscribe("orders", "s", initial_position="earliest", **settings) as consumer,
    ):
        yield producer, consumer


def sluice_threads() -> set[threading.Thread]:
    """Return the threads of Sluice in this process, those of other tests' shared clients among them."""
    return {one for one in threading.enumerate() if one.name.startswith("sluice")}


def test_messages_pass_in_the_callers_own_loop(tmp_path: Path) -> None:
    before = sluice_threads()

    async def play(client: AsyncClient) -> None:
        async with both(client) as (producer, consumer):
            sent = await asyncio.gather(*(producer.send(str(n), partition_key=f"k{n % 5}") for n in range(COUNT)))
            assert len(set(sent)) == COUNT
            seen: dict[str, list[int]] = {}
            async for message in consumer:
                seen.setdefault(message.partition_key(), []).append(int(message.data()))
                await consumer.acknowledge(message)
                if sum(map(len, seen.values())) == COUNT:
                    break
            assert seen == {f"k{key}": list(range(key, COUNT, 5)) for key in range(5)}
            await consumer.wait_acknowledged(PATIENCE_MS)
            assert sum(row["msgBacklog"] for row in await client.stats("orders", "s")) == 0
            assert sluice_threads() == before

    played(play, tmp_path)


def test_receipts_are_awaited(tmp_path: Path) -> None:
    async def play(client: AsyncClient) -> None:
        async with both(client) as (producer, consumer):
            sent = await producer.send_async(b"1", partition_key="k")
            receipt = await producer.send_batch(pa.record_batch({"payload": ["2", "3"], "key": ["k", "k"]}))
            assert (await receipt).done()
            assert (await sent) == (await sent) == sent.message_id()
            got = [(await consumer.receive(PATIENCE_MS)).data() for _ in range(3)]
            assert got == [b"1", b"2", b"3"]
            with pytest.raises(Invalid, match="payload is bytes or text"):
                await producer.send(3)  # type: ignore[arg-type]

    played(play, tmp_path)


def test_no_message_in_time_is_a_timeout(tmp_path: Path) -> None:
    async def play(client: AsyncClient) -> None:
        async with both(client) as (_, consumer):
            with pytest.raises(Timeout, match=r"^no message within 20 ms$"):
                await consumer.receive(20)
            assert await consumer.receive_batch(20) is None
            assert [batch async for batch in consumer.batches(20)] == []

    played(play, tmp_path)


def test_a_cancelled_receive_takes_no_message(tmp_path: Path) -> None:
    async def play(client: AsyncClient) -> None:
        async with both(client) as (producer, consumer):
            got = []
            for number, step in enumerate(STEPS):
                waits = asyncio.ensure_future(consumer.receive())
                await producer.send(str(number), partition_key="k")
                for _ in range(step):
                    await asyncio.sleep(0)
                waits.cancel()
                outcome = (await asyncio.gather(waits, return_exceptions=True))[0]
                message = outcome if isinstance(outcome, sluice.Message) else await consumer.receive(PATIENCE_MS)
                got.append(int(message.data()))
                await consumer.acknowledge(message)
            assert got == list(range(len(STEPS)))

    played(play, tmp_path)


def test_a_cancelled_send_loses_no_other_message(tmp_path: Path) -> None:
    async def play(client: AsyncClient) -> None:
        async with both(client) as (producer, consumer):
            sure = set()
            for number, step in enumerate(STEPS):
                if await cancelled(producer.send(f"maybe-{number}", partition_key="k"), step):
                    sure.add(f"maybe-{number}")
                await producer.send(f"sure-{number}", partition_key="k")
                sure.add(f"sure-{number}")
            await producer.flush(PATIENCE_S)
            got: list[str] = []
            while not sure <= set(got):
                got.append((await consumer.receive(PATIENCE_MS)).data().decode())
            assert len(got) == len(set(got))
            order = [int(name.rpartition("-")[2]) for name in got]
            assert order == sorted(order)

    played(play, tmp_path)


def test_calls_without_room_wait_in_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is cancelled in the line sends nothing."""
    monkeypatch.setattr("sluice.cluster.client.producer_core.MAX_PENDING_MESSAGES", 4)

    async def play(client: AsyncClient) -> None:
        async with both(client) as (producer, consumer):
            sends = [asyncio.ensure_future(producer.send(str(n), partition_key="k")) for n in range(40)]
            await asyncio.sleep(0)
            for given_up in sends[20::5]:
                given_up.cancel()
            await asyncio.gather(*sends, return_exceptions=True)
            left = [n for n in range(40) if n not in range(20, 40, 5)]
            assert [int((await consumer.receive(PATIENCE_MS)).data()) for _ in left] == left
            with pytest.raises(Timeout):
                await consumer.receive(50)

    played(play, tmp_path)


def test_a_cancelled_opening_leaves_nothing_open(tmp_path: Path) -> None:
    async def play(client: AsyncClient) -> None:
        async def consumers() -> int:
            return sum(len(row["consumers"]) for row in await client.stats("orders", "s"))

        def publishing() -> list[str]:
            return [one.get_name() for one in asyncio.all_tasks() if "publish" in one.get_name()]

        await (await client.subscribe("orders", "s")).close()
        for step in STEPS:
            for opening in (client.subscribe("orders", "s"), client.create_producer("orders")):
                if await cancelled(opening, step):
                    await close_opened(client)
                assert client.opened == {}

            async def nobody() -> bool:
                return await consumers() == 0 and not publishing()

            await until(nobody)

    played(play, tmp_path)


async def close_opened(client: AsyncClient) -> None:
    """Close what an opening that was not cancelled in time has opened."""
    for opened in list(client.opened.values()):
        assert isinstance(opened, AsyncProducer | AsyncConsumer)
        await opened.close()


def test_a_cancelled_acknowledgement_is_carried_out(tmp_path: Path) -> None:
    async def play(client: AsyncClient) -> None:
        async with both(client) as (producer, consumer):
            for step in STEPS:
                await producer.send(b"done", partition_key="k")
                message = await consumer.receive(PATIENCE_MS)
                await cancelled(consumer.acknowledge(message, ack_receipt=True), max(step, 1))

            async def done() -> bool:
                return not any(row["msgBacklog"] for row in await client.stats("orders", "s"))

            await until(done)

    played(play, tmp_path)


def test_a_cancelled_return_is_carried_out(tmp_path: Path) -> None:
    async def play(client: AsyncClient) -> None:
        async with both(client) as (producer, consumer):
            for number, step in enumerate(STEPS):
                await producer.send(str(number), partition_key=f"k{number}")
                message = await consumer.receive(PATIENCE_MS)
                await cancelled(consumer.negative_acknowledge(message, delay_ms=0), max(step, 1))
                again = await consumer.receive(PATIENCE_MS)
                assert (again.data(), again.redelivery_count()) == (str(number).encode(), 1)
                await consumer.acknowledge(again)

    played(play, tmp_path)


def test_a_cancelled_close_leaves_no_consumer(tmp_path: Path) -> None:
    async def play(client: AsyncClient) -> None:
        for step in STEPS:
            consumer = await client.subscribe("orders", "s")
            await cancelled(consumer.close(), max(step, 1))
            assert client.opened == {}

            async def nobody() -> bool:
                return sum(len(row["consumers"]) for row in await client.stats("orders", "s")) == 0

            await until(nobody)

    played(play, tmp_path)


@pytest.mark.parametrize("step", STEPS)
def test_a_cancelled_connect_frees_its_folder(tmp_path: Path, step: int) -> None:
    async def run() -> None:
        if await cancelled(sluice.connect_async(embedded=True, data_dir=tmp_path / "data"), step):
            return
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await (await sluice.connect_async(embedded=True, data_dir=tmp_path / "data")).close()

    asyncio.run(run())


def test_waits_on_a_client_that_closes_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(client: AsyncClient) -> None:
        consumer = await client.subscribe("orders", "s")
        asked = asyncio.Event()

        async def iterate() -> list[sluice.Message]:
            return [message async for message in consumer]

        async def silent(to: str, request: Any, timeout: int) -> Any:
            asked.set()
            await asyncio.Event().wait()

        waits = [asyncio.ensure_future(iterate()), asyncio.ensure_future(consumer.receive())]
        await asyncio.sleep(0)
        await consumer.close()
        monkeypatch.setattr(client.net, "call", silent)
        question = asyncio.ensure_future(client.stats("orders"))
        await asked.wait()
        monkeypatch.undo()
        await client.close()
        assert await waits[0] == []
        for wait in (waits[1], question):
            with pytest.raises(Fenced, match="is closed"):
                await wait
        with pytest.raises(Fenced, match="the client is closed"):
            await client.topics()

    played(play, tmp_path)


def test_a_send_without_an_answer_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(client: AsyncClient) -> None:
        producer = await client.create_producer("orders", send_timeout_millis=50)

        async def silent(to: str, request: Any, timeout: int) -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr(client.net, "call", silent)
        with pytest.raises(
            Unavailable, match=r"^the message was not confirmed within 0\.05 s; its outcome is unknown$"
        ):
            await producer.send(b"x")
        with pytest.raises(Unavailable, match=r"^no answer within 0\.05 s$"):
            await producer.close(0.05)
        monkeypatch.undo()

    played(play, tmp_path)


def test_another_loop_is_refused(tmp_path: Path) -> None:
    async def play(client: AsyncClient) -> None:
        async with both(client) as (producer, consumer):
            for work in (client.topics, lambda: producer.send(b"x"), consumer.receive, producer.flush):
                with pytest.raises(Invalid, match="belongs to the event loop that made it"):
                    await asyncio.to_thread(lambda work: asyncio.run(work()), work)

    played(play, tmp_path)


def test_a_cluster_elsewhere_is_reached_without_a_thread(tmp_path: Path) -> None:
    settings = values(tmp_path / "data")
    before = sluice_threads()
    standalone.up(settings)
    try:

        async def run() -> None:
            async with await sluice.connect_async(data_dir=settings.data_dir) as client:
                await client.create_topic("orders", 2)
                async with both(client) as (producer, consumer):
                    sent = await producer.send(b"1", partition_key="k")
                    assert (await consumer.receive(PATIENCE_MS)).message_id() == sent
                    assert sluice_threads() == before
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(run())
    finally:
        standalone.down(settings.data_dir)


def test_questions_about_a_detached_pool_leave_no_thread(tmp_path: Path) -> None:
    settings = values(tmp_path / "data")
    before = sluice_threads()
    standalone.up(settings)
    try:
        options: dict[str, Any] = {"name": "p", "connect": {"data_dir": settings.data_dir}, "ray_actor_options": {}}
        pool = sluice.Workers("orders", "s", print, detached=True, **options)
        for ask in (pool.status, lambda: pool.scale(1, 2)):
            with pytest.raises(NotFound):
                ask()
            assert sluice_threads() == before
        pool.stop()
        assert sluice_threads() == before
    finally:
        standalone.down(settings.data_dir)
