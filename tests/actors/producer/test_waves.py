"""Producers that wait for one partition publish together, and only so many partitions are published to at once."""

from __future__ import annotations

import asyncio
from functools import partial

import numpy as np
import pytest

from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import Located, LocateTopic, Publish, Published, PublishMany
from sluice.actors.ports import Ports
from sluice.actors.producer.batches import Outgoing
from sluice.actors.producer.producer import PartitionProducer, ProducerConfig
from sluice.actors.producer.waves import (
    ENOUGH,
    MOST_APPENDS,
    MOST_SKIPPED,
    PATIENCE_MS,
    RETURN_MS,
    ROUND_MS,
    Round,
    Rounds,
    Waves,
)
from sluice.actors.runtime.waiting import TICK_MS
from sluice.storage.errors import Conflict, Fenced, Invalid, SluiceError, Unavailable
from sluice.storage.format import frame
from sluice.storage.format.batch import joined
from sluice.storage.format.frame import MAX_SEGMENTS, make_run
from sluice.storage.format.position import position
from tests.actors.producer.test_gathering import Owner
from tests.actors.producer.test_split import made
from tests.sim.world import World

COUNT = 3 * MOST_APPENDS


class Slow(Owner):
    """An owner that takes a while for each run."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self.under_way = self.most = 0

    async def on_locate_topic(self, _: LocateTopic) -> Located:
        return Located(addresses=[self.ports.me] * COUNT)

    async def on_publish(self, asked: Publish) -> Published:
        """Stored after a while."""
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.runs.append((asked.first_sequence, asked.count))
        await self.ports.clock.sleep(20)
        self.under_way -= 1
        return Published(ledger=1, first_entry=0, count=asked.count)


def test_so_many_partitions_are_appended_to_at_once() -> None:
    """Messages that come while a partition waits for its turn join those that wait."""
    owners: list[Slow] = []
    confirmed = []

    async def run(world: World) -> None:
        def owner(ports: Ports) -> Slow:
            owners.append(Slow(ports))
            return owners[0]

        address = await world.start("owner", owner, fixed=True)
        ports = world.client("client")
        waves, directory = Waves(ports), Directory(ports, address)
        producers = [
            PartitionProducer(ports, directory, ProducerConfig("t", number, "p", "p-1"), waves=waves)
            for number in range(COUNT)
        ]
        await asyncio.gather(*(producer.open() for producer in producers))
        for sequence in range(3):
            for producer in producers:
                producer.send(Outgoing(made(1), sequence, np.arange(1), lambda *outcome: confirmed.append(outcome)))
            await ports.clock.sleep(1)
        for producer in producers:
            await producer.flush()
            producer.close()

    World(1).play(run)
    assert len(confirmed) == 3 * COUNT
    assert owners[0].most == MOST_APPENDS
    assert sorted(count for _, count in owners[0].runs) == [1] * MOST_APPENDS + [2] * MOST_APPENDS + [3] * (
        COUNT - MOST_APPENDS
    )


def test_an_append_that_is_stuck_counts_for_a_while() -> None:
    async def run(world: World) -> None:
        ports = world.client("client")
        rounds, begun = Rounds(ports, most=2), list[Round]()

        async def begin() -> None:
            begun.append(await rounds.wait())

        for _ in range(6):
            ports.spawn(begin(), "append")
        await ports.clock.sleep(PATIENCE_MS - TICK_MS - 1)
        assert len(begun) == 2
        begun[0].end()
        await ports.clock.sleep(1)
        assert len(begun) == 3
        await ports.clock.sleep(TICK_MS + 2)
        assert len(begun) == 4, "the second has lost patience; the first has ended already"
        begun[1].end()
        await ports.clock.sleep(1)
        assert len(begun) == 4, "it did not count any more"

    World(1).play(run)


def test_appends_begin_in_rounds() -> None:
    async def run(world: World) -> None:
        ports = world.client("client")
        rounds, begun = Rounds(ports), dict[str, Round]()
        for name in ("a", "b"):
            rounds.join(partial(begun.__setitem__, name))
        await ports.clock.sleep(1)
        assert list(begun) == ["a", "b"]
        for name in ("c", "d"):
            rounds.join(partial(begun.__setitem__, name))
        begun["a"].end()
        await ports.clock.sleep(1)
        assert list(begun) == ["a", "b"], "b has not ended"
        rounds.join(partial(begun.__setitem__, "large"), large=True)
        await ports.clock.sleep(1)
        assert list(begun) == ["a", "b", "large"]
        begun["b"].end()
        await ports.clock.sleep(1)
        assert list(begun) == ["a", "b", "large", "c", "d"]
        rounds.join(partial(begun.__setitem__, "e"))
        await ports.clock.sleep(ROUND_MS - 2)
        assert "e" not in begun
        await ports.clock.sleep(2)
        assert "e" in begun, "the round of c and d is late"
        for name in ("c", "d"):
            begun[name].end()
        rounds.join(partial(begun.__setitem__, "f"))
        await ports.clock.sleep(1)
        assert "f" not in begun, "the round of e is younger"
        begun["e"].end()
        await ports.clock.sleep(1)
        assert "f" in begun

    World(1).play(run)


def test_appends_begin_in_the_order_in_which_they_came() -> None:
    async def run(world: World) -> None:
        ports = world.client("client")
        rounds, begun = Rounds(ports, most=2), dict[str, Round]()
        for name in ("small", "LARGE", "SECOND", "other", "THIRD"):
            rounds.join(partial(begun.__setitem__, name), large=name.isupper())
        await ports.clock.sleep(1)
        assert sorted(begun) == ["LARGE", "small"]
        for ended, begins in (("LARGE", "SECOND"), ("small", "other"), ("other", "THIRD")):
            assert begins not in begun
            begun[ended].end()
            await ports.clock.sleep(1)
            assert begins in begun

    World(1).play(run)


def test_outcomes_of_a_round_are_reported_together() -> None:
    async def run(world: World) -> None:
        ports = world.client("client")
        rounds, begun, reported = Rounds(ports), dict[str, Round](), list[str]()
        for name in ("a", "b", "LARGE", "OTHER"):
            rounds.join(partial(begun.__setitem__, name), large=name.isupper())
        await ports.clock.sleep(1)
        begun["LARGE"].end(partial(reported.append, "LARGE"))
        begun["a"].end(partial(reported.append, "a"))
        assert reported == ["LARGE"], "a large append waits for no other"
        begun["b"].end(partial(reported.append, "b"))
        assert reported == ["LARGE", "a", "b"]
        for name in ("c", "d", "e"):
            rounds.join(partial(begun.__setitem__, name))
        await ports.clock.sleep(1)
        begun["c"].end(partial(reported.append, "c"))
        await ports.clock.sleep(ROUND_MS)
        assert reported[3:] == ["c"], "the round is late"
        begun["d"].end(partial(reported.append, "d"))
        assert reported[4:] == ["d"], "a late round waits for nobody"

    World(1).play(run)


def test_next_round_waits_for_the_producers_of_the_last() -> None:
    async def run(world: World) -> None:
        ports = world.client("client")
        rounds, begun = Rounds(ports), dict[str, Round]()

        async def play(*names: str) -> None:
            for name in names:
                rounds.returning.came()
                rounds.join(partial(begun.__setitem__, name))
            await ports.clock.sleep(RETURN_MS - 1)

        def end(*names: str) -> None:
            for name in names:
                begun[name].producers += 1
                begun[name].end()

        await play("a", "b", "c")
        await play("other")
        end("a", "b", "c")
        rounds.join(partial(begun.__setitem__, "LARGE"), large=True)
        await play("a2", "b2")
        assert list(begun)[3:] == ["LARGE"], "c has not come back"
        await play("c2")
        assert {"other", "a2", "b2", "c2"} <= set(begun)
        end("other", "a2", "b2", "c2")
        await ports.clock.sleep(RETURN_MS)
        await play("late")
        assert "late" in begun, "the producers were expected until then"

        def come_back() -> None:
            rounds.returning.came()
            rounds.join(partial(begun.__setitem__, "more"))

        begun["late"].producers += 1
        begun["late"].end(come_back)
        await ports.clock.sleep(RETURN_MS - 1)
        assert "more" in begun, "its producer had more in its queue"
        crowd = [f"{number}" for number in range(ENOUGH)]
        await play(*crowd)
        begun["more"].producers += 1
        begun["more"].end()
        await ports.clock.sleep(RETURN_MS - 1)
        assert set(crowd) <= set(begun), "so many wait for nobody"

    World(1).play(run)


def test_waits_in_vain_make_rounds_wait_more_rarely() -> None:
    async def run(world: World) -> None:
        ports = world.client("client")
        rounds, begun = Rounds(ports), dict[int, Round]()
        waited = list[bool]()
        for number in range(3 * MOST_SKIPPED):
            rounds.returning.came()
            rounds.join(partial(begun.__setitem__, number))
            await ports.clock.sleep(RETURN_MS - 1)
            waited.append(number not in begun)
            if waited[-1]:
                await ports.clock.sleep(RETURN_MS + 1)
            begun[number].producers += 10  # of which one comes back in time
            begun[number].end()
        assert [number for number, wait in enumerate(waited) if wait] == [1, 3, 6, 11, 20, 37]

    World(1).play(run)


class Joined(Owner):
    """An owner that notes the producers of each run, and refuses what `refuses` raises."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self.waves: list[list[str]] = []
        self.alone: list[tuple[str, int]] = []
        self.fails: SluiceError | None = None

    async def on_publish_many(self, asked: PublishMany) -> Published:
        """Store the run of a wave, or refuse it."""
        self.waves.append(list(asked.producers))
        if self.fails is not None:
            raise self.fails
        return Published(ledger=1, first_entry=100, count=asked.count)

    async def on_publish(self, asked: Publish) -> Published:
        """Store the run of one producer, the first one when it is told to."""
        self.alone.append((asked.producer, asked.first_sequence))
        if len(self.alone) == 1:
            self.came.set()
            await self.go_on.wait(self.ports)
        return Published(ledger=1, first_entry=asked.first_sequence, count=asked.count)


