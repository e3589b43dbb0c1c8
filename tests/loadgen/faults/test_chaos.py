"""The victims of the broker's faults and the rows noted of them, with pretended processes or the test's own."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sluice.actors.key_shared.state.history import Change
from sluice.loadgen.base.history import HistoryClock
from sluice.loadgen.base.kinds import (
    CLOCK_JUMP,
    FLOOD_KINDS,
    KILL,
    KINDS,
    MACHINE_KINDS,
    S3_DOWN,
    SLOW_DISK,
    standard_kinds,
)
from sluice.loadgen.base.options import FloodOptions
from sluice.loadgen.faults.chaos import Chaos, _store_bytes, plan
from sluice.loadgen.faults.faults import FREEZE, Fault, Fleet
from sluice.loadgen.faults.impairments import CLOCK_ROLES, LEAPS_MS
from sluice.loadgen.faults.machine_control import MachineControl
from sluice.loadgen.faults.machine_faults import MachineFaults
from sluice.loadgen.faults.rolling import HASHES, Moves, plan_rolling
from sluice.loadgen.faults.slowdowns import Slowdown
from sluice.loadgen.load.consume import ConsumeJob
from sluice.storage.errors import Unavailable
from tests.loadgen.fakes import ListClient, ListConsumer
from tests.loadgen.faults.test_faults import PretendedProcess

ROWS = [
    {"kind": "bookie", "name": "bookie/b-0", "address": "bookie-0-a/x"},
    {"kind": "bookie", "name": "bookie/b-1", "address": ""},
    {"kind": "topic", "name": "topic/t/0", "address": "broker-0-a/x"},
    {"kind": "topic", "name": "topic/t/1", "address": "broker-1-a/x"},
    {"kind": "topic", "name": "topic/t-other/0", "address": "broker-9-a/x"},
    {"kind": "dispatcher", "name": "dispatcher/t/0/s", "address": "broker-0-a/y"},
    {"kind": "dispatcher", "name": "dispatcher/t/1/s", "address": "broker-0-a/z"},
]
PIDS = {"bookie-0-a": 11, "broker-0-a": 20, "broker-1-a": 21, "controller": 30}


class Processes:
    """A cluster of names."""

    def __init__(self) -> None:
        self.rows = ROWS
        self.node_pids: list[int] = []
        self.started = 0
        self.pids = dict(PIDS)
        self.elsewhere: list[str] = []
        self.impaired: list[tuple[str, str, int, float]] = []

    def actors(self) -> list[dict[str, Any]]:
        return self.rows

    def pid(self, host: str) -> int:
        if host in self.elsewhere:
            raise LookupError(f"{host} is on another machine")
        if host not in self.pids:
            raise Unavailable(f"{host} does not say its process id")
        return self.pids[host]

    def nodes(self) -> int:
        return 1

    def node(self, lot: float) -> tuple[str, list[int], Callable[[], None]]:
        def another() -> None:
            self.started += 1

        return "node", self.node_pids, another

    def s3(self) -> int:
        raise LookupError("nobody listens")

    def kinds(self) -> list[str]:
        return standard_kinds()

    def machines(self) -> list[str]:
        return ["10.0.0.1", "10.0.0.2", "10.0.0.3"]

    def machine(self, host: str) -> str:
        return "elsewhere" if host in self.elsewhere else "here"

    def impair(self, host: str, kind: str, amount: int, seconds: float) -> None:
        self.impaired.append((host, kind, amount, seconds))

    def relieve(self, host: str, kind: str) -> int:
        return 7


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    sent: list[tuple[int, int]] = []
    PretendedProcess.made = []
    monkeypatch.setattr("sluice.loadgen.faults.faults.os.kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr("sluice.loadgen.faults.faults.AWAY_S", 0)
    monkeypatch.setattr("sluice.loadgen.faults.chaos.NODE_AWAY_S", 0)
    monkeypatch.setattr("sluice.loadgen.faults.chaos.FIND_S", 0)
    return sent


@pytest.fixture
def processes() -> Processes:
    return Processes()


@pytest.fixture
def chaos(tmp_path: Path, processes: Processes, signals: list[tuple[int, int]]) -> Chaos:
    client = ListClient(ListConsumer(deque()))
    job = ConsumeJob(client, "t", "s", HistoryClock.start(), tmp_path)
    job.prepare()
    fleet = Fleet(job, PretendedProcess)
    fleet.start(2, spares=1)
    return Chaos(fleet, processes, client, "t", "s", FloodOptions.from_values(seed=1))  # type: ignore[arg-type]


def test_killed_owner_takes_everything_in_its_process_with_it(chaos: Chaos, signals: list[tuple[int, int]]) -> None:
    chaos.inject(Fault("kill-dispatcher", lot=0.9))
    assert signals == [(20, signal.SIGKILL)]
    assert chaos.moves_expected
    (noted,) = chaos.fleet.history
    assert (noted["kind"], noted["target"]) == ("kill-dispatcher", "broker-0-a")
    assert (noted["dispatchers"], noted["topics"]) == ([0, 1], [0])


def test_lot_chooses_among_the_owners_of_this_run_alone(chaos: Chaos, signals: list[tuple[int, int]]) -> None:
    for lot in (0.0, 0.4, 0.6, 0.99):
        chaos.inject(Fault("kill-topic", lot=lot))
    assert [pid for pid, _ in signals] == [20, 20, 21, 21]


@pytest.mark.parametrize(("kind", "pid"), [("kill-bookie", 11), ("kill-controller", 30)])
def test_bookies_that_run_and_the_controller(chaos: Chaos, signals: list[tuple[int, int]], kind: str, pid: int) -> None:
    chaos.inject(Fault(kind, lot=0.99))
    assert signals == [(pid, signal.SIGKILL)]


def test_frozen_owner_goes_on_at_the_end_at_the_latest(chaos: Chaos, signals: list[tuple[int, int]]) -> None:
    chaos.inject(Fault("freeze-topic", lasts_s=3_600))
    chaos.inject(Fault("freeze-dispatcher", lasts_s=3_600))  # the same process
    assert signals == [(20, signal.SIGSTOP)]
    assert chaos.passed_over == ["freeze-dispatcher: broker-0-a is frozen already"]
    chaos.finish()
    assert signals == [(20, signal.SIGSTOP), (20, signal.SIGCONT)]
    assert chaos.fleet.history[0]["lasts_s"] == 3_600


def test_a_process_of_another_machine_is_left_alone(
    chaos: Chaos, processes: Processes, signals: list[tuple[int, int]]
) -> None:
    """The process id belongs to another process here. Another victim of its role is hit, if there is one."""
    processes.elsewhere = ["broker-0-a", "bookie-0-a"]
    chaos.inject(Fault("kill-topic", lot=0.0))
    chaos.inject(Fault("kill-bookie", lot=0.0))
    assert signals == [(21, signal.SIGKILL)]
    assert chaos.passed_over == ["kill-bookie: every bookie is on another machine"]


def test_the_disk_of_a_machine_is_slow_for_all_its_bookies(chaos: Chaos, processes: Processes) -> None:
    """Once at a time, and wherever they are. The row of the fault tells the effect when it is over."""
    processes.rows = [*ROWS, {"kind": "bookie", "name": "bookie/b-2", "address": "bookie-2-a/x"}]
    processes.rows += [{"kind": "bookie", "name": "bookie/b-3", "address": "bookie-3-a/x"}]
    processes.elsewhere = ["bookie-0-a", "bookie-2-a"]
    chaos.inject(Fault(SLOW_DISK, lot=0.0, lasts_s=3_600))
    hit = [("bookie-0-a", SLOW_DISK, 200, 3_600), ("bookie-2-a", SLOW_DISK, 200, 3_600)]
    assert processes.impaired == hit
    chaos.inject(Fault(SLOW_DISK, target="bookie/b-2", lasts_s=3_600))
    assert chaos.passed_over == ["slow-disk: bookie-0-a has it already"]
    chaos.inject(Fault(SLOW_DISK, target="bookie/b-3", lasts_s=3_600))
    assert processes.impaired == [*hit, ("bookie-3-a", SLOW_DISK, 200, 3_600)]
    chaos.finish()
    told = [(row["kind"], row["target"], row["effect"]) for row in chaos.fleet.history]
    assert told == [
        (SLOW_DISK, "bookie-0-a and bookie-2-a", "14 syncs took 200 ms longer"),
        (SLOW_DISK, "bookie-3-a", "7 syncs took 200 ms longer"),
    ]


def test_a_clock_leaps_where_the_lot_says(chaos: Chaos, processes: Processes) -> None:
    """The clock of any process leaps, on every machine, or that of the named one. The row says by how much."""
    processes.elsewhere = ["broker-0-a", "bookie-0-a"]
    for number in range(len(CLOCK_ROLES) * len(LEAPS_MS)):
        chaos.inject(Fault(CLOCK_JUMP, lot=(number + 0.7) / 1_000, lasts_s=3_600))
        chaos.finish()
    assert {(host, amount) for host, _, amount, _ in processes.impaired} == {
        (host, amount) for host in ("broker-0-a", "broker-1-a") for amount in LEAPS_MS
    }
    assert {kind for _, kind, *_ in processes.impaired} == {CLOCK_JUMP}
    rows = chaos.fleet.history
    assert [row["ahead_ms"] for row in rows] == [amount for _, _, amount, _ in processes.impaired]
    assert not chaos.moves_expected, "no key goes elsewhere because of a clock"
    assert rows[0]["effect"] == "7 looks at a clock that was 60 s ahead"
    chaos.inject(Fault(CLOCK_JUMP, target="topic/t/1", lasts_s=3_600))
    assert processes.impaired[-1:] == [("broker-1-a", CLOCK_JUMP, 60_000, 3_600)]
    chaos.inject(Fault(CLOCK_JUMP, target="topic/t/1", lasts_s=3_600))
    assert chaos.passed_over == ["clock-jump: broker-1-a has it already"]


def test_nothing_else_is_broken_while_the_head_is_away(chaos: Chaos, signals: list[tuple[int, int]]) -> None:
    """A consumer killed then could not be replaced, because none could join."""
    chaos._machines = MachineFaults(MachineControl("nowhere"), "10.0.0.1")
    chaos._machines.headless = True
    chaos.inject(Fault("kill-topic"))
    chaos.inject(Fault(KILL))
    assert signals == []
    assert chaos.passed_over == ["kill-topic: Ray's head is away", f"{KILL}: Ray's head is away"]


def test_the_controller_is_hit_where_it_is(chaos: Chaos, processes: Processes, signals: list[tuple[int, int]]) -> None:
    processes.rows = [*ROWS, {"kind": "controller", "name": "controller", "address": "controller-7/controller"}]
    processes.pids["controller-7"] = 77
    chaos.inject(Fault("kill-controller"))
    assert signals == [(77, signal.SIGKILL)]


def test_victim_that_cannot_be_found_is_passed_over(chaos: Chaos, signals: list[tuple[int, int]]) -> None:
    chaos._processes.pids = {}  # type: ignore[attr-defined]
    chaos.inject(Fault("kill-topic"))
    chaos.inject(Fault(S3_DOWN))
    assert (signals, chaos.fleet.history) == ([], [])
    assert chaos.passed_over == [
        "kill-topic: broker-0-a does not say its process id",
        "s3-down: nobody listens",
    ]


def test_controller_that_is_just_being_replaced_is_asked_again(
    chaos: Chaos, processes: Processes, signals: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.loadgen.faults.chaos.FIND_S", 60)
    monkeypatch.setattr("sluice.loadgen.faults.chaos.FIND_EVERY_S", 0)
    answers = [Unavailable("the controller restarts"), Unavailable("the controller restarts")]

    def actors() -> list[dict[str, Any]]:
        if answers:
            raise answers.pop()
        return ROWS

    processes.actors = actors  # type: ignore[method-assign]
    chaos.inject(Fault("kill-topic"))
    assert signals == [(20, signal.SIGKILL)]
    assert chaos.passed_over == []


def test_killed_node_is_replaced_and_so_are_the_consumers_on_it(
    chaos: Chaos, processes: Processes, signals: list[tuple[int, int]]
) -> None:
    victim = chaos.fleet.working[0]
    processes.node_pids = [77, 20, victim.pid]
    chaos.inject(Fault("kill-node"))
    chaos.finish()
    assert [pid for pid, _ in signals] == [77, 20, victim.pid]
    assert processes.started == 1
    assert chaos.troubles == []
    assert (chaos.fleet.history[0]["dispatchers"], chaos.fleet.history[0]["topics"]) == ([0, 1], [0])
    assert [(row["consumer"], row["event"]) for row in chaos.fleet._events] == [(victim.incarnation, "death")]
    assert sorted(member.incarnation for member in chaos.fleet.working) == ["consumer-1.2", "consumer-2.1"]


def test_node_that_cannot_be_replaced_is_told(chaos: Chaos, processes: Processes) -> None:
    def node(lot: float) -> tuple[str, list[int], Callable[[], None]]:
        def another() -> None:
            raise Unavailable("no memory")

        return "node", [77], another

    processes.node = node  # type: ignore[method-assign]
    chaos.inject(Fault("kill-node"))
    chaos.finish()
    assert chaos.troubles == ["the killed node could not be replaced: no memory"]


def test_the_new_node_has_as_much_room_as_the_killed_one() -> None:
    """With less, what consumers and brokers there send each other would not fit."""
    command = ["raylet", "--static_resource_list=CPU,2,object_store_memory,7", "--object_store_memory=123", "--x=1"]
    assert _store_bytes(command) == 123
    with pytest.raises(LookupError, match="object store"):
        _store_bytes(["raylet"])


def test_frozen_consumer_is_left_alone_until_it_goes_on(chaos: Chaos, signals: list[tuple[int, int]]) -> None:
    chaos.inject(Fault(FREEZE, lot=0.0, lasts_s=3_600))
    frozen = chaos.fleet.history[0]["incarnation"]
    for _ in range(3):
        chaos.inject(Fault(KILL, lot=0.0))
    assert frozen in [member.incarnation for member in chaos.fleet.working]
    assert len(chaos.fleet.history) == 4
    chaos.fleet.finish()
    assert signals[-1][1] == signal.SIGCONT


@pytest.fixture
def child() -> Iterator[psutil.Process]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield psutil.Process(process.pid)
        process.kill()


def until(process: psutil.Process, *wanted: str) -> None:
    while process.status() not in wanted:
        time.sleep(0.001)


@pytest.mark.timeout(60)
def test_episode_stops_a_real_process_and_lets_it_go_on(child: psutil.Process) -> None:
    episode = Slowdown([child.pid], seconds=3_600)
    until(child, psutil.STATUS_STOPPED)
    assert [episode.over] == [False]
    episode.end()
    episode.end()
    assert [episode.over] == [True]
    until(child, psutil.STATUS_SLEEPING)
    short = Slowdown([child.pid], seconds=0.05)
    short._thread.join()
    until(child, psutil.STATUS_SLEEPING)


@pytest.mark.timeout(60)
def test_slowed_process_runs_and_stops_in_turn(child: psutil.Process) -> None:
    episode = Slowdown([child.pid], seconds=3_600, share=0.1)
    for _ in range(2):
        until(child, psutil.STATUS_STOPPED)
        until(child, psutil.STATUS_SLEEPING)
    episode.end()
    until(child, psutil.STATUS_SLEEPING)


class _Nodes(Processes):
    def kinds(self) -> list[str]:
        return standard_kinds(nodes=3)


def test_plan_follows_the_options() -> None:
    everything = plan(FloodOptions.from_values(minutes=1, faults="all", seed=1), _Nodes())  # type: ignore[arg-type]
    assert len(everything) == 20
    assert {fault.kind for fault in everything} == {*KINDS} - {S3_DOWN, *MACHINE_KINDS}
    some = plan(FloodOptions.from_values(minutes=1, faults="kill-topic", fault_every_ms=500), _Nodes())  # type: ignore[arg-type]
    assert {fault.kind for fault in some} == {"kill-topic"}
    assert len(some) == 120
    flood = plan(FloodOptions.from_values(minutes=1, restarts=3), _Nodes())  # type: ignore[arg-type]
    assert {fault.kind for fault in flood} == set(FLOOD_KINDS)
    rolling = FloodOptions.from_values(scenario="rolling-restart", rounds=2, consumers=3, faults="all", minutes=1)
    targets = [fault.target for fault in plan(rolling, _Nodes())]  # type: ignore[arg-type]
    assert targets == ["consumer-1", "consumer-2", "consumer-3"] * 2


def test_a_rolling_restart_hits_everybody_in_turn(chaos: Chaos, signals: list[tuple[int, int]]) -> None:
    made = len(PretendedProcess.made)
    for fault in plan_rolling(2, 2, 0.1):
        chaos.inject(fault)
    assert [member.incarnation for member in chaos.fleet.working] == ["consumer-1.3", "consumer-2.3"]
    assert [row["target"] for row in chaos.fleet.history] == ["consumer-1", "consumer-2"] * 2
    assert (signals, len(PretendedProcess.made)) == ([], made)


def change(epoch: int, cause: str, *moved: tuple[int, int, str, str], consumers: int = 3) -> dict[str, Any]:
    return Change(epoch, 0, cause, moved, consumers).as_dict()


def test_moves_are_counted_against_what_is_deserved() -> None:
    moves = Moves()
    first = change(1, "a joined", (1, HASHES, "", "a#1"))
    moves.count(0, 1, [first])
    assert moves.changes == 0
    left = change(2, "a b left", (1, 100, "a b#1", "c#3"), (200, 249, "d#2", "c#3"), (300, 310, "a b#1", ""))
    moves.count(0, 1, [first, left])
    assert (moves.moved, moves.minimum) == (150, 100)
    moves.count(0, 1, [first, left])
    assert moves.changes == 1
    joined = change(3, "a b joined", (1, 100, "c#3", "a b#4"))
    moves.count(0, 1, [left, joined])
    assert (moves.moved, moves.minimum) == (250, 100 + HASHES / 3)
    moves.count(0, 1, [joined, change(4, "e joined", (1, 50, "c#3", "e#5"), consumers=4)])
    assert (moves.moved, moves.minimum) == (300, 100 + HASHES / 3 + HASHES / 4)
    moves.count(0, 2, [change(7, "x left", (1, 9, "x#1", "y#2"))])  # another owner begins to number at 0
    moves.count(1, 1, [change(9, "x left", (1, 9, "x#1", "y#2"))])
    assert moves.changes == 3
