"""The history of assignments over a change of owner, within its bounds, and with a store that loses answers."""

from __future__ import annotations

from sluice.actors.dispatcher.delivery.assignment_history import MOST_OBJECTS, MOST_RECORDED, AssignmentHistory
from sluice.actors.dispatcher.delivery.subscription import PartitionSubscription
from sluice.actors.key_shared import KeySharedDispatcher
from sluice.actors.key_shared.state.history import KEPT
from sluice.actors.messages import SubscriptionSettings
from sluice.storage.errors import Corrupt
from tests.sim.meta import StoreFaults
from tests.sim.world import World

PREFIX = "assignments/t/0/s/"


class Owner:
    """The part of a dispatcher under test: an epoch, a core, and the history."""

    def __init__(self, world: World, epoch: int) -> None:
        self.world, self.ports = world, world.client(f"owner-{epoch}")
        self.past = AssignmentHistory(self.ports, PartitionSubscription("t", 0, "s"), epoch)
        self.core = KeySharedDispatcher(SubscriptionSettings(), history=self.past.history)

    def begin(self) -> Owner:
        """Start the history: read the objects of earlier owners, and write new ones."""
        self.past.start()
        return self

    def objects(self) -> int:
        """Return the number of objects."""
        return len([name for name in self.world.objects.objects if name.startswith(PREFIX)])

    async def took_over(self, before: Owner) -> Owner:
        """Begin with the record that another owner left."""
        await self.past.load(before.past.to_record())
        return self

    def join(self, name: str) -> int:
        """Add a consumer."""
        return self.core.join(name, now=self.ports.clock.now())

    def causes(self) -> list[str]:
        """Return the reasons for changes of assignments."""
        return [change["cause"] for change in self.core.assignments()]


def test_a_new_owner_knows_who_owned_a_hash_before_it() -> None:
    async def play(world: World) -> None:
        first = Owner(world, 1).begin()
        first.join("a")
        before = first.ports.clock.now()
        await world.loop.pause(5_000)
        first.join("b")
        between = first.ports.clock.now()
        await world.loop.pause(5_000)
        second = (await Owner(world, 2).took_over(first)).begin()
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
        first = Owner(world, 1).begin()
        for name in "ab":
            first.join(name)
        await world.loop.pause(5_000)
        assert first.past.to_record() is None
        second = Owner(world, 2).begin()
        second.join("c")
        await world.loop.pause(5_000)
        assert second.causes() == ["a joined", "b joined", "c joined"]

    World(2).play(play)


def test_a_store_that_refuses_and_loses_answers_only_delays_it() -> None:
    async def play(world: World) -> None:
        world.objects.trouble.faults = StoreFaults(fail_before=0.4, fail_after=0.3, late=0.1)
        first = Owner(world, 1).begin()
        for name in "abcd":
            first.join(name)
            await world.loop.pause(300)
        await world.loop.pause(60_000)
        second = (await Owner(world, 2).took_over(first)).begin()
        await world.loop.pause(60_000)
        assert second.causes() == [f"{name} joined" for name in "abcd"]

    World(3).play(play)


def test_objects_and_changes_stay_within_bounds() -> None:
    async def play(world: World) -> None:
        first = Owner(world, 1).begin()
        most = 0
        for turn in range(KEPT // 2 + 40):
            first.core.leave(first.join(f"c{turn}"), now=first.ports.clock.now())
            await world.loop.pause(500)
            most = max(most, first.objects())
            assert len(first.past.to_record() or b"") < MOST_RECORDED * 250
        assert 1 < most <= MOST_OBJECTS + 1
        second = (await Owner(world, 2).took_over(first)).begin()
        await world.loop.pause(5_000)
        assert second.causes() == first.causes()
        assert len(second.causes()) == KEPT
        await second.past.clear()
        assert not world.objects.objects

    World(4).play(play)


def test_a_damaged_object_is_a_gap() -> None:
    async def play(world: World) -> None:
        first = Owner(world, 1).begin()
        for name in "abc":
            first.join(name)
            await world.loop.pause(5_000)
        assert first.objects() == 2
        world.objects.trouble.rng.seed(1)
        damaged = world.objects.flip(f"{PREFIX}{1:012d}-{1:010d}")
        assert damaged is not None
        second = (await Owner(world, 2).took_over(first)).begin()
        await world.loop.pause(5_000)
        assert second.causes() == ["c joined"]

    World(5).play(play)


def test_an_object_that_the_store_finds_damaged_is_a_gap() -> None:
    async def play(world: World) -> None:
        first = Owner(world, 1).begin()
        for number in range(5):
            first.join(f"c{number}")
            await world.loop.pause(1_000)
        names = [name for name in world.objects.objects if name.startswith(PREFIX)]
        world.objects.trouble.refused[f"get {names[0]}"] = Corrupt
        second = (await Owner(world, 2).took_over(first)).begin()
        await world.loop.pause(5_000)
        second.join("last")
        await world.loop.pause(5_000)
        assert len(names) > 1
        assert second.causes()[-1] == "last joined"
        assert 1 < len(second.causes()) < 6

    World(1).play(play)


def test_a_consumer_or_two_need_no_object() -> None:
    async def play(world: World) -> None:
        first = Owner(world, 1).begin()
        first.core.leave(first.join("a"), now=first.ports.clock.now())
        await world.loop.pause(5_000)
        second = (await Owner(world, 2).took_over(first)).begin()
        second.join("b")
        await world.loop.pause(5_000)
        assert second.causes() == ["a joined", "a left", "b joined"]
        third = (await Owner(world, 3).took_over(second)).begin()
        await world.loop.pause(5_000)
        assert third.causes() == second.causes()
        assert not world.objects.objects
        third.join("c")
        third.join("d")
        await world.loop.pause(5_000)
        assert third.past.to_record() is None
        fourth = (await Owner(world, 4).took_over(third)).begin()
        await world.loop.pause(5_000)
        assert fourth.causes() == third.causes()
        assert fourth.past.to_record() is None

    World(6).play(play)


def test_event_in_record_and_object_is_counted_once() -> None:
    async def play(world: World) -> None:
        first = Owner(world, 1).begin()
        first.join("a")
        before = first.past.to_record()
        first.join("b")
        await world.loop.pause(5_000)
        second = Owner(world, 2)
        await second.past.load(before)
        second.begin()
        await world.loop.pause(5_000)
        assert second.causes() == ["a joined", "b joined"]
        assert second.past.to_record() is None

    World(7).play(play)


def test_a_damaged_field_of_the_record_is_a_gap() -> None:
    async def play(world: World) -> None:
        owner = Owner(world, 2)
        await owner.past.load(b"[")
        owner.begin().join("a")
        assert owner.causes() == ["a joined"]

    World(8).play(play)
