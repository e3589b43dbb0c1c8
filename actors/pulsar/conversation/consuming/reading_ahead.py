"""Frames that were read from a connection and wait to be handled."""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from sluice.actors.pulsar.codec.frames import Cut
from sluice.actors.pulsar.codec.send_decoder import PIECE_BYTES
from sluice.actors.pulsar.codec.vectorized_decoder import sends_in


@dataclass(slots=True)
class Reading:
    """Frames of one read. at: the number of the next frame to handle.

    done: producers whose SENDs before frame number `done_until` were decoded together, ahead of the others.
    """

    cut: Cut
    at: int = 0
    done: Container[int] = ()
    done_until: int = 0
    stretches: deque[tuple[int, int]] | None = None
    """Neighbouring SENDs, number first .. end-1; None before the first look."""

    def sends_from_here(self, least: int, most: int, few: int) -> int:
        """Return the end of the SENDs that begin here and were not tried before; `at` without them.

        most: so many at once. few: so many of fewer than `least`.
        """
        if self.stretches is None:
            sizes = np.diff([*self.cut.starts, self.cut.end])
            sends = sends_in(self.cut) & (sizes <= PIECE_BYTES)  # larger ones are decoded in turns
            begins = np.flatnonzero(np.diff(sends, prepend=False, append=False)).reshape(-1, 2).tolist()
            self.stretches = deque((first, end) for first, end in begins)
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
        """Whether the frame that was just taken up is a SEND that went out with others."""
        return self.at <= self.done_until and producer in self.done
