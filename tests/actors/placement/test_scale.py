"""Fifty machines with five thousand partitions: who moves when a machine goes or comes, and what that asks for.

The supervisor and placement are the real ones; machines and processes are simulated, on virtual time.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from sluice.actors.controller.supervisor import Supervisor
from sluice.actors.placement.placement import Placement
from sluice.actors.placement.placer import Placer
from sluice.actors.ports import Address, Node, Unknown
from tests.sim.processes import SimCluster, SimProcesses
from tests.sim.world import World
from tests.sim.worlds.placement import PingNet

MACHINES, PARTITIONS = 50, 5_000
CALM_MS = 120_000
"""Until as many processes wait as are wanted, and nothing is on its way."""


class _Counted(SimProcesses):
    """Counts what is asked of Ray and of the processes."""

    def __init__(self, cluster: SimCluster, maker: str) -> None:
        super().__init__(cluster, maker)
        self.asked: Counter[str] = Counter()

    async def nodes(self) -> list[Node]:
        self.asked["nodes"] += 1
        return await super().nodes()

    async def make(self, name: str, node: str | None, timeout: int) -> str:
        self.asked["make"] += 1
        return await super().make(name, node, timeout)

    async def start(
        self, name: str, kind: str, actor: str, settings: dict[str, Any], timeout: int
    ) -> Address | Unknown:
        self.asked["start"] += 1
        return await super().start(name, kind, actor, settings, timeout)

    async def serve(self, name: str, slot: str, timeout: int) -> Unknown | None:
        self.asked["serve"] += 1
        return await super().serve(name, slot, timeout)


class _Scene:
    """A controller's supervisor over these machines, each with a process for a share of the partitions."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = SimCluster(world)
        for number in range(MACHINES):
            self.cluster.add_node(f"node-{number:02}", f"machine-{number:02}")
        net: Any = PingNet(self.cluster)
        ports = world.client("controller")
        ports = type(ports)(**{name: getattr(ports, name) for name in ports.__dataclass_fields__} | {"net": net})
        self.processes = _Counted(self.cluster, "controller")
        placement = Placement(MACHINES, ports.clock.monotonic())
        self.supervisor = Supervisor(ports, Placer(ports, self.processes, placement))
        self.ports = ports

    async def begin(self) -> None:
        """Start every partition's owner."""
        await self.supervisor.adopt()
        partitions = [{"topic": "t", "partition": number} for number in range(PARTITIONS)]
        await self.supervisor.ensure_all([self.supervisor.want("topic", share) for share in partitions])
        self.ports.spawn(self.supervisor.watch(), "watch")
        await self.world.loop.pause(CALM_MS)

    def owners(self) -> dict[str, Address]:
        """Return the address of each partition's owner."""
        return {entry.name: entry.address for entry in self.supervisor.of_kind("topic")}

    def node_of(self, address: Address) -> str:
        """The node of the process at an address."""
        return self.cluster.processes[address.partition("/")[0]].node

    async def until_served(self) -> int:
        """Milliseconds until an owner of each partition runs."""
        begun = self.world.loop.now
        while not all(address and self.cluster.runs_at(address) for address in self.owners().values()):
            await self.world.loop.pause(10)
        return self.world.loop.now - begun


@pytest.mark.release
def test_only_what_was_lost_moves_and_nothing_when_one_comes() -> None:
    """The least that can move at a loss is what the machine had; at a join nothing has to."""

    async def run(world: World) -> None:
        scene = _Scene(world)
        await scene.begin()
        before = scene.owners()
        shares = Counter(scene.node_of(address) for address in before.values())
        assert sorted(shares.values()) == [PARTITIONS // MACHINES] * MACHINES
        victim = "node-07"
        lost = [name for name, address in before.items() if scene.node_of(address) == victim]
        assert len(lost) == shares[victim]
        scene.processes.asked.clear()
        scene.cluster.lose_node(victim, known=True)
        took = await scene.until_served()
        first = scene.owners()
        await world.loop.pause(CALM_MS)
        after, asked = scene.owners(), scene.processes.asked
        moved = [name for name in before if before[name] != after[name]]
        again = [name for name in before if first[name] != after[name]]
        print(f"loss: {len(lost)} lost, {len(moved)} moved, {len(again)} twice, served in {took} ms, {dict(asked)}")
        assert sorted(moved) == sorted(lost)
        assert asked["start"] == len(lost) + len(again)
        assert again == []
        assert asked["serve"] + asked["make"] <= 4
        asked.clear()
        scene.cluster.add_node("node-99", "machine-99")
        await world.loop.pause(CALM_MS)
        assert scene.owners() == after
        print(f"join: nothing moved, {dict(asked)}")

    World(3).play(run)
