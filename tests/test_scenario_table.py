"""`docs/scenarios.md` tells the truth: each scenario has a test with its id in the file that is named, or a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = "tests/actors/key_shared/"
_ROW = re.compile(r"^\| ([A-Z]+-T?\d+(?:, [A-Z]+-T?\d+)*) \| (.+?) \|(?: (.+) \|)?$", re.MULTILINE)
TABLE = _ROW.findall((ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8"))
TESTED = [(name, re.findall(r"`([^`]+)`", files)) for name, _, files in TABLE if files]
EXCUSED = [name for names, _, files in TABLE if not files for name in names.split(", ")]


def carries(name: str) -> re.Pattern[str]:
    """Matches the definition of a test whose name has the id in it."""
    return re.compile(rf"^def test_(?:\w+_)?{name.lower().replace('-', '_')}(?:_|\()", re.MULTILINE)


@pytest.mark.parametrize(("name", "files"), TESTED, ids=[name for name, _ in TESTED])
def test_a_scenario_is_tested_where_the_table_says(name: str, files: list[str]) -> None:
    assert files
    paths = [ROOT / file if "/" in file else next((ROOT / FOLDER).rglob(file)) for file in files]
    assert [str(path) for path in paths if not carries(name).search(path.read_text(encoding="utf-8"))] == []


def test_each_scenario_stands_there_once_and_is_not_excused_too() -> None:
    every = [name for name, _ in TESTED] + EXCUSED
    assert len(every) == len({*every}) > 100
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / FOLDER).rglob("test_*.py")]
    assert [name for name in EXCUSED if any(carries(name).search(text) for text in texts)] == []
