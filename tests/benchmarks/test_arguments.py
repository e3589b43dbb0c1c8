"""What benchmarks are asked for is refused in one line where it means nothing."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

import pytest

from benchmarks._arguments import amount, count, count_or_none
from tests.hygiene.source import ROOT


@pytest.mark.parametrize(("kind", "text"), [(count, "0"), (count, "-5"), (count, "x"), (count_or_none, "-1"),
    (amount, "0"), (amount, "-0.5"), (amount, "nan"), (amount, "inf"), (amount, "x")])  # fmt: skip
def test_what_means_nothing_is_refused(kind: type, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        kind(text)


def test_what_means_something_is_taken() -> None:
    assert (count("7"), count_or_none("0"), amount("0.5")) == (7, 0, 0.5)


def test_every_benchmark_takes_its_numbers_so() -> None:
    plain = re.compile(r"type=(?:int|float)\b")
    scripts = sorted((ROOT / "benchmarks").glob("*.py"))
    assert [path.name for path in scripts if plain.search(path.read_text(encoding="utf-8"))] == []


def test_a_benchmark_of_fewer_than_none_is_refused() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "dispatch.py"), "--messages", "-5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].endswith("argument --messages: give 1 or more, not -5")
