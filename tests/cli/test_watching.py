"""`sluice watch --text`: in a terminal that can be redrawn, and where nothing can."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from sluice.cli.watching import PRINT_EVERY_MS, Server, show_text
from sluice.cluster.watch.story import picture
from tests.cluster.watch.test_story import dispatcher, topic

RATES = {"published": 250.0, "delivered": 1_250.4, "acknowledged": 0.0}


def seen(at: int) -> tuple[str, Any]:
    return "picture", {**picture(at, [dispatcher(), None], [topic()], None), "rates": RATES}


TROUBLE = ("trouble", {"reason": "topic \x1b[2J does not exist"})


class Told:
    """A server that tells what the test says."""

    def __init__(self, *events: tuple[str, Any]) -> None:
        self._events = events

    def events(self, topic: str, subscription: str) -> Iterator[tuple[str, Any]]:
        yield from self._events


def shown(capsys: pytest.CaptureFixture[str], *events: tuple[str, Any]) -> str:
    show_text(cast(Server, Told(*events)), "orders", "billing")
    return capsys.readouterr().out


def test_a_pipe_gets_pictures_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe got only the last picture before, when all was over."""
    event = ("events", [{"text": "partition 0: [b] joined"}])
    out = shown(capsys, seen(1), seen(2), event, seen(PRINT_EVERY_MS), seen(1 + PRINT_EVERY_MS))
    assert out.count("orders / billing   published 250/s   delivered 1,250/s   acknowledged 0/s") == 2
    assert out.count("partition 0: [b] joined") == 1
    assert out.count("waits for an owner") == 2


def test_trouble_is_told_at_once_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, TROUBLE, TROUBLE, seen(1), TROUBLE)
    assert out.count("topic \\x1b[2J does not exist") == 2


def test_trouble_is_drawn_in_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The last picture stood there as if nothing had happened."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    out = shown(capsys, seen(1), TROUBLE)
    assert "does not exist" in out
