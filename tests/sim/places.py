"""The places where a simulated controller starts its actors."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from sluice.actors.placement.slots import Times
from sluice.actors.ports import Address, Node, Ports
from sluice.actors.runtime.host import Actor
from sluice.storage.errors import Invalid, Unavailable
from tests.sim.loop import SimLoop

START_MS = Times().start
"""So long a start may take, as in real places; then its process is ended."""
Kind = tuple[
    Callable[[Ports, dict[str, Any]], Actor], Callable[[dict[str, Any]], str], Callable[[dict[str, Any]], str | None]
]
"""How to make an actor of a kind from its settings, which machine it runs on, and the name of its disk."""


class Placed(Protocol):
    """A process that was started here."""

    disk_name: str | None


class Machines(Protocol):
    """A world that has machines."""

    loop: SimLoop
    rng: random.Random
    place_failures: float
    zombies: float
    gateway_machines: list[str]

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """The kinds of processes that can be started."""

    def at(self, address: Address) -> Placed | None:
        """The living process at an address."""

    async def start(
        self,
        name: str,
        make: Callable[[Ports], Actor],
        *,
        machine: str | None = None,
        disk: str | None = None,
        placed: tuple[str, dict[str, Any]] | None = None,
    ) -> Address:
        """Start a process."""

    def give_up(self, name: str) -> None:
        """End a process that has not started."""

    def stop(self, address: Address, *, frozen: bool = False) -> None:
        """End a process; one that is frozen whole."""

    def placed(self) -> list[tuple[str, Address, dict[str, Any]]]:
        """Everything that lives and was started through places."""

    def count(self, what: str) -> None:
        """Count a fault that happened."""


class SimPlaces:
    """Starts actors on machines of their own. Implements actors.ports.Places."""

    def __init__(self, world: Machines) -> None:
        self._world = world

    async def machines(self) -> list[str]:
        """See actors.ports.Places."""
        await self._world.loop.pause(self._world.rng.randrange(5))
        return self._world.gateway_machines

    async def start(self, kind: str, name: str, settings: dict[str, Any]) -> Address:
        """Start an actor of a kind that the world knows."""
        world = self._world
        if kind not in world.kinds:
            raise Invalid(f"no kind {kind!r} of actor")
        make, machine, disk = world.kinds[kind]
        await world.loop.pause(world.rng.randrange(200))
        if world.rng.random() < world.place_failures:
            world.count("no place")
            raise Unavailable("no place can be had now")
        world.loop.after(START_MS, world.give_up, name)
        return await world.start(
            name,
            lambda ports: make(ports, settings),
            machine=machine(settings),
            disk=disk(settings),
            placed=(kind, settings),
        )

    async def stop(self, address: Address, *, frozen: bool = False) -> None:
        """End an actor."""
        world = self._world
        await world.loop.pause(world.rng.randrange(20))
        process = world.at(address)
        if process is not None and process.disk_name is None and world.rng.random() < world.zombies:
            world.count("zombie")
            return
        world.stop(address, frozen=frozen)

    async def acts(self) -> bool:
        """See actors.ports.Places."""
        return True

    async def is_away(self, address: Address) -> bool:
        """See actors.ports.Places: machines are not told apart here."""
        return False

    async def inventory(self) -> list[tuple[str, Address, dict[str, Any]]]:
        """Everything that lives and was started through places."""
        await self._world.loop.pause(self._world.rng.randrange(20))
        return self._world.placed()

    async def nodes(self) -> list[Node]:
        """See actors.ports.Places: each machine is a node."""
        return [Node(machine, machine) for machine in self._world.gateway_machines]

    async def node_of(self, address: str) -> str:
        """See actors.ports.Places: that is not known here."""
        return ""

    def cordon(self, nodes: Sequence[str]) -> None:
        """See actors.ports.Places: actors are put where their settings say."""

    async def vacate(self, node: str) -> list[str]:
        """See actors.ports.Places: nothing needs to be left."""
        return []

    async def dismiss(self, name: str) -> bool:
        """See actors.ports.Places."""
        return True
