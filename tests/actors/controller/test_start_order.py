"""The order of starts when a process with many owners is lost."""

from __future__ import annotations

from typing import Any

from sluice.actors.controller.start_order import AT_ONCE, HOLD_MS, Start, StartOrder
from sluice.actors.controller.supervisor import Supervisor
from sluice.actors.ports import Address
from tests.sim.processes import SimCluster, SimProcesses
from tests.sim.world import World
from tests.sim.worlds.placement import PingNet

MANY = 3 * AT_ONCE
START_MS = 100


class _Begun:
    """Starts that begin in their turn and end when they are told to. came, begun: in which order."""

    def __init__(self, world: World) -> None:
        self.ports = world.client("controller")
        self.order = StartOrder(self.ports)
        self.came: list[Start] = []
        self.begun: list[Start] = []
        for _ in range(MANY):
            self.ports.spawn(self._wait(Start()), "start")

    async def _wait(self, start: Start) -> None:
        self.came.append(start)
        await self.order.turn(start)
        self.begun.append(start)


def test_wanted_start_begins_at_once_and_others_in_turn() -> None:
    """The others begin in the order in which they came, and each once."""

    async def run(world: World) -> None:
        scene = _Begun(world)
        await world.loop.pause(1)
        came, begun = scene.came, scene.begun
        assert begun == came[:AT_ONCE]
        scene.order.want(came[-1])
        await world.loop.pause(1)
        assert begun == [*came[:AT_ONCE], came[-1]]
        scene.order.done(came[0])
        await world.loop.pause(1)
        assert len(begun) == AT_ONCE + 1  # its place has gone to the one that was wanted
        for start in came[1:3]:
            scene.order.done(start)
        await world.loop.pause(1)
        assert sorted(map(came.index, begun[AT_ONCE + 1 :])) == [AT_ONCE, AT_ONCE + 1]
        for start in came:
            scene.order.done(start)
        await world.loop.pause(1)
        assert len(begun) == len(set(begun))

    World(1).play(run)


def test_starts_that_take_long_do_not_keep_others_waiting() -> None:
    """Their places are free after a while."""

    async def run(world: World) -> None:
        scene = _Begun(world)
        await world.loop.pause(HOLD_MS - 1)
        assert len(scene.begun) == AT_ONCE
        await world.loop.pause(2)
        assert set(scene.begun) == set(scene.came[: 2 * AT_ONCE])
        await world.loop.pause(HOLD_MS)
        assert set(scene.begun) == set(scene.came)

    World(1).play(run)


class _SlowPlaces:
    """One process that starts what it is asked to, each a while later."""

    def __init__(self, world: World, processes: SimProcesses) -> None:
        self._world, self._processes = world, processes
        self.started: list[str] = []

    async def acts(self) -> bool:
        """Return True: there is no other controller."""
        return True

    async def is_away(self, address: Address) -> bool:
        """Return False: every machine can be reached."""
        return False

    async def stop(self, address: Address, *, frozen: bool = False) -> None:
        """Nothing runs any more."""

    async def start(self, kind: str, name: str, settings: dict[str, Any]) -> Address:
        """See actors.ports.Places."""
        self.started.append(f"{kind}/{settings['topic']}/{settings['partition']}")
        await self._world.loop.pause(START_MS)
        answer = await self._processes.start("broker-0-a", kind, name, settings, 1_000)
        assert isinstance(answer, str)
        return answer


def test_wanted_owners_of_a_lost_process_start_first() -> None:
    """A caller that asks for the address of one owner does not wait for all others."""

    async def run(world: World) -> None:
        cluster = SimCluster(world)
        cluster.add_node("node", "machine")
        net: Any = PingNet(cluster)
        ports = world.client("controller")
        ports = type(ports)(**{name: getattr(ports, name) for name in ports.__dataclass_fields__} | {"net": net})
        processes = SimProcesses(cluster, "controller")
        await processes.make("broker-0-a", "node", 10_000)
        places: Any = _SlowPlaces(world, processes)
        supervisor = Supervisor(ports, places)
        entries = [supervisor.want("topic", {"topic": "t", "partition": number}) for number in range(MANY)]
        await supervisor.ensure_all(entries)
        lost = [entry.address for entry in entries]
        places.started.clear()
        cluster.kill("broker-0-a")
        await processes.make("broker-0-a", "node", 10_000)
        ports.spawn(supervisor.watch(), "watch")
        while any(entries[number].address == before for number, before in enumerate(lost)):
            await world.loop.pause(1)
        wanted = next(number for number, entry in enumerate(entries) if entry.name not in places.started)
        begun = world.loop.now
        assert await supervisor.ensure(entries[wanted]) != lost[wanted]
        assert world.loop.now - begun <= 2 * START_MS + 10
        assert places.started[AT_ONCE] == entries[wanted].name
        while any(entry.address in ("", before) for entry, before in zip(entries, lost, strict=True)):
            await world.loop.pause(10)
        assert len(places.started) == MANY

    World(2).play(run)
