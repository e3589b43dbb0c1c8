"""Asks the owner of a partition: it finds the owner, suspects a silent one, and decides how long to go on.

An address is a hint. An owner that does not answer, or says that it was replaced, is suspected: the controller checks
it, and the next request finds its successor. Silence (`Unknown`) proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sluice.actors.lookup.directory import Directory
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.ports.wire import Reply, Request
from sluice.actors.runtime.backoff import Backoff
from sluice.storage.errors import Fenced, SluiceError, Unavailable

R = TypeVar("R", bound=Reply)

CALL_TIMEOUT = 5_000
RETRY_FIRST, RETRY_MOST = 50, 2_000


class TopicClient:
    """Asks the owner of one partition of a topic."""

    def __init__(self, ports: Ports, directory: Directory, topic: str, partition: int) -> None:
        self._ports, self._directory = ports, directory
        self.topic, self.partition = topic, partition

    async def owner(self) -> Address:
        """The owner's address. Raises NotFound, Unavailable."""
        return await self._directory.topic(self.topic, self.partition)

    def known_owner(self) -> Address:
        """Return the owner's address if it is known; otherwise an empty one."""
        return self._directory.known_topic(self.topic, self.partition)

    async def ask(self, request: Request[R], timeout: int = CALL_TIMEOUT, *, to: Address = "") -> R:
        """The answer of the owner, or of the one at `to`.

        Raises Unavailable if none came within `timeout` ms, and what the owner refuses with.
        """
        address = to or await self.owner()
        try:
            reply = await self._ports.net.call(address, request, timeout)
        except Fenced:
            await self._directory.suspect(address)
            raise
        if isinstance(reply, Unknown):
            await self._directory.suspect(address)
            raise Unavailable(f"partition {self.partition} of {self.topic!r} does not answer: {reply.reason}")
        return reply

    async def insist(
        self,
        request: Request[R],
        timeout: int = CALL_TIMEOUT,
        *,
        refused: Callable[[SluiceError], bool] = lambda error: isinstance(error, (Unavailable, Fenced)),
    ) -> R:
        """The answer, however long it takes. refused: called with each refusal; if it returns False, that is raised."""
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while True:
            try:
                return await self.ask(request, timeout)
            except SluiceError as error:
                if not refused(error):
                    raise
            await wait.pause()
