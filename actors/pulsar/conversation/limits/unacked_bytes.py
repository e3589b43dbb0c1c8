"""How much memory a gateway spends on what its clients have and have not acknowledged, and who is sent no more.

Without the contents it is little for each message, but a client decides how many it leaves unacknowledged, and only
consumers of Shared and Key_Shared have a limit at their subscription. So all connections together have MOST_BYTES, and
one may have as much as is free then, so never more than half: several that take all they can get leave as much to the
next one as each of them has. Each has OWN_BYTES in any case. A consumer whose connection has more is sent nothing until
that has changed; a reader forgets what it was sent first instead, because nobody needs to acknowledge to it.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.actors.ports import Ports

MOST_BYTES = 256 * 1024 * 1024
OWN_BYTES = 256 * 1024
STEP = 1024 * 1024
"""The bytes given back after which waiting connections look again."""


class UnackedBytes:
    """The unacknowledged bytes of all connections of a gateway, with a common limit."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self.total = 0
        self._given_back = 0
        self._waiting: dict[UnackedShare, None] = {}

    def change(self, share: UnackedShare, size: int) -> None:
        """A connection has so many bytes more; negative: less."""
        self.total += size
        self._given_back -= min(size, 0)
        if self._given_back >= STEP:
            self._given_back = 0
            for each in list(self._waiting):
                self._look(each)
        elif size < 0 and share in self._waiting:
            self._look(share)

    def wait(self, share: UnackedShare) -> None:
        """Note that a consumer of this connection waits for room."""
        self._waiting[share] = None

    def _look(self, share: UnackedShare) -> None:
        """If there is room, those who wait go on, but not within what has made it: that is under way still."""
        if not share.full:
            del self._waiting[share]
            self._ports.spawn(share.go_on(), "room")


class UnackedShare:
    """The unacknowledged bytes of one connection."""

    def __init__(self, everybody: UnackedBytes) -> None:
        self._everybody = everybody
        self._size = 0
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def full(self) -> bool:
        """Whether it has more than it may have now."""
        return self._size > max(OWN_BYTES, MOST_BYTES - self._everybody.total)

    def change(self, size: int) -> None:
        """Add a number of bytes; negative: subtract."""
        self._size += size
        self._everybody.change(self, size)

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call this when there is room again."""
        self._waiting[go_on] = None
        self._everybody.wait(self)

    async def go_on(self) -> None:
        """There is room."""
        waiting, self._waiting = self._waiting, {}
        for go_on in waiting:
            go_on()
