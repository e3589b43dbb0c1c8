"""Acknowledgements of a consumer, until an owner of the subscription has confirmed them, and those that were lost with
their session, which are reported once to a caller that waits for them. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sluice.actors.messages import NO_POSITIONS
from sluice.storage.errors import Fenced
from sluice.storage.format.position import Positions


class Acknowledgements:
    """The acknowledgements of one partition. said: how many were made. heard: how many of the first are durable or
    void. waiting: positions that no request takes along yet. unconfirmed: for each request that took some, its ack turn
    in this session, how many were made until then, and the positions. turn: the last ack turn of this session.
    """

    def __init__(self) -> None:
        self.said = self.heard = self.turn = 0
        self.waiting: list[tuple[int, Positions]] = []
        self.unconfirmed: list[tuple[int, int, Positions]] = []

    def __bool__(self) -> bool:
        return bool(self.waiting or self.unconfirmed)

    def add(self, positions: Positions) -> None:
        self.said += 1
        self.waiting.append((self.said, positions))

    def pop_waiting(self) -> tuple[int, Positions]:
        """All that wait, for a request to take along, and its ack turn."""
        if not self.waiting:
            return self.turn, NO_POSITIONS
        said = self.waiting[-1][0]
        positions = np.concatenate([done for _, done in self.waiting]) if len(self.waiting) > 1 else self.waiting[0][1]
        self.waiting = []
        self.turn += 1
        self.unconfirmed.append((self.turn, said, positions))
        return self.turn, positions

    def turn_with(self, said: int) -> int | None:
        """The ack turn that makes the first so many durable, None if no request has carried all of them."""
        return next((turn for turn, up_to, _ in self.unconfirmed if up_to >= said), None)

    def confirm(self, turn: int) -> None:
        """Everything up to this ack turn is durable."""
        while self.unconfirmed and self.unconfirmed[0][0] <= turn:
            self.heard = max(self.heard, self.unconfirmed.pop(0)[1])

    def say_again(self) -> None:
        """Prepare to repeat unconfirmed acknowledgements to another owner or session, with new ack turns."""
        self.waiting = [(said, positions) for _, said, positions in self.unconfirmed] + self.waiting
        self.unconfirmed.clear()
        self.turn = 0

    def void(self) -> bool:
        """Give these up, because no owner will confirm them. True if there were any."""
        lost = bool(self)
        self.heard = self.said
        self.waiting.clear()
        self.unconfirmed.clear()
        return lost

    def positions(self) -> Positions:
        """All that are not confirmed, in no order."""
        return np.concatenate([NO_POSITIONS, *(done for *_, done in [*self.unconfirmed, *self.waiting])])


@dataclass(eq=False, slots=True)
class LostAcks:
    """Losses on one partition. count: sessions that were lost with acknowledgements, and parts that were finished after
    the loss of their session. reported: how many of these were reported to a caller that waited until the end.
    """

    count: int = 0
    reported: int = 0


def report_losses(losses: list[LostAcks], since: list[int]) -> None:
    """Raises Fenced if there are more losses than `since`, which were reported before: those messages come again."""
    counts = [one.count for one in losses]
    for one, count in zip(losses, counts, strict=True):
        one.reported = count
    if counts != since:
        raise Fenced(
            "the session was lost before its acknowledgements were confirmed, as by a seek or a lease that ran out: "
            "those messages are not done"
        )
