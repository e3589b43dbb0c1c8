"""Takes connections from sockets that listen, also when a process has no descriptor left for a while."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from sluice.cluster.base.forks import keep_from_children
from sluice.cluster.base.real import logger

AT_ONCE = 16
"""So many connections are taken before others have their turn."""
AGAIN_S = 0.2
"""Seconds after which it is tried again where one could not be taken."""
Take = Callable[[socket.socket, Any], object]
"""Is handed a connection, and the address of its other end as socket.accept has it."""


class Acceptor:
    """An acceptor of connections for some sockets of one process. name: the server that takes them, for the log."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._sockets: list[socket.socket] = []

    def listen(self, sock: socket.socket, take: Take) -> None:
        """Take what comes to a socket that listens."""
        sock.setblocking(False)
        keep_from_children(sock.fileno())
        self._sockets.append(sock)
        self._loop.add_reader(sock.fileno(), self._accept, sock, take)

    def close(self) -> None:
        """Close the sockets that listen; connections go on. Idempotent."""
        for sock in self._sockets:
            self._loop.remove_reader(sock.fileno())
            sock.close()
        self._sockets.clear()

    def _accept(self, sock: socket.socket, take: Take) -> None:
        for _ in range(AT_ONCE):
            try:
                accepted, address = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:  # out of descriptors: whoever waits is taken in when there are some again
                logger.error("%s cannot take a connection: %s", self._name, error)
                self._loop.remove_reader(sock.fileno())
                self._loop.call_later(AGAIN_S, self._again, sock, take)
                return
            accepted.setblocking(False)
            keep_from_children(accepted.fileno())
            take(accepted, address)

    def _again(self, sock: socket.socket, take: Take) -> None:
        if sock in self._sockets:
            self._loop.add_reader(sock.fileno(), self._accept, sock, take)
