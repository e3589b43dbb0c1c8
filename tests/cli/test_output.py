"""Tables, JSON and times."""

from __future__ import annotations

import json

import pytest

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
