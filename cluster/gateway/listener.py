"""A gateway in this process: it listens for Pulsar's clients, in clear text, with TLS, or both, and in the same ways
for Pulsar's tools.

Of several on one machine one has the ports, and the others wait to take over
(actors.pulsar.conversation.gateway.port_claims). A port that somebody else has is no reason for the cluster not to
start: the gateway lives, says so in `problem`, and the file of the port in the data folder holds 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from sluice.actors.policies.limits import Rate
from sluice.actors.ports import Address, Ports
from sluice.actors.pulsar.codec.frames import Buffer
from sluice.actors.pulsar.conversation.client_connection import ClientConnection
from sluice.actors.pulsar.conversation.gateway.gateway import Gateway, GatewayActor
from sluice.actors.pulsar.conversation.gateway.port_claims import PortHolder
from sluice.actors.pulsar.conversation.limits.intake import GREETING_BYTES
from sluice.cluster.base.audit import AuditLog
from sluice.cluster.base.forks import keep_connection_from_children
from sluice.cluster.gateway.addresses import Addresses
from sluice.cluster.gateway.authentication import authorization_of
from sluice.cluster.gateway.handshakes import Handshakes
from sluice.cluster.gateway.machine_ports import RealMachinePorts
from sluice.cluster.gateway.ports import PLAIN, TLS, WEB, WEB_TLS, advertised_host, bound_hosts, refusal, wanted_ports
from sluice.cluster.gateway.renewal import RenewedAuthentication, RenewedTls
from sluice.cluster.gateway.tls import identity_of
from sluice.cluster.http.connections import HttpDoor
from sluice.cluster.node.process_watch import this_process
from sluice.cluster.settings.connection_limits import MOST_HTTP_CONNECTIONS, OpenConnections, limits_of
from sluice.storage.format.batch import MAX_MESSAGE_BYTES

HTTP = (b"GET ", b"HEAD", b"PUT ", b"POST", b"DELE")
"""What a request of HTTP begins with, and no frame: it would be longer than any may be."""
READ_BYTES = 1024 * 1024
"""Read so much at once: frames that are there together are decoded together."""
WRITE_BYTES = 4 * 1024 * 1024
"""So much may wait to be sent before no more messages are handed to a connection, and nothing is read from it."""
ALL_WRITE_BYTES = 64 * 1024 * 1024
"""The same for all connections together, of which each has an equal share,"""
LEAST_WRITE_BYTES = 64 * 1024
"""and at least this."""


class HttpServerOfGateway(Protocol):
    """The server that answers HTTP at a gateway's ports."""

    async def serve(self, transport: asyncio.Transport, begun: bytes) -> None:
        """Answer requests on a connection that is paused. begun: the bytes that came already."""

    async def close(self) -> None:
        """Close every connection."""


MakeHttpServer = Callable[[Gateway, Addresses, str, int], HttpServerOfGateway]
"""Makes the HTTP server on the first request: (gateway, its addresses, host name, most connections)."""


class PulsarGateway(GatewayActor):
    """Listens for Pulsar's clients at the ports that settings name (cluster.gateway.ports).

    Raises Invalid if a file that they name cannot be used.
    """

    def __init__(self, ports: Ports, *, controller: Address, settings: Mapping[str, Any], http: MakeHttpServer) -> None:
        super().__init__(ports)
        self._clients, self._tls = RenewedAuthentication(settings), RenewedTls(settings)
        known = self._clients.authenticate
        largest = int(settings.get("pulsar_max_message_bytes", MAX_MESSAGE_BYTES))
        self.gateway = Gateway(ports, controller, process=this_process(), authenticate=known, max_message_bytes=largest)
        self.gateway.access.most_per_role = int(settings.get("pulsar_max_connections_per_role", 0))
        self.gateway.rates.role_publish = _rate(settings, "publish")
        self.gateway.rates.role_dispatch = _rate(settings, "dispatch")
        if (authorization := authorization_of(settings)) is not None:
            self.gateway.audit = AuditLog(Path(settings["data_dir"]), "gateway")
            self.gateway.access.enforce(authorization, str(settings.get("pulsar_anonymous_role") or ""))
        machine = str(settings.get("machine", ""))
        self._host = advertised_host(settings, machine)
        limits = limits_of(settings)
        self._connections: OpenConnections[_Socket] = OpenConnections(*limits)
        handshakes = Handshakes(ports, lambda: self._tls.value, *limits)
        accept = {PLAIN: self._accept, TLS: self._accept, WEB: self._accept_http, WEB_TLS: self._accept_http}
        machine_ports = RealMachinePorts(
            Path(settings["data_dir"]),
            accept,
            dict.fromkeys((TLS, WEB_TLS), handshakes),
            bound_hosts(settings, machine),
        )
        self._port_holder = PortHolder(ports, machine_ports, wanted_ports(settings), self._opened)
        self._most_http = int(settings.get("pulsar_web_max_connections", MOST_HTTP_CONNECTIONS))
        self._at = Addresses()
        self._http_server = http
        self._http: HttpServerOfGateway | None = None
        self._buffer = memoryview(bytearray(READ_BYTES))  # asyncio's TLS reads into slices of it
        """Where all connections read to, in turn: what was read is taken out before anybody reads again."""

    @property
    def problem(self) -> str:
        """Why no client can connect, here or at the machine's other gateway, or what is wrong with renewed files."""
        refused = [refusal(scheme, port) for scheme, port in self._port_holder.refused.items() if port]
        others = self._port_holder.problem, self._clients.problem, self._tls.problem
        return "; ".join([*refused, *filter(None, others)])

    async def start(self) -> None:
        """Listen, where the ports are free, and wait for the others."""
        await self._port_holder.open()
        self.ports.spawn(self._port_holder.run(), "ports")
        self.gateway.start()
        for renewed in (self._clients, self._tls):
            self.ports.spawn(renewed.run(), "renewal")

    def release(self) -> None:
        """Close the ports and every connection, also of a gateway that could not start: its process goes on."""
        super().release()
        self._port_holder.close()
        for connection in self._connections:
            connection.abort()

    def _opened(self, scheme: str, port: int) -> None:
        """Clients connect there; they may reach this port by another name than the loopback's."""
        url = f"{scheme}://{self._host}:{port}"
        if scheme == WEB:
            self._at.http = url
        elif scheme == WEB_TLS:
            self._at.http_tls = url
        elif scheme == TLS:
            self.gateway.url_tls = self._at.pulsar_tls = url
        else:
            self.gateway.url = self._at.pulsar = url

    async def stop(self, reason: str) -> None:
        """Close the ports and every connection."""
        await super().stop(reason)
        self.release()
        if self._http is not None:
            await self._http.close()

    def _accept(self) -> asyncio.BaseProtocol:
        return _Socket(self.gateway, self._connections, self._serve_http, self._buffer)

    def _accept_http(self) -> asyncio.BaseProtocol:
        return HttpDoor(self._serve_http)

    def _serve_http(self, transport: asyncio.Transport, begun: bytes = b"") -> None:
        """This client asks by HTTP. begun: what it has said."""
        if self._http is None:
            self._http = self._http_server(self.gateway, self._at, self._host, self._most_http)
        transport.pause_reading()
        self.ports.spawn(self._http.serve(transport, begun), "http")


