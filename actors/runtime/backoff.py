"""Pauses between tries, each twice as long as the one before, up to a limit.

Tasks that wait for the same thing, as a thousand consumers for a new dispatcher, began to wait at the same moment. So
that they do not retry in step, every pause is shortened by a random part of at most a tenth (as Pulsar's clients do).
"""

from __future__ import annotations

from sluice.actors.ports import Ports

JITTER = 10
"""A pause is shortened by at most one part in so many."""


class Backoff:
    """The pauses of one series of tries. first, most: milliseconds. patience: the series ends after so many."""

    def __init__(self, ports: Ports, first: int, most: int, patience: int = 0) -> None:
        self._ports = ports
        self._first, self._most = first, most
        self._next = first
        # Each message begins some series, and nearly none has a patience: those do not look at the clock.
        self._until = ports.clock.monotonic() + patience if patience else 0

    async def pause(self) -> None:
        """Wait before the next try."""
        wait, self._next = self._next, min(2 * self._next, self._most)
        await self._ports.clock.sleep(wait - self._ports.rng.randrange(wait // JITTER + 1))

    async def pause_after(self, error: Exception) -> None:
        """Wait before the next try, or raise why the last one failed once the patience is over."""
        if self._ports.clock.monotonic() >= self._until:
            raise error
        await self.pause()

    def reset(self) -> None:
        """Begin with the first pause again: a try went well."""
        self._next = self._first
