"""The controller in the simulator, over actors that only say that they live."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sluice.actors.controller.bookie_failure_detector import REFUSALS
from sluice.actors.controller.controller import Controller
from sluice.actors.controller.running import SERVED
from sluice.actors.controller.supervisor import MISSES, PING_MS, PING_TIMEOUT
from sluice.actors.messages import (
    Configure,
    Configured,
    CreateTopic,
    Deleted,
    DeleteSubscription,
    DeleteTopic,
    DescribeCluster,
    Done,
    ListBookies,
    ListSubscriptions,
    Located,
    LocateSubscription,
    LocateTopic,
    PrepareDeletion,
    Replicate,
    Replicated,
    Skip,
    Skipped,
    Stats,
    SubscriptionSettings,
    Suspect,
    Text,
    TopicSettings,
)
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.runtime.host import Actor
from sluice.storage.errors import Conflict, Corrupt, Invalid, NotFound, SluiceError
from tests.sim.world import World

CONTROLLER = "controller/controller"
GIVE_UP = (PING_MS + PING_TIMEOUT) * (MISSES + 1)
"""Milliseconds in which a frozen actor must have been replaced."""


class Stub(Actor):
    """An actor of any kind. broken: why one of a name cannot start, and one at an address does not answer."""

    def __init__(self, ports: Ports, stage: Stage, name: str, *, served: bool = False) -> None:
        """served: it is a dispatcher that is to take the place of another one."""
        super().__init__(ports)
        self.stage = stage
        self.name, self.served = name, served

    async def start(self) -> None:
        """Count the start, take the time that it takes, or refuse it."""
        self.stage.starts[self.name] = self.stage.starts.get(self.name, 0) + 1
        if self.served and await self.ports.meta.read(f"subscription/{self.name}") is None:
            raise NotFound(f"{self.name} was deleted")
        if self.name in self.stage.start_ms:
            await self.ports.clock.sleep(self.stage.start_ms[self.name])
        if self.name in self.stage.broken:
            raise self.stage.broken[self.name]

    async def on_replicate(self, request: Replicate) -> Replicated:
        """Say what is left, as the test has it."""
        self.stage.told.append((self.name, list(request.lost)))
        return Replicated(remaining=self.stage.remaining)

    async def on_stats(self, request: Stats) -> Text:
        """Answer with the address of this actor, or fail as the stage says."""
        self.stage.asked.append(self.ports.me)
        if self.ports.me in self.stage.broken:
            raise self.stage.broken[self.ports.me]
        return Text(json=json.dumps(self.ports.me))

    async def on_skip(self, request: Skip) -> Skipped:
        """Do it, and end before the answer."""
        self.stage.asked.append(self.ports.me)
        self.stage.world.stop(self.ports.me)
        return Skipped(skipped=request.messages, position="0:0")

    async def on_delete_topic(self, request: DeleteTopic) -> Done:
        """Fine, in its time."""
        await self.ports.clock.sleep(self.stage.slow_ms)
        return Done()

    async def on_configure(self, request: Configure) -> Configured:
        """Answer that nothing has changed, after the delay of the stage."""
        await self.ports.clock.sleep(self.stage.slow_ms)
        return Configured(changed=False, settings=request.settings)

    async def on_prepare_deletion(self, request: PrepareDeletion) -> Done:
        """Fine."""
        return Done()

    async def on_delete_subscription(self, request: DeleteSubscription) -> Deleted:
        """Fine, in its time."""
        await self.ports.clock.sleep(self.stage.slow_ms)
        if self.stage.vanishing == "stopped":
            await self.ports.meta.remove(f"subscription/{self.name}")
            self.stopped = "the subscription was deleted"
        elif self.stage.vanishing:
            if self.stage.vanishing == "done":
                await self.ports.meta.remove(f"subscription/{self.name}")
            self.stage.world.stop(self.ports.me)
            await self.ports.clock.sleep(1)
        return Deleted(deleted=True)


class Stage:
    """A world with a controller and its client."""

    def __init__(self, world: World, bookies: int = 3, lost_after_ms: int = 60_000) -> None:
        self.world = world
        self.bookies = [f"bookie-{number}" for number in range(bookies)]
        self.lost_after_ms = lost_after_ms
        self.starts: dict[str, int] = {}
        self.start_ms: dict[str, int] = {}
        self.broken: dict[str, SluiceError] = {}
        self.told: list[tuple[str, list[str]]] = []
        self.remaining = 0
        self.asked: list[Address] = []
        self.slow_ms = 0
        self.vanishing = ""
        """Whether who is told to delete ends before it answers: done, or undone; or stopped with it, in its process."""
        world.kinds["bookie"] = (self.stub, lambda settings: str(settings["bookie"]), lambda s: str(s["bookie"]))
        for kind in ("topic", "dispatcher"):
            world.kinds[kind] = (self.stub, lambda settings: f"broker-{settings['partition'] % 2}", lambda _: None)
        self.client = world.client("client")

    def stub(self, ports: Ports, settings: dict[str, Any]) -> Actor:
        """An actor that has nothing to do."""
        names = [settings.get(part) for part in ("bookie", "topic", "partition", "subscription")]
        served = bool(settings.get(SERVED)) and self.vanishing == "stopped"
        return Stub(ports, self, "/".join(str(name) for name in names if name is not None), served=served)

    async def begin(self) -> None:
        """Start the controller."""
        await self.world.start(
            "controller",
            lambda ports: Controller(ports, bookies=self.bookies, lost_after_ms=self.lost_after_ms),
            fixed=True,
        )

    async def ask(self, request: Any) -> Any:
        """A request to the controller that must be answered."""
        reply = await self.client.net.call(CONTROLLER, request, 60_000)
        assert not isinstance(reply, Unknown), reply.reason
        return reply

    async def create(self, topic: str = "t", partitions: int = 1, **settings: Any) -> list[Address]:
        """A topic with its owners."""
        await self.create_only(topic, partitions, **settings)
        return await self.locate(topic)

    async def create_only(self, topic: str = "t", partitions: int = 1, **settings: Any) -> None:
        """A topic; nobody has asked for its owners yet."""
        await self.ask(CreateTopic(topic=topic, settings=TopicSettings(partitions=partitions, **settings)))

    async def locate(self, topic: str = "t") -> list[Address]:
        """Return the addresses of the owners."""
        located: Located = await self.ask(LocateTopic(topic=topic))
        return located.addresses

    async def status(self) -> dict[str, Any]:
        """The controller's own view."""
        return dict(json.loads((await self.ask(DescribeCluster())).json))

    async def row(self, name: str) -> dict[str, Any]:
        """One actor in the status."""
        (row,) = [row for row in (await self.status())["actors"] if row["name"] == name]
        return dict(row)

    def process(self, address: Address) -> str:
        """The name of the simulated process at an address."""
        return address.partition("/")[2].rpartition(".")[0]

    async def until(self, condition: Callable[[], Coroutine[Any, Any, bool]], promise: str, ms: int = 30_000) -> None:
        """Wait for something that must come true in bounded time."""

        async def wait() -> None:
            while not await condition():
                await self.client.clock.sleep(50)

        await self.world.within(ms, wait(), promise)


