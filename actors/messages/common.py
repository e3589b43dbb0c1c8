"""The parts that every conversation uses: empty columns, plain replies, liveness and statistics."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sluice.actors.ports.wire import Reply, Request

NO_POSITIONS: np.ndarray = np.empty(0, np.int64)
NO_ROWS: np.ndarray = np.empty(0, np.uint32)
NO_COUNTS: np.ndarray = np.empty(0, np.uint8)


def no_positions() -> np.ndarray:
    """Default of a column of positions: int64, shape (0,)."""
    return NO_POSITIONS


def no_counts() -> np.ndarray:
    """Default of a column of redelivery counts: uint8, shape (0,)."""
    return NO_COUNTS


def no_rows() -> np.ndarray:
    """Default of a column of rows: uint32, shape (0,)."""
    return NO_ROWS


class Done(Reply, frozen=True):  # type: ignore[misc]
    """The request was carried out, now or before."""


class Alive(Reply, kw_only=True):
    """The actor is alive. refuses: why it takes no new runs (a bookie whose disk is full); empty if it does.

    problem: what keeps it from part of its work, so that an operator has to look; empty if nothing does. idle_ms: how
    long nobody has used it and it has had nothing to do; 0: that is not so. frames: the newest kind of frame that its
    process reads (storage.format.frame.NEWEST).
    """

    refuses: str = ""
    problem: str = ""
    idle_ms: int = 0
    frames: int = 1


class Closed(Reply, kw_only=True):
    """The answer to a request to close. closed: it has ended, and the next caller that needs it starts it again.
    wake_at: when it has something to do, ms since 1970; 0: never.
    """

    closed: bool
    wake_at: int = 0


class CloseIdle(Request[Closed], kw_only=True):
    """End, if for `idle_ms` nobody has used it and it has had nothing to do."""

    reply: ClassVar[type[Reply]] = Closed
    idle_ms: int


class Ping(Request[Alive]):
    """Is anybody there? Every actor answers."""

    reply: ClassVar[type[Reply]] = Alive


class Text(Reply):
    """A JSON document (stats, explanations); not on any hot path."""

    json: str


class Stats(Request[Text]):
    """The actor's statistics, with Pulsar's names where it has them."""

    reply: ClassVar[type[Reply]] = Text
