"""`test`, `simulate` and `bench`: what they run, and what they answer."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.cli.exit_codes import run
from tests.cli.conftest import Cli


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Records commands in place of running them; `fails` names the ones that fail."""
    record: dict[str, Any] = {"commands": [], "fails": ""}

    def run(command: list[str], *_: Any, **__: Any) -> Any:
        record["commands"].append(command[1:])
        return SimpleNamespace(returncode=int(bool(record["fails"]) and record["fails"] in command), stdout="")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr("sluice.cli.checkout.hand_over", lambda *given: run(*given).returncode)
    return record


@pytest.fixture
def fake_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A checkout without benchmarks."""
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.setattr("sluice.cli.checkout.checkout", lambda: tmp_path)
    return tmp_path


@pytest.mark.parametrize(("fails", "code"), [("", 0), ("ruff", 1), ("mypy", 1), ("pytest", 1)])
def test_test_runs_everything_and_fails_if_anything_fails(
    cli: Cli, runs: dict[str, Any], fails: str, code: int
) -> None:
    runs["fails"] = fails
    assert cli("test", "-k", "x", "-x")[0] == code
    styles, (mypy, suite) = runs["commands"][:2], sorted(runs["commands"][2:])
    assert [command[1] for command in (*styles, mypy, suite)] == ["ruff", "ruff", "mypy", "pytest"]
    assert suite[-3:] == ["-k", "x", "-x"]
    assert {"src/sluice", "tests"} <= set(mypy)


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_begins_with_the_commands_own_words(cli: Cli, runs: dict[str, Any], word: str) -> None:
    code, output, _ = cli("test", word)
    assert code == 0
    assert output.startswith("Check style, and run all tests")
    assert output.endswith("Options of pytest:\n\n")
    assert [command[1:] for command in runs["commands"]] == [["pytest", "--help"]]


def test_the_whole_suite_runs_in_lanes_that_share_no_file(cli: Cli, runs: dict[str, Any]) -> None:
    assert cli("test")[0] == 0
    (suite,) = (command for command in runs["commands"] if command[1] == "pytest")
    assert " ".join(suite[2:]) == "-q -n 3 --dist loadfile --no-loadscope-reorder --tb short --durations 10"


def test_bench_hands_its_arguments_on(cli: Cli, runs: dict[str, Any], fake_checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "benchmarks" / "journal.py").write_text('"""Journal against the raw disk.\n\nMore."""\n')
    assert cli("bench")[1].split(maxsplit=1) == ["journal", "Journal against the raw disk.\n"]
    assert cli("bench", "journal", "--size", "3")[0] == 0
    assert runs["commands"] == [[str(tmp_path / "benchmarks" / "journal.py"), "--size", "3"]]
    assert cli("bench", "nope")[::2] == (2, "sluice: there is no benchmark 'nope'; there are: journal\n")


CLEANS_UP = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
begun, ended = sys.argv[1:]
try:
    open(begun, "w").close()
    signal.pause()
except KeyboardInterrupt:
    deadline = time.monotonic() + 0.6  # longer than the standard library waits for it
    while time.monotonic() < deadline:
        pass
    open(ended, "w").close()
"""


def test_a_terminated_command_cleans_up_first(cli: Cli, fake_checkout: Path, tmp_path: Path) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    os.mkfifo(begun)
    (fake_checkout / "benchmarks" / "slow.py").write_text(CLEANS_UP)

    def terminate() -> None:
        begun.read_bytes()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate, daemon=True).start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        assert cli("bench", "slow", str(begun), str(ended))[0] == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.exists()


def test_simulate_hands_its_arguments_and_its_exit_code_on(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--world", "placement", "--seeds", "1:2"]) == 0
    assert "1 seed" in capfd.readouterr().out
    assert run(["simulate", "--world", "nowhere"]) == 2
    assert "'nowhere'" in capfd.readouterr().err
