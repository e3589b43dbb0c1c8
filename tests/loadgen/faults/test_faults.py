"""The working consumers and the history of the dead ones, with processes that are only pretended."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sluice.loadgen.base.history import DEATH, EVENTS, EXPIRED, HistoryClock
from sluice.loadgen.faults.faults import (
    HANG,
    JOIN,
    KILL,
    KINDS,
    MOST_MORE,
    RESTART,
    Fault,
    Fleet,
    plan_by_share,
    plan_by_time,
    processes_needed,
)
from sluice.loadgen.load.consume import ConsumeJob, ConsumerProgress
from sluice.storage.errors import Invalid, Unavailable
from tests.loadgen.fakes import ListClient, ListConsumer


class PretendedProcess:
    """A handle that remembers what it was told."""

    made: list[PretendedProcess]

    def __init__(self, job: ConsumeJob, error: str = "") -> None:
        self.incarnation = self.name = ""
        self.calls: list[str] = []
        self.error = error
        self.job = job
        self.pid = 1_000_000 + len(PretendedProcess.made)
        PretendedProcess.made.append(self)

    def ready(self, timeout_s: float) -> int:
        return self.pid

    def start(self, incarnation: str, consumer_name: str, receiver_queue_size: int) -> None:
        self.incarnation, self.name = incarnation, consumer_name
        told = ConsumerProgress(joined=not self.error, received=10, redelivered=1, error=self.error)
        told.write(self.job.progress / incarnation)

    def stop(self, timeout_s: float) -> None:
        self.calls.append("stop")

    def end(self) -> None:
        self.calls.append("end")


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    PretendedProcess.made = []
    pids: list[int] = []
    monkeypatch.setattr("sluice.loadgen.faults.faults.os.kill", lambda pid, signal: pids.append(pid))
    monkeypatch.setattr("sluice.loadgen.faults.faults.AWAY_S", 0)
    return pids


def make_fleet(tmp_path: Path) -> Fleet:
    job = ConsumeJob(ListClient(ListConsumer(deque())), "t", "s", HistoryClock.start(), tmp_path)
    job.prepare()
    return Fleet(job, PretendedProcess)


def test_default_plan_has_one_of_each_in_the_middle_of_the_run() -> None:
    plan = plan_by_share(3)
    assert [fault.kind for fault in plan] == [RESTART, KILL, JOIN]
    assert all(0.1 < fault.share < 0.9 for fault in plan)
    assert plan[1].due(0.5, 0.0)
    assert not plan[1].due(0.3, 1e9)
    assert plan_by_share(0) == []


def test_plan_by_time_is_drawn_from_the_seed() -> None:
    kinds = list(KINDS)
    plan = plan_by_time(kinds, 2.0, 60.0, seed=4)
    assert plan == plan_by_time(kinds, 2.0, 60.0, seed=4)
    assert plan != plan_by_time(kinds, 2.0, 60.0, seed=5)
    assert {fault.kind for fault in plan[: len(kinds)]} == set(kinds)
    for fault in plan:
        shortest, longest = KINDS[fault.kind].seconds
        assert shortest <= fault.lasts_s <= longest
    assert [fault.at_s for fault in plan] == [2.0 * (turn + 1) for turn in range(30)]
    assert plan[0].due(0.0, 2.0)
    assert not plan[0].due(1.0, 1.9)
    with pytest.raises(Invalid, match="set-fire"):
        plan_by_time(["set-fire"], 1.0, 5.0, seed=1)


def test_a_killed_consumer_is_replaced_and_its_death_written(tmp_path: Path, killed: list[int]) -> None:
    fleet = make_fleet(tmp_path)
    fleet.start(3, spares=1)
    assert sorted(member.incarnation for member in fleet.working) == ["consumer-1.1", "consumer-2.1", "consumer-3.1"]
    before = fleet._job.clock.now()
    fleet.inject(Fault(KILL))
    (dead,) = fleet.gone
    assert killed == [dead.pid]
    assert [m.incarnation for m in fleet.working if m.name == dead.name] == [f"{dead.name}.2"]
    assert len(PretendedProcess.made) == 4
    fleet.finish()
    rows = pq.read_table(tmp_path / "events" / "driver.parquet", schema=EVENTS).to_pylist()
    assert [(row["consumer"], row["event"]) for row in rows] == [(dead.incarnation, DEATH)]
    assert rows[0]["at"] >= before
    assert fleet.history[0]["kind"] == KILL
    assert fleet.history[0]["target"] == dead.name


def test_victim_is_stopped_until_it_holds_messages(tmp_path: Path, killed: list[int]) -> None:
    fleet = make_fleet(tmp_path)
    fleet.start(2, spares=1)
    asked: list[tuple[str, list[int]]] = []

    def until(name: str) -> dict[str, int]:
        asked.append((name, list(killed)))
        return {"held": 32}

    fleet.inject(Fault(KILL, holding=True), until)
    (dead,) = fleet.gone
    assert asked == [(dead.name, [dead.pid])], "it was stopped, and nothing else, when it was asked"
    assert set(killed) == {dead.pid}
    assert fleet.history[0]["held"] == 32


def test_hanging_consumer_gets_help_before_it_is_killed(tmp_path: Path, killed: list[int]) -> None:
    """Among the consumers that can hang, one with a short queue is chosen."""
    fleet = make_fleet(tmp_path)
    fleet.start(2, spares=0)
    fleet.prepare(3, 50)
    fleet.inject(Fault(JOIN))
    fleet.inject(Fault(HANG, lot=0.9), lambda name: {"held": 40, "behind": 9})
    (dead,) = fleet.gone
    assert (dead.name, dead.queue) == ("consumer-3", 50)
    assert [member.incarnation for member in fleet.working[-2:]] == ["consumer-4.1", "consumer-3.2"]
    row = fleet.history[-1]
    assert (row["kind"], row["target"], row["helper"], row["held"]) == (HANG, "consumer-3", "consumer-4", 40)
    assert processes_needed([Fault(JOIN), Fault(HANG)]) == 3


def test_helper_leaves_when_there_are_enough(tmp_path: Path, killed: list[int]) -> None:
    """A long run has no more consumers than may join for good."""
    fleet = make_fleet(tmp_path)
    fleet.start(2, spares=0)
    for _ in range(3 * MOST_MORE):
        fleet.inject(Fault(HANG), lambda name: {"held": 40, "behind": 9})
        assert len(fleet.working) <= 2 + MOST_MORE
    helper = fleet.history[-1]["helper"]
    (process,) = [made for made in PretendedProcess.made if made.incarnation == f"{helper}.1"]
    assert process.calls == ["stop", "end"], "cleanly"


def test_consumer_that_hung_for_long_may_have_lost_its_lease(
    tmp_path: Path, killed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of the victim may have gone to others before it was killed, and it can write down nothing itself."""
    monkeypatch.setattr("sluice.loadgen.faults.faults.SURE_S", 0.0)
    fleet = make_fleet(tmp_path)
    fleet.start(2, spares=0)
    before = fleet._job.clock.now()
    fleet.inject(Fault(HANG), lambda name: {"held": 40, "behind": 9})
    (dead,) = fleet.gone
    fleet.finish()
    rows = pq.read_table(tmp_path / "events" / "driver.parquet", schema=EVENTS).to_pylist()
    assert [(row["consumer"], row["event"]) for row in rows] == [(dead.incarnation, EXPIRED), (dead.incarnation, DEATH)]
    assert before <= rows[0]["at"] <= rows[1]["at"]


