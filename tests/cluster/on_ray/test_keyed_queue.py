"""The queue for Ray programs: its items, its order, its limits, and that it is found from everywhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import sluice
from sluice.cluster.client.client import Client
from sluice.cluster.on_ray.keyed_queue import SUBSCRIPTION, Empty, Full, Item, KeyedQueue
from sluice.storage.errors import Invalid, NotFound, Unavailable
from sluice.storage.format.hashing import masked_hash
from tests.cluster.helpers import PATIENCE_S, PYTHON, ROOT, eventually

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with sluice.connect(embedded=True) as one:
        yield one


@pytest.fixture
def queue(client: Client, request: pytest.FixtureRequest) -> Iterator[KeyedQueue]:
    with KeyedQueue(request.node.name.replace("[", "-").replace("]", ""), client=client) as one:
        yield one


class Unpacked:
    """An item that no pickle can be made of."""

    def __reduce__(self) -> str:
        raise RuntimeError("not packed")


def taken(queue: KeyedQueue, count: int) -> list[Item]:
    """Take and acknowledge `count` items."""
    items = []
    for _ in range(count):
        item = queue.get(timeout=PATIENCE_S)
        queue.ack(item)
        items.append(item)
    return items


def eventually_batch(queue: KeyedQueue, count: int) -> list[Item]:
    """Take `count` items at once, as soon as all are here."""
    found: list[Item] = []

    def come() -> bool:
        with contextlib.suppress(Empty):
            found[:] = queue.get_nowait_batch(count)
        return bool(found)

    eventually(come, f"{count} items are here")
    return found


def test_item_arrives_with_its_key(queue: KeyedQueue) -> None:
    queue.put({"order": 7}, key="customer")
    queue.put(None)
    got = taken(queue, 2)
    assert {(str(item.value), item.key) for item in got} == {("{'order': 7}", b"customer"), ("None", None)}
    eventually(queue.empty, "the queue is empty")


def test_items_of_a_key_keep_their_order(client: Client, queue: KeyedQueue) -> None:
    """Two readers side by side, and the second gives back what it holds when it closes."""
    for number in range(600):
        queue.put_nowait((number % 7, number), key=f"key-{number % 7}")
    queue.flush()
    other = KeyedQueue(queue.name, client=client, prefetch=50)
    first = other.get(timeout=PATIENCE_S)
    other.close()
    got = [item.value for item in taken(queue, 600)]
    assert first.value in got
    for key in range(7):
        assert [number for at, number in got if at == key] == list(range(key, 600, 7))


def test_each_item_reaches_one_of_many_readers(client: Client, queue: KeyedQueue) -> None:
    queue.put_nowait_batch(list(range(300)), [f"key-{number % 50}" for number in range(300)])
    queue.flush()
    got: list[int] = []

    def read() -> None:
        with KeyedQueue(queue.name, client=client) as mine:
            while len(got) < 300:
                try:
                    item = mine.get(timeout=0.1)
                except Empty:
                    continue
                got.append(item.value)
                mine.ack(item)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(PATIENCE_S)
    assert sorted(got) == list(range(300))


def test_item_put_before_any_reader_is_kept(tmp_path: Path) -> None:
    with KeyedQueue("jobs", embedded=True, data_dir=tmp_path / "data") as queue:
        queue.put("first", key="a")
        queue.put("second", key="a")
    with KeyedQueue("jobs", embedded=True, data_dir=tmp_path / "data") as again:
        assert [item.value for item in taken(again, 2)] == ["first", "second"]


def test_item_given_back_comes_again(queue: KeyedQueue) -> None:
    queue.put("work")
    queue.nack(queue.get(timeout=PATIENCE_S))
    assert taken(queue, 1)[0].redelivery_count == 1


class _Fragile:
    """An item that no reader can unpickle."""

    def __reduce__(self) -> tuple[type[int], tuple[str]]:
        return int, ("no number",)


def test_an_item_that_cannot_be_unpickled_can_be_settled(queue: KeyedQueue) -> None:
    """Else its key would wait until its reader closes, and what is got with it in a batch would be lost."""
    queue.put(_Fragile(), key="k")
    queue.put("next", key="k")
    first, second = eventually_batch(queue, 2)
    with pytest.raises(ValueError, match="no number"):
        first.value  # noqa: B018
    assert "no number" in repr(first)
    assert (second.value, second.key) == ("next", b"k")
    queue.nack(first)
    queue.ack(second)
    again = queue.get(timeout=PATIENCE_S)
    assert again.redelivery_count == 1
    queue.ack(again)
    eventually(queue.empty, "the queue is empty")


def test_a_full_queue_takes_more_when_items_are_done(client: Client) -> None:
    with KeyedQueue("bounded", 3, client=client) as queue:
        with pytest.raises(Full, match="room for 3 of 4"):
            queue.put_nowait_batch([1, 2, 3, 4])
        for number in range(3):
            queue.put(number)
        assert queue.full()
        with pytest.raises(Full):
            queue.put_nowait(3)
        with pytest.raises(Full):
            queue.put(3, timeout=0.05)
        waiting = threading.Thread(target=queue.put, args=(3,))
        waiting.start()
        taken(queue, 1)
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
        taken(queue, 3)
        eventually(queue.empty, "the queue is empty")


def test_a_loop_until_empty_ends_without_an_error(queue: KeyedQueue) -> None:
    """Acknowledgements on their way counted as items, and the loop asked for one more."""
    for round_ in range(20):
        for number in range(3):
            queue.put((round_, number), key=f"key-{number}")
        got = []
        while not queue.empty():
            item = queue.get(timeout=PATIENCE_S)
            queue.ack(item)
            got.append(item.value)
        assert sorted(got) == [(round_, number) for number in range(3)]


@pytest.mark.parametrize("seen", [False, True])
def test_a_queue_that_was_deleted_and_made_again_goes_on(client: Client, seen: bool) -> None:
    """Whether its readers and writers saw the deletion or not. Until it is made again, they hear that there is none."""
    name = f"remade-{seen}"
    with KeyedQueue(name, client=client) as queue:
        queue.put("old", key="a")
        taken(queue, 1)
        queue.put("left behind", key="a")
        KeyedQueue(name, client=client).delete()
        if seen:
            with pytest.raises(NotFound, match=f"there is no topic '{name}'"):
                queue.get(timeout=PATIENCE_S)
            with pytest.raises(NotFound, match=f"there is no topic '{name}'"):
                queue.qsize()
            with pytest.raises(NotFound, match=f"there is no topic '{name}'"):
                queue.put("nowhere", key="a")
        with KeyedQueue(name, partitions=2, client=client) as other:
            other.put("by another", key="a")
            queue.put("by itself", key="a")
            came: list[Any] = []

            def all_came() -> bool:
                with contextlib.suppress(NotFound, Empty):
                    came.append(taken(queue, 1)[0].value)
                return "by itself" in came

            eventually(all_came, lambda: f"the queue does not go on: {came}")
            assert [value for value in came if value != "left behind"] == ["by another", "by itself"]
            assert queue.empty()


@pytest.mark.parametrize("partitions", [1, 7])
@pytest.mark.parametrize("how", ["put_async", "put_nowait"])
def test_a_queue_made_again_with_other_partitions_takes_items(client: Client, partitions: int, how: str) -> None:
    keys = [f"k{number}" for number in range(20)]
    with KeyedQueue(f"other-{partitions}-{how}", client=client) as queue:
        for key in keys:
            queue.put("old", key=key)
        KeyedQueue(queue.name, client=client).delete()
        with KeyedQueue(queue.name, partitions=partitions, client=client) as other:
            assert other.empty(), "and so it is there"
            for key in keys:
                if how == "put_async":
                    asyncio.run(queue.put_async(key, key=key))
                else:
                    queue.put_nowait(key, key=key)
            queue.flush()
            came = taken(other, len(keys))
            assert sorted(item.value for item in came) == sorted(keys)
            for item in came:
                assert item._message.message_id().partition_index == masked_hash(item.value.encode()) % partitions


def test_an_empty_queue_says_so(queue: KeyedQueue) -> None:
    for fails in (queue.get_nowait, lambda: queue.get(timeout=0.05), lambda: queue.get_nowait_batch(1)):
        with pytest.raises(Empty):
            fails()


def test_a_batch_that_is_not_whole_stays_as_it_is(queue: KeyedQueue) -> None:
    for number in range(3):
        queue.put(number, key="a")
    eventually(lambda: queue._reader().held() == 3, "the items are here")
    with pytest.raises(Empty):
        queue.get_nowait_batch(4)
    items = queue.get_nowait_batch(3)
    assert [(item.value, item.redelivery_count) for item in items] == [(0, 0), (1, 0), (2, 0)]


async def test_others_go_on_while_an_item_is_awaited(queue: KeyedQueue) -> None:
    waiting = asyncio.create_task(queue.get_async())
    await asyncio.gather(*(queue.put_async(number, key=str(number % 5)) for number in range(200)))
    items = [await waiting]
    queue.ack(items[0])
    while len(items) < 200:
        items.append(await queue.get_async(timeout=PATIENCE_S))
        queue.ack(items[-1])
    assert sorted(item.value for item in items) == list(range(200))


async def test_a_wait_that_is_cancelled_takes_nothing(queue: KeyedQueue) -> None:
    waiting = asyncio.create_task(queue.get_async())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await queue.put_async("still here")
    item = await queue.get_async(timeout=PATIENCE_S)
    queue.ack(item)
    assert item.value == "still here"


async def test_a_cancelled_wait_keeps_the_order_of_a_key(queue: KeyedQueue) -> None:
    """Cancel the wait when an item of the key has come, before or behind the moment at which it would be handed out."""
    await queue.put_async("first", key="other")
    queue.ack(await queue.get_async(timeout=PATIENCE_S))
    waits = [asyncio.create_task(queue.get_async()) for _ in range(3)]
    await asyncio.sleep(0)
    for number in range(5):
        queue.put_nowait(number, key="a")
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    got = []
    for _ in range(5):
        got.append(await queue.get_async(timeout=PATIENCE_S))
        queue.ack(got[-1])
    assert [item.value for item in got] == [0, 1, 2, 3, 4]
    assert [item.redelivery_count for item in got] == [0] * 5


async def test_cancelled_wait_leaves_the_queue_to_others(queue: KeyedQueue) -> None:
    await queue.put_async("first")
    queue.ack(await queue.get_async(timeout=PATIENCE_S))
    waiting = asyncio.create_task(queue.get_async())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await queue.put_async("second")
    await asyncio.to_thread(eventually, lambda: queue._reader()._receiving._queue, "the item is here")
    assert queue.get_nowait().value == "second"


async def test_more_tasks_wait_than_there_are_threads(queue: KeyedQueue) -> None:
    waits = [asyncio.create_task(queue.get_async(timeout=PATIENCE_S)) for _ in range(100)]
    await asyncio.sleep(0)
    await asyncio.gather(*(queue.put_async(number, key=str(number)) for number in range(100)))
    assert sorted(item.value for item in await asyncio.gather(*waits)) == list(range(100))


async def test_a_cancelled_put_keeps_no_thread(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    with KeyedQueue("bounded-async", 1, client=client) as queue:
        await queue.put_async("first")
        looked = asyncio.Event()
        has_room = queue._has_room

        def look(count: int) -> bool:
            loop.call_soon_threadsafe(looked.set)
            return has_room(count)

        monkeypatch.setattr(queue, "_has_room", look)
        waiting = asyncio.create_task(queue.put_async("second"))
        await looked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), PATIENCE_S) == "free"


def test_a_closed_queue_is_closed(client: Client) -> None:
    queue = KeyedQueue("closed", client=client)
    queue.put(1)
    queue.shutdown()
    with pytest.raises(Invalid, match="closed here"):
        queue.get_nowait()
    KeyedQueue("closed", client=client).delete()
    assert "closed" not in [row["topic"] for row in client.topics()]


def readers(client: Client, queue: KeyedQueue) -> int:
    """Consumers of the queue, on one of its partitions."""
    return len(client.stats(queue.name, SUBSCRIPTION)[0]["consumers"])


@pytest.mark.parametrize("error", [Unavailable("no answer"), KeyboardInterrupt()])
def test_a_reader_leaves_though_a_flush_fails(
    client: Client, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Or its keys would wait for a queue that nobody can close any more."""

    def fail(timeout_s: float | None = None) -> None:
        raise error

    queue = KeyedQueue(f"unflushed-{type(error).__name__}", client=client)
    queue.put(1)
    assert queue.get(timeout=PATIENCE_S).value == 1
    monkeypatch.setattr(queue._writer(), "flush", fail)
    with pytest.raises(type(error)):
        queue.close()
    assert readers(client, queue) == 0


