"""Faults that a person presses: what there is to break, and that they come besides what is planned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from loadgen.breaking import Breaker
from loadgen.chaos import Chaos
from loadgen.effects import PRESSED, Effect
from loadgen.faults import Fault
from loadgen.kinds import CONSUMER_KINDS, FREEZE, JOIN, KILL, SLOW
from loadgen.pressing import LASTS_S, Pressing
from storage.errors import Conflict, Invalid, Unavailable
from tests.loadgen.test_chaos import Processes, chaos, processes, signals

__all__ = ["chaos", "processes", "signals"]


@pytest.fixture
def breaker(chaos: Chaos) -> Iterator[Breaker]:
    made = Breaker(chaos, [], dict, in_acts=True)
    yield made
    made.end()


def begin(breaker: Breaker) -> None:
    breaker.start(lambda: 0, lambda: 0.0, lambda: 0.0)


def pressing(breaker: Breaker) -> Pressing:
    return Pressing(breaker, breaker._chaos, lambda: "act 2")


def test_all_of_this_run_can_be_broken_by_name(breaker: Breaker) -> None:
    victims = {victim["target"]: victim for victim in pressing(breaker).told()["victims"]}
    assert list(victims) == [
        "", "consumer-1", "consumer-2", "dispatcher/t/0/s", "dispatcher/t/1/s", "topic/t/0", "topic/t/1",
        "bookie/b-0", "bookie/b-1", "controller",
    ]  # fmt: skip
    assert victims[""]["kinds"] == (JOIN,), "there is no second node and no S3 server"
    assert {*victims["consumer-1"]["kinds"], JOIN} == set(CONSUMER_KINDS)
    assert victims["topic/t/1"]["label"] == "owner of partition 1"
    assert victims["topic/t/1"]["kinds"] == ("kill-topic", "freeze-topic")


def test_the_one_that_was_pressed_is_hit(breaker: Breaker, signals: list[tuple[int, int]]) -> None:
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
    assert page.told()["done"] == ["kill-controller controller", "kill-consumer consumer-2", "kill-topic broker-1-a"]


@pytest.mark.parametrize(
    ("kind", "target"), [(KILL, "consumer-9"), ("kill-topic", "topic/t-other/0"), (JOIN, "consumer-1"), ("fire", "")]
)
def test_what_is_not_of_this_run_is_refused(breaker: Breaker, kind: str, target: str) -> None:
    begin(breaker)
    with pytest.raises(Invalid, match=f"no {kind}"):
        pressing(breaker).press(kind, target)
    breaker.end()
    assert breaker._chaos.fleet.history == []


def test_without_a_load_nothing_is_broken(breaker: Breaker) -> None:
    with pytest.raises(Conflict, match="none now"):
        pressing(breaker).press(JOIN, "")
    assert not pressing(breaker).told()["open"]
    begin(breaker)
    assert pressing(breaker).told()["open"]
    breaker.end()
    assert not pressing(breaker).told()["open"]
    with pytest.raises(Conflict, match="none now"):
        pressing(breaker).press(JOIN, "")


def test_what_lasts_is_taken_back_soon(breaker: Breaker) -> None:
    begin(breaker)
    pressing(breaker).press(SLOW, "consumer-1")
    breaker.end()
    assert breaker._chaos.fleet.history[0]["lasts_s"] == LASTS_S
    breaker._chaos.fleet.calm()


def test_a_planned_fault_waits_for_its_own_effect(breaker: Breaker) -> None:
    """Its row is its own, whatever is pressed before it came."""
    fleet = breaker._chaos.fleet
    effect = Effect(Fault(FREEZE), fleet, dict)
    begin(breaker)
    breaker.press(Fault(JOIN))
    breaker.end()
    assert fleet.history[0][PRESSED]
    assert effect.entry is None
    fleet.note({"kind": FREEZE, "target": "consumer-1"})
    assert effect.entry == fleet.history[1]


def test_known_victims_stay_while_the_controller_is_away(
    breaker: Breaker, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr("loadgen.pressing._LOOK_EVERY_S", 0.0)
    page = pressing(breaker)
    before = page.told()["victims"]

    def away() -> list[dict[str, str]]:
        raise Unavailable("the controller restarts")

    monkeypatch.setattr(processes, "actors", away)
    assert page.told()["victims"] == before


def test_one_fault_at_a_time(breaker: Breaker, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most = 0, 0
    lock = threading.Lock()

    def inject(fault: Fault, _: Callable[..., object] | None = None) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        threading.Event().wait(0.01)
        with lock:
            inside -= 1

    monkeypatch.setattr(breaker._chaos, "inject", inject)
    monkeypatch.setattr(breaker, "_faults", [Fault(JOIN, at_s=0.0)] * 5)
    breaker._target = breaker._when_due
    begin(breaker)
    for _ in range(5):
        breaker.press(Fault(JOIN))
    assert breaker._thread is not None
    breaker._thread.join()
    breaker.end()
    assert most == 1
