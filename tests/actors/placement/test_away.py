"""A machine that is cut off for a while: what is left as it is, and what others take over."""

from __future__ import annotations

import asyncio

import pytest

from sluice.actors.placement.slots import stem
from sluice.storage.errors import Unavailable
from tests.actors.placement.site import BOOKIE, OTHER, TOPIC, Site, play

LONG_MS = 60_000


def test_replaced_actor_ends_when_its_machine_is_back() -> None:
    """The process does not know that it was replaced. It lives, and its slot comes back to it later."""

    async def scenario(site: Site) -> None:
        await site.places.inventory()
        first = await site.places.start("topic", "a", TOPIC)
        await site.places.start("topic", "b", OTHER)
        old = site.process("broker-0")
        machine = site.cluster.nodes[old.node].address
        site.cluster.cut_machine(machine)
        assert await site.places.is_away(first)
        await site.places.stop(first, frozen=True)
        second = await site.places.start("topic", "c", TOPIC)
        assert second.partition("/")[0] != old.name
        site.cluster.heal_machine(machine)
        await site.world.loop.pause(LONG_MS)
        assert not old.dead
        assert "a" not in old.actors

    play(scenario, "m", "elsewhere")


def test_a_bookie_is_started_nowhere_else() -> None:
    """The disk is on the machine that is away; when that is back the bookie is found as it was."""

    async def scenario(site: Site) -> None:
        await site.places.inventory()
        address = await site.places.start("bookie", "a", BOOKIE)
        machine = site.cluster.nodes[site.process("bookie-0").node].address
        site.cluster.cut_machine(machine)
        await site.places.is_away(address)
        site.controller()
        with pytest.raises(Unavailable, match="away"):
            await site.places.start("bookie", "b", BOOKIE)
        site.cluster.heal_machine(machine)
        assert await site.places.start("bookie", "c", BOOKIE) == address

    play(scenario, "m", "elsewhere")


@pytest.mark.parametrize("arrives", [False, True])
def test_a_start_that_a_cut_swallowed_is_asked_again(arrives: bool) -> None:
    """As soon as its machine is back, and in the same process. arrives: the answer was lost, and not the request."""

    async def scenario(site: Site) -> None:
        await site.places.inventory()
        await site.places.start("topic", "a", TOPIC)
        work = asyncio.get_running_loop().create_task(site.places.start("bookie", "a", BOOKIE))
        while not (made := [each for each in site.cluster.alive() if stem(each.name) == "bookie-0"]):
            await site.world.loop.pause(1)
        (process,) = made
        while not process.ready:
            await site.world.loop.pause(1)
        if arrives:
            site.cluster.trouble.answer_lost = 1.0
            while not process.actors:
                await site.world.loop.pause(1)
            site.cluster.trouble.answer_lost = 0.0
        machine = site.cluster.nodes[process.node].address
        site.cluster.cut_machine(machine)
        await site.world.loop.pause(3_000)
        assert not work.done()
        site.cluster.heal_machine(machine)
        healed = site.world.loop.now
        assert await work == f"{process.name}/a"
        assert site.world.loop.now - healed <= 2 * site.placement.times.ask
        assert not process.dead
        assert len(process.actors) == 1

    play(scenario, "m", "elsewhere")
