"""Pauses double up to their limit, start small again after a success, and do not keep step."""

from __future__ import annotations

import pytest

from sluice.actors.runtime.waiting import Backoff
from sluice.storage.errors import Unavailable
from tests.sim.world import World


def _pauses(seed: int, tries: int, reset_after: int) -> list[int]:
    taken: list[int] = []

    async def run(world: World) -> None:
        ports = world.client("coming back")
        wait = Backoff(ports, 100, 1_000)
        for number in range(tries):
            began = ports.clock.monotonic()
            await wait.pause()
            taken.append(ports.clock.monotonic() - began)
            if number == reset_after:
                wait.reset()

    World(seed).play(run)
    return taken


def test_bo_1_pauses_double_up_to_the_limit_with_some_chance() -> None:
    wanted = [100, 200, 400, 800, 1_000, 1_000, 100, 200]
    got = _pauses(1, 8, reset_after=5)
    assert all(want * 0.9 <= pause <= want for want, pause in zip(wanted, got, strict=True)), got


def test_tasks_that_begin_together_do_not_retry_together() -> None:
    assert len({tuple(_pauses(seed, 5, -1)) for seed in range(8)}) == 8


@pytest.mark.parametrize(("patience", "tries"), [(0, 1), (300, 3)])
def test_when_the_patience_is_over_the_last_error_is_raised(patience: int, tries: int) -> None:
    tried: list[Unavailable] = []

    async def fail_for_ever(wait: Backoff) -> None:
        while True:
            tried.append(Unavailable("not now"))
            await wait.pause_after(tried[-1])

    async def run(world: World) -> None:
        with pytest.raises(Unavailable) as raised:
            await fail_for_ever(Backoff(world.client("coming back"), 200, 1_000, patience))
        assert raised.value is tried[-1]

    World(1).play(run)
    assert len(tried) == tries
