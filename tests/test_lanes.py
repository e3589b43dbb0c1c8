"""In which order the files of tests are dealt."""

from __future__ import annotations

import re

from tests.lanes import LONGEST, ROOT, has_cluster, order, rank, shares_spark


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


def test_one_lane_takes_all_that_share_a_spark_session() -> None:
    spark, cluster, computed = (
        "tests/loadgen/spark/test_inputs.py",
        "tests/cluster/test_owners.py",
        "tests/storage/format/test_frame.py",
    )
    assert [shares_spark(file) for file in (spark, cluster, computed)] == [True, False, False]
    files = [cluster, spark, computed]
    assert sorted(files, key=lambda file: order(file, 0, 3)) == [spark, cluster, computed]
    assert sorted(files, key=lambda file: order(file, 1, 3)) == [cluster, spark, computed]
    assert sorted(files, key=lambda file: order(file, 2, 3)) == [computed, cluster, spark]


def test_every_file_with_the_fixture_shares_spark() -> None:
    """The fixture is that of tests/loadgen/conftest.py: a test below it that asks for `spark` is found by its words."""
    shared = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py") if shares_spark(str(path))}
    asking = re.compile(r"^(?:async )?def test_\w+\((?:[^()]|\([^()]*\))*\bspark\b", re.MULTILINE)
    loadgen = (ROOT / "tests" / "loadgen").rglob("test_*.py")
    asked = {str(path.relative_to(ROOT)) for path in loadgen if asking.search(path.read_text(encoding="utf-8"))}
    assert shared == asked
    assert "tests/loadgen/run/test_flood.py" in shared
