"""Which processes are asked to make themselves worse, and what is told of it."""

from __future__ import annotations

import pytest

from sluice.loadgen.base.kinds import CLOCK_JUMP, SLOW_DISK
from sluice.loadgen.faults.impairments import LEAPS_MS, Impairment, effect_of, leap_of, of_a_machine
from sluice.storage.errors import Unavailable

LONG_S = 3_600.0


class Hosts:
    """By name of a host its machine; those in `gone` do not answer."""

    def __init__(self, machines: dict[str, str], felt: int = 0) -> None:
        self.machines, self._felt = machines, felt
        self.gone: list[str] = []
        self.asked: list[tuple[object, ...]] = []

    def _answers(self, host: str) -> None:
        if host in self.gone:
            raise Unavailable(f"{host} does not answer")

    def machine(self, host: str) -> str:
        """See Impairable."""
        self._answers(host)
        return self.machines[host]

    def impair(self, host: str, kind: str, amount: int, seconds: float) -> None:
        """See Impairable."""
        self._answers(host)
        self.asked.append((host, kind, amount, seconds))

    def relieve(self, host: str, kind: str) -> int:
        """See Impairable."""
        self._answers(host)
        self.asked.append((host, kind))
        return self._felt


def test_hosts_of_one_machine_are_found() -> None:
    hosts = Hosts({"b-0": "m", "b-1": "n", "b-2": "m"})
    names = ["b-2", "b-1", "b-0"]
    assert of_a_machine(hosts, names, 0.0, "") == ["b-0", "b-2"]
    assert of_a_machine(hosts, names, 0.99, "") == ["b-1"]
    assert of_a_machine(hosts, names, 0.99, "b-2") == ["b-0", "b-2"]
    hosts.gone = ["b-0", "b-2"]
    assert of_a_machine(hosts, names, 0.0, "") == ["b-1"]
    with pytest.raises(Unavailable, match="b-2 cannot be reached"):
        of_a_machine(hosts, names, 0.0, "b-2")
    with pytest.raises(Unavailable, match="no bookie"):
        of_a_machine(hosts, [], 0.0, "")


def effect(hosts: Hosts) -> list[str]:
    """Return the effects noted once the impairment is over."""
    told: list[str] = []
    Impairment(hosts, ["b-0", "b-1"], (SLOW_DISK, 200, LONG_S), told.append).end()
    return told


def test_each_is_asked_and_tells_how_it_felt_that() -> None:
    hosts = Hosts({}, felt=700)
    assert effect(hosts) == ["1,400 syncs took 200 ms longer"]
    assert hosts.asked == [(host, SLOW_DISK, 200, LONG_S) for host in ("b-0", "b-1")] + [
        (host, SLOW_DISK) for host in ("b-0", "b-1")
    ]


def test_unfelt_impairment_has_no_effect() -> None:
    """An unreachable host notes no effect either; and one that is gone does not hide the other."""
    assert effect(Hosts({})) == [""]
    hosts = Hosts({}, felt=1)
    hosts.gone = ["b-0"]
    assert effect(hosts) == ["1 syncs took 200 ms longer"]
    hosts.gone = ["b-0", "b-1"]
    assert effect(hosts) == [""]


def test_a_leap_is_drawn_from_one_lot() -> None:
    """Every role with every leap, and a lot is left that chooses among those of the role."""
    drawn = [leap_of(number / 1_000 + 0.0004) for number in range(1_000)]
    assert {(role, leap) for role, leap, _ in drawn} == {
        (role, leap) for role in ("dispatcher", "topic") for leap in LEAPS_MS
    }
    assert all(0 <= rest < 1 for *_, rest in drawn)
    assert leap_of(0.0)[:2] == ("dispatcher", 60_000), "what a person presses"


def test_how_a_wrong_clock_was_felt() -> None:
    assert effect_of(CLOCK_JUMP, 3_600_000, 1_234) == "1,234 looks at a clock that was 3,600 s ahead"
    assert effect_of(CLOCK_JUMP, -60_000, 1) == "1 looks at a clock that was 60 s behind"
    assert effect_of(CLOCK_JUMP, -60_000, 0) == ""