def waves_of(names: list[str], fails: SluiceError | None = None) -> tuple[Joined, dict[tuple[str, int], object]]:
    """Send two messages of each producer while one of `first` is under way; returns the owner and the outcomes."""
    owners: list[Joined] = []
    outcomes: dict[tuple[str, int], object] = {}

    def told(key: tuple[str, int], rows: np.ndarray, at: int, error: object) -> None:
        outcomes[key] = error or at

    async def run(world: World) -> None:
        def owner(ports: Ports) -> Joined:
            owners.append(Joined(ports))
            return owners[0]

        address = await world.start("owner", owner, fixed=True)
        ports = world.client("client")
        waves, directory = Waves(ports), Directory(ports, address)
        owners[0].fails = fails
        producers = [
            PartitionProducer(ports, directory, ProducerConfig("t", 0, name, "p-1"), waves=waves)
            for name in ("first", *names)
        ]
        await asyncio.gather(*(producer.open() for producer in producers))
        for producer in producers:
            for sequence in range(1 if producer.name == "first" else 2):
                done = partial(told, (producer.name, sequence))
                producer.send(Outgoing(made(1), sequence, np.arange(1), done))
            if producer.name == "first":
                await owners[0].came.wait(ports)
        owners[0].go_on.set()
        for producer in producers:
            await producer.flush()
            producer.close()

    World(1).play(run)
    return owners[0], outcomes


