"""Acknowledgements that were lost with their session, reported once to a caller that waits for them."""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import Fenced


@dataclass(eq=False, slots=True)
class Losses:
    """Losses on one partition. count: sessions that were lost with acknowledgements, and parts that were finished after
    the loss of their session. reported: how many of these were reported to a caller that waited until the end.
    """

    count: int = 0
    reported: int = 0


def tell(losses: list[Losses], since: list[int]) -> None:
    """Raises Fenced if there are more losses than `since`, which were reported before: those messages come again."""
    counts = [one.count for one in losses]
    for one, count in zip(losses, counts, strict=True):
        one.reported = count
    if counts != since:
        raise Fenced("the session was lost before its acknowledgements were confirmed")
