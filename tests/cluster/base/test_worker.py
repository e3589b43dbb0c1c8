"""The thread that event loops give work to."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sluice.cluster.base.worker import Worker


async def test_work_is_done_in_order_in_one_thread() -> None:
    worker, seen = Worker("w"), list[tuple[int, int]]()

    def note(number: int) -> int:
        seen.append((number, threading.get_ident()))
        return number

    assert await asyncio.gather(*(worker.do(note, number) for number in range(50))) == list(range(50))
    assert [number for number, _ in seen] == list(range(50))
    assert len({thread for _, thread in seen} | {threading.get_ident()}) == 2
    worker.close()
    worker.close()


async def test_an_error_of_the_work_comes_to_its_caller() -> None:
    worker = Worker("w")
    with pytest.raises(ZeroDivisionError):
        await worker.do(lambda: 1 // 0)
    assert await worker.do(len, "after it") == 8
    worker.close()
    with pytest.raises(RuntimeError, match="ended"):
        worker.do(len, "")


async def test_work_is_done_when_nobody_waits_any_more() -> None:
    worker, gate, done = Worker("w"), threading.Event(), list[str]()
    first, second = worker.do(gate.wait), worker.do(done.append, "second")
    second.cancel()
    gate.set()
    assert await first
    worker.close()
    assert done == ["second"]
    await asyncio.sleep(0)
    assert second.cancelled()


def test_closing_waits_for_work_whose_loop_has_ended() -> None:
    worker, gate, done = Worker("w"), threading.Event(), list[str]()

    async def give() -> None:
        worker.do(gate.wait)
        worker.do(done.append, "done")

    asyncio.run(give())
    gate.set()
    worker.close()
    assert done == ["done"]
