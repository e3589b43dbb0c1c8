"""Asking another actor: without a task of the one who asks, and again after a pause.

**The answer comes by a call.** A wait for a bookie is most of what a message does. As a task it costs more than the
work before and behind it. A call has the rules of a background task: an error in it ends its actor, and after the end
of its actor none is made.

**Pauses between tries** are each twice as long as the one before, up to a limit. Tasks that wait for the same thing, as
a thousand consumers for a new dispatcher, began to wait at the same moment. So that they do not retry in step, every
pause is shortened by a random part of at most a tenth (as Pulsar's clients do).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.ports.wire import Reply, Request
from sluice.storage.errors import SluiceError

R = TypeVar("R", bound=Reply)


def ask(
    ports: Ports,
    to: Address,
    request: Request[R],
    timeout: int,
    on_answer: Callable[[R | Unknown | SluiceError], None],
) -> None:
    """Ask a peer and wait at most `timeout` ms. on_answer: called once, after this has returned."""

    def answered(outcome: R | Unknown | SluiceError) -> None:
        if ports.actor.over:
            return
        try:
            on_answer(outcome)
        except Exception as error:
            ports.spawn(_fail(error), "answer")

    ports.net.ask(to, request, timeout, answered)


async def _fail(error: Exception) -> None:
    raise error


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
