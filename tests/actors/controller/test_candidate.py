"""The controller when machines cannot reach each other, and which candidate may act; in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgpack
import pytest

from sluice.actors.controller.candidate import KEY, PROVEN_MS, SILENT_MS, SURE_MS
from sluice.storage.errors import Corrupt
from tests.sim.world import World
from tests.sim.worlds.candidates import Offices

FIRST, A, B = "controller", "controller-a", "controller-b"
SOON_MS = SILENT_MS + 2_500
"""Until another one is in office: it has to be silent, and those that are asked are waited for."""


def play(
    scenario: Callable[[World, Offices], Coroutine[Any, Any, None]],
    *hosts: str,
    machines: Mapping[str, str] | None = None,
) -> None:
    """Candidates that know each other; processes that leave office come back."""

    async def run(world: World) -> None:
        offices = Offices(world, hosts, machines)
        for host in hosts:
            await offices.start(host)
        world.background(offices.keep(), "keep")
        await world.loop.pause(3_000)
        assert offices.in_office() == [FIRST]
        await scenario(world, offices)

    World(7).play(run)


def acting(offices: Offices) -> list[str]:
    """Return the processes whose candidates may start and end others."""
    return [host for host, candidate in offices.candidates() if candidate.acts]


@pytest.mark.parametrize("reaches_store", [True, False])
def test_another_takes_over_from_one_that_is_cut_off(reaches_store: bool) -> None:
    """The cut-off candidate has not ended, but stops acting; after the cut it waits like the others."""

    async def scenario(world: World, offices: Offices) -> None:
        heal = world.partition([FIRST], [A, B])
        if not reaches_store:
            world.meta.trouble.cut[FIRST] = 1
        await world.loop.pause(SOON_MS)
        (other,) = [host for host in offices.in_office() if host != FIRST]
        assert acting(offices) == [other]
        heal()
        world.meta.trouble.cut.clear()
        await world.loop.pause(5_000)
        assert acting(offices) == offices.in_office() == [other]
        assert {candidate.leader for _, candidate in offices.candidates()} == {other}

    play(scenario, FIRST, A, B)


def test_one_that_hears_nobody_does_not_take_over() -> None:
    """The candidate reaches the store, but is itself the one that was cut off."""

    async def scenario(world: World, offices: Offices) -> None:
        world.partition([A], [FIRST, B])
        await world.loop.pause(20_000)
        assert offices.in_office() == acting(offices) == [FIRST]

    play(scenario, FIRST, A, B)


def test_one_whose_neighbour_hears_the_controller_waits() -> None:
    async def scenario(world: World, offices: Offices) -> None:
        world.partition([A], [FIRST])
        await world.loop.pause(20_000)
        assert offices.in_office() == acting(offices) == [FIRST]

    play(scenario, FIRST, A, B)


def test_two_on_one_machine_do_not_confirm_each_other() -> None:
    """Both candidates hear the same: their machine may be the one that was cut off."""

    async def scenario(world: World, offices: Offices) -> None:
        world.partition([A, B], [FIRST, "controller-c"])
        await world.loop.pause(20_000)
        assert offices.in_office() == acting(offices) == [FIRST]

    play(scenario, FIRST, A, B, "controller-c", machines={A: "m", B: "m"})


def test_either_of_two_machines_can_take_over() -> None:
    """Either side of the cut can reach itself only. The one that lost the record stops to act, and then leaves."""

    async def scenario(world: World, offices: Offices) -> None:
        heal = world.partition([FIRST], [A])
        await world.loop.pause(SOON_MS + PROVEN_MS)
        assert acting(offices) == [A]
        heal()
        await world.loop.pause(5_000)
        assert offices.in_office() == acting(offices) == [A]

    play(scenario, FIRST, A)


def test_one_that_died_is_replaced_at_once() -> None:
    """The process is known to have ended, so no candidate waits for a long silence."""

    async def scenario(world: World, offices: Offices) -> None:
        offices.hosts = [A, B]
        world.crash(FIRST)
        await world.loop.pause(900)
        assert offices.in_office() in ([A], [B])
        assert acting(offices) == offices.in_office()

    play(scenario, FIRST, A, B)


def test_one_alone_acts_whoever_else_has_ended() -> None:
    """A cluster of one machine has one candidate; one whose neighbours have died is not cut off."""

    async def scenario(world: World, offices: Offices) -> None:
        offices.hosts = [FIRST]
        world.crash(A)
        world.crash(B)
        await world.loop.pause(SILENT_MS + 3_000)
        assert acting(offices) == [FIRST]

    play(scenario, FIRST, A, B)
    play(lambda world, offices: world.loop.pause(20_000), FIRST)


@pytest.mark.parametrize(
    "odd",
    [{"epoch": 9}, {"epoch": 9, "owner": "x/controller", "candidates": 7}],
    ids=["no owner", "candidates"],
)
def test_a_record_of_another_form_ends_no_candidate(odd: dict[str, Any]) -> None:
    """One that starts says what is wrong and can be started again; one that waits takes office when it is mended."""

    async def scenario(world: World, offices: Offices) -> None:
        whole = world.meta.records[KEY][-1]
        world.meta.records[KEY][-1] = msgpack.packb(odd)
        offices.hosts = [A]  # the others do not come back by themselves
        world.crash(FIRST)
        world.crash(B)
        await world.loop.pause(SOON_MS)
        with pytest.raises(Corrupt, match=KEY):
            await offices.start(B)
        assert not offices.in_office()
        world.meta.records[KEY][-1] = whole
        await world.loop.pause(SOON_MS)
        assert offices.in_office() == [A]

    play(scenario, FIRST, A, B)


def test_a_damaged_record_leaves_the_one_in_office_there() -> None:
    """The controller goes on as long as the others hear it; once the record is mended a successor can take over
    again.
    """

    async def scenario(world: World, offices: Offices) -> None:
        world.meta.trouble.refused[f"read {KEY}"] = Corrupt
        await world.loop.pause(10 * SURE_MS)
        assert offices.in_office() == acting(offices) == [FIRST]
        world.meta.trouble.refused.clear()
        world.partition([FIRST], [A, B])
        await world.loop.pause(SOON_MS)
        (other,) = [host for host in offices.in_office() if host != FIRST]
        assert acting(offices) == [other]

    play(scenario, FIRST, A, B)
