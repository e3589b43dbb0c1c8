"""The answering side: it listens on sockets, refuses strangers, and hands requests on.

A connection that has not proved itself costs little and lives briefly: its frames are tiny, it has a few seconds, and
when there are too many of them the oldest goes. A connection that has is held back by bytes: while too much of what it
asked is being answered, or too much of the answers has not been taken, nothing more is read from it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Protocol

from sluice.actors.ports import Unknown
from sluice.actors.ports.wire import Packed, pack_error
from sluice.actors.runtime.host import Answer, Message, OnAnswer
from sluice.cluster.base.acceptor import Acceptor
from sluice.cluster.wire.carrier import FramedSocket
from sluice.cluster.wire.connection import GREETING_S
from sluice.cluster.wire.frames import (
    ERROR,
    MAX_FRAME,
    NO_ANSWER,
    REPLY,
    REQUEST,
    MalformedFrame,
    WireFrame,
    encode,
)
from sluice.cluster.wire.handshake import MAX_GREETING, Greeter, HandshakeRefused, refusal
from sluice.cluster.wire.payloads import read, written
from sluice.cluster.wire.tls import Secured, Trust
from sluice.storage.errors import Invalid, Unavailable

logger = logging.getLogger("sluice.net")

MAX_STRANGERS = 64
"""Connections that have not proved themselves, at one time."""
MAX_ANSWERING = 64 * 1024 * 1024
"""Bytes of requests of one connection that are being answered at one time."""


class RequestHandler(Protocol):
    """A handler of the requests that a listener receives."""

    def accept(self, actor: str, kind: str, message: Message, on_answer: OnAnswer) -> None:
        """Answer a request to an actor of this process. on_answer: called once, with a packed reply or none."""


class Listener:
    """Listens on sockets for one process. key: what both sides must have.

    trust: with it, TLS is spoken on every socket that is reached over a network, and on none of this machine's own.
    """

    def __init__(
        self,
        name: str,
        key: bytes,
        answers: RequestHandler,
        *,
        strangers: int = MAX_STRANGERS,
        trust: Trust | None = None,
    ) -> None:
        self._acceptor = Acceptor(name)
        self._name, self._key, self._answers = name, key, answers
        self._strangers: dict[_Incoming, None] = {}
        self._most = strangers
        self._trust = trust
        self._known: dict[_Incoming, None] = {}

    def listen(self, sock: socket.socket) -> None:
        """Take connections from a socket that listens."""
        self._acceptor.listen(sock, self._begin)

    def close(self) -> None:
        """Stop listening, and end every connection."""
        self._acceptor.close()
        for incoming in [*self._strangers, *self._known]:
            incoming.close()

    @property
    def connections(self) -> tuple[int, int]:
        """How many have proved themselves, and how many have not."""
        return len(self._known), len(self._strangers)

    def _begin(self, accepted: socket.socket, _: object) -> None:
        if len(self._strangers) >= self._most:
            next(iter(self._strangers)).close()
        greeter, secured = Greeter(self._key, self._name), None
        if self._trust is not None and accepted.family != socket.AF_UNIX:
            secured = self._trust.secured(server_side=True)
        self._strangers[_Incoming(accepted, greeter, self._answers, self._moved, secured)] = None

    def _moved(self, incoming: _Incoming) -> None:
        """A connection has proved itself, or has ended."""
        self._strangers.pop(incoming, None)
        self._known.pop(incoming, None)
        if incoming.is_open:
            self._known[incoming] = None


class _Incoming:
    """One incoming connection. on_moved: called when it has proved itself, and when it has ended."""

    def __init__(
        self,
        sock: socket.socket,
        greeter: Greeter,
        answers: RequestHandler,
        on_moved: Callable[[_Incoming], None],
        secured: Secured | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._greeter, self._answers, self._on_moved = greeter, answers, on_moved
        self._answering = 0
        self._drains: asyncio.Task[None] | None = None
        """Reads on when the other side has taken enough of the answers."""
        self._carrier = FramedSocket(
            sock, self._take, self._lost, MAX_GREETING, lambda error: refusal(str(error)), secured
        )
        self._late = self._loop.call_later(GREETING_S, self.close)

    @property
    def is_open(self) -> bool:
        return self._carrier.is_open

    def close(self) -> None:
        """End the connection. Its requests are still carried out."""
        self._late.cancel()
        self._carrier.close()
        self._on_moved(self)

    def _take(self, frame: WireFrame) -> None:
        if not self._greeter.done:
            self._greet(frame)
            return
        if frame.kind != REQUEST:
            raise MalformedFrame(f"a frame of kind {frame.kind} is no request")
        packed = read(frame, settle=False)
        self._answering += frame.size
        if self._answering > MAX_ANSWERING:
            self._carrier.pause()
        actor, _, kind = frame.route.decode(errors="replace").rpartition(" ")
        self._answers.accept(actor, kind, packed, partial(self._answered, frame.correlation, frame.size, kind))

    def _greet(self, frame: WireFrame) -> None:
        try:
            self._carrier.send(self._greeter.receive_frame(frame, self._carrier.binding))
        except HandshakeRefused as error:
            if not error.elsewhere:
                logger.warning("a connection was refused: %s", error)
            self._carrier.send(refusal(str(error), elsewhere=error.elsewhere))
            self.close()
            return
        if self._greeter.done:
            self._late.cancel()
            self._carrier.admit(MAX_FRAME)
            self._on_moved(self)

    def _answered(self, correlation: int, size: int, kind: str, answer: Answer) -> None:
        self._answering -= size
        try:
            self._send(correlation, answer)
        except Exception as error:
            # A defect of ours. The caller and the connection have no part in it: he is told, and it reads on.
            logger.exception("the answer to %s could not be written", kind)
            self._send(correlation, Unknown(f"the answer could not be written: {type(error).__name__}"))
        if self._drains is None:
            if self._carrier.full:
                self._carrier.pause()
                self._drains = self._loop.create_task(self._drain())
            else:
                self._read_on()

    async def _drain(self) -> None:
        while self._carrier.full:
            await self._carrier.room()
        self._drains = None
        self._read_on()

    def _read_on(self) -> None:
        if self._answering <= MAX_ANSWERING:
            self._carrier.resume()

    def _send(self, number: int, answer: Answer) -> None:
        if isinstance(answer, Packed):
            try:
                pieces, descriptors = written(REPLY, number, b"", answer, self._carrier.passes)
            except (Unavailable, Invalid) as error:
                answer = pack_error(error)
            else:
                self._carrier.send(pieces, descriptors)
                return
        if isinstance(answer, Unknown):
            self._carrier.send(encode(NO_ANSWER, number, b"gone" if answer.gone else b"", answer.reason.encode()))
        elif isinstance(answer, tuple):
            self._carrier.send(encode(ERROR, number, answer[0].encode(), answer[1].encode()))

    def _lost(self, error: Exception) -> None:
        if isinstance(error, MalformedFrame | HandshakeRefused):
            logger.warning("a connection ends: %s", error)
        self.close()
