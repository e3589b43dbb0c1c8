"""Messages in chunks: a payload that is too large for one message, joined from several. Decisions only, no I/O.

A producer cuts the payload. Each chunk is a message of its own with the key of the whole, so all chunks of a message
go to one consumer, in order. A chunk stays unacknowledged until the user is done with the whole message; acknowledging
the whole or giving it back does so with every chunk of it.

Chunks may come in any order: a chunk that was given back comes behind later ones. One that is stored twice is done
once. Chunk 0 of a message whose chunks are here already means that its producer began again: those at earlier places
are done. Incomplete messages that have their chunk 0 are bounded in number, all of them in bytes, and the oldest is
given back. Messages of one key may lie among each other, and neither can do without the other's chunks: none of the key
whose chunk came last is given back for their number. If a chunk is taken back, all others of its message go with it.

The caller decides about a message that got no new chunk for too long (`overdue`). Such a message takes no place: two
that their producers left would take each other's for ever, and neither would grow old.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.messages import NO_COUNTS, NO_POSITIONS
from sluice.storage.format.position import Positions

if TYPE_CHECKING:
    from sluice.actors.consumer.partition import PartitionConsumer

MOST_BYTES = 256 * 1024 * 1024
"""Bytes of incomplete messages at a consumer, and the most of one message in chunks."""
CHUNKS_MS = 60_000
"""A message is confirmed only if all of its chunks are stored so soon after its send. A consumer waits for the next one
at least as long: what it drops was never confirmed.
"""
_MOST_REMEMBERED = 1_000
"""Messages that were given back, and may come to another consumer."""


@dataclass(frozen=True, slots=True)
class ChunkOf:
    """The place of a chunk: number `number` (from 0) of `count` chunks of message `uuid`."""

    uuid: bytes
    number: int
    count: int


class MessageChunk(Received):
    """One chunk: a part of one row. whole: its message, once that is complete."""

    __slots__ = ("of", "whole")

    def __init__(self, part: Received, of: ChunkOf) -> None:
        self.of = of
        self.whole: Whole | None = None
        super().__init__(
            rows=part.rows,
            partition=part.partition,
            positions=part.positions,
            dispatch=part.dispatch,
            redeliveries=part.redeliveries,
            deliver_at=part.deliver_at,
            epoch=part.epoch,
            session=part.session,
            overtook=part.overtook,
        )

    @property
    def shown(self) -> int:
        """Whether the application has seen the message."""
        return 0 if self.whole is None else self.whole.shown

    @shown.setter
    def shown(self, shown: int) -> None:
        """Leave it to the message."""

    def as_shown(self, row: int) -> tuple[Received, int]:
        return (self, row) if self.whole is None else (self.whole, 0)

    def unseen(self, rows: npt.NDArray[np.int64]) -> int:
        """None: the permit of a chunk is free as soon as it has come."""
        return 0

    def take_back(self, rows: npt.NDArray[np.int64]) -> None:
        self.open[rows] = False
        if len(rows):
            self.taken_back = np.ones(1, bool)
            if self.whole is not None:
                self.whole.give_rest_back()

    def empty(self) -> None:
        """Drop the payload, which the message has; the key stays."""
        place = self.rows.schema.get_field_index("payload")
        rows = self.rows.take(pa.array([0]))  # and nothing of the run that it lies in
        self.rows = rows.set_column(place, rows.schema.field(place), pa.array([b""], pa.binary()))


class Whole(Received):
    """A message in chunks, at the place of its last one. What becomes of it becomes of all chunks."""

    __slots__ = ("_chunks", "on_broken")

    def __init__(self, chunks: Sequence[MessageChunk], rows: pa.RecordBatch) -> None:
        self._chunks = tuple(chunks)
        self.on_broken: Callable[[Sequence[MessageChunk]], object] = lambda chunks: None
        """Called when a chunk was taken back: the others must come again with it."""
        last = chunks[-1]
        super().__init__(
            rows=rows,
            partition=last.partition,
            positions=last.positions,
            dispatch=last.dispatch,
            redeliveries=np.max([chunk.redeliveries for chunk in chunks], axis=0),
            deliver_at=last.deliver_at,
            epoch=last.epoch,
            session=last.session,
            overtook=np.any([chunk.overtook for chunk in chunks], axis=0),
        )
        for chunk in chunks:
            chunk.whole = self
            chunk.empty()

    @property
    def open(self) -> npt.NDArray[np.bool_]:
        """Whether every chunk is."""
        return np.array([all(chunk.open[0] for chunk in self._chunks)])

    @open.setter  # noqa: A003
    def open(self, rows: npt.NDArray[np.bool_]) -> None:
        """Leave it to the chunks."""

    @property
    def revoked(self) -> bool:
        return any(chunk.revoked for chunk in self._chunks)

    @revoked.setter
    def revoked(self, revoked: bool) -> None:
        """Leave it to the chunks."""

    @property
    def taken_back(self) -> npt.NDArray[np.bool_] | None:
        found = any(chunk.taken_back is not None for chunk in self._chunks)
        return np.ones(1, bool) if found else None

    @taken_back.setter
    def taken_back(self, rows: npt.NDArray[np.bool_] | None) -> None:
        """Leave it to the chunks."""

    def counts(self, rows: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.uint8]:
        if (rows is not None and not len(rows)) or not self.open[0]:
            return NO_COUNTS
        return np.concatenate([chunk.counts() for chunk in self._chunks])

    def close(self, rows: npt.NDArray[np.int64] | None = None) -> Positions:
        if (rows is not None and not len(rows)) or not self.open[0]:
            return NO_POSITIONS  # a part of it is not done alone
        return np.concatenate([chunk.close() for chunk in self._chunks])

    def give_rest_back(self) -> None:
        """Have the chunks given back that are here."""
        self.on_broken(self._chunks)


@dataclass(eq=False, slots=True)
class _Incomplete:
    """chunks: by their numbers. since: when the last chunk came that had not been here before, monotonic ms. seen: the
    places of all that were here.
    """

    since: int
    chunks: dict[int, MessageChunk] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    size: int = 0

    def keep(self, wanted: Callable[[MessageChunk], bool]) -> list[MessageChunk]:
        """Keep some chunks, and return the others."""
        others = [chunk for chunk in self.chunks.values() if not wanted(chunk)]
        for chunk in others:
            del self.chunks[chunk.of.number]
            self.size -= chunk.size
        return others


@dataclass(slots=True)
class Decision:
    """The consequences of one chunk. whole: the chunks of a message that is complete now, in order."""

    whole: list[MessageChunk] | None = None
    done: list[MessageChunk] = field(default_factory=list)
    back: list[tuple[PartitionConsumer, list[MessageChunk]]] = field(default_factory=list)
    """Chunks that are given back, with the source that each group came from."""


MessageAt = tuple["PartitionConsumer", bytes, int]
"""The source of a message, its uuid, and its number of chunks: producers may say two numbers for one uuid."""


class IncompleteMessages:
    """Chunks at one consumer whose messages are not complete, in the order in which the messages began.

    most: incomplete messages with a chunk 0. patience: ms that a message may wait for its next chunk.
    """

    def __init__(self, most: int, patience: int) -> None:
        self._most, self._patience = most, patience
        self._messages: dict[MessageAt, _Incomplete] = {}
        self._away: dict[MessageAt, _Incomplete] = {}
        """Without chunks: for how long these wait when they come again."""

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, source: PartitionConsumer, chunk: MessageChunk, now: int) -> Decision:
        """Take a chunk that came from a source (one partition). now: monotonic ms."""
        self._forget_lost()
        decision, place = Decision(), int(chunk.positions[0])
        at = source, chunk.of.uuid, chunk.of.count
        message = self._messages.get(at) or self._away.pop(at, None) or _Incomplete(now)
        self._messages.setdefault(at, message)
        first = message.chunks.get(0)
        if first is not None and place < first.positions[0]:
            decision.done.append(chunk)
            return decision
        if chunk.of.number == 0:
            decision.done += message.keep(lambda each: each.positions[0] > place)
            self._messages[at] = self._messages.pop(at)  # it begins now
        if message.chunks.setdefault(chunk.of.number, chunk) is not chunk:
            decision.done.append(chunk)
            return decision
        message.size += chunk.size
        if place not in message.seen:
            message.seen.add(place)
            message.since = now
        if len(message.chunks) == chunk.of.count:
            decision.whole = [message.chunks[number] for number in range(chunk.of.count)]
            del self._messages[at]
        while (oldest := self._beyond_limits(_key_of(chunk), now)) is not None:
            decision.back.append((oldest[0], self._take_out(oldest)))
        return decision

    def overdue(self, now: int) -> list[MessageAt]:
        """The messages that got no chunk for too long."""
        self._forget_lost()
        return [at for at, one in self._messages.items() if self._is_overdue(one, now)]

    def take_overdue(self, at: MessageAt, now: int) -> list[MessageChunk]:
        """Take out a message that still is overdue: its chunks; none of another one."""
        self._forget_lost()
        one = self._messages.get(at)
        return self._take_out(at) if one is not None and self._is_overdue(one, now) else []

    def clear(self) -> list[MessageChunk]:
        """Take out everything."""
        found = [chunk for one in self._messages.values() for chunk in one.chunks.values()]
        self._messages.clear()
        return found

    def _is_overdue(self, one: _Incomplete, now: int) -> bool:
        return one.since + self._patience <= now

    def _take_out(self, at: MessageAt) -> list[MessageChunk]:
        """Take out a message, whose age is not forgotten: its chunks."""
        one = self._away[at] = self._messages.pop(at)
        if len(self._away) > _MOST_REMEMBERED:
            del self._away[next(iter(self._away))]
        return one.keep(lambda each: False)

    def _beyond_limits(self, key: bytes | None, now: int) -> MessageAt | None:
        """Return the oldest message that is too much. key: of the chunk that came last.

        A message without its chunk 0 takes no other one's place: else two would chase each other for ever.
        """
        begun = [at for at, one in self._messages.items() if 0 in one.chunks and not self._is_overdue(one, now)]
        others = [at for at in begun if key is None or _key_of(self._messages[at].chunks[0]) != key]
        if len(begun) > self._most and others:
            return others[0]
        if sum(one.size for one in self._messages.values()) > MOST_BYTES:
            return next(iter(self._messages))
        return None

    def _forget_lost(self) -> None:
        """Drop chunks that are another consumer's by now: they come again, and what is left of their messages waits."""
        for at, one in list(self._messages.items()):
            one.keep(lambda each: bool(each.open[0]) and not each.revoked)
            if not one.chunks:
                self._take_out(at)


def _key_of(chunk: MessageChunk) -> bytes | None:
    """Return the key by which a chunk finds its consumer; None: it has none."""
    names = [name for name in ("ordering_key", "key") if name in chunk.schema.names]
    return next((key for name in names if (key := chunk.column(name)[0].as_py()) is not None), None)