def test_producers_that_wait_are_published_together() -> None:
    owner, outcomes = waves_of(["a", "b"])
    assert (owner.waves, owner.alone) == ([["a", "b"]], [("first", 0)])
    places = {("a", 0): 100, ("a", 1): 101, ("b", 0): 102, ("b", 1): 103, ("first", 0): 0}
    assert outcomes == {key: position(1, entry) for key, entry in places.items()}


@pytest.mark.parametrize(
    "error", [Conflict("alone"), Invalid("one of them"), Fenced("a session"), Unavailable("later")]
)
def test_refused_wave_is_published_by_each_producer(error: SluiceError) -> None:
    owner, outcomes = waves_of(["a", "b"], error)
    assert owner.waves == [["a", "b"]]
    assert [owner.alone[0], *sorted(owner.alone[1:])] == [("first", 0), ("a", 0), ("b", 0)]
    assert outcomes[("b", 1)] == position(1, 1)


def test_wave_that_is_too_large_is_published_by_each_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch says about how large it is."""
    fits = len(make_run(joined([made(1), made(1)])).payload)
    monkeypatch.setattr(frame, "MAX_RUN_BYTES", fits)
    owner, outcomes = waves_of(["a", "b"])
    assert not owner.waves
    assert [owner.alone[0], *sorted(owner.alone[1:])] == [("first", 0), ("a", 0), ("b", 0)]
    assert outcomes[("b", 1)] == position(1, 1)


def test_wave_holds_no_more_producers_than_a_frame() -> None:
    names = [f"p{number}" for number in range(MAX_SEGMENTS + 1)]
    owner, outcomes = waves_of(names)
    assert [len(wave) for wave in owner.waves] == [MAX_SEGMENTS]
    assert owner.alone == [("first", 0), (names[-1], 0)]
    assert len(outcomes) == 2 * len(names) + 1
