"""One list of faults for the live cluster and the simulator: the names that both know mean the same."""

from __future__ import annotations

import pytest

from sluice.loadgen.base.kinds import (
    CONSUMER_KINDS,
    FLOOD_KINDS,
    IMPAIRMENT_KINDS,
    KILL_NODE,
    KINDS,
    MACHINE_KINDS,
    S3_DOWN,
    check_kinds,
    standard_kinds,
)
from sluice.storage.errors import Invalid
from tests.sim import faults as simulated


def test_simulated_names_are_the_simulators() -> None:
    for kind in KINDS.values():
        assert kind.simulated in ("", *simulated.KINDS), kind.name


@pytest.mark.parametrize("name", KINDS)
def test_kill_is_a_crash_and_freeze_is_a_pause(name: str) -> None:
    action = name.partition("-")[0]
    expected = {"kill": "crash", "freeze": "pause", "restart": "churn", "join": "churn"}
    assert KINDS[name].simulated == expected.get(action, KINDS[name].simulated)
    lasts = KINDS[name].seconds != (0.0, 0.0)
    assert lasts == (action in ("freeze", "slow") or name == S3_DOWN or name in (*MACHINE_KINDS, *IMPAIRMENT_KINDS))


def test_every_kind_says_what_it_means_and_is_known_by_its_name() -> None:
    assert all(kind.name == name and len(kind.meaning) > 10 for name, kind in KINDS.items())
    assert set(FLOOD_KINDS) < set(CONSUMER_KINDS) < set(KINDS)


def test_standard_kinds_depend_on_the_cluster() -> None:
    assert set(KINDS) - set(standard_kinds()) == {KILL_NODE, S3_DOWN, *MACHINE_KINDS}
    assert set(standard_kinds(nodes=2, s3=True, machines=True, head=True)) == set(KINDS)


def test_unknown_kind_is_named() -> None:
    check_kinds(list(KINDS))
    with pytest.raises(Invalid, match="no fault 'meteorite'"):
        check_kinds(["kill-topic", "meteorite"])
