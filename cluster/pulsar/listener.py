"""The port that Pulsar's clients connect to, on the loopback.

The actor is started with the cluster. A port that somebody else has is no reason for the cluster not to start: the
actor lives, says so in `problem`, and the file `pulsar-port` in the data folder holds 0.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from actors.actor import Actor
from actors.ports import Address, Ports
from actors.pulsar.connection import Connection
from actors.pulsar.gateway import Gateway
from cluster.environment import LOOPBACK
from cluster.process_watch import this_process
from cluster.pulsar.ports import PORT_FILE
from cluster.pulsar.tokens import TokenAuthenticator

MOST_CONNECTIONS = 1_000
AGAIN_S = 1.0
"""Between attempts to have the port."""
READ_BYTES = 256 * 1024
"""Read so much at once: frames that are there together are decoded together."""
WRITE_BYTES = 4 * 1024 * 1024
"""So much may wait to be sent before no more messages are handed to a connection."""


class PulsarGateway(Actor):
    """Listens for Pulsar's clients. port 0 chooses one. token_key_file: what their tokens are signed with.

    Raises Invalid if that file holds no key.
    """

    def __init__(
        self, ports: Ports, *, controller: Address, data_dir: Path, port: int, token_key_file: str = ""
    ) -> None:
        super().__init__(ports)
        known = TokenAuthenticator(Path(token_key_file)) if token_key_file else None
        self.gateway = Gateway(ports, controller, process=this_process(), authenticate=known)
        self._data_dir, self._wanted = data_dir, port
        self._server: asyncio.Server | None = None
        self._connections: dict[_Socket, None] = {}
        self._problem = ""
        self.port = 0

    @property
    def problem(self) -> str:
        """Why no client can connect; empty if they can."""
        return self._problem

    async def start(self) -> None:
        """Listen, if the port is free."""
        if not await self._listen():
            self.ports.spawn(self._listen_later(), "listen")

    async def _listen(self) -> bool:
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, LOOPBACK, self._wanted, backlog=256)
        except OSError as error:
            self._problem = f"no Pulsar client can connect: port {self._wanted} is in use ({error.strerror})"
        else:
            self._problem = ""
            self.port = int(self._server.sockets[0].getsockname()[1])
            self.gateway.url = f"pulsar://{LOOPBACK}:{self.port}"
        (self._data_dir / PORT_FILE).write_text(str(self.port))
        return self._server is not None

    async def _listen_later(self) -> None:
        """Who has the port may be an earlier incarnation that is ending."""
        while self._server is None:
            await asyncio.sleep(AGAIN_S)
            if await self._listen():
                return

    async def stop(self, reason: str) -> None:
        """Close the port and every connection."""
        await super().stop(reason)
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()

    def _accept(self) -> asyncio.BaseProtocol:
        return _Socket(self.gateway, self._connections)


class _Socket(asyncio.BufferedProtocol):
    """One connection: bytes in and out for a conversation. Implements actors.pulsar.gateway.Link."""

    def __init__(self, gateway: Gateway, all_of_them: dict[_Socket, None]) -> None:
        self.gateway, self._all = gateway, all_of_them
        self._buffer = bytearray(READ_BYTES)
        self._transport: asyncio.Transport | None = None
        self._conversation: Connection | None = None
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the conversation, unless there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        self.peer = "{}:{}".format(*transport.get_extra_info("peername")[:2])
        if len(self._all) >= MOST_CONNECTIONS:
            self._transport.abort()
            return
        self._all[self] = None
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        self._conversation = Connection(self.gateway, self)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Where to read to."""
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        """So many bytes were read."""
        if self._conversation is not None:
            self._conversation.data(bytes(memoryview(self._buffer)[:count]))

    def eof_received(self) -> bool:
        """The client ends it."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """It is over."""
        self._all.pop(self, None)
        if self._conversation is not None:
            self._conversation.over()

    def pause_writing(self) -> None:
        """The client does not take what it is sent."""
        if self._conversation is not None:
            self._conversation.choke(True)

    def resume_writing(self) -> None:
        """It does again."""
        if self._conversation is not None:
            self._conversation.choke(False)

    def write(self, data: bytes) -> None:
        """See Link."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """See Link."""
        if self._transport is not None:
            self._transport.close()

    def pause(self) -> None:
        """See Link."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """See Link."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def abort(self) -> None:
        """Break it off now."""
        if self._transport is not None:
            self._transport.abort()
