"""Messages that are older than is said of their topic, or of its namespace (actors.lifetimes), count as done.

Every gateway looks every EXPIRE_MS: two that do it at once do no more than one. What a topic was made with, the owners
of its subscriptions see to by themselves.
"""

from __future__ import annotations

from typing import Any

from actors.directory import Directory
from actors.lifetimes import Lifetimes, ttl_of
from actors.messages import ExpireMessages, ListSubscriptions, ListTopics
from actors.ports import Address, Ports, Unknown
from actors.wire import Request
from storage.errors import SluiceError, Unavailable

EXPIRE_MS = 60_000
CALL_TIMEOUT = 15_000


class Expiry:
    """Asks the owners of subscriptions."""

    def __init__(self, ports: Ports, controller: Address, directory: Directory) -> None:
        self._ports, self._controller, self._directory = ports, controller, directory
        self._lifetimes = Lifetimes(ports.meta)

    async def run(self) -> None:
        """Look again and again, for ever."""
        while True:
            await self.look()
            await self._ports.clock.sleep(EXPIRE_MS)

    async def look(self) -> None:
        """Once. What cannot be asked now waits for the next time."""
        try:
            said = await self._lifetimes.everything()
            if not any(one.ttl_ms for one in said.values()):
                return
            for topic, settings in (await self._ask(self._controller, ListTopics())).topics.items():
                if ttl := ttl_of(said, topic, settings):
                    await self._expire(topic, settings.partitions, ttl)
        except SluiceError as error:
            self._ports.log("expiry_waits", error=str(error))

    async def _expire(self, topic: str, partitions: int, ttl: int) -> None:
        before = max(self._ports.clock.now() - ttl, 0)
        try:
            names = (await self._ask(self._controller, ListSubscriptions(topic=topic))).names
            for name, partition in ((name, partition) for name in names for partition in range(partitions)):
                owner = await self._directory.dispatcher(topic, partition, name)
                await self._ask(owner, ExpireMessages(before=before))
        except SluiceError as error:
            self._ports.log("expiry_waits", topic=topic, error=str(error))

    async def _ask(self, address: Address, request: Request[Any]) -> Any:
        reply = await self._ports.net.call(address, request, CALL_TIMEOUT)
        if isinstance(reply, Unknown):
            await self._directory.suspect(address)
            raise Unavailable(f"{address} does not answer: {reply.reason}")
        return reply
