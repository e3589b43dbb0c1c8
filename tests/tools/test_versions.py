"""The promises about versions: the page's table of formats is the code's, and no format is missing there."""

from __future__ import annotations

import ast
import re

import pytest

from tests.hygiene.source import PACKAGES, ROOT, modules
from tools.site.pages import FORMATS

ELSEWHERE = {
    "storage/stores/sqlite_log.py": "SQLite's own",
    "storage/history/checked_parquet.py": "Parquet's own, beside FORMAT",
    "actors/pulsar/conversation/gateway/gateway.py": "of Pulsar's protocol",
}
"""Modules with a constant that carries somebody else's version."""
_NAME = re.compile(r"_?(?:MAGIC|FORMAT|VERSION|SCHEMA)")


def shown_rows() -> list[list[str]]:
    """Return the cells of the table of formats in docs/versions.md, a list for each row."""
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    table = page.partition("\n| format | written | read | module |\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]


def test_table_of_formats_is_that_of_the_code() -> None:
    module = "`{}.py`"
    assert shown_rows() == [
        [one.name, one.values(one.written), one.values(one.read), module.format(one.module.replace(".", "/"))]
        for one in FORMATS
    ]


def test_raised_number_makes_the_table_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.cluster.node.identity.FORMAT", 2)
    assert (FORMATS[0].values(FORMATS[0].written), shown_rows()[0][1]) == ("2", "1")


def test_every_format_with_a_version_is_in_the_table() -> None:
    found = {
        module.path
        for module in modules(*PACKAGES)
        for node in module.tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, int | bytes)
        and any(isinstance(target, ast.Name) and _NAME.fullmatch(target.id) for target in node.targets)
    }
    known = {f"{one.module.replace('.', '/')}.py" for one in FORMATS}
    assert sorted(found - known - {*ELSEWHERE}) == []
    assert len(found) > 10
