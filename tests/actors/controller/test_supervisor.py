"""The controller's view of bookies that are full, that were away, or that keep ledgers without a topic.

Controller, topic and bookies are the real ones; the world around them is simulated.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from sluice.actors.bookie import Bookie, BookieSettings
from sluice.actors.controller.controller import Controller
from sluice.actors.controller.supervisor import MISSES, PING_TIMEOUT, Supervisor
from sluice.actors.ledger.record import PartitionRecord, record_key, unpack_record
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import (
    AddRun,
    Alive,
    BookieList,
    CreateTopic,
    DescribeCluster,
    ListBookies,
    ListLedgers,
    OpenProducer,
    Publish,
    RemoveTopic,
    TopicSettings,
)
from sluice.actors.ports import Node, Ports, Unknown
from sluice.actors.ports.wire import Blob
from sluice.actors.topic.topic import Topic
from sluice.cluster.launch.topic_rooms import topic_resources
from sluice.storage.errors import SluiceError
from tests.actors.topic.cluster import make_test_run
from tests.sim.disk import DiskFaults
from tests.sim.world import World

CONTROLLER = "controller/controller"
BOOKIES = ["bookie-0", "bookie-1", "bookie-2"]
SMALL = BookieSettings(min_free_bytes=10_000, reserve_bytes=1_000, housekeeping_ms=100)
LEFTOVERS_MS = 5_000


class Cluster:
    """A controller, three bookies, and topics whose every run opens a ledger of its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.added: list[tuple[str, int]] = []
        """(bookie, ledger) of every run that was sent."""
        self._sequences: dict[str, int] = {}

    async def open(self) -> None:
        """Start it."""
        world = self.world
        world.kinds["bookie"] = (
            lambda ports, settings: Bookie(ports, bookie_id=settings["bookie"], settings=SMALL),
            lambda settings: str(settings["bookie"]),
            lambda settings: str(settings["bookie"]),
        )
        world.kinds["topic"] = (_topic, lambda settings: "broker", lambda settings: None)
        await world.start(
            "controller", lambda ports: Controller(ports, bookies=BOOKIES, leftovers_ms=LEFTOVERS_MS), fixed=True
        )
        self.client = world.client("client")
        world.witness = lambda source, to, request, reply: self._see(to, request)

    def _see(self, to: str, request: object) -> None:
        if isinstance(request, AddRun):
            self.added.append((to.partition("/")[0], request.ledger))

    async def ask(self, request: Any, to: str = CONTROLLER, timeout: int = 60_000) -> Any:
        """A request that must be answered."""
        reply = await self.client.net.call(to, request, timeout)
        assert not isinstance(reply, Unknown), reply.reason
        return reply

    async def create(self, topic: str) -> None:
        """A topic on two of the bookies at a time."""
        settings = TopicSettings(ensemble=2, write_quorum=2, ack_quorum=2, roll_entries=1)
        await self.ask(CreateTopic(topic=topic, settings=settings))

    async def publish(self, topic: str) -> None:
        """One run."""
        address = await Directory(self.client, CONTROLLER).topic(topic, 0)
        first = self._sequences.get(topic, 0)
        opened = await self.ask(OpenProducer(producer="p", incarnation="p-1"), address)
        run = make_test_run([f"{topic}-{first}"], first=first)
        await self.ask(
            Publish(
                producer="p",
                session=opened.session,
                first_sequence=first,
                count=1,
                delayed=run.delayed,
                shape=run.shape,
                crc=run.crc,
                payload=Blob(run.payload),
            ),
            address,
        )
        self._sequences[topic] = first + 1

    async def record(self, topic: str) -> PartitionRecord:
        """Return the record of the topic's partition 0 in the metadata."""
        version = await self.client.meta.read(record_key(topic, 0))
        assert version is not None
        return unpack_record(version.value)

    async def bookies(self) -> BookieList:
        """The controller's list."""
        listed: BookieList = await self.ask(ListBookies())
        return listed

    async def held(self, bookie: str) -> list[int]:
        """Return the ledgers that a bookie has entries of."""
        known = await self.bookies()
        reply = await self.ask(ListLedgers(), known.addresses[known.ids.index(bookie)])
        return list(reply.ledgers)

    async def row(self, name: str) -> dict[str, Any]:
        """One actor in the status."""
        status = json.loads((await self.ask(DescribeCluster())).json)
        (row,) = [row for row in status["actors"] if row["name"] == name]
        return dict(row)

    async def until(self, condition: Callable[[], Coroutine[Any, Any, bool]], promise: str) -> None:
        """Wait for something that must come true in bounded time."""

        async def wait() -> None:
            while not await condition():
                await self.client.clock.sleep(50)

        await self.world.within(60_000, wait(), promise)


