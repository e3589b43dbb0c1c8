"""A connection that was just accepted, before anything answers HTTP on it, and its bytes in parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from sluice.cluster.base.forks import keep_connection_from_children

BACKLOG = 256
"""So many connections the kernel keeps until they are accepted. It drops others without a word, and their clients try
again after a second or three.
"""


class HttpDoor(asyncio.Protocol):
    """Hands a connection over, which reads nothing until its receiver goes on with it.

    came: what it has read all the same. uvloop begins to read after `connection_made`, whatever was said there.
    """

    def __init__(self, take: Callable[[asyncio.Transport], object]) -> None:
        self._take = take
        self._accepted: asyncio.Transport | None = None
        self.came = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand it over."""
        self._accepted = cast(asyncio.Transport, transport)
        keep_connection_from_children(transport)
        self._accepted.pause_reading()
        self._take(self._accepted)

    def data_received(self, data: bytes) -> None:
        """Keep the bytes, and read no more."""
        self.came += data
        if self._accepted is not None:
            self._accepted.pause_reading()


class HeadAlone(asyncio.Protocol):
    """Passes bytes on unchanged and in order, and separates the end of a request's head from what follows.

    What follows a request that announces no body is read as the next one. The parser that answers here drops all that
    it read at once where a part of that is no HTTP, and nobody would answer the request. Some clients send a body that
    they do not announce: apart, the request is answered, what follows is refused, and the connection closed.
    """

    def __init__(self, behind: asyncio.Protocol) -> None:
        self._behind = behind

    def data_received(self, data: bytes) -> None:
        """Pass the bytes on, cut at the first empty line. In a body such a cut means nothing to the parser."""
        head, end, rest = data.partition(b"\r\n\r\n")
        self._behind.data_received(head + end)
        if rest:
            self._behind.data_received(rest)

    def eof_received(self) -> bool | None:
        """Pass on that no more bytes come."""
        return self._behind.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._behind.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on that written bytes pile up."""
        self._behind.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the written bytes were taken."""
        self._behind.resume_writing()
