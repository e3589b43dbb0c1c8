"""A limit on the appends of one connection that are under way at once.

A client that sends to a thousand partitions begins as many appends, and each makes every turn of the event loop longer
until it is done. A heartbeat takes a dozen of these turns, and an append more: where each takes a second, sessions and
appends are given up although nothing is wrong with them. So MOST_APPENDS are under way, and the others wait in the
order in which they came. What comes for their partitions meanwhile joins them, which costs less than an append of its
own.

An append whose bookies or owner are away may take for ever. After PATIENCE_MS it does not count any more, so that it
keeps no other partition waiting for longer.
"""

from __future__ import annotations

import asyncio

from sluice.actors.ports import Ports, Timer

MOST_APPENDS = 100
PATIENCE_MS = 3_000


class AppendTurns:
    """Belongs to one connection."""

    def __init__(self, ports: Ports, most: int = MOST_APPENDS) -> None:
        self._ports = ports
        self._room = asyncio.Semaphore(most)

    async def begin(self) -> AppendTurn:
        """Wait until it is its turn. The caller ends it."""
        await self._room.acquire()
        return AppendTurn(self._ports, self._room)


class AppendTurn:
    """An append that is under way, or its repetition."""

    __slots__ = ("_counts", "_room", "_timer")

    def __init__(self, ports: Ports, room: asyncio.Semaphore) -> None:
        self._room, self._counts = room, True
        self._timer: Timer = ports.clock.timer(PATIENCE_MS, self._let_others)

    def end(self) -> None:
        """End the turn of an append that has succeeded or failed, and let others begin."""
        self._timer.cancel()
        self._let_others()

    def _let_others(self) -> None:
        if self._counts:
            self._counts = False
            self._room.release()
