"""Returned messages: which of them are reported again to a new owner."""

from __future__ import annotations

import numpy as np

from sluice.actors.consumer.negative_acks import NegativeAcksTracker
from tests.sim.world import World


def test_message_that_came_again_is_not_returned_to_next_owner() -> None:
    backs = NegativeAcksTracker(World(0).client("reader"))
    first = backs.note(np.array([5, 6]), np.array([0, 3], np.uint8))
    second = backs.note(np.array([9]), np.array([1], np.uint8))
    again = backs.oldest(np.array([5, 9]))
    assert again is first
    assert (again.positions.tolist(), again.seen.tolist()) == ([6], [3])
    backs.finish(again, confirmed=True)
    assert not first.confirmed, "what came again was never confirmed"
    assert backs.oldest(np.array([5, 9])) is None
    assert second.settled.is_set()
    assert not second.confirmed
