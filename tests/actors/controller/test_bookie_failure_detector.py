"""When a bookie is lost, and when it is tried again."""

from __future__ import annotations

from sluice.actors.controller.bookie_failure_detector import REFUSALS, RETRY_FIRST, RETRY_MOST, BookieFailureDetector


def test_refused_so_many_times_in_a_row() -> None:
    """A failure of another sort in between starts the count again."""
    losses = BookieFailureDetector(1_000_000)
    for _ in range(REFUSALS - 1):
        losses.failed("b", 0, refused=True)
    losses.failed("b", 0, refused=False)
    for _ in range(REFUSALS - 1):
        losses.failed("b", 0, refused=True)
        assert losses.lost(0) == ()
    losses.failed("b", 0, refused=True)
    assert losses.lost(0) == ("b",)
    losses.back("b")
    assert losses.lost(0) == ()


def test_away_for_so_long() -> None:
    """Counted from when it was first missed, not from the last try."""
    losses = BookieFailureDetector(1_000)
    losses.down("b", 100)
    losses.down("a", 200)
    losses.failed("b", 900, refused=False)
    assert losses.lost(1_099) == ()
    assert losses.lost(1_100) == ("b",)
    assert losses.lost(1_200) == ("a", "b")
    losses.back("a")
    losses.back("never-missed")
    assert losses.lost(5_000) == ("b",)


def test_tried_again_later_and_later() -> None:
    """At once after a death, then with growing pauses up to the longest; from the beginning after a return."""
    losses = BookieFailureDetector(1_000_000)
    losses.down("b", 50)
    assert losses.may_start("b", 50)
    assert losses.may_start("never-missed", 0)
    now, pauses = 50, []
    for _ in range(20):
        losses.failed("b", now, refused=False)
        pause = next(ms for ms in range(RETRY_MOST + 1) if losses.may_start("b", now + ms))
        pauses.append(pause)
        now += pause
    assert pauses[0] == RETRY_FIRST
    assert pauses == sorted(pauses)
    assert pauses[-1] == RETRY_MOST
    losses.back("b")
    losses.failed("b", now, refused=False)
    assert losses.may_start("b", now + RETRY_FIRST)
