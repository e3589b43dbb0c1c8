"""The judge of repeated deliveries: what nack_order=key promises, and what is information without it."""

from __future__ import annotations

import pytest

from sluice.loadgen.judge.checkers import Findings, judge
from tests.loadgen.histories import Story


def told(story: Story, nack_order: str = "key") -> int:
    """How many repeated deliveries were out of order."""
    findings: Findings = judge(*story.tables(), nack_order=nack_order)
    assert {kind for kind, count in findings.violations.items() if count} <= {"redelivery_order"}
    return findings.violations["redelivery_order"] if nack_order == "key" else findings.information["redelivery_order"]


def three(due: int = 0) -> Story:
    """Send three messages of a key to a story. c receives the first two; the first one is given back at 20,000."""
    story = Story()
    for seq in range(3):
        story.send(b"a", seq, entry=seq, deliver_at=due if seq == 0 else 0)
    for seq in range(2):
        story.receive("c", b"a", seq, seq, at=10_000)
    story.ack("c", 0, at=20_000, negative=True)
    return story


def finish(story: Story, *entries: int, at: int) -> None:
    """Deliver these in order at one moment, and acknowledge them."""
    for entry in entries:
        story.receive("c", b"a", entry, entry, at=at, redelivery=1)
        story.ack("c", entry, at=at + 1_000, confirmed_at=at + 2_000)


def test_taken_back_messages_come_again_in_order() -> None:
    story = three()
    story.ack("c", 1, at=20_000, negative=True)
    finish(story, 0, 1, 2, at=30_000)
    assert told(story) == 0


def test_acked_message_does_not_count_as_a_repeat() -> None:
    story = three()
    story.ack("c", 1, at=15_000, confirmed_at=16_000)
    finish(story, 0, 2, at=30_000)
    assert told(story) == 0


@pytest.mark.parametrize("nack_order", ["key", "none"])
def test_a_later_message_that_is_still_held(nack_order: str) -> None:
    story = three()
    finish(story, 0, at=30_000)
    story.ack("c", 1, at=40_000, confirmed_at=41_000)
    finish(story, 2, at=50_000)
    assert told(story, nack_order) == 1


@pytest.mark.parametrize("nack_order", ["key", "none"])
def test_a_later_message_that_goes_before_the_redelivery(nack_order: str) -> None:
    story = three()
    story.ack("c", 1, at=20_000, negative=True)
    finish(story, 2, at=25_000)
    finish(story, 0, 1, at=30_000)
    assert told(story, nack_order) == 2, "the third one overtook both"


def test_delayed_messages_stand_apart() -> None:
    story = three(due=1)
    finish(story, 2, at=25_000)
    finish(story, 0, at=30_000)
    story.ack("c", 1, at=40_000, confirmed_at=41_000)
    assert told(story) == 0


def test_without_a_hand_back_nothing_is_out_of_order() -> None:
    story = three()
    story.acks.clear()
    for entry in (0, 1):
        story.ack("c", entry, at=20_000, confirmed_at=21_000)
    finish(story, 2, at=30_000)
    assert told(story) == 0
