"""The loop replays: the same seed gives the same order, time jumps, and stuck runs are told apart from slow ones."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.loop import OWNER, SimFailure, SimLoop, current_loop, run


def _order(seed: int, *, shuffle: bool | None = None) -> list[int]:
    async def main() -> list[int]:
        seen: list[int] = []

        async def step(number: int) -> None:
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append(number)

        await asyncio.gather(*(step(number) for number in range(8)))
        return seen

    return run(seed, main, shuffle=shuffle)


def test_the_same_seed_gives_the_same_order() -> None:
    assert _order(7) == _order(7)


def test_different_seeds_give_different_orders() -> None:
    assert len({tuple(_order(seed, shuffle=True)) for seed in range(10)}) == 10


def test_a_polite_loop_keeps_the_order_of_arrival() -> None:
    assert _order(1, shuffle=False) == list(range(8)) * 3


def test_some_seeds_are_polite_and_some_are_not() -> None:
    assert {SimLoop(seed).shuffle for seed in range(50)} == {True, False}


def test_time_jumps_and_no_real_time_passes() -> None:
    loop = SimLoop(1)

    async def main() -> int:
        await asyncio.sleep(3600)
        await loop.pause(1)
        return loop.now

    assert loop.play(main()) == 3_600_001


def test_a_cancelled_timer_does_not_move_time() -> None:
    loop = SimLoop(1)

    async def main() -> None:
        handle = loop.after(1_000, lambda: None)
        await loop.pause(10)
        handle.cancel()
        await loop.pause(10)

    loop.play(main())
    assert loop.now == 20


def test_waiting_for_nothing_is_a_deadlock_and_tells_where() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(SimFailure, match="nothing is left to do"):
        run(1, main)


def test_a_busy_loop_ends() -> None:
    async def main() -> None:
        for _ in range(10**9):
            await asyncio.sleep(0)

    with pytest.raises(SimFailure, match="busy loop"):
        run(1, main)


def test_an_exception_that_nobody_caught_fails_the_run() -> None:
    async def main() -> None:
        def burst() -> None:
            raise KeyError("lost")

        asyncio.get_running_loop().call_soon(burst)
        await asyncio.sleep(10)

    with pytest.raises(KeyError, match="lost"):
        run(1, main)


def test_a_frozen_process_goes_on_and_a_buried_one_never() -> None:
    loop = SimLoop(3)
    seen: list[str] = []

    async def work(name: str) -> None:
        OWNER.set(name)
        try:
            for step in range(4):
                await loop.pause(10)
                seen.append(f"{name}{step}")
        finally:
            if loop.problem is None:
                seen.append(f"{name} ended")

    async def main() -> None:
        loop.create_task(work("a"))
        loop.create_task(work("b"))
        await loop.pause(25)
        loop.freeze("a")
        loop.send_to_dead_letters("b")
        await loop.pause(100)
        assert sorted(seen) == ["a0", "a1", "b0", "b1"]
        loop.thaw("a")
        await loop.pause(100)
        assert seen[4:] == ["a2", "a3", "a ended"]

    loop.play(main())


def test_threads_are_refused() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().run_in_executor(None, len, "")

    with pytest.raises(SimFailure, match="executor"):
        run(1, main)


def test_a_condition_is_seen_at_the_moment_at_which_it_comes() -> None:
    async def main() -> tuple[bool, int, int]:
        loop = current_loop()
        met: list[int] = []
        loop.after(7_000, met.append, 1)
        looks = 0

        def condition() -> bool:
            nonlocal looks
            looks += 1
            return bool(met)

        return await loop.until(condition, 10_000), loop.now, looks

    holds, moment, looks = run(1, main)
    assert (holds, moment) == (True, 7_000)
    assert looks <= 4, "it is asked for when something has happened"


def test_a_condition_that_does_not_come_is_given_up() -> None:
    async def main() -> tuple[bool, int]:
        loop = current_loop()
        loop.after(3_001, bool)
        return await loop.until(lambda: False, 3_000), loop.now

    assert run(1, main) == (False, 3_000)


def test_an_error_of_a_condition_comes_to_the_one_who_waits() -> None:
    async def main() -> None:
        loop = current_loop()
        broken: list[str] = ["fine"]
        loop.after(10, broken.clear)
        with pytest.raises(IndexError):
            await loop.until(lambda: not broken[0], 1_000)
        assert loop.now == 10

    run(1, main)
