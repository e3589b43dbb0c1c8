"""Tables, JSON and times."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from sluice.cli.output import show, show_json, show_one, show_partitions, text_of
from sluice.cluster.base.printable import printable
from sluice.storage.dates import iso_time


def test_json_has_text_where_there_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    show_json({"a": b"text", "b": b"\xff\x00", "c": (1, 2), "d": frozenset()})
    assert json.loads(capsys.readouterr().out) == {"a": "text", "b": "ff00", "c": [1, 2], "d": []}


def test_json_has_no_word_for_what_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    show_json([{"mean": float("nan"), "most": float("inf"), "at": 1.5, "key": b"\xff", "text": "NaN"}])
    told = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert told == [{"mean": None, "most": None, "at": 1.5, "key": "ff", "text": "NaN"}]


def test_times_are_shown_as_times(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"connectedSince": 1_700_000_000_000, "openedAt": 1_700_000_000_001, "format": 1_700_000_000_002}], False)
    out = capsys.readouterr().out
    assert all(part in out for part in ("22:13:20.000Z", "22:13:20.001Z", "1700000000002"))


def test_a_table_shows_markup_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"name": "[bold]x[/bold]", "seen_timestamp": 1_700_000_000_000, "ok": True, "none": None}], False)
    out = capsys.readouterr().out
    for part in ("[bold]x[/bold]", "2023-11-14T22:13:20.000Z", "yes", "-"):
        assert part in out


def on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> None:
    """Have a terminal of so many columns."""
    monkeypatch.setattr("sluice.cli.output._console", lambda: Console(width=columns))


def test_values_are_words_and_never_json(capsys: pytest.CaptureFixture[str]) -> None:
    held = {"message_id": "1:1", "consumer": None}
    show([{"done": {"billing": "1:0", "audit": "2:3"}, "ids": ["2:0", "2:1"], "held": [held], "empty": []}], False)
    show_one({"deep": {"a": [1, True]}}, False)
    out = capsys.readouterr().out
    for part in ("billing 1:0, audit 2:3", "2:0, 2:1", "(message_id 1:1, consumer -)", "none", "a 1, yes"):
        assert part in out
    assert not set('{}"[]') & set(out)


def test_rows_of_partitions_become_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    answers = [{"messages": [{"key": "a"}], "counted": 7}, {"messages": [{"key": "b"}], "counted": 8}]
    show_partitions(answers, False)
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert rows == [["0", "7"], ["1", "8"], ["0", "a"], ["1", "b"]]
    assert [line.strip() for line in lines if line[:1].isalpha()] == ["messages"]


def test_table_that_is_too_wide_breaks_no_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    row = {f"heading-{number}": "draining_hashes" for number in range(8)}
    show([row] * 5, False)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert [out.count(f"heading-{number} ") for number in range(8)] == [out.count("heading-0 ")] * 8
    assert out.count("draining_hashes") == 40


def test_long_address_is_folded_in_its_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    show([{"name": "x" * 100, "state": "running"}], False)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "┃ state" in out
    assert out.count("x") == 100


def test_table_without_rows_says_of_what(capsys: pytest.CaptureFixture[str]) -> None:
    show([], False, title="consumers")
    assert capsys.readouterr().out == "no consumers\n"


NASTY = "a\x1b]0;x\x07\x9b2J\u202eb\ud800\tc\nd"


def test_no_character_that_a_terminal_obeys_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"name": NASTY, "key": NASTY.encode("utf-8", "replace"), "deep": [NASTY]}], False)
    show_one({NASTY: NASTY}, False)
    show_partitions([[{"name": NASTY}]], False)
    out = capsys.readouterr().out
    assert printable(out) == out
    assert r"a\x1b]0;x\x07\x9b2J\u202eb" in out


def test_json_keeps_them_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    show_json({"name": NASTY})
    out = capsys.readouterr().out
    assert printable(out) == out
    assert json.loads(out) == {"name": NASTY}


def test_a_line_stays_one_line() -> None:
    assert printable("a\r\nb\tc", lines=False) == r"a\r\nb\tc"
    assert printable("a\nb") == "a\nb"


def test_times_and_texts() -> None:
    assert iso_time(1 << 62) == str(1 << 62)
    assert iso_time(-(1 << 62)) == str(-(1 << 62))
    assert iso_time(0) == "1970-01-01T00:00:00.000Z"
    assert text_of("é".encode()) == "é"
    assert text_of(b"\xff") == "ff"
