"""A wrong call of the simulator or of a benchmark is refused in one line, as other wrong calls are."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.cluster.base.arguments import ArgumentParser, amount, count, count_or_none
from tests.hygiene.source import ROOT
from tests.sim.cli import command


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what was printed as an error."""
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def test_the_simulator_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command(["--seeds", "5:1"])
    assert ended.value.code == 2
    assert said(capsys) == "sluice: --seeds is A:B with A below B, not '5:1' (see ./sluice simulate --help)\n"


def test_a_benchmark_is_called_as_it_was(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "benchmarks" / "many.py")])
    parser = ArgumentParser(description="what it measures")
    parser.add_argument("--topics", type=int)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--topics", "x"])
    assert ended.value.code == 2
    assert said(capsys) == "sluice: argument --topics: invalid int value: 'x' (see ./sluice bench many --help)\n"


@pytest.mark.parametrize(("kind", "text"), [(count, "0"), (count, "-5"), (count, "x"), (count_or_none, "-1"),
    (amount, "0"), (amount, "-0.5"), (amount, "nan"), (amount, "inf"), (amount, "x")])  # fmt: skip
def test_numbers_without_a_meaning_are_refused(kind: type, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        kind(text)


def test_numbers_with_a_meaning_are_taken() -> None:
    assert (count("7"), count_or_none("0"), amount("0.5")) == (7, 0, 0.5)


def test_every_benchmark_takes_its_numbers_so() -> None:
    plain = re.compile(r"type=(?:int|float)\b")
    scripts = sorted((ROOT / "benchmarks").glob("*.py"))
    assert [path.name for path in scripts if plain.search(path.read_text(encoding="utf-8"))] == []


def test_a_benchmark_of_fewer_than_none_is_refused() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "dispatch.py"), "--messages", "-5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    wrong = "sluice: argument --messages: give 1 or more, not -5 (see ./sluice bench dispatch --help)\n"
    assert done.stderr == wrong
