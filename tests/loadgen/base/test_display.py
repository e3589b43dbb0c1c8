"""The display of a running flood."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from sluice.loadgen.base.display import FloodProgress, LineDisplay, LiveDisplay, make_display


@pytest.mark.parametrize(("term", "kind"), [("xterm", LiveDisplay), ("dumb", LineDisplay), ("unknown", LineDisplay)])
def test_a_terminal_that_cannot_be_redrawn_gets_lines(
    term: str, kind: type[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live view shows nothing there, for minutes."""
    monkeypatch.setenv("TERM", term)
    assert type(make_display(Console(file=StringIO(), force_terminal=True))) is kind


def test_file_that_is_no_terminal_gets_lines() -> None:
    assert type(make_display(Console(file=StringIO()))) is LineDisplay


def test_lines_tell_what_was_delivered_again() -> None:
    """More was delivered than published, as it seemed."""
    out = StringIO()
    progress = FloodProgress(phase="flooding", sent=9, confirmed=6_666, delivered=6_798, redelivered=132)
    LineDisplay(Console(file=out, width=100)).show(progress)
    assert "published 6,666, delivered 6,798 (132 again), backlog 0" in out.getvalue()
