"""Keepers and operators of pools of workers: one keeper at a time, whichever controller is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sluice.actors.controller import pools
from sluice.actors.controller.pools import FORGOTTEN_MS, PREFIX, SILENT_MS, TAILS_MS, WorkerPools
from sluice.actors.messages import ClaimPool, DescribePools, DrainPool, PoolWanted, ReportPool, ScalePool
from sluice.storage.errors import Conflict, Corrupt, Fenced, Invalid, NotFound
from tests.sim.world import World


class Stage:
    """Two controllers over one metadata store."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.pools, self.others = (WorkerPools(world.client(name)) for name in ("one", "two"))

    async def claim(self, pools: WorkerPools | None = None, **changes: Any) -> PoolWanted:
        given: dict[str, Any] = {"name": "billing", "topic": "orders", "subscription": "s", "kind": "detached"}
        given |= {"version": "one", "min_workers": 2, "max_workers": 4, **changes}
        return await (pools or self.pools).on_claim_pool(ClaimPool(**given))

    async def report(self, epoch: int, pools: WorkerPools | None = None, **more: Any) -> PoolWanted:
        request = ReportPool(name="billing", epoch=epoch, **more)
        return await (pools or self.pools).on_report_pool(request)

    async def rows(self, name: str = "") -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads((await self.pools.on_describe_pools(DescribePools(name=name))).json)
        return rows