def play(scenario: Callable[[Stage], Coroutine[Any, Any, None]], seed: int = 1, **stage: Any) -> None:
    """Run a scenario on a started controller."""

    async def run(world: World) -> None:
        built = Stage(world, **stage)
        await built.begin()
        await scenario(built)

    World(seed).play(run)


@pytest.mark.parametrize("seed", range(3))
def test_dead_actor_is_restarted(seed: int) -> None:
    """Bookies, topics and dispatchers get a new address each, and the restart is counted."""

    async def scenario(stage: Stage) -> None:
        (topic,) = await stage.create()
        asked = LocateSubscription(topic="t", subscription="s", settings=SubscriptionSettings())
        (dispatcher,) = (await stage.ask(asked)).addresses
        bookie = (await stage.row("bookie/bookie-1"))["address"]
        for name, address in (("topic/t/0", topic), ("dispatcher/t/0/s", dispatcher), ("bookie/bookie-1", bookie)):
            stage.world.crash(stage.process(address))

            async def back(name: str = name, address: str = address) -> bool:
                row = await stage.row(name)
                return row["state"] == "running" and row["address"] not in ("", address) and row["restarts"] == 1

            await stage.until(back, f"{name} does not come back")
        assert await stage.locate() != [topic]

    play(scenario, seed)


