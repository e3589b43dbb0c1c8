"""The page about incidents: its program runs, and its commands print what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from sluice.storage.dates import iso_time
from tests.test_readme import ROOT, environment, examples

PAGE = "docs/incidents.md"
SLUICE = [sys.executable, "-c", "from sluice.cli import main; main()"]
NUMBER = re.compile(r"\d+([.:]\d+)*")
Ran = tuple[int, str]


def words(text: str) -> str:
    """A line without borders, bars and figures."""
    return " ".join(NUMBER.sub("N", re.sub(r"[│┃#]+(?!N)", " ", text.replace("#", " #"))).split())


def sluice(folder: Path, *arguments: str) -> Ran:
    """Run a command in a folder; its exit code, and all it printed."""
    done = subprocess.run(
        [*SLUICE, *arguments],
        cwd=folder,
        env={**environment(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the page's program has run."""
    folder = tmp_path_factory.mktemp("incidents")
    (folder / "program.py").write_text(examples(PAGE)[0], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "billed 12\n"), done.stderr
    return folder


def commands() -> list[tuple[list[str], list[str]]]:
    """Each command of the page with the lines that it is shown to print."""
    found: list[tuple[list[str], list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", (ROOT / PAGE).read_text(encoding="utf-8"), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ ./sluice "):
                found.append((line.removeprefix("$ ./sluice ").split(), []))
            else:
                found[-1][1].append(line)
    return found


def test_page_of_incidents_shows_what_its_commands_print(shop: Path) -> None:
    waited = ""
    assert len(commands()) >= 6
    for command, shown in commands():
        if "--at" in command:
            command[command.index("--at") + 1] = waited
        code, printed = sluice(shop, *command)
        assert code == 0, printed
        lines = [words(line) for line in printed.splitlines()]
        for line in map(words, shown):
            assert any(line in each for each in lines), f"{line!r} is not in\n{printed}"
        if moment := re.search(r"(\S+Z) │ waits", printed):
            waited = iso_time(round(datetime.fromisoformat(moment[1]).timestamp() * 1000) + 500)


def test_cut_and_damaged_incidents_are_one_line_and_exit_2(shop: Path) -> None:
    sluice(shop, "incident", "export", "orders", "billing", "-o", "whole", "--data-dir", "shop")
    whole = (shop / "whole").read_bytes()
    for data, says in (
        (whole[:-1], "is cut"),
        (whole[:40] + bytes((whole[40] ^ 1,)) + whole[41:], "damaged"),
        (b"x" * 100, "no recording"),
        (b"", "no recording"),
    ):
        (shop / "bad").write_bytes(data)
        code, printed = sluice(shop, "incident", "replay", "bad")
        assert (code, printed.count("\n")) == (2, 1), printed
        assert says in printed
