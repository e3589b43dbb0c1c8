"""The order of the steps: called, published, acknowledged; a key once at a time; a worker ends when it has finished."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from cluster.workers.result_loop import MOST_BYTES, NotOurs, ResultLoop
from cluster.workers.schedule import KeySchedule

Item = tuple[bytes, int]


class Steps:
    """Each step waits until the test lets it go; what began is written down."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.waits: dict[str, asyncio.Future[None]] = {}
        self.results_size = 0

    async def _step(self, name: str, item: Item) -> None:
        text = f"{name} {item[0].decode()}{item[1]}"
        self.began.append(text)
        self.waits[text] = asyncio.get_running_loop().create_future()
        await self.waits[text]

    async def call(self, item: Item) -> Any:
        await self._step("call", item)

    def size(self, results: Any) -> int:
        return self.results_size

    async def publish(self, item: Item, results: Any) -> None:
        await self._step("publish", item)

    def acknowledge(self, item: Item) -> None:
        self.began.append(f"acknowledge {item[0].decode()}{item[1]}")

    async def nack(self, item: Item, error: Exception) -> None:
        self.began.append(f"failed: {error}")
        await self._step("give back", item)

    async def settle(self) -> None:
        self.began.append("settle")

    async def go(self, text: str, error: BaseException | None = None) -> list[str]:
        """Let a step end; returns what began since."""
        before = len(self.began)
        waits = self.waits[text]
        waits.set_result(None) if error is None else waits.set_exception(error)
        await breathe()
        return self.began[before:]


async def breathe() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def played(scenario: Callable[[ResultLoop[Item], Steps], Coroutine[Any, Any, None]], concurrency: int = 1) -> None:
    async def play() -> None:
        steps, tasks = Steps(), deque[asyncio.Task[None]]()
        plan: KeySchedule[Item] = KeySchedule(concurrency, lambda item: False)
        loop = ResultLoop(plan, steps, lambda work: tasks.append(asyncio.ensure_future(work)))
        await scenario(loop, steps)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(play())


def take(loop: ResultLoop[Item], *items: Item) -> None:
    for item in items:
        loop.take(item[0], item)
    loop.start()


def test_a_place_is_free_while_results_wait_and_the_key_is_not() -> None:
    async def scenario(loop: ResultLoop[Item], steps: Steps) -> None:
        take(loop, (b"a", 1), (b"a", 2), (b"b", 1))
        await breathe()
        assert steps.began == ["call a1"]
        assert await steps.go("call a1") == ["publish a1", "call b1"]
        assert await steps.go("publish a1") == ["acknowledge a1"]  # a2 waits for the place that b1 has
        assert await steps.go("call b1") == ["publish b1", "call a2"]
        assert loop.handled == 1

    played(scenario)


def test_what_fails_is_given_back_before_the_key_goes_on() -> None:
    """Whether the handler fails or the publishing."""

    async def scenario(loop: ResultLoop[Item], steps: Steps) -> None:
        take(loop, (b"a", 1), (b"a", 2), (b"a", 3))
        await breathe()
        assert await steps.go("call a1", ValueError("no")) == ["failed: no", "give back a1"]
        assert await steps.go("give back a1") == ["call a2"]
        assert await steps.go("call a2") == ["publish a2"]
        assert await steps.go("publish a2", ValueError("full")) == ["failed: full", "give back a2"]
        assert await steps.go("give back a2") == ["call a3"]
        assert await steps.go("call a3", NotOurs()) == []
        assert loop.handled == 0

    played(scenario)


def test_a_worker_has_finished_when_all_is_published_and_durable() -> None:
    async def scenario(loop: ResultLoop[Item], steps: Steps) -> None:
        take(loop, (b"a", 1), (b"a", 2), (b"b", 1))
        await breathe()
        finishing = asyncio.ensure_future(loop.finish())
        await breathe()
        take(loop, (b"c", 1))
        assert await steps.go("call a1") == ["publish a1"]
        assert await steps.go("call b1") == ["publish b1"]
        assert await steps.go("publish b1") == ["acknowledge b1"]
        assert not finishing.done()
        assert await steps.go("publish a1") == ["acknowledge a1", "settle"]
        assert finishing.done()

    played(scenario, concurrency=2)


def test_what_ends_a_thread_ends_the_worker() -> None:
    """The message is neither acknowledged nor given back: it comes again when the worker is replaced."""

    async def scenario(loop: ResultLoop[Item], steps: Steps) -> None:
        take(loop, (b"a", 1), (b"b", 1))
        await breathe()
        assert await steps.go("call a1", asyncio.CancelledError()) == []
        assert isinstance(loop.error, asyncio.CancelledError)
        await asyncio.wait_for(loop.finish(), 10)

    played(scenario)


@pytest.mark.parametrize("most", [1, 3])
def test_keys_that_wait_for_their_results_are_bounded(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("cluster.workers.schedule.MOST_RETURNED", most)

    async def scenario(loop: ResultLoop[Item], steps: Steps) -> None:
        take(loop, *[(b"%d" % key, 0) for key in range(9)])
        await breathe()
        for key in range(most):
            await steps.go(f"call {key}0")
        assert [text for text in steps.began if text.startswith("call")] == [f"call {key}0" for key in range(most)]
        assert await steps.go("publish 00") == ["acknowledge 00", f"call {most}0"]

    played(scenario)


def test_results_that_wait_are_bounded_in_bytes() -> None:
    """Two fit; the handlers whose results do not keep their places, so nothing more is called."""

    async def scenario(loop: ResultLoop[Item], steps: Steps) -> None:
        steps.results_size = MOST_BYTES // 2
        take(loop, *[(b"%d" % key, 0) for key in range(9)])
        await breathe()
        for key in range(4):
            await steps.go(f"call {key}0")
        assert steps.began == ["call 00", "call 10", "publish 00", "call 20", "publish 10", "call 30"]
        assert await steps.go("publish 10") == ["acknowledge 10", "publish 20", "call 40"]
        assert await steps.go("publish 00", ValueError("no")) == ["failed: no", "give back 00"]
        assert await steps.go("give back 00") == ["publish 30", "call 50"]

    played(scenario, concurrency=2)


def test_a_message_with_more_results_than_may_wait_goes_alone() -> None:
    async def scenario(loop: ResultLoop[Item], steps: Steps) -> None:
        steps.results_size = MOST_BYTES + 1
        take(loop, (b"a", 0), (b"b", 0))
        await breathe()
        assert await steps.go("call a0") == ["publish a0", "call b0"]
        assert await steps.go("call b0") == []
        assert await steps.go("publish a0") == ["acknowledge a0", "publish b0"]

    played(scenario)
