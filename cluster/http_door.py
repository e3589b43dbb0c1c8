"""A connection that was just accepted, and goes as it is to who answers HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast


class HttpDoor(asyncio.Protocol):
    """Hands a connection over, which reads nothing until whoever took it goes on with it."""

    def __init__(self, take: Callable[[asyncio.Transport], object]) -> None:
        self._take = take

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand it over."""
        accepted = cast(asyncio.Transport, transport)
        accepted.pause_reading()
        self._take(accepted)
