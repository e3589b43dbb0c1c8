"""The tab key in a real shell, after `--install-completion` in it."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sluice.cli.app import SCRIPTS
from tests.cluster.helpers import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the command in it, which is on no path, as in a clone."""
    command = tmp_path / "sluice"
    command.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from sluice.cli import main; main()' \"$@\"\n")
    command.chmod(0o700)
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("ZDOTDIR", "SHELL"))}
    return plain | {"HOME": str(home), "PYTHONPATH": str(ROOT / "src"), "TERM": "dumb"}


def install(shell: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Install completion from a shell. The last word keeps the shell from stepping aside for the command."""
    command = [shell, "-c", "./sluice --install-completion; exit $?"]
    return subprocess.run(command, cwd=home, env=environment(home), capture_output=True, text=True, check=False)


def typed(shell: str, home: Path, keys: str, wanted: str) -> str:
    """Press these keys in an interactive shell; return all that it shows up to what is wanted."""
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(home)
        os.execvpe(shell, [shell, "-i"], environment(home))
    shown, until = "", time.monotonic() + PATIENCE_S
    try:
        os.write(terminal, keys.encode())
        while wanted not in shown:
            assert time.monotonic() < until, shown
            if select.select([terminal], [], [], 1)[0]:
                shown += os.read(terminal, 65536).decode(errors="replace")
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)
    return shown


@pytest.mark.parametrize("shell", SCRIPTS)
def test_tab_key_completes_after_the_installation(shell: str, home: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not on this machine")
    first, again = install(shell, home), install(shell, home)
    assert (first.returncode, again.returncode) == (0, 0), first.stderr
    (line,) = (home / f".{shell}rc").read_text().splitlines()
    assert f"completion.{shell}" in line
    typed(shell, home, "./sluice topics cr\t", "topics create")
    typed(shell, home, "./sluice subscriptions stats --data\t", "stats --data-dir")


def test_lines_of_the_person_stay(home: Path) -> None:
    (home / ".bashrc").write_text("alias one=two")
    assert install("bash", home).returncode == 0
    assert (home / ".bashrc").read_text().splitlines()[0] == "alias one=two"
    assert len((home / ".bashrc").read_text().splitlines()) == 2


def test_other_shell_is_told_in_one_line(home: Path) -> None:
    program = "import sys; sys.argv[1:] = ['--install-completion']; from sluice.cli import main; main()"
    nobody = f"import psutil; psutil.Process.parents = lambda _: []; {program}"
    done = subprocess.run(
        [sys.executable, "-c", nobody], cwd=home, env=environment(home), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "completion is for bash and zsh" in done.stderr


def test_missing_environment_is_not_made_for_the_tab_key(tmp_path: Path) -> None:
    for name in ("sluice", "pyproject.toml"):
        shutil.copy2(ROOT / name, tmp_path)
    asked = {**os.environ, "_SLUICE_COMPLETE": "complete_bash", "COMP_WORDS": "./sluice to", "COMP_CWORD": "1"}
    done = subprocess.run(["./sluice"], cwd=tmp_path, env=asked, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (tmp_path / ".venv").exists()
