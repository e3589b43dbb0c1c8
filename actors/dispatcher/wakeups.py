"""What wakes the parts of a dispatcher. A part that changes something sets a signal, and does not know who waits.

Everything that may make a message deliverable sets `route`. Setting it twice before the router runs costs one pass, and
a pass that finds nothing is cheap; so no change needs to know what it might have freed, and none can be forgotten (L4,
L5, L10).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from actors.signal import Signal


@dataclass(frozen=True, slots=True)
class Wakeups:
    """route: messages may go out. due: delayed messages may be taken. read: there may be room to read.

    places: a consumer came or went.
    """

    route: Signal = field(default_factory=Signal)
    due: Signal = field(default_factory=Signal)
    read: Signal = field(default_factory=Signal)
    places: Signal = field(default_factory=Signal)

    def came_or_went(self) -> None:
        """Consumers are others, or fewer, and messages may go elsewhere."""
        self.places.set()
        self.route.set()

    def all(self) -> None:
        """Something changed outside of the data path."""
        self.route.set()
        self.due.set()
        self.read.set()