def _topic(ports: Ports, settings: dict[str, Any]) -> Topic:
    return Topic(
        ports,
        topic=settings["topic"],
        partition=settings["partition"],
        settings=msgspec.convert(settings["topic_settings"], TopicSettings),
        bookies=Directory(ports, CONTROLLER).bookies,
        resources=topic_resources(),
    )


def play(scenario: Callable[[Cluster], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    """Run a scenario on a started cluster."""

    async def run(world: World) -> None:
        cluster = Cluster(world)
        await cluster.open()
        await scenario(cluster)

    World(seed).play(run)


def test_a_full_bookie_is_not_chosen_until_it_has_room_again() -> None:
    """New ledgers go to the others from the first run on; its own state is shown with its reason."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create("t")
        while {bookie for bookie, _ in cluster.added} != set(BOOKIES):
            await cluster.publish("t")
        disk = cluster.world.disk("bookie-1")
        disk.faults = DiskFaults(capacity=disk.used() + SMALL.min_free_bytes // 2)

        async def known_full() -> bool:
            return (await cluster.bookies()).read_only == ["bookie-1"]

        await cluster.until(known_full, "a full bookie is not reported")
        row = await cluster.row("bookie/bookie-1")
        assert row["state"] == "read-only"
        assert "bytes are free, 10000 are the minimum" in row["problem"]
        await cluster.client.clock.sleep(1_000)
        await cluster.publish("t")  # into a ledger that may have been opened before
        before, sent = len((await cluster.record("t")).ledgers), len(cluster.added)
        for _ in range(12):
            await cluster.publish("t")
        record = await cluster.record("t")
        assert len(record.ledgers) >= before + 11
        for ledger in record.ledgers[before:]:
            assert [sorted(fragment.bookies) for fragment in ledger.fragments] == [["bookie-0", "bookie-2"]]
        assert "bookie-1" not in {bookie for bookie, _ in cluster.added[sent:]}, "it was not even tried"

        disk.faults = DiskFaults()

        async def used_again() -> bool:
            await cluster.publish("t")
            return "bookie-1" in {bookie for bookie, _ in cluster.added[sent:]}

        await cluster.until(used_again, "a bookie with room again is not used")
        assert (await cluster.bookies()).read_only == []
        assert (await cluster.row("bookie/bookie-1"))["state"] == "running"

    play(scenario)


def test_a_bookie_that_missed_a_deletion_is_told_again() -> None:
    """The bookie was cut off while a topic was deleted; its ledgers of other topics stay."""

    async def scenario(cluster: Cluster) -> None:
        for topic in ("gone", "kept"):
            await cluster.create(topic)
            for _ in range(6):
                await cluster.publish(topic)
        missed = "bookie-1"
        gone = [ledger.id for ledger in (await cluster.record("gone")).ledgers]
        kept = [led.id for led in (await cluster.record("kept")).ledgers if missed in led.bookies()]
        assert set(await cluster.held(missed)) & set(gone)
        assert kept
        heal = cluster.world.partition(["broker"], [missed])

        async def deleted() -> bool:
            try:
                await cluster.ask(RemoveTopic(topic="gone"))
            except SluiceError:
                return False
            return True

        await cluster.until(deleted, "a topic cannot be deleted while a bookie is away")
        heal()
        assert set(await cluster.held(missed)) & set(gone), "it was told after all"

        async def collected() -> bool:
            return await cluster.held(missed) == kept

        await cluster.until(collected, "what a deleted topic left is never forgotten")
        await cluster.client.clock.sleep(2 * LEFTOVERS_MS)
        assert await cluster.held(missed) == kept

    play(scenario)


def watching(world: World) -> tuple[Ports, Silent, Supervisor]:
    """A controller's ports, and its supervisor over places and connections that do what a test tells them to."""
    places = Silent()
    ports = world.client("controller")
    net: Any = places
    return ports, places, Supervisor(replace(ports, net=net), places)


@pytest.mark.parametrize("kind", ["bookie", "topic"])
def test_controller_that_may_not_act_counts_no_misses(kind: str) -> None:
    """A controller that is cut off hears no actor. Misses are counted from 0 when it may act."""

    async def run(world: World) -> None:
        ports, places, supervisor = watching(world)
        entry = supervisor.want(kind, {"bookie": "b"} if kind == "bookie" else {"topic": "t", "partition": 0})
        await supervisor.ensure(entry)
        ports.spawn(supervisor.watch(), "watch")
        places.silent, places.may_act = True, False
        await world.loop.pause(60_000)
        places.may_act = True
        await world.loop.pause(PING_TIMEOUT)
        assert (entry.restarts, places.stopped) == (0, [])
        places.away = kind == "bookie"
        await world.loop.pause(60_000)
        assert (entry.restarts > 0, entry.away) == ((False, True) if kind == "bookie" else (True, False))

    World(5).play(run)


@pytest.mark.parametrize("wanted", [False, True])
def test_closing_actor_is_started_only_if_wanted(wanted: bool) -> None:
    """A ping may find the actor gone before its answer says that it has closed."""

    async def run(world: World) -> None:
        ports, places, supervisor = watching(world)
        entry = supervisor.want("topic", {"topic": "t", "partition": 0})
        address = await supervisor.ensure(entry)
        entry.closing = places.gone = True
        if wanted:
            await supervisor.suspect(address)
            assert entry.restarts == 1
            return
        ports.spawn(supervisor.watch(), "watch")
        await world.loop.pause(60_000)
        assert (entry.address, entry.restarts) == (address, 0)
        entry.closing = False
        await world.loop.pause(PING_TIMEOUT)
        assert entry.restarts > 0, "its answer was lost"

    World(5).play(run)


def test_actor_deleted_during_its_ping_is_not_started() -> None:
    async def run(world: World) -> None:
        ports, places, supervisor = watching(world)
        entry = supervisor.want("topic", {"topic": "t", "partition": 0})
        await supervisor.ensure(entry)
        ports.spawn(supervisor.watch(), "watch")
        places.silent, entry.misses = True, MISSES - 1
        while entry.looking is None:
            await world.loop.pause(1)
        supervisor.remove(entry)
        await world.loop.pause(60_000)
        assert (entry.restarts, supervisor.all()) == (0, [])

    World(5).play(run)


class Silent:
    """Places and connections of one actor that answers, or does not."""

    def __init__(self) -> None:
        self.silent = self.away = self.gone = False
        self.may_act = True
        self.stopped: list[str] = []

    async def call(self, to: str, request: Any, timeout: int) -> Any:
        """As the Net port does."""
        if self.gone:
            return Unknown("nobody is there", gone=True)
        if self.silent:
            await asyncio.sleep(timeout / 1000)
            return Unknown("no answer")
        return Alive()

    async def start(self, kind: str, name: str, settings: dict[str, Any]) -> str:
        """Return an address at once."""
        return f"host/{name}"

    async def stop(self, address: str, *, frozen: bool = False) -> None:
        """Note the address as stopped."""
        self.stopped.append(address)

    async def acts(self) -> bool:
        """Whether the controller may act."""
        return self.may_act

    async def is_away(self, address: str) -> bool:
        """Whether its machine is away."""
        return self.away

    async def inventory(self) -> list[Any]:
        """Nothing runs at first."""
        return []

    async def machines(self) -> list[str]:
        """One."""
        return ["m"]

    async def nodes(self) -> list[Node]:
        """See actors.ports.Places: each machine is a node."""
        return [Node(machine, machine) for machine in ["m"]]

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
