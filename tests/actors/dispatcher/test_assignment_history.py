"""The history of assignments over a change of owner, with a store that loses answers, and within its bounds."""

from __future__ import annotations

from actors.dispatcher.assignment_history import MOST_OBJECTS, AssignmentHistory
from actors.dispatcher.subscription import PartitionSubscription
from actors.key_shared import Dispatch
from actors.key_shared.history import KEPT
from actors.messages import SubscriptionSettings
from tests.sim.meta import StoreFaults
from tests.sim.world import World

PREFIX = "assignments/t/0/s/"


class Owner:
    """What of a dispatcher matters here: an epoch, a core, and the history."""

    def __init__(self, world: World, epoch: int) -> None:
        self.ports = world.client(f"owner-{epoch}")
        self.past = AssignmentHistory(self.ports, PartitionSubscription("t", 0, "s"), epoch)
        self.core = Dispatch(SubscriptionSettings(), history=self.past.history)
        self.ports.spawn(self.past.run(), "history")

    def join(self, name: str) -> int:
        """A consumer comes."""
        return self.core.join(name, now=self.ports.clock.now())

    def causes(self) -> list[str]:
        """Why assignments changed."""
        return [change["cause"] for change in self.core.assignments()]


def test_a_new_owner_knows_who_owned_a_hash_before_it() -> None:
    async def play(world: World) -> None:
        first = Owner(world, 1)
        first.join("a")
        before = first.ports.clock.now()
        await world.loop.pause(5_000)
        first.join("b")
        between = first.ports.clock.now()
        await world.loop.pause(5_000)
        second = Owner(world, 2)
        await world.loop.pause(5_000)
        second.join("c")
        assert second.causes() == ["a joined", "b joined", "c joined"]
        moved = second.core.assignments()[1]["moved"][0]["range"][0]
        assert second.core.owner(moved, at=before)["owner"] == "a#1"
        assert second.core.owner(moved, at=between)["owner"] == "b#2"
        assert second.core.owner(moved)["owner"] == "c#1"
        numbers = [change["epoch"] for change in second.core.assignments()]
        assert numbers == sorted(numbers)
        assert len({*numbers}) == 3

    world = World(1)
    world.play(play)


def test_changes_before_the_old_ones_are_read_stand_behind_them() -> None:
    async def play(world: World) -> None:
        Owner(world, 1).join("a")
        await world.loop.pause(5_000)
        second = Owner(world, 2)
        second.join("b")
        await world.loop.pause(5_000)
        assert second.causes() == ["a joined", "b joined"]

    World(2).play(play)


def test_a_store_that_refuses_and_loses_answers_only_delays_it() -> None:
    async def play(world: World) -> None:
        world.objects.trouble.faults = StoreFaults(fail_before=0.4, fail_after=0.3, late=0.1)
        first = Owner(world, 1)
        for name in "abcd":
            first.join(name)
            await world.loop.pause(300)
        await world.loop.pause(60_000)
        second = Owner(world, 2)
        await world.loop.pause(60_000)
        assert second.causes() == [f"{name} joined" for name in "abcd"]

    World(3).play(play)


def test_objects_and_changes_stay_within_bounds() -> None:
    async def play(world: World) -> None:
        first = Owner(world, 1)
        most = 0
        for turn in range(KEPT // 2 + 40):
            first.core.leave(first.join(f"c{turn}"), now=first.ports.clock.now())
            await world.loop.pause(500)
            most = max(most, len([name for name in world.objects.objects if name.startswith(PREFIX)]))
        assert 1 < most <= MOST_OBJECTS + 1
        second = Owner(world, 2)
        await world.loop.pause(5_000)
        assert second.causes() == first.causes()
        assert len(second.causes()) == KEPT
        await second.past.clear()
        assert not world.objects.objects

    World(4).play(play)


def test_a_damaged_object_is_a_gap() -> None:
    async def play(world: World) -> None:
        first = Owner(world, 1)
        for name in "ab":
            first.join(name)
            await world.loop.pause(5_000)
        world.objects.trouble.rng.seed(1)
        damaged = world.objects.flip(f"{PREFIX}{1:012d}-{1:010d}")
        assert damaged is not None
        second = Owner(world, 2)
        await world.loop.pause(5_000)
        assert second.causes() == ["b joined"]

    World(5).play(play)
