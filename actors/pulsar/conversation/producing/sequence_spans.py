"""Translates a producer's sequence ids for a topic with deduplication, and says which are stored already.

The topic numbers rows, and a client numbers messages; so each of the client's sequence ids has 2**SHIFT of the topic's.
The rows of a frame end at the last one of those. All chunks of a message have one sequence id: chunk number i is
at sequence i of it, and the last chunk at the last one. So the topic, which remembers how far a producer came, knows
over any reconnection which chunks it has, and a sequence id counts as stored only with its last one.

What lies at or below that mark is a duplicate, as with Pulsar. Above it a frame is one only if this producer has sent
all that it covers: that a higher sequence id was seen says nothing, because a frame may have been refused.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from sluice.actors.pulsar.codec.protocol import MalformedCommand
from sluice.actors.pulsar.codec.send_decoder import Send, read_metadata
from sluice.actors.pulsar.codec.varints import Ints

SHIFT = 16
"""A run has at most 2**SHIFT rows, and a message as many chunks, so runs of different sequence ids never overlap."""
MOST_SEQUENCE = (1 << 46) - 1
MOST_SPANS = 1024
"""The stretches of sequence ids remembered of a producer that skips some; the oldest are forgotten first."""


def end_of(sequence: int) -> int:
    """Return the last sequence at the topic of a client's sequence id."""
    return (sequence + 1 << SHIFT) - 1


def last_complete(sequence: int) -> int:
    """The client's last sequence id that is complete in the topic, which has stored up to a sequence; -1: none."""
    return (sequence + 1 >> SHIFT) - 1


def span_of(send: Send) -> tuple[int, int]:
    """(First, last) of the sequences at the topic that a frame covers. Raises MalformedCommand."""
    metadata = read_metadata(send)
    first = int(send.command.sequence_id)
    last = max(first, int(send.command.highest_sequence_id))
    if last > MOST_SEQUENCE:
        raise MalformedCommand(f"with deduplication a sequence id is at most {MOST_SEQUENCE}")
    chunks, chunk = metadata.num_chunks, metadata.chunk_id
    if chunks <= 1:
        return first << SHIFT, end_of(last)
    at = (first << SHIFT) + chunk
    return at, end_of(first) if chunk == chunks - 1 else at


class Numbers:
    """The numbers that one producer has sent. stored: the topic's sequence up to which all are stored."""

    def __init__(self, stored: int = -1) -> None:
        self._stored = self.last = stored
        self._spans: list[tuple[int, int]] = []

    @property
    def sequence(self) -> int:
        """The highest of the client's sequence ids, -1 if there is none yet."""
        return self.last >> SHIFT

    def cover(self, first: int, last: int) -> bool:
        """Return whether all of these are stored, or were sent by this producer."""
        if last <= self._stored:
            return True
        number = bisect_right(self._spans, (first, end_of(MOST_SEQUENCE))) - 1
        return number >= 0 and last <= self._spans[number][1]

    def add(self, first: int, last: int) -> None:
        """Note sent numbers first .. last; `last` is above everything that was sent before."""
        self.last = last
        if self._spans and first <= self._spans[-1][1] + 1:
            begin, _ = self._spans.pop()
            first = min(first, begin)
        self._spans.append((first, last))
        if len(self._spans) > MOST_SPANS:
            del self._spans[0]

    def add_all(self, firsts: Ints, lasts: Ints) -> None:
        """The client's sequence ids of many frames are sent; int64, `lasts` ascending."""
        skipped = np.flatnonzero(firsts[1:] > lasts[:-1] + 1)
        begins = firsts[np.append(0, skipped + 1)][-MOST_SPANS:]
        ends = lasts[np.append(skipped, len(lasts) - 1)][-MOST_SPANS:]
        for first, last in zip(begins.tolist(), ends.tolist(), strict=True):
            self.add(first << SHIFT, end_of(last))