def test_a_frozen_actor_is_given_up_after_its_misses() -> None:
    """Not after the first silence, but in bounded time."""

    async def scenario(stage: Stage) -> None:
        (topic,) = await stage.create()
        stage.world.pause(stage.process(topic))
        await stage.client.clock.sleep(PING_TIMEOUT)
        assert (await stage.row("topic/t/0"))["address"] == topic

        async def replaced() -> bool:
            return (await stage.row("topic/t/0"))["address"] not in ("", topic)

        await stage.until(replaced, "a frozen topic is not replaced", GIVE_UP)
        stage.world.resume(stage.process(topic))
        (now,) = await stage.locate()
        assert now != topic
        assert (await stage.row("topic/t/0"))["restarts"] == 1

    play(scenario)


def test_a_short_freeze_is_forgiven() -> None:
    """The misses of a process that goes on are forgotten."""

    async def scenario(stage: Stage) -> None:
        (topic,) = await stage.create()
        for _ in range(4):
            stage.world.pause(stage.process(topic))
            await stage.client.clock.sleep(PING_TIMEOUT)
            stage.world.resume(stage.process(topic))
            await stage.client.clock.sleep(2 * (PING_MS + PING_TIMEOUT))
        row = await stage.row("topic/t/0")
        assert (row["address"], row["restarts"], row["misses"]) == (topic, 0, 0)

    play(scenario)


def test_a_suspect_that_lives_is_left_alone() -> None:
    """However many suspect it, and however often."""

    async def scenario(stage: Stage) -> None:
        (topic,) = await stage.create()
        for _ in range(10 * MISSES):
            await stage.ask(Suspect(address=topic))
        assert await stage.locate() == [topic]
        assert (await stage.row("topic/t/0"))["restarts"] == 0
        await stage.ask(Suspect(address="nobody/knows-this"))

    play(scenario)


def test_many_suspicions_at_once_are_one_miss() -> None:
    """A hundred clients that lost one call each do not end a process that is only slow."""

    async def scenario(stage: Stage) -> None:
        (topic,) = await stage.create()
        stage.world.pause(stage.process(topic))
        for number in range(100):
            stage.client.spawn(_suspect(stage, topic), f"suspect{number}")
        await stage.client.clock.sleep(PING_TIMEOUT + PING_MS)
        stage.world.resume(stage.process(topic))
        await stage.client.clock.sleep(GIVE_UP)
        assert (await stage.row("topic/t/0"))["restarts"] == 0

    play(scenario)


async def _suspect(stage: Stage, address: Address) -> None:
    await stage.client.net.call(CONTROLLER, Suspect(address=address), 60_000)


def test_a_dead_actor_is_replaced_before_the_suspect_is_answered() -> None:
    """The next caller gets the address of a living actor."""

    async def scenario(stage: Stage) -> None:
        (topic,) = await stage.create()
        stage.world.crash(stage.process(topic))
        await stage.ask(Suspect(address=topic))
        (now,) = await stage.locate()
        assert stage.world.at(now) is not None

    play(scenario)


def test_all_actors_of_a_frozen_process_are_looked_at() -> None:
    """A host with more actors than are pinged at a time: none waits for its turn."""

    async def scenario(stage: Stage) -> None:
        addresses = await stage.create(partitions=100)
        gone = [address for address in addresses if address.startswith("broker-0/")]
        assert len(gone) == 50
        for address in gone:
            stage.world.crash(stage.process(address))

        async def all_back() -> bool:
            rows = (await stage.status())["actors"]
            return all(row["state"] == "running" and row["address"] not in gone for row in rows)

        await stage.until(all_back, "some actors of a dead process are not replaced", 5_000)

    play(scenario)


def test_a_new_controller_finds_what_runs() -> None:
    """Nothing is started twice; what died in between is started."""

    async def scenario(stage: Stage) -> None:
        addresses = await stage.create(partitions=3)
        before = dict(stage.starts)
        stage.world.crash("controller")
        stage.world.crash(stage.process(addresses[1]))
        await stage.client.clock.sleep(3_000)
        await stage.begin()
        now = await stage.locate()
        assert [now[0], now[2]] == [addresses[0], addresses[2]]
        assert now[1] != addresses[1]
        before["t/1"] += 1
        assert stage.starts == before

    play(scenario)


