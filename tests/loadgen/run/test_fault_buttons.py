"""Faults that a person presses: what there is to break, and that they come besides what is planned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from sluice.loadgen.base.kinds import CONSUMER_KINDS, FREEZE, HANG, JOIN, KILL, SLOW
from sluice.loadgen.faults.chaos import Chaos
from sluice.loadgen.faults.effects import Effect
from sluice.loadgen.faults.fault_injector import FaultInjector
from sluice.loadgen.faults.faults import PRESSED, Fault
from sluice.loadgen.run.fault_buttons import LASTS_S, FaultButtons
from sluice.storage.errors import Conflict, Invalid, Unavailable
from tests.cluster.helpers import eventually
from tests.loadgen.faults.test_chaos import Processes, chaos, processes, signals

PATIENCE_S = 60.0
__all__ = ["chaos", "processes", "signals"]


@pytest.fixture
def breaker(chaos: Chaos) -> Iterator[FaultInjector]:
    made = FaultInjector(chaos, [], dict, in_acts=True)
    yield made
    made.end()


def begin(breaker: FaultInjector) -> None:
    breaker.start(lambda: 0, lambda: 0.0, lambda: 0.0)


def pressing(breaker: FaultInjector, enough: Callable[[], None] = lambda: None) -> FaultButtons:
    return FaultButtons(breaker, breaker._chaos, lambda: "act 2", enough)


def test_all_of_this_run_can_be_broken_by_name(breaker: FaultInjector) -> None:
    victims = {victim["target"]: victim for victim in pressing(breaker).state()["victims"]}
    assert list(victims) == [
        "", "consumer-1", "consumer-2", "dispatcher/t/0/s", "dispatcher/t/1/s", "topic/t/0", "topic/t/1",
        "bookie/b-0", "bookie/b-1", "controller",
    ]  # fmt: skip
    assert victims[""]["kinds"] == (JOIN,), "there is no second node and no S3 server"
    assert {*victims["consumer-1"]["kinds"], JOIN} == set(CONSUMER_KINDS)
    assert victims["topic/t/1"]["label"] == "owner of partition 1"
    assert victims["topic/t/1"]["kinds"] == ("kill-topic", "freeze-topic", "clock-jump")
    assert victims["bookie/b-0"]["kinds"] == ("kill-bookie", "freeze-bookie", "slow-disk")


def test_the_one_that_was_pressed_is_hit(breaker: FaultInjector, signals: list[tuple[int, int]]) -> None:
    begin(breaker)
    page = pressing(breaker)
    page.press("kill-topic", "topic/t/1")
    page.press(KILL, "consumer-2")
    page.press("kill-controller", "controller")
    breaker.end()
    fleet = breaker._chaos.fleet
    assert [(row["kind"], row["target"]) for row in fleet.history] == [
        ("kill-topic", "broker-1-a"),
        (KILL, "consumer-2"),
        ("kill-controller", "controller"),
    ]
    assert [pid for pid, _ in signals] == [21, fleet.gone[0].pid, 30]
    assert page.state()["done"] == ["kill-controller controller", "kill-consumer consumer-2", "kill-topic broker-1-a"]


@pytest.mark.parametrize(
    ("kind", "target"), [(KILL, "consumer-9"), ("kill-topic", "topic/t-other/0"), (JOIN, "consumer-1"), ("fire", "")]
)
def test_kind_or_target_outside_the_run_is_refused(breaker: FaultInjector, kind: str, target: str) -> None:
    begin(breaker)
    with pytest.raises(Invalid, match=f"no {kind}"):
        pressing(breaker).press(kind, target)
    breaker.end()
    assert breaker._chaos.fleet.history == []


def test_without_a_load_nothing_is_broken(breaker: FaultInjector) -> None:
    with pytest.raises(Conflict, match="none now"):
        pressing(breaker).press(JOIN, "")
    assert not pressing(breaker).state()["open"]
    begin(breaker)
    assert pressing(breaker).state()["open"]
    breaker.end()
    assert not pressing(breaker).state()["open"]
    with pytest.raises(Conflict, match="none now"):
        pressing(breaker).press(JOIN, "")


def test_end_button_ends_the_load(breaker: FaultInjector) -> None:
    ended: list[bool] = []
    page = pressing(breaker, lambda: ended.append(True))
    with pytest.raises(Conflict, match="no load"):
        page.end()
    begin(breaker)
    page.end()
    breaker.end()
    with pytest.raises(Conflict, match="no load"):
        page.end()
    assert ended == [True]


def test_pressed_lasting_fault_is_taken_back_soon(breaker: FaultInjector) -> None:
    begin(breaker)
    pressing(breaker).press(SLOW, "consumer-1")
    breaker.end()
    assert breaker._chaos.fleet.history[0]["lasts_s"] == LASTS_S
    breaker._chaos.fleet.calm()


def test_a_planned_fault_waits_for_its_own_effect(breaker: FaultInjector) -> None:
    """A planned fault has a row of its own, even if others are pressed before it comes."""
    fleet = breaker._chaos.fleet
    effect = Effect(Fault(FREEZE), fleet, dict)
    begin(breaker)
    breaker.press(Fault(JOIN, pressed=True))
    breaker.end()
    assert fleet.history[0][PRESSED]
    assert effect.entry is None
    fleet.note({"kind": FREEZE, "target": "consumer-1"})
    assert effect.entry == fleet.history[1]


def test_known_victims_stay_while_the_controller_is_away(
    breaker: FaultInjector, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr("sluice.loadgen.run.fault_buttons._LOOK_EVERY_S", 0.0)
    page = pressing(breaker)
    before = page.state()["victims"]

    def away() -> list[dict[str, str]]:
        raise Unavailable("the controller restarts")

    monkeypatch.setattr(processes, "actors", away)
    assert page.state()["victims"] == before


def test_pressed_fault_does_not_wait_for_a_planned_one(
    breaker: FaultInjector, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """A consumer that hangs until its queue is full takes seconds; a pressed join happens at once."""
    hangs, pressed = threading.Event(), threading.Event()

    def until_behind(name: str) -> dict[str, int]:
        hangs.set()
        assert pressed.wait(PATIENCE_S), "what was pressed waits"
        return {"held": 40, "behind": 9}

    monkeypatch.setattr(breaker._chaos._holding, "until_behind", until_behind)
    monkeypatch.setattr(breaker, "_faults", [Fault(HANG)])
    breaker._target = breaker._when_due
    begin(breaker)
    assert hangs.wait(PATIENCE_S)
    pressing(breaker).press(JOIN, "")
    fleet = breaker._chaos.fleet
    eventually(lambda: len(fleet.working) == 3, "the one who joins", PATIENCE_S)
    pressed.set()
    assert breaker._thread is not None
    breaker._thread.join()
    breaker.end()
    assert [(row["kind"], row.get(PRESSED, False)) for row in fleet.history] == [(JOIN, True), (HANG, False)]
    assert breaker.troubles == []


def test_two_who_kill_at_once_never_leave_two_of_a_name(
    breaker: FaultInjector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "_faults", [Fault(KILL, at_s=0.0, lot=0.5 * (n % 2)) for n in range(20)])
    breaker._target = breaker._when_due
    begin(breaker)
    for n in range(20):
        breaker.press(Fault(KILL, lot=0.5 * (n % 2), pressed=True))
    assert breaker._thread is not None
    breaker._thread.join()
    breaker.end()
    fleet = breaker._chaos.fleet
    assert sorted(member.name for member in fleet.working) == ["consumer-1", "consumer-2"]
    assert len({member.incarnation for member in fleet.gone}) == len(fleet.gone) == len(fleet.history)
    assert len(fleet.history) + len(fleet.passed_over) == 40
    assert breaker.troubles == []
