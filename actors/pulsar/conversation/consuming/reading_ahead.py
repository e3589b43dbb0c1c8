"""Frames that were read from a connection and wait to be handled."""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from sluice.actors.pulsar.codec.frames import Cut
from sluice.actors.pulsar.codec.send_decoder import PIECE_BYTES
from sluice.actors.pulsar.codec.vectorized_decoder import SEND_COMMAND, sends_in

FEW_FRAMES = 64
"""The most frames over which a plain loop is cheaper than steps over columns."""


@dataclass(slots=True)
class Reading:
    """The frames of one read. at: the number of the next frame to handle.

    done: producers whose SENDs before frame number `done_until` were decoded together, ahead of the others.
    """

    cut: Cut
    at: int = 0
    done: Container[int] = ()
    done_until: int = 0
    stretches: deque[tuple[int, int]] | None = None
    """The stretches of neighbouring SENDs, number first .. end-1; None before the first look."""

    def sends_from_here(self, least: int, most: int, few: int) -> int:
        """Return the end of the SENDs that begin here and were not tried before; `at` without them.

        most: the largest number at once. few: the largest number if fewer than `least` begin here.
        """
        if self.stretches is None:
            few_frames = len(self.cut) <= FEW_FRAMES
            self.stretches = deque(_short_stretches(self.cut) if few_frames else _stretches(self.cut))
        while self.stretches and self.stretches[0][0] < self.at:
            self.stretches.popleft()
        if self.stretches and self.stretches[0][0] == self.at:
            first, end = self.stretches.popleft()
            if end - first < least:
                most = few
            if end - first > most:
                self.stretches.appendleft((first + most, end))
                end = first + most
            return end
        return self.at

    def is_done(self, producer: int) -> bool:
        """Return whether the frame that was just taken up is a SEND that was decoded and sent with others."""
        return self.at <= self.done_until and producer in self.done


def _stretches(cut: Cut) -> list[tuple[int, int]]:
    """Return the stretches of SENDs of at most PIECE_BYTES: larger ones are decoded in turns."""
    sizes = np.diff([*cut.starts, cut.end])
    sends = sends_in(cut) & (sizes <= PIECE_BYTES)
    begins = np.flatnonzero(np.diff(sends, prepend=False, append=False)).reshape(-1, 2).tolist()
    return [(first, end) for first, end in begins]


def _short_stretches(cut: Cut) -> list[tuple[int, int]]:
    """Return the same, frame by frame."""
    found: list[tuple[int, int]] = []
    data, starts, first = cut.data, cut.starts, -1
    for number, start in enumerate(starts):
        end = starts[number + 1] if number + 1 < len(starts) else cut.end
        if data[start + 8 : start + 10] == SEND_COMMAND and start + 10 <= cut.end and end - start <= PIECE_BYTES:
            first = number if first < 0 else first
        elif first >= 0:
            found.append((first, number))
            first = -1
    return found if first < 0 else [*found, (first, len(starts))]
