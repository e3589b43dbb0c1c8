"""The processes that this one calls: each is found by name once and has one connection, which is opened again.

Whether a process has ended decides how fast everybody goes on without it, and a wrong "it has ended" costs a needless
change of owner. So when a connection is lost the process is called once more, at once: if nobody listens there any
more, or somebody else does, it has gone. Otherwise nothing is known, and the callers are told that.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sluice.actors.ports import Unknown
from sluice.actors.ports.wire import Packed
from sluice.actors.runtime.host import Answer
from sluice.cluster.node.environment import is_loopback
from sluice.cluster.wire.connection import Connection
from sluice.cluster.wire.endpoint import Endpoint, this_network
from sluice.cluster.wire.handshake import Caller, HandshakeRefused
from sluice.cluster.wire.tls import Secured, TlsFiles, Trust, trust_in
from sluice.storage.errors import Invalid, SluiceError

FIRST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_SILENT_PAUSE_S = 0.02, 1.0, 0.1
"""Between attempts to reach a process that could not be reached: doubled each time. Where nobody refused, the attempt
has taken its time already."""
FIND_S, CONNECT_S = 10.0, 0.9
"""A machine that is cut off answers nothing, and the moment at which it is back shall not be missed by much. The kernel
would begin again after a second."""
PROBE_S = 1.0
"""How long callers whose connection was lost wait to learn whether the process has ended."""

MOST_PEERS = 1_024
"""Beyond so many, those that have no connection are forgotten: each process that is started has a new name."""

BIND_HINT = 'for a cluster of several machines set bind_address = "node" and start it again'
NOT_TRIED = Unknown("it was not tried to reach it")

Find = Callable[[str], Awaitable[Endpoint | Unknown]]
"""Find where a process listens, by its name; Unknown if that is not known, gone if there is none of that name."""


class Peers:
    """Connections by the name of the process. key: see `cluster.wire.handshake`; may depend on the endpoint.

    trust: with it, TLS is spoken with every process that is reached over a network, or nothing is.
    """

    def __init__(self, find: Find, key: Callable[[Endpoint], bytes], trust: Trust | None = None) -> None:
        self._find, self._key, self._trust = find, key, trust
        self._peers: dict[str, _Peer] = {}

    async def call(self, host: str, route: bytes, packed: Packed, timeout_s: float) -> Answer:
        """Send a request and wait for its answer.

        Raises TimeoutError, Invalid if the other side is refused or the request does not fit a frame, and Unavailable
        if a payload of the request cannot be read.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        connection = self.open_to(host)
        if connection is None:
            async with asyncio.timeout_at(deadline):
                found = await self._ready(host)
            if isinstance(found, Unknown):
                return found
            connection = found
        number, future = connection.ask(route, packed)
        timer = loop.call_at(deadline, late, future)
        try:
            return await future
        finally:
            timer.cancel()
            connection.discard(number)

    def open_to(self, host: str) -> Connection | None:
        """A connection to a process that is open and has room; None if that is to be waited for."""
        peer = self._peers.get(host)
        connection = None if peer is None else peer.connection
        return None if connection is None or not connection.is_open or connection.full else connection

    def is_far(self, host: str) -> bool:
        """Whether it was reached over a connection that cannot pass descriptors: payloads travel to us whole."""
        peer = self._peers.get(host)
        return peer is not None and peer.connection is not None and not peer.connection.passes

    def part(self, host: str) -> None:
        """End the connection to a process, if there is one, and forget where it listens."""
        peer = self._peers.get(host)
        if peer is None or peer.connection is None:
            return
        connection, peer.connection, peer.endpoint = peer.connection, None, None
        for future in connection.orphans():
            future.set_result(Unknown(f"the connection to {host} was given up"))
        connection.close()

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()

    async def _ready(self, host: str) -> Connection | Unknown:
        """A connection to it that has room."""
        while True:
            peer = self._peers.get(host) or self._begin(host)
            connection = peer.connection
            if connection is None or not connection.is_open:
                found = await self._open(peer)
                if isinstance(found, Unknown):
                    return found
                connection = found
            if not connection.full:
                return connection
            await connection.room()

    def _begin(self, host: str) -> _Peer:
        """Know one more process, and forget the earliest that are too many."""
        if (excess := len(self._peers) + 1 - MOST_PEERS) > 0:
            for idle in [name for name, peer in self._peers.items() if peer.is_idle][:excess]:
                del self._peers[idle]
        peer = self._peers[host] = _Peer(host)
        return peer

    async def _open(self, peer: _Peer) -> Connection | Unknown:
        """A connection to it, opened once for all callers that wait. Raises Invalid."""
        if peer.opening is None or peer.opening.done():
            if asyncio.get_running_loop().time() < peer.rest_until:
                return _said(peer.failure)
            peer.opening = asyncio.create_task(self._dial(peer), name=f"connect {peer.host}")
        return _said(await asyncio.shield(peer.opening))

    async def _dial(self, peer: _Peer) -> Connection | Unknown | Invalid:
        reached = await self._reach(peer)
        if not isinstance(reached, Connection):
            peer.failed(reached)
            return reached
        peer.connected(reached)
        peer.watch = asyncio.create_task(self._watch(peer, reached), name=f"connection {peer.host}")
        return reached

    async def _reach(self, peer: _Peer) -> Connection | Unknown | Invalid:
        endpoint = peer.endpoint
        try:
            if endpoint is None:
                async with asyncio.timeout(FIND_S):
                    found = await self._find(peer.host)
                if isinstance(found, Unknown):
                    return found
                endpoint = peer.endpoint = found
            secured = self._secured(endpoint)
            async with asyncio.timeout(CONNECT_S):
                sock = await _connect(endpoint)
            connection = Connection(sock, Caller(self._key(endpoint), endpoint.name), secured)
            await connection.welcome()
            return connection
        except (ConnectionRefusedError, FileNotFoundError) as error:
            return Unknown(f"{peer.host} has ended: {error.strerror}", gone=True)
        except HandshakeRefused as error:
            if not error.elsewhere:
                return Invalid(f"{peer.host}: {error}")
            return Unknown(f"{peer.host} has ended: {error}", gone=True)
        except Invalid as error:
            return Invalid(f"{peer.host}: {error}")
        except SluiceError as error:  # of who was asked where it is
            return Unknown(f"{peer.host} is not found: {error}")
        except (OSError, TimeoutError) as error:
            return Unknown(f"{peer.host} does not answer: {error or type(error).__name__}")

    def _secured(self, endpoint: Endpoint) -> Secured | None:
        """The TLS of a connection that leaves this machine. Raises Invalid if it cannot be had."""
        if endpoint.is_near:
            return None
        trust = self._trust
        if trust is None and endpoint.tls:
            trust = trust_in(TlsFiles(*endpoint.tls))
        return None if trust is None else trust.secured(server_side=False)

    async def _watch(self, peer: _Peer, connection: Connection) -> None:
        """Wait for the end of a connection, find out whether the process has ended, and tell its callers."""
        error = await connection.ended
        if peer.connection is connection:
            peer.connection = None
            if peer.opening is not None and peer.opening.done():
                peer.opening = None  # which keeps the connection's buffers
        orphans = connection.orphans()
        if not orphans:
            return
        outcome = Unknown(f"the connection to {peer.host} was lost: {error}")
        try:
            async with asyncio.timeout(PROBE_S):
                again = await self._open(peer)
            if isinstance(again, Unknown) and again.gone:
                outcome = again
        except (TimeoutError, Invalid):
            pass
        for future in orphans:
            if not future.done():
                future.set_result(outcome)