def _rate(settings: Mapping[str, Any], what: str) -> Rate | None:
    """Return the rate that settings allow each role; None if they name none."""
    messages, size = (int(settings.get(f"pulsar_{what}_rate_per_role_{unit}", 0)) for unit in ("messages", "bytes"))
    return Rate(messages or -1, size or -1) if messages or size else None


class _Socket(asyncio.BufferedProtocol):
    """One connection: bytes in and out for a conversation. Implements
    actors.pulsar.conversation.gateway.gateway.Link."""

    def __init__(
        self,
        gateway: Gateway,
        all_of_them: OpenConnections[_Socket],
        http: Callable[[asyncio.Transport, bytes], None],
        buffer: memoryview,
    ) -> None:
        self.gateway, self._all, self._http = gateway, all_of_them, http
        self._head: bytes | None = b""
        """The first bytes, while they do not tell yet which protocol is spoken."""
        self._buffer = buffer
        self._transport: asyncio.Transport | None = None
        self._conversation: ClientConnection | None = None
        self.peer = self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the conversation, unless there are too many, or the client has left already."""
        self._transport = cast(asyncio.Transport, transport)
        keep_connection_from_children(transport)
        if (peer := transport.get_extra_info("peername")) is None:  # it was reset before anybody looked at it
            self.abort()
            return
        self.address, port = peer[:2]
        self.peer = f"{self.address}:{port}"
        if not self._all.admit(self):
            self.abort()
            return
        self._conversation = ClientConnection(self.gateway, self)
        self._conversation.certified = identity_of(transport.get_extra_info("peercert"))
        self._share()

    @property
    def is_stranger(self) -> bool:
        """Whether it was not let in yet."""
        return self._conversation is not None and not self._conversation.greeted

    def _share(self) -> None:
        """Share among all what may wait to be sent, when there are twice as many, or half."""
        count = len(self._all)
        if count & (count - 1) == 0:
            for one in self._all:
                one.limit(max(min(WRITE_BYTES, ALL_WRITE_BYTES // max(count, 1)), LEAST_WRITE_BYTES))
        elif self in self._all:
            share = ALL_WRITE_BYTES // (1 << count.bit_length())
            self.limit(max(min(WRITE_BYTES, share), LEAST_WRITE_BYTES))

    def limit(self, size: int) -> None:
        """Set how many bytes may wait to be sent."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.set_write_buffer_limits(high=size)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to read to: GREETING_BYTES of it until the client is known."""
        known = self._conversation is not None and self._conversation.greeted
        return self._buffer if known else self._buffer[:GREETING_BYTES]

    def buffer_updated(self, count: int) -> None:
        """Pass on the `count` bytes that were read."""
        if self._conversation is None:
            return
        if self._head is None:
            self._conversation.data(self._buffer[:count])
            return
        data, self._head = self._head + bytes(self._buffer[:count]), None
        if data[:4] in HTTP or any(word.startswith(data) for word in HTTP):
            self._not_binary(data)
            return
        self._conversation.data(data)

    def _not_binary(self, data: bytes) -> None:
        """Whether the bytes so far are the beginning of an HTTP request."""
        if len(data) < 4:
            self._head = data
        elif self._transport is not None:
            self.connection_lost(None)
            self._http(self._transport, data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._all.remove(self)
        self._share()
        if self._conversation is not None:
            self._conversation.over()

    def pause_writing(self) -> None:
        """The client does not take what it is sent."""
        if self._conversation is not None:
            self._conversation.choke(True)

    def resume_writing(self) -> None:
        if self._conversation is not None:
            self._conversation.choke(False)

    def write(self, *data: Buffer) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if len(data) == 1:
                self._transport.write(data[0])
            else:
                self._transport.writelines(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
