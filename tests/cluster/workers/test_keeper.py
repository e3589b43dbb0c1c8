"""A keeper's treatment of workers that die, hang, are of another version, or belong to another keeper by now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any

import pytest

from sluice.cluster.workers.handler_worker import WorkerReport
from sluice.cluster.workers.keeper import PoolKeeper, PoolStatus
from sluice.cluster.workers.options import wanted_options
from sluice.cluster.workers.places import PlacedWorker, Superseded, WorkerGone
from sluice.cluster.workers.scaling import WorkerLoad
from sluice.storage.errors import NotFound
from tests.cluster.helpers import eventually

RUNNING: dict[str, Any] = {
    "load": WorkerLoad(ages={}),
    "handled": 0,
    "failed": 0,
    "failures": {},
    "overdue": [],
    "ended": False,
    "error": "",
}


@dataclass(eq=False)
class FakeWorker:
    """Says what the test has it say. did: what it was told, in order."""

    name: str
    version: str
    where: str = "here"
    ends_late: bool = True
    says: dict[str, Any] = field(default_factory=dict)
    obeys: bool = True
    looked_at: int = 0
    """How often since it was told to stop."""
    gone: Exception | None = None
    did: list[str] = field(default_factory=list)

    def report(self) -> WorkerReport | None:
        if self.gone is not None:
            raise self.gone
        self.looked_at += "stop" in self.did
        return WorkerReport(**RUNNING | self.says)

    def hand_over(self) -> bool:
        self.did.append("hand over")
        return True

    def stop(self) -> None:
        self.did.append("stop")
        self.says["ended"] = self.obeys

    def kill(self) -> None:
        self.did.append("kill")

    def tail(self) -> str:
        return f"{self.name} says hello"


class FakePlaces:
    """Workers in the order in which they were begun. ready: whether there is room for one more."""

    def __init__(self, version: str) -> None:
        self.version, self.ready = version, True
        self.begun: list[FakeWorker] = []
        self.left: dict[str, PlacedWorker] = {}
        self.closed = False
        self.wrong: Exception | None = None
        self.cannot_begin: Exception | None = None
        self.did_not_wait = 0

    def spares(self) -> int:
        return 0

    def start_worker(self, name: str) -> PlacedWorker:
        if self.cannot_begin is not None:
            raise self.cannot_begin
        self.begun.append(FakeWorker(name, self.version))
        return self.begun[-1]

    def is_ready(self) -> bool:
        if self.wrong is not None:
            raise self.wrong
        return self.ready

    def adopt(self) -> dict[str, PlacedWorker]:
        return self.left

    def wait(self, seconds: float, stopping: threading.Event, workers: Sequence[PlacedWorker]) -> None:
        self.did_not_wait += stopping.wait(0.005)

    def why_not_placed(self) -> str:
        return "no room"

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def places() -> FakePlaces:
    return FakePlaces("one")


@pytest.fixture
def kept(places: FakePlaces) -> Any:
    """Starts keepers, and ends them."""
    running: list[tuple[PoolKeeper, threading.Thread]] = []

    def start(**options: Any) -> PoolKeeper:
        keeper = PoolKeeper(wanted_options({"name": "pool", **options}, "s"), places.version, places)
        thread = threading.Thread(target=keeper.run)
        thread.start()
        running.append((keeper, thread))
        return keeper

    yield start
    for keeper, thread in running:
        keeper.stop()
        thread.join(30)
        assert not thread.is_alive()


Start = Callable[..., PoolKeeper]


def test_a_worker_that_died_is_begun_again_under_its_name(kept: Start, places: FakePlaces) -> None:
    keeper = kept(min_workers=2)
    eventually(lambda: len(places.begun) == 2, lambda: "")
    places.begun[0].says = {"handled": 7, "under_way": ["key-1"]}
    eventually(lambda: keeper.status().handled == 7, lambda: str(keeper.status()))
    places.begun[0].gone = WorkerGone("killed")
    eventually(lambda: len(places.begun) == 3, lambda: str(keeper.status()))
    assert [worker.name for worker in places.begun] == ["pool-0", "pool-1", "pool-0"]
    status = keeper.status()
    assert (status.replaced, status.handled) == (1, 7)
    assert "pool-0 died: killed; it had begun key-1" in [text for _, text in status.events]


def test_a_worker_whose_handler_hangs_is_ended(kept: Start, places: FakePlaces) -> None:
    keeper = kept()
    eventually(lambda: len(places.begun) == 1, lambda: "")
    places.begun[0].says = {"overdue": ["key-3"]}
    eventually(lambda: len(places.begun) == 2, lambda: str(keeper.status()))
    assert "kill" in places.begun[0].did
    assert any("too long with key-3" in text for _, text in keeper.status().events)


def test_another_version_takes_the_names_one_by_one(kept: Start, places: FakePlaces) -> None:
    """The old one goes on until all its keys have passed over; only then the next one begins."""
    old = [FakeWorker(f"pool-{number}", "zero") for number in range(2)]
    places.left = {worker.name: worker for worker in old}
    keeper = kept(min_workers=2)
    eventually(lambda: keeper.status().workers.get("pool-0") == "rolling", lambda: str(keeper.status()))
    assert (old[0].did, old[1].did, [worker.name for worker in places.begun]) == (["hand over"], [], ["pool-0"])
    old[0].says = {"handed_over": True}
    eventually(lambda: keeper.status().workers.get("pool-1") == "rolling", lambda: str(keeper.status()))
    assert old[0].did == ["hand over", "stop", "kill"]
    old[1].says = {"handed_over": True}
    eventually(lambda: set(keeper.status().versions.values()) == {"one"}, lambda: str(keeper.status()))
    assert keeper.status().replaced == 0
    assert [worker.name for worker in places.begun] == ["pool-0", "pool-1"]


def test_a_successor_that_dies_gets_a_successor(kept: Start, places: FakePlaces) -> None:
    old = FakeWorker("pool-0", "zero")
    places.left = {"pool-0": old}
    keeper = kept()
    eventually(lambda: len(places.begun) == 1, lambda: str(keeper.status()))
    places.begun[0].gone = WorkerGone("killed")
    eventually(lambda: len(places.begun) == 2, lambda: str(keeper.status()))
    old.says = {"handed_over": True}
    eventually(lambda: keeper.status().versions == {"pool-0": "one"}, lambda: str(keeper.status()))
    assert "kill" not in places.begun[1].did


def test_an_old_one_that_dies_leaves_its_name_to_its_successor(kept: Start, places: FakePlaces) -> None:
    old = FakeWorker("pool-0", "zero")
    places.left = {"pool-0": old}
    keeper = kept()
    eventually(lambda: len(places.begun) == 1, lambda: str(keeper.status()))
    old.gone = WorkerGone("killed")
    eventually(lambda: keeper.status().versions == {"pool-0": "one"}, lambda: str(keeper.status()))
    assert len(places.begun) == 1


def test_a_keeper_that_was_replaced_touches_nothing(kept: Start, places: FakePlaces) -> None:
    """The keeper hears so from a worker, which a later keeper has spoken to, or with its report."""
    keeper = kept(min_workers=2)
    eventually(lambda: len(places.begun) == 2, lambda: "")
    places.begun[1].gone = Superseded("a later keeper has this worker")
    eventually(lambda: keeper.fenced and places.closed, lambda: "")
    places.closed = False
    other = kept(min_workers=2)
    eventually(lambda: len(places.begun) == 4, lambda: "")
    other.fenced = True
    other.stop()
    eventually(lambda: places.closed, lambda: "")
    assert [worker.did for worker in places.begun] == [[], [], [], []]


def test_new_limits_change_the_number_of_workers(kept: Start, places: FakePlaces) -> None:
    keeper = kept(min_workers=2)
    eventually(lambda: len(places.begun) == 2, lambda: "")
    keeper.limit(1, 1)
    eventually(lambda: list(keeper.status().workers) == ["pool-0"], lambda: str(keeper.status()))
    assert places.begun[1].did == ["stop", "kill"]
    keeper.limit(3, 3)
    eventually(lambda: len(keeper.status().workers) == 3, lambda: str(keeper.status()))
    assert keeper.tails()["pool-2"] == "pool-2 says hello"


def test_a_keeper_that_stops_waits_for_its_workers(kept: Start, places: FakePlaces) -> None:
    """The keeper looks now and then, and not as often as it can, which would be at the cost of their handlers."""
    keeper = kept()
    eventually(lambda: len(places.begun) == 1, lambda: "")
    worker = places.begun[0]
    worker.obeys = False
    keeper.stop()
    eventually(lambda: worker.looked_at > 20, lambda: str(worker.did))
    worker.says["ended"] = True
    eventually(lambda: not keeper.status().workers, lambda: str(keeper.status()))
    assert places.did_not_wait <= 1, "the one in which it was told to stop"


@pytest.mark.parametrize("wrong", [ValueError("num_cpus < 0"), TypeError("cannot be pickled"), WorkerGone("no module")])
def test_a_version_that_cannot_begin_leaves_the_old_one(
    wrong: Exception, places: FakePlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = FakeWorker("pool-0", "zero")
    places.left, places.wrong = {"pool-0": old}, wrong
    keeper = PoolKeeper(wanted_options({"name": "pool"}, "s"), places.version, places)
    seen: list[PoolStatus] = []

    def third_round(*_: object) -> None:
        seen.append(keeper.status())
        if len(seen) == 3:
            keeper.stop()

    monkeypatch.setattr(places, "wait", third_round)
    keeper.run()
    assert f"cannot start: {wrong}" in seen[-1].reason
    assert (seen[-1].workers, old.did) == ({"pool-0": "running"}, ["stop", "kill"])


@pytest.mark.parametrize("wrong", [ValueError("num_cpus < 0"), WorkerGone("Ray has ended it")])
def test_a_successor_that_cannot_begin_leaves_the_old_one(wrong: Exception, kept: Start, places: FakePlaces) -> None:
    places.left, places.cannot_begin = {"pool-0": FakeWorker("pool-0", "zero")}, wrong
    keeper = kept()
    eventually(lambda: f"cannot start: {wrong}" in keeper.status().reason, lambda: str(keeper.status()))
    places.cannot_begin = None
    eventually(lambda: len(places.begun) == 1, lambda: str(keeper.status()))
    assert keeper.status().workers == {"pool-0": "rolling"}


def test_why_a_worker_cannot_start_is_told_once(
    kept: Start, places: FakePlaces, caplog: pytest.LogCaptureFixture
) -> None:
    tries = count()

    def start_worker(name: str) -> PlacedWorker:
        next(tries)
        raise NotFound("there is no topic 'orderz'")

    places.start_worker = start_worker  # type: ignore[method-assign]
    kept()
    eventually(lambda: next(tries) > 4, lambda: "it is not tried again")
    assert caplog.messages == ["pool-0 cannot start: there is no topic 'orderz'"]


def test_a_successor_that_gives_up_stops_the_pool(kept: Start, places: FakePlaces) -> None:
    """With the counts of what it did."""
    old = FakeWorker("pool-0", "zero")
    places.left = {"pool-0": old}
    keeper = kept()
    eventually(lambda: len(places.begun) == 1, lambda: str(keeper.status()))
    places.begun[0].says = {"ended": True, "gave_up": True, "error": "a message failed 6 times", "failed": 6}
    eventually(lambda: not keeper.busy(), lambda: str(keeper.status()))
    assert (keeper.gave_up, keeper.status().failed) == ("a message failed 6 times", 6)
    assert "stop" in old.did
    assert len(places.begun) == 1


def test_successors_that_end_at_once_come_later_each_time(places: FakePlaces, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    seen: list[float] = []
    monkeypatch.setattr("sluice.cluster.workers.keeper.time.monotonic", lambda: now)
    old = FakeWorker("pool-0", "zero")
    places.left = {"pool-0": old}
    keeper = PoolKeeper(wanted_options({"name": "pool"}, "s"), places.version, places)

    def next_round(*_: object) -> None:
        nonlocal now
        now += 0.1
        if len(seen) < len(places.begun):
            seen.append(now)
        for worker in places.begun:
            worker.says = {"ended": True, "error": "no module"}
        if now > 1_060:
            keeper.stop()

    monkeypatch.setattr(places, "wait", next_round)
    keeper.run()
    gaps = [after - before for before, after in pairwise(seen)]
    assert len(seen) < 14
    assert gaps[1:] == sorted(gaps[1:])
    assert any("the successor of pool-0 ended: no module" in what for _, what in keeper.status().events)


def test_a_successor_that_does_not_answer_is_ended(kept: Start, places: FakePlaces) -> None:
    places.left = {"pool-0": FakeWorker("pool-0", "zero")}
    keeper = kept()
    eventually(lambda: len(places.begun) == 1, lambda: str(keeper.status()))
    places.begun[0].gone = WorkerGone("it did not answer for 30 s")
    eventually(lambda: len(places.begun) == 2, lambda: str(keeper.status()))
    assert places.begun[0].did == ["kill"]
