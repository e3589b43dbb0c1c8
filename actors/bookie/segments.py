"""The journal segments that are still needed. Decisions only, no I/O.

A closed segment is garbage when no living ledger has a run in it and a start would not replay it. A segment with only a
small living part is emptied by writing that part again at the end of the journal.
"""

from __future__ import annotations

from collections.abc import Container


class Segments:
    """Final sizes of closed segments, and the bytes of each ledger in each segment."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.live: dict[int, dict[int, int]] = {}

    def close(self, segment: int, size: int) -> None:
        """A segment has its final size."""
        self.sizes[segment] = size

    def stored(self, segment: int, ledger: int, size: int) -> None:
        """A run of a ledger was written to a segment."""
        ledgers = self.live.setdefault(segment, {})
        ledgers[ledger] = ledgers.get(ledger, 0) + size

    def forget_ledger(self, ledger: int) -> None:
        for ledgers in self.live.values():
            ledgers.pop(ledger, None)

    def emptied(self, segment: int) -> None:
        """All live runs of a segment were moved elsewhere."""
        self.live.pop(segment, None)

    def gone(self, segment: int) -> None:
        self.live.pop(segment, None)
        self.sizes.pop(segment, None)

    def living(self) -> set[int]:
        """The segments in which something lives."""
        return {segment for segment, ledgers in self.live.items() if ledgers}

    def garbage(self, before: int) -> list[int]:
        """Closed segments numbered below `before` in which nothing lives."""
        return [segment for segment in sorted(self.sizes) if segment < before and not self.live.get(segment)]

    def sparse(self, before: int, percent: int, spared: Container[int] = ()) -> int | None:
        """The closed segment below `before` with the smallest live part, if that is below `percent`; none of `spared`,
        which stay as they are.
        """
        shares = [
            (sum(self.live.get(segment, {}).values()) * 100 // max(size, 1), segment)
            for segment, size in sorted(self.sizes.items())
            if segment < before and segment not in spared and self.live.get(segment)
        ]
        return min(shares)[1] if shares and min(shares)[0] < percent else None
