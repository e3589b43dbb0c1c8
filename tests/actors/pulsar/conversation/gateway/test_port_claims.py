"""Claims of the ports of a simulated machine, and the fate of a port number that clients were told."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sluice.actors.ports import Ports
from sluice.actors.pulsar.conversation.gateway.port_claims import AGAIN_MS, PortHolder
from sluice.actors.runtime.host import Actor
from tests.sim.machine_ports import Machines, SimMachinePorts
from tests.sim.world import World

TAKEN = 7000


class Waiter(Actor):
    """A gateway as far as its ports go."""

    def __init__(self, ports: Ports, site: Site, wanted: dict[str, int]) -> None:
        super().__init__(ports)
        name = ports.me.partition("/")[2].rpartition(".")[0]
        machine_ports = SimMachinePorts(site.machines, site.world.process(name))
        self.opened: dict[str, int] = {}
        self.keeper = PortHolder(ports, machine_ports, wanted, self.opened.__setitem__)

    async def start(self) -> None:
        """Try, and go on trying."""
        await self.keeper.open()
        self.ports.spawn(self.keeper.run(), "ports")


class Site:
    """A machine and its gateways."""

    def __init__(self, world: World) -> None:
        self.world, self.machines = world, Machines(world)

    async def add(self, name: str, **wanted: int) -> Waiter:
        """One more gateway."""
        made: list[Waiter] = []

        def make(ports: Ports) -> Actor:
            made.append(Waiter(ports, self, wanted or {"pulsar": 0}))
            return made[0]

        await self.world.start(name, make, machine="m")
        return made[0]

    async def pass_by(self) -> None:
        """Long enough for everybody to have tried again."""
        await self.world.loop.pause(2 * AGAIN_MS + 10)


def play(scenario: Callable[[Site], Coroutine[Any, Any, None]]) -> None:
    """On virtual time."""
    World(1).play(lambda world: scenario(Site(world)))


def test_the_next_one_takes_over_with_the_same_number() -> None:
    async def scenario(site: Site) -> None:
        first, second = await site.add("a"), await site.add("b")
        number = first.opened["pulsar"]
        await site.pass_by()
        assert second.opened == {}
        site.world.crash("a")
        await site.pass_by()
        assert second.opened == {"pulsar": number}
        assert second.keeper.listens

    play(scenario)


def test_one_that_is_frozen_keeps_the_ports_until_it_ends() -> None:
    async def scenario(site: Site) -> None:
        await site.add("a")
        second = await site.add("b")
        site.world.pause("a")
        await site.pass_by()
        assert not second.opened
        site.world.crash("a")
        await site.pass_by()
        assert second.keeper.listens

    play(scenario)


def test_a_taken_port_is_said_and_had_when_it_is_free() -> None:
    async def scenario(site: Site) -> None:
        site.machines.taken["m", TAKEN] = None
        first = await site.add("a", **{"pulsar": TAKEN, "pulsar+ssl": TAKEN + 1})
        assert (first.keeper.refused, first.opened) == ({"pulsar": TAKEN}, {"pulsar+ssl": TAKEN + 1})
        second = await site.add("b", pulsar=TAKEN)
        assert second.keeper.refused == {}, "who waits for another gateway misses nothing"
        del site.machines.taken["m", TAKEN]
        await site.pass_by()
        assert first.opened["pulsar"] == TAKEN
        assert first.keeper.refused == {}

    play(scenario)


def test_a_number_that_was_told_is_waited_for() -> None:
    """Clients know it: another one would be nobody's."""

    async def scenario(site: Site) -> None:
        number = (await site.add("a")).opened["pulsar"]
        second = await site.add("b")
        site.machines.taken["m", number] = None
        site.world.crash("a")
        await site.pass_by()
        assert second.opened == {}
        assert second.keeper.refused == {"pulsar": number}
        del site.machines.taken["m", number]
        await site.pass_by()
        assert second.opened == {"pulsar": number}

    play(scenario)


@pytest.mark.parametrize("step", ["claim", "tell"])
def test_a_full_disk_is_waited_for(step: str) -> None:
    """The gateway says why meanwhile, and ends for no reason that goes away."""

    async def scenario(site: Site) -> None:
        site.machines.refused[step] = None
        first = await site.add("a")
        await site.pass_by()
        assert (first.keeper.listens, first.keeper.problem) == (False, "the disk is full")
        assert bool(first.opened) == (step == "tell")
        site.machines.refused.clear()
        await site.pass_by()
        assert (first.keeper.listens, first.keeper.problem) == (True, "")
        assert site.machines.listener("m") is not None

    play(scenario)