@dataclass(eq=False, slots=True)
class _Peer:
    """The state of one process."""

    host: str
    endpoint: Endpoint | None = None
    connection: Connection | None = None
    opening: asyncio.Task[Connection | Unknown | Invalid] | None = None
    watch: asyncio.Task[None] | None = None
    pause: float = 0.0
    rest_until: float = 0.0
    failure: Unknown | Invalid = NOT_TRIED

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost if it is forgotten but where it listens, which can be asked again."""
        tasks = (self.opening, self.watch)
        return self.connection is None and all(task is None or task.done() for task in tasks)

    def connected(self, connection: Connection) -> None:
        self.connection, self.pause, self.rest_until = connection, 0.0, 0.0

    def failed(self, why: Unknown | Invalid) -> None:
        """Note that the peer was not reached, and rest for a while. Its name may have got a new process meanwhile."""
        refused = not isinstance(why, Unknown) or why.gone
        self.pause = min(max(2 * self.pause, FIRST_PAUSE_S), LONGEST_PAUSE_S if refused else LONGEST_SILENT_PAUSE_S)
        self.rest_until = asyncio.get_running_loop().time() + self.pause
        self.failure, self.connection, self.endpoint = why, None, None

    def close(self) -> None:
        """End what belongs to it."""
        for task in (self.opening, self.watch):
            if task is not None:
                task.cancel()
        if self.connection is not None:
            self.connection.close()


def _said(reached: Connection | Unknown | Invalid) -> Connection | Unknown:
    if isinstance(reached, Invalid):
        raise reached
    return reached


def late(future: asyncio.Future[Answer]) -> None:
    """The time for an answer is over."""
    if not future.done():
        future.set_exception(TimeoutError())


async def _connect(endpoint: Endpoint) -> socket.socket:
    """A connected socket. Raises OSError, Invalid."""
    address: str | tuple[str, int]
    if endpoint.is_near:
        family, address = socket.AF_UNIX, endpoint.path
    elif is_loopback(endpoint.host) and endpoint.network != this_network():
        # Whoever answers at that address here is somebody else, and silence there says nothing about the process.
        raise Invalid(f"it listens at {endpoint.host}, its own machine only; {BIND_HINT}")
    else:
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        address = endpoint.host, endpoint.port
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        with contextlib.suppress(OSError):
            sock.close()
        raise
    return sock
