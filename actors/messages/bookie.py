"""Requests to a bookie."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from sluice.actors.messages.common import Done, no_rows
from sluice.actors.ports.wire import Blob, Reply, Request


class AddRun(Request[Done], kw_only=True, frozen=True):  # type: ignore[misc]
    """Store one frame: head (storage.format.frame.encode_head) and payload. Answered when durable.

    Refused with Fenced if `epoch` is below the ledger's; with Overloaded or Unavailable if the bookie is read-only.
    A repetition of a stored run is Done; a different run under the same number is Conflict.
    """

    reply: ClassVar[type[Reply]] = Done
    ledger: int
    epoch: int
    head: bytes
    payload: Blob
    recovery: bool = False


class FenceState(Reply, kw_only=True):
    """last_confirmed: highest entry that this bookie knows confirmed, -1 for none. last_run: highest run held."""

    last_confirmed: int
    last_run: int


class FenceLedger(Request[FenceState], kw_only=True):
    """Durably raise the ledger's epoch, so that every older writer is refused. Fenced if a newer owner was here.

    A bookie that may have lost runs of this ledger raises Unavailable instead of answering.
    """

    reply: ClassVar[type[Reply]] = FenceState
    ledger: int
    epoch: int


HEADS_AT_ONCE = 256
"""Runs that one ReadHeads may ask for."""

PARTS = ("all", "head")
"""The parts of a run that may be asked for."""


class RunRead(Reply, kw_only=True):
    """One stored run. head None is the explicit "no such run"; damage raises Corrupt or Unavailable instead."""

    head: bytes | None = None
    payload: Blob | None = None


class ReadRun(Request[RunRead], kw_only=True):
    """Read one run by its ordinal. A recovery read carries the new epoch and fences with it (BK1).

    part: "head" brings the head without a payload, and does not look at the payload either: enough to learn who wrote
    the run, no proof that it can be read. There is no part for the index columns, because one checksum covers them and
    the body: sent alone, damage in them would not be seen.
    """

    reply: ClassVar[type[Reply]] = RunRead
    ledger: int
    run: int
    fence_epoch: int | None = None
    part: str = "all"


class HeadsRead(Reply, kw_only=True):
    """Encoded heads, one for each requested run; empty if the run is missing or cannot be read."""

    heads: list[bytes]


class ReadHeads(Request[HeadsRead], kw_only=True):
    """The heads of several runs of one ledger, uint32 column, at most HEADS_AT_ONCE: who wrote them, and how much."""

    reply: ClassVar[type[Reply]] = HeadsRead
    ledger: int
    runs: np.ndarray


class LedgerIndex(Reply, kw_only=True):
    """The runs of a ledger that a bookie holds, ascending: uint32 columns of equal length.

    damaged: runs that are known to have been here and cannot be read; damaged_first_entries, damaged_counts: where they
    stand, as far as this is known (then of the length of `damaged`).
    """

    runs: np.ndarray
    first_entries: np.ndarray
    counts: np.ndarray
    last_confirmed: int = -1
    damaged: np.ndarray = msgspec.field(default_factory=no_rows)
    damaged_first_entries: np.ndarray = msgspec.field(default_factory=no_rows)
    damaged_counts: np.ndarray = msgspec.field(default_factory=no_rows)


class DescribeLedger(Request[LedgerIndex], kw_only=True):
    """The runs that this bookie holds of a ledger."""

    reply: ClassVar[type[Reply]] = LedgerIndex
    ledger: int


class DeleteLedgers(Request[Done], kw_only=True):
    """Forget these ledgers; their space is reclaimed later."""

    reply: ClassVar[type[Reply]] = Done
    ledgers: list[int]


class LedgerList(Reply, kw_only=True):
    """ledgers ascending."""

    ledgers: list[int]


class ListLedgers(Request[LedgerList]):
    """Every ledger that this bookie holds a part of."""

    reply: ClassVar[type[Reply]] = LedgerList
