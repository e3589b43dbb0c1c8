"""Parked and blocked keys of a subscription: finds the keys of parked messages, and carries out decisions.

The core holds messages by hash. Here they are read, a few at a time and in ascending order, and the core learns their
keys. The subscription's record names the parked keys, and which of their messages failed; the messages stay in the log,
which is kept from the mark-delete position on (`docs/decisions/0024-a-parked-key-stays-in-the-log.md`).

A decision is answered when the version of the record is durable that holds it. For a redriven key that is the version
without the key. For a discarded key the failed message is done first, and durably; only then the key goes on. A later
owner that did not know of the decision would otherwise send the failed message again, behind later ones of its key.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.dispatcher.delivery.ack_handler import AckHandler
from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.key_shared import KeySharedDispatcher, ParkedKey
from sluice.actors.messages import NO_COUNTS, NO_POSITIONS, Discard, ListParked, Redrive
from sluice.actors.messages.parking import DecideParked
from sluice.actors.runtime.waiting import Backoff
from sluice.storage.errors import Corrupt, Invalid, SluiceError, Unavailable
from sluice.storage.format.batch import order_keys
from sluice.storage.format.cursor import Cursor
from sluice.storage.format.frame import index_columns
from sluice.storage.format.hashing import Hashes, key_bytes
from sluice.storage.format.position import Positions, parse, positions_of, run_positions, show

RETRY_FIRST, RETRY_MOST = 100, 5_000
AT_ONCE = 4_096
"""The number of messages that are read together."""


class ParkedKeys:
    """The parked keys of one subscription."""

    def __init__(self, context: SubscriptionContext, ack_handler: AckHandler) -> None:
        self._ports, self._identity, self._log = context.ports, context.identity, context.log
        self._core, self._cursor, self._tracker = context.core, context.cursor, context.tracker
        self._runs, self._payloads, self._store = context.runs, context.payloads, context.store
        self._wake, self._ack_handler = context.wakeups.route.set, ack_handler
        self._working = False
        self.discarded = 0

    # -- whose messages they are ------------------------------------------------------------------------------------

    def examine(self) -> None:
        """Read messages that failed, or lie behind one, to find their keys, unless a task is doing so."""
        if not self._working and self._core.parking.waits_for_reading:
            self._working = True
            self._ports.spawn(self._work(), "parked keys")

    async def _work(self) -> None:
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while self._core.parking.waits_for_reading:
            try:
                await self._read(self._core.parking.failed(AT_ONCE), failed=True)
                await self._read(self._core.parking.unknown(AT_ONCE), failed=False)
                wait.reset()
            except SluiceError as error:
                self._ports.log("parked_keys_wait", error=str(error))
                await wait.pause()
        self._working = False

    async def _read(self, positions: Positions, *, failed: bool) -> None:
        """Read these messages, and report their keys to the core unless it was reset. Raises SluiceError."""
        resets = self._core.resets
        async for received in self._messages(positions):
            if self._core.resets != resets:
                return
            if isinstance(received, Received):
                self._tell(received, failed)
            else:
                self._ack_handler.done_elsewhere(received)

    async def _messages(self, positions: Positions) -> AsyncIterator[Received | Positions]:
        """Yield these messages, and the positions of those that the topic no longer has. Raises SluiceError."""
        if not len(positions):
            return
        parts = self._runs.parts(positions, NO_COUNTS, 0)
        self._payloads.expect(parts)
        for part in parts:
            gone = positions_of(part.ledger, part.first_entry + part.rows.astype(np.int64))
            for received in await self._payloads.resolve(part, 0, 0):
                gone = np.setdiff1d(gone, received.positions, assume_unique=True)
                yield received
            if len(gone):
                yield gone

    def _tell(self, received: Received, failed: bool) -> None:
        parking = self._core.parking
        keys, sizes = order_keys(received.rows), _sizes(received.rows)
        limited = parking.limited
        if failed:
            known = {each.number for each in parking.held()}
            parking.park(received.positions, keys, sizes, self._ports.clock.now())
            self._store.dirty()
            for each in parking.held():
                if each.number not in known:
                    self._ports.log("key_parked", key=_name(each), **self._place())
        else:
            parking.examined(received.positions, keys, sizes)
        if parking.limited and not limited:
            self._ports.log("parking_limit_reached", **self._place(), **parking.stats())
        self._wake()

    def _place(self) -> dict[str, object]:
        me = self._identity
        return {"topic": me.topic, "partition": me.partition, "subscription": me.subscription}

    # -- what operators see -------------------------------------------------------------------------------------------

    def listing(self, request: ListParked) -> dict[str, Any]:
        """See messages.ListParked. Messages and bytes count only what was read so far."""
        parking = self._core.parking
        counts = parking.counts()
        rows = [self._row(each, *counts[each.number]) for each in parking.held()[: request.top]]
        return {"keys": rows, "alarm": self.alarm(), **parking.stats()}

    def _row(self, each: ParkedKey, messages: int, size: int) -> dict[str, Any]:
        return {
            "key": _name(each),
            "state": "parked" if self._core.parking.is_parked(each.number) else "blocked",
            "since": each.since,
            "failed": f"{show(each.failed)}:{self._identity.partition}",
            "messages": messages,
            "bytes": size,
        }

    def alarm(self) -> str:
        """Return which limit is reached; empty if none is."""
        parking = self._core.parking
        if not parking.limited:
            return ""
        figures = parking.stats()
        return (
            f"parking is at its limit: {figures['parkedKeys']} keys of {figures['parkedBytes']} bytes are parked, "
            f"{figures['msgBlockedByKey']} messages of parked keys count as waiting; redrive or discard some, or raise "
            "park_max_keys or park_max_bytes"
        )

    def stats(self) -> dict[str, Any]:
        """Return the count of discarded messages since this owner began, and the alarm."""
        return {"msgDiscardedTotal": self.discarded, "parkingAlarm": self.alarm()}

    def gate(self, key: bytes | None, position: int | None) -> dict[str, Any] | None:
        """Return the reason for an explanation, of a key or of a message; None: parking does not hold it."""
        parking = self._core.parking
        held = None if key is None else parking.find(key)
        if position is not None:
            held = parking.key_of(position)
            if held is None and parking.contains(position):
                text = "it lies behind a message that failed, of a key of the same hash, and its own key is being read"
                return {"gate": "parked", "text": text, "unblocks": "nothing is needed"}
        if held is None:
            return None
        parked = parking.is_parked(held.number)
        identity = self._identity
        since = datetime.fromtimestamp(held.since / 1000, UTC).isoformat(timespec="seconds")
        failed = f"{show(held.failed)}:{identity.partition}"
        typed = _as_text(held.key)
        how = f"--message-id {failed}" if typed is None else f"--key {shlex.quote(typed)}"
        return {
            "gate": "parked" if parked else "blocked",
            "text": f"{'parked' if parked else 'blocked'} since {since}: {failed} was redelivered too often"
            + ("" if parked or not parking.limited else "; parking is at its limit"),
            "unblocks": f"decide with `sluice subscriptions redrive {identity.topic} {identity.subscription} {how}`, "
            "or discard",
            "failed": failed,
        }

    # -- what they decide ---------------------------------------------------------------------------------------------

    def _chosen(self, request: DecideParked) -> list[ParkedKey]:
        """Return the keys that the request names. Raises Invalid."""
        request.check()
        parking = self._core.parking
        if not parking.on:
            raise Invalid("this subscription parks no keys: its dead_letter_policy is 'skip'")
        if request.everything:
            return parking.held()
        if request.key is not None:
            found = parking.find(key_bytes(request.key))
            return [] if found is None else [found]
        at = parse(request.message_id or "")
        return [each for each in parking.held() if each.failed == at]

    async def redrive(self, request: Redrive) -> dict[str, Any]:
        """See messages.Redrive; durable when it returns. Raises Invalid, Fenced."""
        chosen = self._chosen(request)
        messages = self._core.parking.redrive([each.number for each in chosen])
        self._wake()
        await self._store.barrier()
        return {"keys": len(chosen), "messages": messages}

    async def discard(self, request: Discard) -> dict[str, Any]:
        """See messages.Discard; durable when it returns. Raises Invalid, Unavailable, Fenced."""
        chosen = self._chosen(request)
        resets = self._core.resets
        gone = np.array(sorted(each.failed for each in chosen), np.int64)
        if not request.only_failed and chosen:
            ends = await self._log.ends()
            found = [at async for at in self._of_keys(chosen, ends.last)]
            gone = np.unique(np.concatenate([gone, *found]))
        if self._core.resets != resets:
            raise Unavailable("the cursor was moved meanwhile; ask again")
        if not self._core.parking.holds(chosen):  # what of them was redriven is on its way, and later ones are new
            raise Unavailable("the keys were decided about meanwhile; ask again")
        gone = gone[~self._cursor.is_acknowledged(gone)]
        self._core.parking.decide(chosen)
        if len(gone):
            self._ack_handler.done_elsewhere(gone)
        self.discarded += len(gone)
        await self._store.barrier()
        self._core.parking.resume(chosen)
        self._wake()
        return {"keys": len(chosen), "messages": len(gone)}

    async def _of_keys(self, chosen: list[ParkedKey], end: int) -> AsyncIterator[Positions]:
        """Yield messages of these keys from the failed ones to `end`, neither done nor delayed. Raises SluiceError."""
        named = [each for each in chosen if each.key is not None]
        if not named:
            return
        hashes = np.unique(np.array([each.hash for each in named], np.uint32))
        names = pa.array([each.key for each in named], pa.binary())
        failed = np.array([*(each.failed for each in named), 0], np.int64)
        at: int | None = int(failed[:-1].min())
        while at is not None and at <= end:
            positions, at = await self._index(at, end, hashes)
            for start in range(0, len(positions), AT_ONCE):
                async for received in self._messages(positions[start : start + AT_ONCE]):
                    if isinstance(received, Received):
                        which = pc.index_in(order_keys(received.rows), names, skip_nulls=True).fill_null(len(named))
                        which = which.to_numpy(zero_copy_only=False).astype(np.intp)
                        yield received.positions[(which < len(named)) & (received.positions >= failed[which])]

    async def _index(self, at: int, end: int, hashes: Hashes) -> tuple[Positions, int | None]:
        """Return the open messages of some runs with these hashes, and where to read on; None: the log ends there."""
        runs, resume = await self._log.runs(at)
        found = [NO_POSITIONS]
        for run, columns in runs:
            _, all_hashes = index_columns(columns, run.count, run.delayed)
            positions = run_positions(run.ledger, run.first_entry, run.count)
            wanted = np.isin(all_hashes, hashes) & (positions >= at) & (positions <= end)
            wanted &= ~self._cursor.is_acknowledged(positions)
            wanted &= ~self._tracker.contains(positions)
            found.append(positions[wanted])
        return np.concatenate(found), resume


class RecordedParkedKeys:
    """The parked keys, and which of their messages failed; see `Recorded`."""

    field = "parked"

    def __init__(self, core: KeySharedDispatcher, cursor: Cursor) -> None:
        self._core, self._cursor = core, cursor
        self.used = core.parking.on

    def to_record(self) -> Any:
        return self._core.parking.record() or None

    async def load(self, stored: Any) -> None:
        try:
            rows = msgspec.convert(stored or [], list[tuple[bytes | None, int, int, int]])
        except msgspec.ValidationError as error:
            raise Corrupt(f"the parked keys of the record cannot be read: {error}") from error
        done = self._cursor.is_acknowledged
        self._core.parking.load(row for row in rows if not done(np.array([row[3]], np.int64))[0])


def _as_text(key: bytes | None) -> str | None:
    """Return a key as it can be typed; None if it cannot."""
    try:
        text = None if key is None else key.decode()
    except UnicodeDecodeError:
        return None
    return text if text is not None and text.isprintable() else None


def _name(each: ParkedKey) -> str | None:
    return None if each.key is None else each.key.decode("utf-8", "replace")


def _sizes(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return about the bytes of each message: key and payload."""
    names = [name for name in ("key", "payload") if name in rows.schema.names]
    sizes = [pc.fill_null(pc.binary_length(rows.column(name)), 0).to_numpy(zero_copy_only=False) for name in names]
    total: npt.NDArray[np.int64] = np.add.reduce([each.astype(np.int64) for each in sizes])
    return total
