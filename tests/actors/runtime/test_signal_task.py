"""Work that waits for a signal has a task only while it goes on."""

from __future__ import annotations

from sluice.actors.runtime.waiting import Signal, SignalTask
from tests.sim.world import World


class Worked:
    """Steps that take 10 ms, with the time of each. rests: what they return, from the first on."""

    def __init__(self, world: World, *rests: int | None) -> None:
        self.world, self.signal, self.rests = world, Signal(), list(rests)
        self.at: list[int] = []
        self.spawned = 0
        ports = world.client("c")
        spawn = ports.spawn

        def counted(work: object, name: str) -> object:
            self.spawned += 1
            return spawn(work, name)  # type: ignore[arg-type]

        self.began = world.loop.now
        object.__setattr__(ports, "spawn", counted)
        self.work = SignalTask(ports, self.signal, self.step, "work")

    async def step(self) -> int | None:
        self.signal.clear()
        self.at.append(self.world.loop.now - self.began)
        await self.world.loop.pause(10)
        return self.rests.pop(0) if self.rests else None


def test_each_signal_is_followed_by_a_step_that_sees_it() -> None:
    async def scenario(world: World) -> None:
        worked = Worked(world)
        await world.loop.pause(50)
        assert not worked.spawned, "there is no task before there is anything to do"
        worked.signal.set()
        worked.signal.set()
        await world.loop.pause(5)
        worked.signal.set()  # while a step is under way: one more follows in its task
        await world.loop.pause(45)
        worked.signal.set()
        await world.loop.pause(50)
        assert (worked.at, worked.spawned) == ([50, 60, 100], 2)

    World(0).play(scenario)


def test_a_step_that_said_when_is_called_again_without_a_signal() -> None:
    async def scenario(world: World) -> None:
        worked = Worked(world, 100, 100, None)
        worked.work.start()
        worked.work.start()
        await world.loop.pause(130)
        worked.signal.set()  # sooner than it said
        await world.loop.pause(1_000)
        assert (worked.at, worked.spawned) == ([0, 110, 130], 1)

    World(0).play(scenario)


def test_signal_set_before_is_handled_at_once() -> None:
    async def scenario(world: World) -> None:
        worked = Worked(world)
        signal = Signal()
        signal.set()
        worked.signal = signal
        SignalTask(world.client("other"), signal, worked.step, "work")
        await world.loop.pause(50)
        assert worked.at == [0]

    World(0).play(scenario)
