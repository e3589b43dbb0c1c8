"""The calling side of one connection: it opens, both sides prove who they are, and then requests share it."""

from __future__ import annotations

import asyncio
import itertools
import socket

from sluice.actors.ports import Unknown
from sluice.actors.ports.wire import Packed
from sluice.actors.runtime.host import Answer
from sluice.cluster.wire.carrier import FramedSocket
from sluice.cluster.wire.frames import (
    ERROR,
    MAX_FRAME,
    NO_ANSWER,
    REPLY,
    REQUEST,
    MalformedFrame,
    OtherVersion,
    WireFrame,
)
from sluice.cluster.wire.handshake import MAX_GREETING, Caller, HandshakeRefused
from sluice.cluster.wire.payloads import read, written
from sluice.cluster.wire.tls import NotTls, Secured
from sluice.storage.errors import Invalid

GREETING_S = 5.0
"""Seconds in which both sides have proved themselves, or have not."""


class Connection:
    """An open connection to a process. Make it with `connect`."""

    def __init__(self, sock: socket.socket, caller: Caller, secured: Secured | None = None) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._caller = caller
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._welcome: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[Exception] = loop.create_future()
        """Done when the connection has ended, with the reason."""
        self._carrier = FramedSocket(sock, self._take, self._lost, MAX_GREETING, secured=secured)
        self._carrier.send(caller.hello())

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._carrier.is_open

    @property
    def passes(self) -> bool:
        """Whether descriptors can be passed: both sides are on one machine."""
        return self._carrier.passes

    async def welcome(self) -> None:
        """Wait until both sides have proved themselves. Raises HandshakeRefused, Invalid, OSError, TimeoutError."""
        try:
            await asyncio.wait_for(self._welcome, GREETING_S)
        except BaseException:
            self.close()
            raise

    @property
    def full(self) -> bool:
        """Whether the other side is so far behind that the next request has to wait."""
        return self._carrier.full

    async def room(self) -> None:
        """Wait until the other side has read enough."""
        await self._carrier.room()

    def ask(self, route: bytes, packed: Packed) -> tuple[int, asyncio.Future[Answer]]:
        """Send a request. The future gets its answer; if the connection ends first, see `orphans`. One that has ended
        has been waited for: then the answer is Unknown.

        Raises Invalid if the request does not fit a frame, Unavailable if one of its payloads cannot be read. Nothing
        was sent then.
        """
        number = next(self._ids)
        pieces, descriptors = written(REQUEST, number, route, packed, self._carrier.passes)
        future: asyncio.Future[Answer] = self._loop.create_future()
        if not self.is_open:
            future.set_result(Unknown("the connection was lost before it was asked"))
            return number, future
        self._asked[number] = future
        self._carrier.send(pieces, descriptors)
        return number, future

    def discard(self, number: int) -> None:
        """Forget a request whose answer nobody waits for any more."""
        self._asked.pop(number, None)

    def orphans(self) -> list[asyncio.Future[Answer]]:
        """The unanswered requests, for a caller that knows what became of the process. They are returned once."""
        asked, self._asked = self._asked, {}
        return [future for future in asked.values() if not future.done()]

    def close(self) -> None:
        """End the connection, without a word to callers that wait for an answer."""
        self._carrier.close()
        if not self.ended.done():
            self.ended.set_result(ConnectionResetError("the connection was closed here"))

    def _take(self, frame: WireFrame) -> None:
        if not self._caller.done:
            self._greet(frame)
            return
        future = self._asked.pop(frame.correlation, None)
        if future is None or future.done():
            frame.close()
            return
        if frame.kind == REPLY:
            future.set_result(read(frame, settle=True))
        elif frame.kind == ERROR:
            future.set_result((frame.route.decode(errors="replace"), frame.head.decode(errors="replace")))
        elif frame.kind == NO_ANSWER:
            future.set_result(Unknown(frame.head.decode(errors="replace"), gone=frame.route == b"gone"))
        else:
            raise MalformedFrame(f"a frame of kind {frame.kind} is no answer")

    def _greet(self, frame: WireFrame) -> None:
        try:
            answer = self._caller.receive_frame(frame, self._carrier.binding)
        except HandshakeRefused as error:
            self._carrier.close()
            self._lost(error)
            return
        if answer:
            self._carrier.send(answer)
        if self._caller.done:
            self._carrier.admit(MAX_FRAME)
            if not self._welcome.done():
                self._welcome.set_result(None)

    def _lost(self, error: Exception) -> None:
        if not self._welcome.done():
            if isinstance(error, NotTls):
                error = HandshakeRefused("it does not speak TLS; start it with the same tls_ settings")
            self._welcome.set_exception(Invalid(str(error)) if isinstance(error, OtherVersion) else error)
            self._welcome.exception()  # it may be that nobody waits any more
        if not self.ended.done():
            self.ended.set_result(error)
