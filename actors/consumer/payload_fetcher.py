"""Delivered parts that wait for their payload, which is fetched in order while the next poll is under way.

How many messages come is what the consumer has asked for, and how large they are shows only when they are there. So
bytes are bounded here: payloads that came with parts up to INBOX_BYTES, beyond which the topic is asked for them later,
and what is fetched at once up to JOIN_BYTES and one run more. While the consumer has enough of what was fetched
(`hold`) nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import msgspec
import numpy as np

from sluice.actors.consumer.payload import Payloads
from sluice.actors.consumer.unacked_messages import JOIN_ROWS, LazyBatch, Received, join
from sluice.actors.messages import NO_POSITIONS, Part
from sluice.actors.messages.limits import MAX_ANSWER_BYTES
from sluice.actors.ports import Ports
from sluice.actors.runtime.waiting import CancellableWait, Signal, SignalTask
from sluice.storage.format.position import Positions, positions_of

INBOX_BYTES = MAX_ANSWER_BYTES
"""Payloads that came with parts and wait; one answer has no more."""
JOIN_BYTES = 16 * 1024 * 1024
"""Messages that are fetched together have so many bytes, and at most one run more."""
Delivered = tuple[Part, int, int]
"""A part, with the epoch and the session under which it came."""


class PayloadFetcher:
    """Parts of one partition in order of arrival.

    came: told of messages that are complete, and of positions (int64, ascending) that were trimmed meanwhile.
    """

    def __init__(self, ports: Ports, payloads: Payloads, came: Callable[[Sequence[Received], Positions], None]) -> None:
        self._payloads, self._came = payloads, came
        self._parts: list[Delivered] = []
        self._bytes = 0
        """Bytes of the payloads that came with these parts."""
        self._signal = Signal()
        self._fetching = CancellableWait()
        self._closed = self._held = False
        SignalTask(ports, self._signal, self._fetch, "fetch")

    def __len__(self) -> int:
        return sum(len(part.rows) for part, _, _ in self._parts)

    def positions(self, *, before: int = 0) -> Positions:
        """Positions of the messages that wait, int64, in order of arrival. before: only what came in a session that was
        before this one.
        """
        return _positions(each for each in self._parts if not before or each[2] != before)

    def add(self, parts: Iterable[Part], epoch: int, session: int) -> None:
        for part in parts:
            size = 0 if part.blob is None else part.blob.size
            fits = self._bytes + size <= INBOX_BYTES
            self._bytes += size if fits else 0
            self._parts.append((part if fits else msgspec.structs.replace(part, blob=None), epoch, session))
        self._signal.set()

    def hold(self, held: bool) -> None:
        """Fetch nothing for now, or go on."""
        if self._held and not held:
            self._signal.set()
        self._held = held

    def clear(self) -> int:
        """All of it is others' now; returns how many messages that were."""
        count = len(self)
        self._parts.clear()
        self._bytes = 0
        return count

    def take_back(self, positions: Positions) -> Positions:
        """The dispatcher asks for these: nobody sees them; returns those that were here, in order of arrival."""
        found = self.positions()
        found = found[np.isin(found, positions)]
        if len(found):
            # Every part anew, so that what is being fetched is known not to be what waits.
            self._parts = [
                (piece, epoch, session) for part, epoch, session in self._parts for piece in _without(part, positions)
            ]
            self._bytes = sum(part.blob.size for part, _, _ in self._parts if part.blob is not None)
            self._signal.set()
        return found

    def close(self) -> None:
        """Fetch nothing any more, nor wait for what is being fetched: while nobody can read it that never ends."""
        self._closed = True
        self._fetching.end()

    async def _fetch(self) -> None:
        self._signal.clear()
        while self._parts and not (self._closed or self._held):
            await self._hand_over()

    async def _hand_over(self) -> None:
        """Fetch the next parts. Nothing of them is kept here while it waits for others."""
        taken = self._leading()
        self._payloads.expect(part for part, _, _ in taken)
        pieces, size, count = list[LazyBatch](), 0, 0
        while count < len(taken) and size < JOIN_BYTES:
            found = await self._fetching.run(self._payloads.resolve(*taken[count]))
            if found is None:
                return  # it is closed
            pieces, size, count = pieces + found, size + sum(piece.size for piece in found), count + 1
        if not self._parts or self._parts[0] is not taken[0]:
            return  # it was cleared meanwhile
        del self._parts[:count]
        for part, _, _ in taken[:count]:
            self._bytes -= 0 if part.blob is None else part.blob.size
        self._came(join(pieces), _missing(taken[:count], pieces))

    def _leading(self) -> list[Delivered]:
        """The next parts of one session, as many as may be joined."""
        taken, rows = [self._parts[0]], len(self._parts[0][0].rows)
        for one in islice(self._parts, 1, None):
            rows += len(one[0].rows)
            if rows > JOIN_ROWS or one[1:] != taken[0][1:]:
                break
            taken.append(one)
        return taken


def _without(part: Part, positions: Positions) -> list[Part]:
    """A part without these messages: the stretches between them, each with the number of its first dispatch."""
    at = positions_of(part.ledger, part.rows.astype(np.int64) + part.first_entry)
    kept = np.flatnonzero(~np.isin(at, positions))
    stretches = np.split(kept, np.flatnonzero(np.diff(kept) > 1) + 1) if len(kept) else []
    return [
        msgspec.structs.replace(
            part,
            rows=part.rows[rows],
            redeliveries=part.redeliveries[rows] if len(part.redeliveries) else part.redeliveries,
            dispatch=part.dispatch + int(rows[0]),
        )
        for rows in stretches
    ]


def _missing(taken: list[Delivered], pieces: Sequence[Received]) -> Positions:
    """Delivered messages whose payload was not found, ascending."""
    if sum(len(part.rows) for part, _, _ in taken) == sum(len(piece) for piece in pieces):
        return NO_POSITIONS
    return np.setdiff1d(_positions(taken), np.concatenate([NO_POSITIONS, *(piece.positions for piece in pieces)]))


def _positions(parts: Iterable[Delivered]) -> Positions:
    waiting = [positions_of(part.ledger, part.rows.astype(np.int64) + part.first_entry) for part, _, _ in parts]
    return np.concatenate([NO_POSITIONS, *waiting])