def played(scenario: Callable[[Stage], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test that runs in a simulated world."""

    def test() -> None:
        async def play(world: World) -> None:
            await scenario(Stage(world))

        World(0).play(play)

    test.__doc__ = scenario.__doc__
    return test


@played
async def test_a_later_keeper_ends_the_one_before(stage: Stage) -> None:
    """Also where each asks another controller."""
    first = await stage.claim()
    assert (await stage.report(first.epoch)).epoch == first.epoch
    second = await stage.claim(stage.others)
    assert second.epoch == first.epoch + 1
    with pytest.raises(Fenced):
        await stage.report(first.epoch)
    assert (await stage.report(second.epoch, status='{"handled": 7}')).min_workers == 2
    assert (await stage.rows())[0]["status"] == {"handled": 7}


@played
async def test_pools_are_told_in_short(stage: Stage) -> None:
    """For the page: with the last line of what a handler raised."""
    epoch = (await stage.claim()).epoch
    told = {"workers": {"billing-0": "running"}, "failures": {"key-1": "Traceback\n  line\nValueError: never\n"}}
    await stage.report(epoch, status=json.dumps(told))
    [row] = stage.pools.pools_in_short()
    assert row["failures"] == {"key-1": "ValueError: never"}
    assert (row["workers"], row["wanted"]) == ({"billing-0": "running"}, [2, 4])
    await stage.pools.ports.clock.sleep(SILENT_MS + 1)
    assert stage.pools.pools_in_short() == []


@played
async def test_a_keeper_hears_what_is_wanted(stage: Stage) -> None:
    epoch = (await stage.claim()).epoch
    await stage.others.on_scale_pool(ScalePool(name="billing", min_workers=5, max_workers=9))
    told = await stage.report(epoch)
    assert (told.min_workers, told.max_workers, told.draining) == (5, 9, False)
    await stage.pools.on_drain_pool(DrainPool(name="billing"))
    assert (await stage.report(epoch)).draining
    await stage.report(epoch, ended=True)
    assert await stage.rows() == []
    with pytest.raises(Fenced):
        await stage.report(epoch)


@played
async def test_impossible_requests_are_refused(stage: Stage) -> None:
    with pytest.raises(Invalid):
        await stage.claim(min_workers=5)
    with pytest.raises(NotFound):
        await stage.pools.on_scale_pool(ScalePool(name="billing", min_workers=1, max_workers=1))
    with pytest.raises(NotFound):
        await stage.pools.on_drain_pool(DrainPool(name="billing"))
    with pytest.raises(NotFound):
        await stage.rows("billing")


@played
async def test_a_pool_that_somebody_keeps_is_not_forgotten(stage: Stage) -> None:
    epoch = (await stage.claim()).epoch
    await stage.report(epoch)
    with pytest.raises(Conflict):
        await stage.pools.on_drain_pool(DrainPool(name="billing", forget=True))
    await stage.pools.ports.clock.sleep(SILENT_MS + 1)
    await stage.pools.on_drain_pool(DrainPool(name="billing", forget=True))
    assert await stage.rows() == []


@played
async def test_a_keeper_that_is_started_again_keeps_what_is_wanted(stage: Stage) -> None:
    """Ray starts the keeper with its first arguments: only a program that starts the pool again changes the wish."""
    first = (await stage.claim(start="first")).epoch
    await stage.pools.on_scale_pool(ScalePool(name="billing", min_workers=5, max_workers=9))
    again = await stage.claim(stage.others, start="first")
    assert (again.epoch, again.min_workers, again.max_workers, again.draining) == (first + 1, 5, 9, False)
    await stage.pools.on_drain_pool(DrainPool(name="billing"))
    again = await stage.claim(stage.others, start="first")
    assert (again.epoch, again.max_workers, again.draining) == (first + 2, 9, True)
    anew = await stage.claim(start="second")
    assert (anew.epoch, anew.min_workers, anew.max_workers, anew.draining) == (first + 3, 2, 4, False)
    [row] = await stage.rows()
    assert (row["epoch"], row["start"]) == (first + 3, "second")


@played
async def test_a_pool_that_gave_up_says_why_until_somebody_acts(stage: Stage) -> None:
    """The keeper has ended, and its program did so long ago: only the controller knows the reason."""
    for act in ("drain", "forget", "claim"):
        epoch = (await stage.claim(start="first")).epoch
        await stage.report(epoch, status='{"handled": 7}')
        await stage.report(epoch, ended=True, stopped="ValueError: never")
        stage.pools, stage.others = stage.others, stage.pools
        [row] = await stage.rows()
        assert (row["stopped"], row["status"]) == ("ValueError: never", {})
        if act == "claim":
            assert not (await stage.claim(start="second")).draining
            assert [row["stopped"] for row in await stage.rows()] == [""]
        else:
            await stage.pools.on_drain_pool(DrainPool(name="billing", forget=act == "forget"))
            assert await stage.rows() == []


@played
async def test_a_keeper_that_comes_again_does_not_start_what_gave_up(stage: Stage) -> None:
    epoch = (await stage.claim(start="first")).epoch
    await stage.report(epoch, ended=True, stopped="ValueError: never")
    again = await stage.claim(start="first")
    assert again.draining
    await stage.report(again.epoch, ended=True)
    assert [row["stopped"] for row in await stage.rows()] == ["ValueError: never"]


@played
async def test_pool_that_gave_up_is_not_shown_once_drained(stage: Stage) -> None:
    """A program knows the end of its own pool, so that pool is not shown either."""
    epoch = (await stage.claim()).epoch
    await stage.pools.on_drain_pool(DrainPool(name="billing"))
    await stage.report(epoch, ended=True, stopped="ValueError: never")
    assert await stage.rows() == []
    epoch = (await stage.claim(kind="program")).epoch
    await stage.report(epoch, ended=True, stopped="ValueError: never")
    assert await stage.rows() == []


@pytest.mark.parametrize("kind", ["detached", "program"])
def test_a_new_controller_takes_no_pool_for_abandoned(kind: str) -> None:
    """The keeper reports every second, so perhaps only the controller before has heard it."""

    async def scenario(world: World) -> None:
        stage = Stage(world)
        epoch = (await stage.claim(kind=kind)).epoch
        await stage.report(epoch)
        await stage.pools.ports.clock.sleep(FORGOTTEN_MS + 1)
        stage.pools = WorkerPools(world.client("three"))
        assert len(await stage.rows()) == 1
        with pytest.raises(Conflict, match="new"):
            await stage.pools.on_drain_pool(DrainPool(name="billing", forget=True))
        await stage.pools.ports.clock.sleep(SILENT_MS + 1)
        await stage.pools.on_drain_pool(DrainPool(name="billing", forget=True))
        assert await stage.rows() == []

    World(0).play(scenario)


@played
async def test_a_pool_whose_program_died_is_not_shown(stage: Stage) -> None:
    """The program claims the name again when it is started again."""
    epoch = (await stage.claim(kind="program")).epoch
    await stage.report(epoch)
    assert len(await stage.rows()) == 1
    await stage.pools.ports.clock.sleep(FORGOTTEN_MS + 1)
    assert await stage.rows() == []
    assert (await stage.claim(kind="program")).epoch == epoch + 1


@played
async def test_whether_a_pool_is_kept_does_not_hang_on_what_time_it_is(stage: Stage) -> None:
    """A clock that leaps makes no keeper silent, and none that is silent heard."""
    await stage.report((await stage.claim(kind="program")).epoch)
    skews = stage.world.skews
    for leap in (3_600_000, -3_600_000):
        skews.update(dict.fromkeys(stage.world.machines(), leap))
        assert len(await stage.rows()) == len(stage.pools.pools_in_short()) == 1
        with pytest.raises(Conflict):
            await stage.pools.on_drain_pool(DrainPool(name="billing", forget=True))
    await stage.pools.ports.clock.sleep(FORGOTTEN_MS + 1)
    assert (await stage.rows(), stage.pools.pools_in_short()) == ([], [])


@played
async def test_the_last_lines_of_workers_are_asked_for(stage: Stage) -> None:
    epoch = (await stage.claim()).epoch

    async def both() -> Any:
        asking = asyncio.ensure_future(stage.pools.on_describe_pools(DescribePools(name="billing", tails=True)))
        await stage.pools.ports.clock.sleep(1)
        told = await stage.pools.on_report_pool(ReportPool(name="billing", epoch=epoch))
        assert told.tails
        await stage.pools.on_report_pool(ReportPool(name="billing", epoch=epoch, tails='{"billing-0": "hello"}'))
        return await asking

    [row] = json.loads((await both()).json)
    assert row["tails"] == {"billing-0": "hello"}


@played
async def test_a_damaged_record_concerns_its_own_pool_only(stage: Stage) -> None:
    """Asking for the damaged pool fails, and the pool can be forgotten."""
    await stage.claim()
    await stage.pools.ports.meta.create(PREFIX + "odd", 1, b'{"epoch": "?"}')
    assert [row["name"] for row in await stage.rows()] == ["billing"]
    with pytest.raises(Corrupt, match="the pool odd"):
        await stage.rows("odd")
    with pytest.raises(Corrupt, match="the pool odd"):
        await stage.claim(name="odd")
    await stage.pools.on_drain_pool(DrainPool(name="odd", forget=True))
    await stage.claim(name="odd")
    assert [row["name"] for row in await stage.rows()] == ["billing", "odd"]


@played
async def test_a_claim_that_comes_twice_is_one(stage: Stage) -> None:
    """A silent controller may hear of it after the next one has answered, and would replace the keeper by itself."""
    first = await stage.claim(keeper="a")
    late = await stage.claim(stage.others, keeper="a")
    assert late == first
    await stage.report(first.epoch)
    second = await stage.claim(keeper="b")
    assert second.epoch == first.epoch + 1
    with pytest.raises(Fenced):
        await stage.claim(stage.others, keeper="a")
    await stage.report(second.epoch)


@played
async def test_no_epoch_of_a_forgotten_pool_comes_again(stage: Stage) -> None:
    """Workers of the forgotten pool may live, and have heard of a later keeper; and so may the keeper itself."""
    await stage.claim(keeper="a")
    last = (await stage.claim(keeper="b")).epoch
    await stage.pools.ports.clock.sleep(SILENT_MS + 1)
    await stage.pools.on_drain_pool(DrainPool(name="billing", forget=True))
    anew = (await stage.claim(keeper="c")).epoch
    assert anew > last
    with pytest.raises(Fenced):
        await stage.report(last, ended=True)
    await stage.report(anew)


def meanwhile(stage: Stage, deed: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run `deed` right after this controller's next look at a record, as the other controller would act."""
    read = stage.pools._read

    async def looked(name: str) -> Any:
        stage.pools._read = read  # type: ignore[method-assign]
        found = await read(name)
        await deed()
        return found

    stage.pools._read = looked  # type: ignore[method-assign]


@played
async def test_a_pool_that_ends_while_it_is_changed_has_ended(stage: Stage) -> None:
    epoch = (await stage.claim(keeper="a")).epoch
    meanwhile(stage, lambda: stage.others.on_drain_pool(DrainPool(name="billing")))
    await stage.report(epoch, ended=True)
    assert await stage.rows() == [], "whoever drains it waits for its end"


@played
async def test_the_end_of_a_keeper_is_not_that_of_the_next(stage: Stage) -> None:
    epoch = (await stage.claim(keeper="a")).epoch
    meanwhile(stage, lambda: stage.claim(stage.others, keeper="b"))
    with pytest.raises(Fenced):
        await stage.report(epoch, ended=True, stopped="ValueError: never")
    [row] = await stage.rows()
    assert (row["epoch"], row["stopped"]) == (epoch + 1, "")


@played
async def test_a_pool_that_is_claimed_meanwhile_is_not_forgotten(stage: Stage) -> None:
    await stage.claim(keeper="a")
    await stage.pools.ports.clock.sleep(SILENT_MS + 1)
    meanwhile(stage, lambda: stage.claim(stage.others, keeper="b"))
    with pytest.raises(Conflict, match="at this moment"):
        await stage.pools.on_drain_pool(DrainPool(name="billing", forget=True))
    assert len(await stage.rows()) == 1


def test_a_full_house_keeps_its_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their keepers claim them again, and repeat a claim whose answer was lost."""
    monkeypatch.setattr(pools, "MOST_POOLS", 1)

    @played
    async def scenario(stage: Stage) -> None:
        first = await stage.claim(keeper="a")
        assert await stage.claim(stage.others, keeper="a") == first
        assert (await stage.claim(keeper="b")).epoch == first.epoch + 1
        with pytest.raises(Invalid, match="1 pools of workers already"):
            await stage.claim(name="another")

    scenario()


@pytest.mark.parametrize("told", [{"status": "{"}, {"status": "[]"}, {"status": '{"failures": [1]}'}, {"tails": "x"}])
def test_a_report_that_cannot_be_read_is_refused(told: dict[str, Any]) -> None:
    @played
    async def scenario(stage: Stage) -> None:
        epoch = (await stage.claim()).epoch
        with pytest.raises(Invalid, match="the report of the pool billing"):
            await stage.report(epoch, **told)
        assert stage.pools.pools_in_short() == []

    scenario()


@played
async def test_nobody_is_asked_for_the_last_lines_of_no_pool(stage: Stage) -> None:
    began = stage.pools.ports.clock.monotonic()
    with pytest.raises(NotFound):
        await stage.pools.on_describe_pools(DescribePools(name="billing", tails=True))
    assert stage.pools.ports.clock.monotonic() - began < TAILS_MS
    assert not (await stage.claim()).tails
