"""Requests about pools of workers: the keeper of one, its state, and an operator's wishes.

A pool is known by its name. A keeper claims it, and gets an epoch: the keeper before learns that from its next report,
and stops. An operator says what he wants, which the keeper hears with the answer to its next report.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from sluice.actors.messages.common import Done, Text
from sluice.actors.messages.limits import Name
from sluice.actors.ports.wire import Reply, Request

MOST_WORKERS = 1_000
MOST_POOL_STATUS = 512 * 1024
MOST_REASON = 8 * 1024
"""Letters of what a keeper may tell, and of why its pool has stopped."""

Workers = Annotated[int, Meta(ge=1, le=MOST_WORKERS)]


class PoolWanted(Reply, kw_only=True):
    """The state that a pool is to reach. draining: its workers finish, hand over their keys, and it ends. tails: the
    next report is to have the last lines that each worker has written.
    """

    epoch: int
    min_workers: int
    max_workers: int
    draining: bool = False
    tails: bool = False


class ClaimPool(Request[PoolWanted], kw_only=True):
    """Keep this pool from now on. Fenced for a keeper that another one has replaced.

    kind: program, if it ends with the program that keeps it, or detached. version: of the handler. start: one word for
    each time that somebody starts the pool. A keeper that follows another one of the same start keeps what operators
    have wanted since; empty: it follows nobody. keeper: one word for each keeper, by which a repetition is known.
    Empty, as earlier versions ask: each takes a further epoch, and the keeper uses the newest that it was told.
    """

    reply: ClassVar[type[Reply]] = PoolWanted
    name: Name
    topic: Name
    subscription: Name
    kind: Name
    version: Name
    min_workers: Workers
    max_workers: Workers
    start: Annotated[str, Meta(max_length=64)] = ""
    keeper: Annotated[str, Meta(max_length=64)] = ""


class ReportPool(Request[PoolWanted], kw_only=True):
    """How a pool stands, as JSON. Fenced if another keeper has claimed it. ended: it has no workers any more.

    stopped: then, why it has stopped by itself; empty if somebody wanted that. One that outlives programs stays known
    with it until it is started again, drained or forgotten.
    """

    reply: ClassVar[type[Reply]] = PoolWanted
    name: Name
    epoch: int
    status: Annotated[str, Meta(max_length=MOST_POOL_STATUS)] = "{}"
    tails: Annotated[str, Meta(max_length=MOST_POOL_STATUS)] = ""
    ended: bool = False
    stopped: Annotated[str, Meta(max_length=MOST_REASON)] = ""


class ScalePool(Request[Done], kw_only=True):
    """Let a pool have so many workers. NotFound."""

    reply: ClassVar[type[Reply]] = Done
    name: Name
    min_workers: Workers
    max_workers: Workers


class DrainPool(Request[Done], kw_only=True):
    """Let a pool finish what is under way and end. NotFound. forget: nobody keeps it any more, and only its
    name goes; Conflict if somebody does.
    """

    reply: ClassVar[type[Reply]] = Done
    removes: ClassVar[bool] = True
    name: Name
    forget: bool = False


class DescribePools(Request[Text], kw_only=True):
    """All pools that are kept, or the one of this name: what is wanted, and how it stood at its last report.

    tails: with the last lines of each worker, for which its keeper is asked first; a few seconds are waited for it.
    """

    reply: ClassVar[type[Reply]] = Text
    name: str = ""
    tails: bool = False
