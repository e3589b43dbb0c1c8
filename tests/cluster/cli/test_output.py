"""Tables, JSON and times."""

from __future__ import annotations

import json

import pytest

from cluster.cli.output import iso_time, show, show_json, text_of


def test_json_has_text_where_there_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    show_json({"a": b"text", "b": b"\xff\x00", "c": (1, 2), "d": frozenset()})
    assert json.loads(capsys.readouterr().out) == {"a": "text", "b": "ff00", "c": [1, 2], "d": []}


def test_a_table_shows_markup_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"name": "[bold]x[/bold]", "seen_timestamp": 1_700_000_000_000, "ok": True, "none": None}], False)
    out = capsys.readouterr().out
    for part in ("[bold]x[/bold]", "2023-11-14T22:13:20.000Z", "yes", "-"):
        assert part in out


def test_times_and_texts() -> None:
    assert iso_time(0) == "1970-01-01T00:00:00.000Z"
    assert text_of("é".encode()) == "é"
    assert text_of(b"\xff") == "ff"
