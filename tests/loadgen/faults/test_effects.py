"""Whether a fault has shown its effect, with processes that are pretended."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.loadgen.base.history import HistoryClock
from sluice.loadgen.base.kinds import FREEZE, HANG, JOIN, KILL
from sluice.loadgen.faults.effects import Effect
from sluice.loadgen.faults.faults import Fault, Fleet
from sluice.loadgen.load.consume import ConsumeJob, ConsumerProgress
from tests.loadgen.fakes import ListClient, ListConsumer
from tests.loadgen.faults.test_faults import PretendedProcess


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    from collections import deque

    PretendedProcess.made = []
    monkeypatch.setattr("sluice.loadgen.faults.faults.os.kill", lambda pid, number: None)
    monkeypatch.setattr("sluice.loadgen.faults.effects.DRAIN_S", 0.0)
    job = ConsumeJob(ListClient(ListConsumer(deque())), "t", "s", HistoryClock.start(), tmp_path)
    job.prepare()
    made = Fleet(job, PretendedProcess)
    made.start(2, 0)
    return made


def tell(fleet: Fleet, incarnation: str, received: int) -> None:
    """A consumer says how far it is."""
    ConsumerProgress(True, received).write(fleet._job.progress / incarnation)
    fleet.poll()


def test_a_newcomer_must_receive_something(fleet: Fleet) -> None:
    fault = Fault(JOIN)
    effect = Effect(fault, fleet, dict)
    assert effect.entry is None
    fleet.inject(fault)
    assert effect.seen() == ""
    tell(fleet, "consumer-3.1", 5)
    assert effect.seen().startswith("consumer-3.1 received messages")
    effect.note(effect.seen())
    assert fleet.history[-1]["effect"].startswith("consumer-3.1")


def test_successor_of_a_killed_consumer_counts(fleet: Fleet) -> None:
    tell(fleet, "consumer-1.1", 50)
    fault = Fault(KILL, lot=0.0)
    effect = Effect(fault, fleet, dict)
    fleet.inject(fault)
    assert effect.seen() == ""
    tell(fleet, "consumer-1.2", 1)
    assert effect.seen().startswith("consumer-1.2 went on")


def test_the_kill_of_one_who_held_nothing_has_no_effect(fleet: Fleet) -> None:
    fault = Fault(KILL, lot=0.0, holding=True)
    effect = Effect(fault, fleet, dict)
    fleet.inject(fault, lambda name: {"held": 0})
    tell(fleet, "consumer-1.2", 1)
    assert effect.seen() == ""
    assert effect.entry is not None
    effect.entry["held"] = 1_200
    assert effect.seen().startswith("it held 1,200; consumer-1.2 went on")


def test_a_hang_behind_which_nothing_waited_has_no_effect(fleet: Fleet) -> None:
    fault = Fault(HANG, lot=0.0)
    effect = Effect(fault, fleet, dict)
    fleet.inject(fault, lambda name: {"held": 9, "behind": 0})
    tell(fleet, "consumer-1.2", 1)
    assert effect.seen() == ""


def test_a_frozen_consumer_must_go_on_afterwards(fleet: Fleet) -> None:
    tell(fleet, "consumer-1.1", 50)
    fault = Fault(FREEZE, lot=0.0, lasts_s=1e-6)
    effect = Effect(fault, fleet, dict)
    fleet.inject(fault)
    fleet.calm()
    assert effect.seen() == "", "it has received nothing since"
    tell(fleet, "consumer-1.1", 51)
    assert effect.seen() != ""


def test_hashes_that_drain_are_waited_for(fleet: Fleet) -> None:
    latest = {"draining": 0, "begun": 4}
    effect = Effect(Fault(JOIN), fleet, lambda: latest)
    latest |= {"draining": 3, "begun": 7}
    assert not effect.drained()
    latest["draining"] = 0
    assert effect.drained()