def test_restarted_consumer_leaves_cleanly_and_comes_back(tmp_path: Path, killed: list[int]) -> None:
    fleet = make_fleet(tmp_path)
    fleet.start(2, spares=0)
    fleet.inject(Fault(RESTART))
    (left,) = fleet.gone
    assert killed == []
    assert PretendedProcess.made[[p.incarnation for p in PretendedProcess.made].index(left.incarnation)].calls == [
        "stop",
        "end",
    ]
    assert [m.incarnation for m in fleet.working][-1] == f"{left.name}.2"


def test_join_adds_a_new_name_from_the_spares(tmp_path: Path, killed: list[int]) -> None:
    fleet = make_fleet(tmp_path)
    fleet.start(2, spares=1)
    fleet.inject(Fault(JOIN))
    assert [member.name for member in fleet.working] == ["consumer-1", "consumer-2", "consumer-3"]
    assert len(PretendedProcess.made) == 3


def test_spares_that_are_taken_are_made_up_for(tmp_path: Path, killed: list[int]) -> None:
    fleet = make_fleet(tmp_path)
    fleet.start(2, spares=0, kept=2)
    kept = PretendedProcess.made[2:]
    fleet.poll()
    assert len(kept) == len(PretendedProcess.made[2:]) == 2
    fleet.inject(Fault(JOIN))
    joined = fleet.working[-1]
    assert joined.handle in kept
    ConsumerProgress(joined=False).write(tmp_path / "consuming" / joined.incarnation)
    fleet.poll()
    assert len(PretendedProcess.made) == 4, "nobody takes time from who joins"
    ConsumerProgress(joined=True).write(tmp_path / "consuming" / joined.incarnation)
    fleet.poll()
    fleet.poll()
    assert len(PretendedProcess.made) == 5


