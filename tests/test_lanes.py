"""In which order the files of tests are dealt."""

from __future__ import annotations

from tests.lanes import LONGEST, ROOT, has_cluster, rank


def test_the_longest_files_are_there() -> None:
    assert [file for file in LONGEST if not (ROOT / file).is_file()] == []
    assert {has_cluster(file) for file in LONGEST} == {True, False}, "the last lane has a longest file of its own"


def test_the_longest_go_first_then_spark_then_the_slow() -> None:
    others = [
        "tests/storage/format/test_frame.py",
        "tests/cluster/test_owners.py",
        "tests/loadgen/spark/test_inputs.py",
    ]
    assert sorted([*others, *reversed(LONGEST)], key=rank) == [*LONGEST, *reversed(others)]