async def test_a_reader_that_comes_after_the_close_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that was cancelled goes on opening its reader in a thread, and may be overtaken by the close."""
    queue = KeyedQueue("overtaken", client=client)
    queue.put(1)
    found, go_on, ended = asyncio.Event(), threading.Event(), asyncio.Event()
    loop, opened, reader = asyncio.get_running_loop(), queue._open, queue._reader

    def slowly() -> object:
        connection = opened()
        loop.call_soon_threadsafe(found.set)
        go_on.wait(PATIENCE_S)
        return connection

    def tell_the_end() -> object:
        try:
            return reader()
        finally:
            loop.call_soon_threadsafe(ended.set)

    monkeypatch.setattr(queue, "_open", slowly)
    monkeypatch.setattr(queue, "_reader", tell_the_end)
    waiting = asyncio.create_task(queue.get_async())
    await found.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    queue.close()
    go_on.set()
    await ended.wait()
    assert readers(client, queue) == 0


def test_a_queue_that_is_sent_elsewhere_connects_for_itself() -> None:
    there = pickle.loads(
        pickle.dumps(KeyedQueue("persistent://public/default/jobs", 5, partitions=2, address="127.0.0.1:1"))
    )
    assert (there.name, there.maxsize, there._connect) == ("jobs", 5, {"address": "127.0.0.1:1"})
    with pytest.raises(sluice.SluiceError):
        there.qsize()


PROGRAM = """
import sys
import sluice
from sluice import KeyedQueue
import ray

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1", _temp_dir=sys.argv[2])
queue = KeyedQueue("jobs", data_dir=sys.argv[1])
queue.put(lambda: "done", key="a")  # Ray's own way of sending what Python's cannot

