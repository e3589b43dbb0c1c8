"""Owners that rest are woken by what concerns them, and by nothing else."""

from __future__ import annotations

from contextlib import ExitStack

from sluice.actors.ownership.fenced_record import OwnershipProof, give_notice, process_of
from sluice.actors.ownership.idle_waker import LOOK_MS, SPREAD_MS, YOUNG_MS, IdleWaker
from sluice.actors.ports import Ports
from tests.sim.world import World

OWNERS = 25


class Rests:
    """Owners of one process that rest, and whom of them was woken."""

    def __init__(self, ports: Ports, stack: ExitStack, *, told: bool = True) -> None:
        self.woken: list[int] = []
        resting = ports.process.of(IdleWaker)
        for number in range(OWNERS):
            stack.enter_context(resting.rest(ports, lambda number=number: self.woken.append(number), told=told))  # type: ignore[misc]


def test_while_the_proof_is_young_nobody_is_woken() -> None:
    async def scenario(world: World) -> None:
        ports = world.client("process")
        proof = ports.process.of(OwnershipProof)
        await proof.prove(ports)
        with ExitStack() as stack:
            rests = Rests(ports, stack)
            for _ in range(20):
                await world.loop.pause(YOUNG_MS - LOOK_MS)
                await proof.prove(ports)
            assert rests.woken == []
            await world.loop.pause(YOUNG_MS + 2 * LOOK_MS)
            assert set(rests.woken) == {0}, "one is enough to make it young again"

    World(1).play(scenario)


def test_a_notice_wakes_all_one_after_the_other() -> None:
    async def scenario(world: World) -> None:
        ports = world.client("process")
        proof = ports.process.of(OwnershipProof)
        await proof.prove(ports)
        with ExitStack() as stack:
            rests = Rests(ports, stack)
            await give_notice(world.client("other"), process_of(ports.me), "r0 2")
            await proof.prove(ports)
            await world.loop.pause(2 * LOOK_MS)
            assert 0 < len(rests.woken) < OWNERS
            await world.loop.pause(SPREAD_MS)
            assert list(dict.fromkeys(rests.woken)) == list(range(OWNERS))

    World(1).play(scenario)


def test_owner_that_begins_to_rest_untold_is_woken_as_well() -> None:
    async def scenario(world: World) -> None:
        ports = world.client("process")
        await ports.process.of(OwnershipProof).prove(ports)
        with ExitStack() as stack:
            rests = Rests(ports, stack, told=False)
            await world.loop.pause(SPREAD_MS + 2 * LOOK_MS)
            assert set(rests.woken) == set(range(OWNERS))

    World(1).play(scenario)


def test_owner_that_rests_no_longer_is_not_woken() -> None:
    async def scenario(world: World) -> None:
        ports = world.client("process")
        with ExitStack() as stack:
            rests = Rests(ports, stack, told=False)
        await world.loop.pause(SPREAD_MS)
        assert rests.woken == []

    World(1).play(scenario)
