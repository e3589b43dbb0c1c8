"""The ports of this machine, which the kernel gives to one gateway (actors.pulsar.conversation.gateway.port_claims).

The gateway of this machine is the process that holds the lock of a file in the data folder. The kernel releases the
lock when the process ends, however it ends. So no port is shared, neither with another gateway of this cluster nor with
another program.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sluice.cluster.base.forks import keep_from_children
from sluice.cluster.gateway.handshakes import Handshakes
from sluice.cluster.gateway.ports import port_of, write_port
from sluice.cluster.http.connections import BACKLOG
from sluice.cluster.node.environment import LOOPBACK
from sluice.storage.errors import Unavailable

LOCK_FILE = ".gateway.lock"


class RealMachinePorts:
    """Implements actors.pulsar.conversation.gateway.port_claims.MachinePorts. accept: makes our end of a connection, by
    scheme. handshakes: of TLS, by scheme. hosts: the addresses at which it listens, each at the same port.
    """

    def __init__(
        self,
        data_dir: Path,
        accept: Mapping[str, Callable[[], asyncio.BaseProtocol]],
        handshakes: Mapping[str, Handshakes],
        hosts: Sequence[str] = (LOOPBACK,),
    ) -> None:
        self._data_dir, self._accept, self._hosts, self._handshakes = data_dir, accept, hosts, handshakes
        self._servers: list[asyncio.Server] = []
        self._lock = -1

    def claim(self) -> bool:
        path = self._data_dir / LOCK_FILE
        try:
            self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # on a machine where nobody typed `up`
            handle = keep_from_children(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise Unavailable(f"{path} cannot be locked: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        self._lock = handle
        return True

    async def listen(self, scheme: str, port: int) -> int:
        sockets: list[socket.socket] = []
        try:
            for host in self._hosts:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                sockets.append(socket.create_server((host, port), family=family, backlog=BACKLOG))
                port = int(sockets[0].getsockname()[1])
        except OSError as error:
            for sock in sockets:
                sock.close()
            raise Unavailable(f"port {port} of {host} cannot be used: {error.strerror}") from error
        for sock in sockets:
            if scheme in self._handshakes:
                self._handshakes[scheme].listen(sock, self._accept[scheme])
            else:
                keep_from_children(sock.fileno())
                loop = asyncio.get_running_loop()
                self._servers.append(await loop.create_server(self._accept[scheme], sock=sock, backlog=BACKLOG))
        return port

    def chosen(self, scheme: str) -> int:
        return port_of(self._data_dir, scheme)

    def tell(self, scheme: str, port: int) -> None:
        try:
            write_port(self._data_dir, scheme, port)
        except OSError as error:
            reason = f"the port of {scheme} cannot be written to {self._data_dir}: {error.strerror}"
            raise Unavailable(reason) from error

    def close(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()
        for handshakes in self._handshakes.values():
            handshakes.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
