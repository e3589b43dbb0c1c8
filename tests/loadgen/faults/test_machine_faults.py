"""Which machines a fault hits, and that it is taken back."""

from __future__ import annotations

import pytest

from sluice.loadgen.base.kinds import (
    CUT,
    CUT_ONE_WAY,
    FULL_DISK,
    ISOLATE,
    ISOLATE_STORE,
    KILL_HEAD,
    LOSSY_LINK,
    SLOW_LINK,
)
from sluice.loadgen.faults.faults import Fault
from sluice.loadgen.faults.machine_control import MachineControl
from sluice.loadgen.faults.machine_faults import MachineFaults
from sluice.storage.errors import Unavailable

A, B, C, STORE = "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.9"
LONG_S = 3_600.0


class Control(MachineControl):
    """Remembers what it is asked for."""

    def __init__(self, refuses: str = "", head: str = "") -> None:
        super().__init__("nowhere", head)
        self.asked: list[tuple[object, ...]]
        object.__setattr__(self, "asked", [])
        object.__setattr__(self, "refuses", refuses)

    def ask(self, what: str, one: str, other: str = "", number: float = 0.0, share: float = 0.0) -> None:
        """See MachineControl."""
        if what == self.__dict__["refuses"]:
            raise Unavailable("it has ended")
        self.asked.append((what, one, other, number, share))


def done(kind: str, lot: float = 0.0, store: str = STORE) -> tuple[list[tuple[object, ...]], str]:
    """Return the requests of a fault until it is taken back, and its note; the run is on the first machine."""
    control = Control()
    noted: list[str] = []
    episode = MachineFaults(control, A, store).inject(Fault(kind, lot=lot, lasts_s=LONG_S), [A, B, C], noted.append)
    episode.end()
    assert episode.over
    return control.asked, noted[0]


def test_a_machine_is_cut_from_all_others_and_from_the_store() -> None:
    """Never the one where the run is."""
    for lot, victim, other in ((0.0, B, C), (0.99, C, B)):
        asked, noted = done(ISOLATE, lot)
        cut = [("cut", victim, each, 0.0, 0.0) for each in (A, other, STORE)]
        assert asked == [*cut, *(("join", *pair[1:]) for pair in cut)]
        assert noted.startswith(victim)


def test_two_machines_are_cut_or_one_from_the_store() -> None:
    assert done(CUT)[0] == [("cut", A, B, 0.0, 0.0), ("join", A, B, 0.0, 0.0)]
    assert done(CUT_ONE_WAY, 0.99)[0][0] == ("drop", C, B, 0.0, 0.0)
    assert done(ISOLATE_STORE)[0] == [("cut", B, STORE, 0.0, 0.0), ("join", B, STORE, 0.0, 0.0)]
    with pytest.raises(LookupError, match="the store"):
        done(ISOLATE_STORE, store="")


def test_links_and_disks() -> None:
    assert done(SLOW_LINK)[0][0] == ("hamper", A, B, 100.0, 0.0)
    assert done(LOSSY_LINK)[0][0] == ("hamper", A, B, 0.0, 0.05)
    assert done(FULL_DISK)[0] == [("fill", B, "", 0.0, 0.0), ("empty", B, "", 0.0, 0.0)]


def test_one_machine_suffers_at_a_time() -> None:
    faults = MachineFaults(Control(), A, STORE)
    first = faults.inject(Fault(CUT, lasts_s=LONG_S), [A, B, C], lambda who: None)
    with pytest.raises(LookupError, match="still suffers"):
        faults.inject(Fault(ISOLATE, lasts_s=LONG_S), [A, B, C], lambda who: None)
    first.end()
    faults.inject(Fault(ISOLATE, lasts_s=LONG_S), [A, B, C], lambda who: None).end()


def test_fault_that_cannot_be_taken_back_is_a_trouble() -> None:
    faults = MachineFaults(Control(refuses="join"), A, STORE)
    faults.inject(Fault(CUT, lasts_s=LONG_S), [A, B, C], lambda who: None).end()
    assert faults.troubles == ["cut could not be taken back: it has ended"]


def test_the_machine_of_the_head_is_lost_and_starts_again() -> None:
    """Meanwhile nobody can join. Without a Redis it would be lost for good, and on its own machine the run would be."""
    control = Control(head=B)
    faults = MachineFaults(control, A, STORE)
    assert [faults.headless] == [False]
    episode = faults.inject(Fault(KILL_HEAD, lasts_s=LONG_S), [A, B, C], lambda who: None)
    assert [faults.headless] == [True]
    episode.end()
    assert control.asked == [("kill", B, "", 0.0, 0.0), ("start head", B, "", 0.0, 0.0)]
    assert [faults.headless] == [False]
    for head, why in (("", "no Redis"), (A, "the run is")):
        others = MachineFaults(Control(head=head), A, STORE)
        with pytest.raises(LookupError, match=why):
            others.inject(Fault(KILL_HEAD, lasts_s=LONG_S), [A, B, C], lambda who: None)
        assert not others.headless