@ray.remote
def work(queue):
    item = queue.get(timeout=60)
    queue.ack(item)
    queue.close()
    return item.value()

print(ray.get(work.remote(queue)))
queue.close()
ray.shutdown()
"""


@pytest.mark.ray
def test_a_program_that_uses_ray_gets_its_broker(tmp_path: Path) -> None:
    """The broker is started in the program's own Ray, found by its tasks, and ends with it."""
    from sluice.cluster.launch.launch import leave_nothing
    from sluice.cluster.node.environment import short_folder
    from sluice.cluster.node.nodes import SLOW_START, START_TRIES

    sessions: list[str] = []
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    try:
        for _ in range(START_TRIES):  # on a busy machine Ray gives its own start up, before the broker is asked for
            command = [PYTHON, "-c", PROGRAM, str(tmp_path / "data"), short_folder(sessions)]
            ran = subprocess.run(
                command, cwd=ROOT, env=plain, capture_output=True, text=True, timeout=PATIENCE_S * 2, check=False
            )
            if SLOW_START not in ran.stderr:
                break
    finally:
        leave_nothing(sessions)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "done"


def test_a_batch_with_an_odd_item_puts_none_of_them(queue: KeyedQueue) -> None:
    """An earlier version put the items before the odd one, and their number was unknown."""
    with pytest.raises(RuntimeError, match="not packed"):
        queue.put_nowait_batch([1, Unpacked(), 3])
    with pytest.raises(Invalid, match="column 'payload' holds"):
        queue.put_nowait_batch([1, b"x" * (5 << 20), 3])
    odd: list[Any] = [["k", 5, "k"], ["k", "\ud800", "k"]]
    for keys in odd:
        with pytest.raises(Invalid):
            queue.put_nowait_batch([1, 2, 3], keys)
    queue.flush()
    assert queue.qsize() == 0


def test_a_task_has_the_queue_open_within_its_block(client: Client) -> None:
    async def run() -> None:
        async with KeyedQueue("of-tasks", client=client) as queue:
            await queue.put_async("first", key="k")
            item = await queue.get_async(timeout=PATIENCE_S)
            assert item.value == "first"
            queue.ack(item)
        with pytest.raises(Invalid, match="closed here"):
            queue.put_nowait("late")

    asyncio.run(run())


def test_a_cancelled_opening_leaves_nothing_open(client: Client) -> None:
    async def run() -> None:
        queue = KeyedQueue("given-up", client=client)
        opening = asyncio.ensure_future(queue.__aenter__())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        with pytest.raises(Invalid, match="closed here"):
            queue.put_nowait("late")

    asyncio.run(run())
