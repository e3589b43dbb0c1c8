"""The heaviest keys in a flood's report: put together over partitions, in JSON, in the terminal and on the page."""

from __future__ import annotations

from typing import Any

from sluice.loadgen.report.report import render
from sluice.loadgen.samples.hot_keys import merged
from tests.loadgen.report.test_result import make_report, shown


def told_by(*keys: tuple[str | None, int], whole: int) -> dict[str, Any]:
    """Return the answer of a partition, the same by messages, by bytes and by time held."""
    rows = [{"key": key, "hash": 1, "count": number, "share": 0.5, "countAtMost": number} for key, number in keys]
    held = [{"key": key, "hash": 1, "millis": number, "share": 0.5, "millisAtMost": number} for key, number in keys]
    return {
        "messages": rows, "bytes": rows, "held": held, "counted": whole, "countedBytes": whole, "heldMillis": whole
    }  # fmt: skip


def test_the_heaviest_of_all_partitions_come_first() -> None:
    found = merged([told_by(("b", 20), ("c", 1), whole=30), told_by(("a", 50), (None, 2), whole=70)])
    assert list(found) == ["messages", "bytes", "held"]
    assert [(row["key"], row["partition"], row["share"]) for row in found["messages"]] == [
        ("a", 1, 0.5),
        ("b", 0, 0.2),
        (None, 1, 0.02),
        ("c", 0, 0.01),
    ]
    assert [row["millis"] for row in found["held"]] == [50, 20, 2, 1]


def test_the_report_shows_them_everywhere() -> None:
    report = make_report(hot_keys=merged([told_by(("<customer-1>", 20), (None, 5), whole=40)]))
    assert report.to_dict()["hot_keys"]["messages"][0] == {
        "key": "<customer-1>", "partition": 0, "count": 20, "share": 0.5
    }  # fmt: skip
    text = shown(report)
    assert "by time held: <customer-1> 50.0%  without a name 12.5%" in text
    page = render(report)
    assert "<h2>Heaviest keys</h2>" in page
    assert page.count("<td>&lt;customer-1&gt;</td>") == 3


def test_a_key_is_shown_as_it_is_and_obeyed_by_nobody() -> None:
    """One in brackets ended the report with an error of the table's markup, after minutes of load."""
    report = make_report(hot_keys=merged([told_by(("[/red]", 20), ("a\x1b[2J\u202e", 5), whole=40)]))
    assert "by bytes: [/red] 50.0%  a\\x1b[2J\\u202e 12.5%" in shown(report)
    assert "\x1b" not in render(report)


def test_unreachable_dispatchers_name_no_keys() -> None:
    report = make_report()
    assert report.to_dict()["hot_keys"] == {}
    assert "hot keys" not in shown(report)
    assert "No dispatcher could be asked." in render(report)
    assert merged([]) == {"messages": [], "bytes": [], "held": []}