def test_counts_include_those_that_are_gone(tmp_path: Path, killed: list[int]) -> None:
    fleet = make_fleet(tmp_path)
    fleet.start(2, spares=2)
    fleet.inject(Fault(KILL))
    fleet.poll()
    assert len(fleet.gone) == 1
    assert fleet.received == 30
    assert fleet.redelivered == 3


def test_killing_the_last_consumer_leaves_a_replacement(tmp_path: Path, killed: list[int]) -> None:
    fleet = make_fleet(tmp_path)
    fleet.start(1, spares=0)
    fleet.inject(Fault(KILL))
    assert len(fleet.working) == 1


def test_spare_that_is_dead_is_not_what_a_consumer_comes_back_in(tmp_path: Path, killed: list[int]) -> None:
    fleet = make_fleet(tmp_path)
    fleet.start(2, spares=1)

    def gone(timeout_s: float) -> int:
        raise ConnectionResetError("it went with its node")

    PretendedProcess.made[2].ready = gone  # type: ignore[method-assign]
    fleet.inject(Fault(KILL))
    assert len(fleet.working) == 2
    assert fleet.working[-1].pid == PretendedProcess.made[3].pid


def test_process_that_does_not_answer_keeps_its_incarnation(tmp_path: Path, killed: list[int]) -> None:
    """The process may have joined: two consumers under one incarnation would be one to the judge."""
    fleet = make_fleet(tmp_path)
    fleet.start(2, spares=1)
    spare = PretendedProcess.made[2]
    begin = spare.start

    def unheard(incarnation: str, consumer_name: str, receiver_queue_size: int) -> None:
        begin(incarnation, consumer_name, receiver_queue_size)
        raise Unavailable("a consumer process did not answer start within 30 s")

    spare.start = unheard  # type: ignore[method-assign]
    fleet.inject(Fault(KILL))
    assert len({process.incarnation for process in PretendedProcess.made}) == 4
    assert spare.calls == ["end"]
    assert [member.incarnation for member in fleet.gone][1:] == [spare.incarnation], "its journals are read"
    fleet.finish()
    rows = pq.read_table(tmp_path / "events" / "driver.parquet", schema=EVENTS).to_pylist()
    assert [row["event"] for row in rows if row["consumer"] == spare.incarnation] == [DEATH]


def test_fault_passes_over_consumers_while_half_are_joining(tmp_path: Path, killed: list[int]) -> None:
    fleet = make_fleet(tmp_path)
    fleet.start(3, spares=0)
    for member in fleet.working[:2]:
        ConsumerProgress(joined=False).write(tmp_path / "consuming" / member.incarnation)
    fleet.inject(Fault(KILL))
    assert (killed, fleet.history) == ([], [])
    assert fleet.passed_over == ["kill-consumer: 1 of 3 consumers work just now"]
    ConsumerProgress(joined=True).write(tmp_path / "consuming" / fleet.working[0].incarnation)
    fleet.inject(Fault(KILL))
    assert len(killed) == 1


def test_a_consumer_that_cannot_join_is_told_at_once(tmp_path: Path, killed: list[int]) -> None:
    fleet = make_fleet(tmp_path)
    fleet._spawn = lambda job: PretendedProcess(job, error="Unavailable: nobody answers")
    with pytest.raises(Unavailable, match=r"consumer-1\.1 stopped: Unavailable: nobody answers"):
        fleet.start(1, spares=0)


def test_close_ends_every_process_once(tmp_path: Path, killed: list[int]) -> None:
    fleet = make_fleet(tmp_path)
    fleet.start(2, spares=1)
    fleet.close()
    fleet.close()
    assert [process.calls for process in PretendedProcess.made] == [["end"]] * 3
