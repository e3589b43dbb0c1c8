"""Simulated nodes and processes, and the controllers that place actors on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from sluice.actors.placement.placement import Placed, Placement
from sluice.actors.placement.placer import Placer
from sluice.actors.placement.slots import Times, stem
from tests.sim.processes import SimCluster, SimProcess, SimProcesses
from tests.sim.world import World

TOPIC, OTHER = {"topic": "t", "partition": 0}, {"topic": "t", "partition": 1}
"""They belong to the slots broker-0 and broker-1."""
BOOKIE = {"bookie": "bookie-0"}
TIMES = Times()


class Site:
    """Nodes, processes, and the present controller."""

    def __init__(self, world: World, *machines: str) -> None:
        self.world = world
        self.cluster = SimCluster(world)
        for number, machine in enumerate(machines or ("m",)):
            self.cluster.add_node(f"n{number}", machine)
        self.made: list[str] = []
        self.controllers = 0
        self.placement, self.places = self.controller()

    def controller(self, *, standby: bool = False, **times: int) -> tuple[Placement, Placer]:
        """One more controller, which becomes the present one."""
        self.controllers += 1
        ports = self.world.client(f"controller-{self.controllers}")
        processes = SimProcesses(self.cluster, ports.me, self.made.append)
        self.placement = Placement(2, ports.clock.monotonic(), standby=standby, times=replace(TIMES, **times))
        self.places = Placer(ports, processes, self.placement)
        return self.placement, self.places

    def add(self, name: str, *rows: Placed, slot: str = "", frozen: bool = False) -> SimProcess:
        """A process that an earlier controller made."""
        process = self.cluster.processes[name] = SimProcess(name, "n0", "earlier", slot, ready=True, frozen=frozen)
        process.actors = {address.partition("/")[2]: (kind, settings) for kind, address, settings in rows}
        return process

    def process(self, slot: str) -> SimProcess:
        """The living process that was made for a slot."""
        return next(process for process in self.cluster.alive() if stem(process.name) == slot)

    async def lose(self, slot: str) -> None:
        """The process of a slot dies, and the controller hears of it."""
        process = self.process(slot)
        self.cluster.die(process, "crash")
        await self.places.stop(f"{process.name}/a")

    def runs(self) -> dict[str, list[str]]:
        """Return what the living processes run: partitions and bookies, by the name that the process was made with."""
        return {
            stem(process.name): [
                str(settings.get("partition", "bookie")) for _, settings in process.actors.values()
            ]
            for process in self.cluster.alive()
        }  # fmt: skip


def play(scenario: Callable[[Site], Awaitable[None]], *machines: str) -> None:
    """Run a scenario on a site, on virtual time."""
    world = World(1)

    async def run(_: World) -> None:
        await scenario(Site(world, *machines))

    world.play(run)


async def running(site: Site) -> None:
    """Two broker processes with a partition each, and a bookie."""
    for kind, settings in (("topic", TOPIC), ("topic", OTHER), ("bookie", BOOKIE)):
        await site.places.start(kind, "a", settings)
    assert site.runs() == {"broker-0": ["0"], "broker-1": ["1"], "bookie-0": ["bookie"]}
    site.made.clear()


def subscription(name: str) -> dict[str, Any]:
    """A dispatcher of the first partition."""
    return {**TOPIC, "subscription": name}
