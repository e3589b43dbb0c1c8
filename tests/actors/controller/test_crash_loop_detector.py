"""When ends of one actor are an alarm."""

from __future__ import annotations

from sluice.actors.controller.crash_loop_detector import MOST_REASONS, SAME_ENDS, WITHIN_MS, CrashLoopDetector

REASON = "OverflowError: int too big to convert in epoch {}"


def test_the_same_reason_again_and_again_is_an_alarm() -> None:
    ends = CrashLoopDetector()
    for number in range(SAME_ENDS):
        assert ends.alarm(number) == ""
        ends.add(REASON.format(number), number)
    assert ends.alarm(SAME_ENDS) == f"it has ended 3 times for the same reason: {REASON.format(2)}"
    assert ends.alarm(SAME_ENDS - 1 + WITHIN_MS) == "", "it has not ended for ten minutes"


def test_ends_far_apart_are_none() -> None:
    ends = CrashLoopDetector()
    for number in range(2 * SAME_ENDS):
        ends.add(REASON.format(number), number * WITHIN_MS)
    assert ends.alarm(2 * SAME_ENDS * WITHIN_MS - 1) == ""


def test_reasons_that_take_turns_are_counted_apart() -> None:
    ends = CrashLoopDetector()
    for now in range(2 * SAME_ENDS):
        ends.add(("it overflowed", "it was taken over")[now % 2], now)
    assert ends.alarm(10).count("ended 3 times") == 2


def test_few_reasons_are_kept() -> None:
    ends = CrashLoopDetector()
    for _ in range(SAME_ENDS):
        for letter in range(MOST_REASONS + 1):
            ends.add(chr(ord("a") + letter), 0)
    assert ends.alarm(0) == ""
