"""Every label of a rule or scenario in the code leads to the page that explains it."""

from __future__ import annotations

import re

from tests.hygiene.source import ROOT, modules

_RULES = re.compile(r"(?<![\w-])(?:(?:KS|LS|RK|BD|GR)-\d+|BK[1-9]|[SL][1-9]\d?)(?![\w-])")
_SCENARIOS = re.compile(r"(?<![\w-])(?:KST|BO|BC|CL|RS|ST|CH|NI|AS|EX|SN|DH|PA|SD|RR|LA|MR|PM|FT|UA|OT)-T?\d+(?![\w-])")
_A_STORE = "S3"
"""Not a label here: the protocol of object stores."""


def _labels(pattern: re.Pattern[str]) -> dict[str, str]:
    """Each label in the code, and one place where it stands."""
    return {
        found[0]: f"{module.path}:{module.text[: found.start()].count(chr(10)) + 1}"
        for module in modules()
        for found in pattern.finditer(module.text)
        if found[0] != _A_STORE
    }


def _explained(document: str) -> set[str]:
    """The labels in the first column of a document's tables."""
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / document).read_text(encoding="utf-8"), re.MULTILINE)
    return {label for row in rows for label in row.split(", ")}


def test_every_rule_is_explained() -> None:
    explained = _explained("semantics.md")
    assert {label: place for label, place in _labels(_RULES).items() if label not in explained} == {}


def test_every_scenario_is_explained() -> None:
    explained = _explained("scenarios.md")
    assert {label: place for label, place in _labels(_SCENARIOS).items() if label not in explained} == {}
