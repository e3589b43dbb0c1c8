"""`test`, `simulate` and `bench`: what they run, and what they answer."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from cli.exit_codes import run
from tests.cli.conftest import Cli


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Records commands in place of running them; `fails` names the ones that fail."""
    record: dict[str, Any] = {"commands": [], "fails": ""}

    def run(command: list[str], **_: Any) -> Any:
        record["commands"].append(command[1:])
        return SimpleNamespace(returncode=int(bool(record["fails"]) and record["fails"] in command), stdout="")

    monkeypatch.setattr(subprocess, "run", run)
    return record


@pytest.mark.parametrize(("fails", "code"), [("", 0), ("ruff", 1), ("mypy", 1), ("pytest", 1)])
def test_test_runs_everything_and_fails_if_anything_fails(
    cli: Cli, runs: dict[str, Any], fails: str, code: int
) -> None:
    runs["fails"] = fails
    assert cli("test", "-k", "x", "--help")[0] == code
    styles, (mypy, suite) = runs["commands"][:2], sorted(runs["commands"][2:])
    assert [command[1] for command in (*styles, mypy, suite)] == ["ruff", "ruff", "mypy", "pytest"]
    assert suite[-3:] == ["-k", "x", "--help"]
    assert {"actors", "cluster", "storage", "tests"} <= set(mypy)


def test_the_whole_suite_runs_in_lanes_that_share_no_file(cli: Cli, runs: dict[str, Any]) -> None:
    assert cli("test")[0] == 0
    (suite,) = (command for command in runs["commands"] if command[1] == "pytest")
    assert " ".join(suite[2:]) == "-q -n 3 --dist loadfile --no-loadscope-reorder --tb short --durations 10"


def test_bench_hands_its_arguments_on(
    cli: Cli, runs: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "journal.py").write_text('"""Journal against the raw disk.\n\nMore."""\n')
    monkeypatch.setattr("cli.checkout.checkout", lambda: tmp_path)
    assert cli("bench")[1].split(maxsplit=1) == ["journal", "Journal against the raw disk.\n"]
    assert cli("bench", "journal", "--size", "3")[0] == 0
    assert runs["commands"] == [[str(tmp_path / "benchmarks" / "journal.py"), "--size", "3"]]
    assert cli("bench", "nope")[::2] == (2, "sluice: there is no benchmark 'nope'; there are: journal\n")


def test_simulate_hands_its_arguments_and_its_exit_code_on(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--world", "placement", "--seeds", "1:2"]) == 0
    assert "1 seed" in capfd.readouterr().out
    assert run(["simulate", "--world", "nowhere"]) == 2
    assert "'nowhere'" in capfd.readouterr().err
