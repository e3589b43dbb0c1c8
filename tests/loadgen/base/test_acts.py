"""The pace of the second act: fast enough, long enough, and not over before the faults are."""

from __future__ import annotations

from pathlib import Path

from sluice.loadgen.base.acts import Pace, Reserve


def test_the_last_part_waits_for_late_faults(tmp_path: Path) -> None:
    path = tmp_path / "pace"
    reserve = Reserve(path, rate=1_000.0, messages=20_000)
    reserve.adjust(left=6_000, needed_s=60.0, now=1)
    assert Pace.read(path) is None, "most of the act is still to come"
    reserve.adjust(left=4_800, needed_s=60.0, now=2)
    assert Pace.read(path) == Pace(80.0, 2)
    reserve.adjust(left=4_000, needed_s=60.0, now=3)
    assert Pace.read(path) == Pace(80.0, 2), "enough is left"
    reserve.adjust(left=2_000, needed_s=60.0, now=4)
    assert Pace.read(path) == Pace(2_000 / 60.0, 4)
    reserve.adjust(left=1_900, needed_s=0.0, now=5)
    assert Pace.read(path) == Pace(1_000.0, 5)


def test_faults_in_time_change_nothing(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "pace", rate=1_000.0, messages=20_000)
    for left in range(20_000, -1, -1_000):
        reserve.adjust(left=left, needed_s=0.0, now=left)
    assert Pace.read(tmp_path / "pace") is None


def test_a_trickle_is_never_nothing(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "pace", rate=1_000.0, messages=20)
    reserve.adjust(left=5, needed_s=60.0, now=1)
    assert Pace.read(tmp_path / "pace") == Pace(1.0, 1)
