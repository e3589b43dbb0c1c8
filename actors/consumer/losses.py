"""Acknowledgements that became void with their session, told once to whoever waits for them to be durable."""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import Fenced


@dataclass(eq=False, slots=True)
class Losses:
    """count: sessions that were lost with such, and parts that were finished after theirs. told: how many of these
    somebody was told of who waited until the end; who gave up before was told nothing.
    """

    count: int = 0
    told: int = 0


def tell(losses: list[Losses], since: list[int]) -> None:
    """Somebody waited, since so many of each were told. Raises Fenced if there are more: those messages come again."""
    counts = [one.count for one in losses]
    for one, count in zip(losses, counts, strict=True):
        one.told = count
    if counts != since:
        raise Fenced("the session was lost before its acknowledgements were confirmed")
