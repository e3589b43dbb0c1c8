"""Settings of a bookie. They travel as a plain mapping, so every field has a default and a plain type."""

from __future__ import annotations

import msgspec

from sluice.actors.messages.settings import YEARS, check_limits

MIB = 1024 * 1024
_BYTES = 1 << 62
LIMITS: dict[str, tuple[int, int]] = {
    "segment_bytes": (1, 2048 * MIB),
    "group_bytes": (1, 1024 * MIB),
    "queue_bytes": (0, _BYTES),
    "checkpoint_runs": (1, 1 << 31),
    "checkpoint_bytes": (1, _BYTES),
    "min_free_bytes": (0, _BYTES),
    "reserve_bytes": (0, 1024 * MIB),
    "compact_below": (0, 100),
    "housekeeping_ms": (1, YEARS),
}
"""Smallest and largest value of each. Places in a segment have 32 bits, and a segment may become larger by a group."""


class BookieSettings(msgspec.Struct, kw_only=True, frozen=True):
    """The sizes of a bookie in bytes, and its times in milliseconds."""

    segment_bytes: int = 64 * MIB
    """A journal segment is closed at this size."""
    group_bytes: int = 8 * MIB
    """At most about so much is written by one group commit."""
    queue_bytes: int = 256 * MIB
    """With more than this waiting for the disk, adds are refused with Overloaded."""
    checkpoint_runs: int = 16_384
    """The index is checkpointed after so many runs; a start replays at most about as many."""
    checkpoint_bytes: int = 128 * MIB
    """The same for bytes of the journal."""
    min_free_bytes: int = 256 * MIB
    """With less free space the bookie is read-only."""
    reserve_bytes: int = MIB
    """Kept aside so that a full disk can still fence and delete."""
    compact_below: int = 40
    """A closed segment whose living part is a smaller percentage is rewritten."""
    housekeeping_ms: int = 1_000
    """How often garbage is looked for."""

    def __post_init__(self) -> None:
        check_limits(self, LIMITS)
