"""Where a simulated controller starts its actors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.ports import Address
from storage.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from tests.sim.world import World


class SimPlaces:
    """Starts actors on machines of their own. Implements actors.ports.Places."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def start(self, kind: str, name: str, settings: dict[str, Any]) -> Address:
        """Start an actor of a kind that `World.kinds` knows."""
        world = self._world
        if kind not in world.kinds:
            raise Invalid(f"no kind {kind!r} of actor")
        make, machine, disk = world.kinds[kind]
        await world.loop.pause(world.rng.randrange(200))
        if world.rng.random() < world.place_failures:
            world.count("no place")
            raise Unavailable("no place can be had now")
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
        world.stop(address)

    async def inventory(self) -> list[tuple[str, Address, dict[str, Any]]]:
        """Everything that lives and was started through places."""
        await self._world.loop.pause(self._world.rng.randrange(20))
        return self._world.placed()