def test_a_bookie_that_cannot_start_stops_nobody() -> None:
    """The bookie is shown with its reason; the others work, and topics that fit can be created."""

    async def scenario(stage: Stage) -> None:
        row = await stage.row("bookie/bookie-1")
        assert row["state"] in ("starting", "lost")
        assert "emptied" in row["problem"]
        known = await stage.ask(ListBookies())
        assert known.ids == ["bookie-0", "bookie-2"]
        await stage.create(ensemble=2)

        async def lost() -> bool:
            return bool((await stage.row("bookie/bookie-1"))["state"] == "lost")

        await stage.until(lost, "a bookie that is refused again and again is not given up")
        assert stage.starts["bookie-1"] >= REFUSALS
        with pytest.raises(Invalid, match="needs as many bookies; this cluster has 2"):
            await stage.create("wide", ensemble=3)

    async def run(world: World) -> None:
        stage = Stage(world)
        stage.broken["bookie-1"] = Corrupt("the disk was emptied")
        await stage.begin()
        await scenario(stage)

    World(1).play(run)


def test_without_any_bookie_the_start_fails_with_the_reason() -> None:
    """One clear line instead of a cluster that can do nothing."""

    async def run(world: World) -> None:
        stage = Stage(world)
        stage.broken = {bookie: Invalid("the disk cannot be written") for bookie in stage.bookies}
        with pytest.raises(Invalid, match="the disk cannot be written"):
            await stage.begin()

    World(1).play(run)


def test_a_lost_bookie_is_told_to_topics_until_nothing_remains() -> None:
    """Also to topics that nobody uses, and again to a new owner; the status counts what remains."""

    async def scenario(stage: Stage) -> None:
        await stage.create("used", partitions=2)
        await stage.create("idle")
        stage.world.crash("controller")
        for name in stage.world.alive("topic-"):
            stage.world.crash(name)
        stage.remaining = 4
        stage.broken["bookie-2"] = Corrupt("the disk was emptied")
        for name in stage.world.alive("bookie-"):
            if stage.world.process(name).placed == ("bookie", {"bookie": "bookie-2"}):
                stage.world.crash(name)
        await stage.begin()

        async def counted() -> bool:
            status = await stage.status()
            return bool(status["lostBookies"] == ["bookie-2"] and status["underReplicated"] == 12)

        await stage.until(counted, "the missing copies are not counted")
        stage.remaining = 0

        async def mended() -> bool:
            return bool((await stage.status())["underReplicated"] == 0)

        await stage.until(mended, "the topics are not asked again")
        assert {name for name, lost in stage.told if lost == ["bookie-2"]} == {"used/0", "used/1", "idle/0"}
        told = len(stage.told)
        await stage.client.clock.sleep(10_000)
        assert len(stage.told) == told, "topics that are done are asked for ever"
        (address,) = await stage.locate("idle")
        stage.world.crash(stage.process(address))

        async def told_anew() -> bool:
            return stage.told[told:] == [("idle/0", ["bookie-2"])]

        await stage.until(told_anew, "a new owner is not told")

    play(scenario)


def test_a_bookie_is_lost_after_its_time_and_used_on_return() -> None:
    """Not before; and the topics are told that it is no longer lost."""

    async def scenario(stage: Stage) -> None:
        await stage.create()
        stage.broken["bookie-0"] = NotFound("the machine is away")
        for name in stage.world.alive("bookie-"):
            if stage.world.process(name).placed == ("bookie", {"bookie": "bookie-0"}):
                stage.world.crash(name)
        await stage.client.clock.sleep(stage.lost_after_ms - 5_000)
        assert (await stage.status())["lostBookies"] == []
        assert stage.told == []

        async def lost() -> bool:
            status = await stage.status()
            return bool(status["lostBookies"] == ["bookie-0"]) and stage.told == [("t/0", ["bookie-0"])]

        await stage.until(lost, "a bookie that stays away is not given up")
        del stage.broken["bookie-0"]

        async def back() -> bool:
            row = await stage.row("bookie/bookie-0")
            return bool(row["state"] == "running") and stage.told[-1] == ("t/0", [])

        await stage.until(back, "a bookie that returned is not used again")
        assert (await stage.status())["lostBookies"] == []

    play(scenario)


def test_wrong_questions_are_refused() -> None:
    """Unknown names, and a topic that exists otherwise."""

    async def scenario(stage: Stage) -> None:
        await stage.create("t")
        await stage.create("t")
        with pytest.raises(Conflict, match="exists with other settings"):
            await stage.create("t", partitions=2)
        with pytest.raises(NotFound, match="there is no topic 'x'"):
            await stage.locate("x")
        with pytest.raises(NotFound, match="has no subscription 'x'"):
            await stage.ask(LocateSubscription(topic="t", subscription="x"))
        with pytest.raises(NotFound, match="there is no topic 'x'"):
            await stage.ask(ListSubscriptions(topic="x"))

    play(scenario)
