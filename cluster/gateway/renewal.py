"""Keys, passwords and certificates that are renewed while a process runs.

The process looks at their files every LOOK_S. When a file has changed, the process reads the files again and uses them
for new clients. A client that is connected stays; a token counts until it ends. If the files cannot be used, because
one is damaged or only one of a pair is there yet, the earlier ones stay in force. That is an alarm until it is mended.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from sluice.actors.pulsar.conversation.gateway.gateway import Authenticate, ClientIdentity
from sluice.cluster.base.real import logger
from sluice.cluster.gateway.authentication import KEY_FILES, authenticate_by
from sluice.cluster.gateway.tls import TLS_FILES, context_of
from sluice.storage.errors import Invalid

T = TypeVar("T")
LOOK_S = 2.0
State = tuple[tuple[int, int, int] | None, ...]


class Renewed(Generic[T]):
    """A value that is made of the newest good files. The constructor raises what `make` raises."""

    def __init__(self, files: Sequence[str], make: Callable[[], T]) -> None:
        self._files, self._make = files, make
        self._seen = _state(files)
        self.value = make()
        self.problem = ""
        """Why the newest files are not used; empty if they are."""

    async def run(self) -> None:
        """Look again and again, for ever; returns at once where there are no files."""
        while self._files:
            await asyncio.sleep(LOOK_S)
            await self.refresh()

    async def refresh(self) -> None:
        """Use what has changed, if it can be used."""
        seen = await asyncio.to_thread(_state, self._files)
        if seen == self._seen:
            return
        self._seen, before = seen, self.problem
        try:
            self.value = await asyncio.to_thread(self._make)
            self.problem = ""
            logger.info("renewed: %s", ", ".join(self._files))
        except (Invalid, OSError, ValueError, ssl.SSLError) as error:
            self.problem = f"{error}; what was there before is used further"
            if self.problem != before:
                logger.error("not renewed: %s", self.problem)


def _state(files: Sequence[str]) -> State:
    """Return the state of the files; a change of a file changes it."""
    found: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            status = os.stat(file)
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)


def _named(settings: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [str(settings[name]) for name in names if settings.get(name)]


class RenewedAuthentication(Renewed[Authenticate | None]):
    """The authentication of clients by the newest keys and passwords."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(_named(settings, KEY_FILES), lambda: authenticate_by(settings))

    @property
    def authenticate(self) -> Authenticate | None:
        """None lets everybody in."""
        return None if self.value is None else self._known

    async def _known(self, method: str, data: bytes) -> ClientIdentity:
        assert self.value is not None
        return await self.value(method, data)


class RenewedTls(Renewed[ssl.SSLContext | None]):
    """The TLS context for handshakes, by the newest certificates; None if settings name no certificate."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(_named(settings, TLS_FILES), lambda: context_of(settings))
