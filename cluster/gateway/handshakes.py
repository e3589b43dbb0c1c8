"""Connections with TLS, from the moment when they are accepted until both sides have shaken hands.

Each handshake has the newest certificates, and a context that no renewal changes: a session that was begun under an
authority that is no longer trusted cannot be taken up again, because the keys for that are the context's own.

A client that connects and sends nothing holds a socket. So handshakes are counted, as strangers are: where there are as
many as may be, in all or from one address, the oldest one makes room.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sluice.actors.ports import Ports, Task
from sluice.cluster.base.acceptor import Acceptor
from sluice.cluster.base.real import logger
from sluice.cluster.settings.connection_limits import OpenConnections

HANDSHAKE_S = 10.0
"""Seconds in which TLS stands, or the connection ends."""
Then = Callable[[], asyncio.BaseProtocol]


@dataclass(eq=False, slots=True)
class _Handshake:
    """One connection on which TLS begins. Implements cluster.settings.connection_limits.OpenConnection."""

    sock: socket.socket
    address: str
    task: Task | None = None
    is_stranger: bool = True

    def abort(self) -> None:
        if self.task is not None:
            self.task.cancel()
        self.sock.close()


class Handshakes:
    """Accepts connections with TLS. context: the newest; None: such a connection is closed.

    most, most_per_address: how many may shake hands at a time.
    """

    def __init__(
        self, ports: Ports, context: Callable[[], ssl.SSLContext | None], most: int, most_per_address: int
    ) -> None:
        self._ports, self._context = ports, context
        self._open: OpenConnections[_Handshake] = OpenConnections(most, most_per_address)
        self._acceptor = Acceptor("TLS")

    def __len__(self) -> int:
        return len(self._open)

    def listen(self, sock: socket.socket, then: Then) -> None:
        """Accept what comes to a socket that listens. then: makes our end of a connection, when TLS stands."""
        self._acceptor.listen(sock, partial(self._begin, then))

    def close(self) -> None:
        """Listen no more, and break off what has not ended. Idempotent."""
        self._acceptor.close()
        for one in self._open:
            one.abort()

    def _begin(self, then: Then, accepted: socket.socket, address: tuple[str, int]) -> None:
        one, context = _Handshake(accepted, address[0]), self._context()
        if context is not None and self._open.admit(one):
            one.task = self._ports.spawn(self._shake_hands(one, context, then), "handshake")
        else:
            accepted.close()

    async def _shake_hands(self, one: _Handshake, context: ssl.SSLContext, then: Then) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(then, one.sock, ssl=context, ssl_handshake_timeout=HANDSHAKE_S)
        except OSError:
            pass  # an error of TLS, or a time-out: its client knows
        except Exception:
            logger.exception("a connection with TLS could not begin")  # and the others go on
        finally:
            self._open.remove(one)
