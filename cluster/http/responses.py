"""The bounds of answers by HTTP, which hold for all servers of a process together.

An answer is large if it may have more than PIECE bytes. A route that can give one is wrapped in `large`: few are made
at the same time, for one role and for all, and none is begun while too many bytes of earlier ones are unread. A large
answer is written piece by piece, as its client reads, and counts until its last byte is taken. Where others wait for
room, an answer that is older than HELD_S is ended with its connection, the oldest first. So a client that reads nothing
costs the others a few seconds, and the process no more than the figures below.

Requests for the same answer share it: all of them that wait when one begins to make it take what that makes. No request
takes what was begun before it came, so each answer knows of every change that was confirmed before the request. One of
the same answers is made at a time, and lies in memory once for all who read it.

A role, or all who are nobody in particular, has its own share, so that one role cannot use up that of the others. The
operator, who has the token of the admin port, waits for no role, because with this token one looks at a cluster in
trouble.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from aiohttp import web

from sluice.cluster.http.guard import ASKER, Handler
from sluice.storage.errors import Overloaded, SluiceError

T = TypeVar("T")

PIECE = 64 * 1024
UNREAD_BYTES, UNREAD_OF_ONE = 32 * 1024 * 1024, 8 * 1024 * 1024
"""While so many bytes of answers are unread, for all and for one role, no large one is begun."""
STREAMED_BYTES = 1024 * 1024
"""An answer that is made while it is read counts as so many bytes."""
MADE, MADE_OF_ONE = 4, 2
"""So many large answers are made at the same time, for all roles and for one."""
REST, REST_MOST_S = 3, 3.0
"""After an answer was made the next one waits REST times as long as that took, and REST_MOST_S at most. So a client
that asks and asks leaves the others half of the processor.
"""
HELD_S, WAIT_S = 10.0, 30.0
"""An answer may be unread for so long while others wait; so long a request waits before it is refused."""
TURN_S, MOST_TURN_S = 0.005, 0.05
"""A large answer is put together for so long at once. Then it waits as long, and so long at most."""
STREAMS, STREAMS_OF_ONE = 100, 20
"""So many streams of events are open, for all roles and for one."""


class Pieces(web.StreamResponse):
    """An answer that is made while it is read."""

    def __init__(self, pieces: AsyncGenerator[bytes], content_type: str) -> None:
        super().__init__(headers={"Content-Type": content_type})
        self.pieces = pieces


@dataclass(frozen=True, slots=True)
class UnreadAnswer:
    """An answer that is being written. body: the same for all who share it. since: seconds of the loop's clock."""

    who: str | None
    size: int
    body: object
    transport: asyncio.Transport | None
    since: float


@dataclass(frozen=True, slots=True, weakref_slot=True)
class WantedAnswer:
    """An answer that nobody makes yet, for all requests that wait for it.

    outcome: what the one that makes it got; None if its client left, or if nobody else can take it.
    """

    outcome: asyncio.Future[web.Response | SluiceError | None]
    begun: asyncio.Event


class Responses:
    """The answers that this process makes and writes by HTTP. A connection is known by aiohttp's protocol object."""

    def __init__(self) -> None:
        self._made = Counter[str | None]()
        self._streams = Counter[str | None]()
        self._unread: dict[Any, UnreadAnswer] = {}
        self._wanted: WeakValueDictionary[Hashable, WantedAnswer] = WeakValueDictionary()
        """Those who wait hold them, so that none stays when all of them have left."""
        self._begun: dict[Hashable, None] = {}
        """Which answers are being made."""
        self._next = asyncio.Lock()
        self._changed = asyncio.Event()
        self.patient: dict[Any, None] = {}
        """Connections that wait for room, or for their client to read, the oldest first."""

    @property
    def unread_bytes(self) -> int:
        """The bytes of all answers that are being written."""
        return _bytes_of(self._unread.values())

    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Make a large answer when there is room, or take what was made for a request that waited at the same time.

        Raises Overloaded where there is no room for long, and what the handler raises.
        """
        which, until = (handler, request.path_qs), asyncio.get_running_loop().time() + WAIT_S
        self.patient[request.protocol] = None
        try:
            while True:
                wanted = self._wanted.get(which)
                if wanted is None:
                    wanted = self._wanted[which] = WantedAnswer(asyncio.Future(), asyncio.Event())
                await self._room(request.get(ASKER), which, wanted, until)
                if not wanted.begun.is_set():
                    break
                outcome = await asyncio.shield(wanted.outcome)
                if isinstance(outcome, SluiceError):
                    raise outcome
                if outcome is not None:
                    self._hold_body(request, outcome)
                    await self._alone()
                    return _like(outcome)
        finally:
            self.patient.pop(request.protocol, None)
        return await self._make(request, handler, which, wanted)

    async def _make(
        self, request: web.Request, handler: Handler, which: Hashable, wanted: WantedAnswer
    ) -> web.StreamResponse:
        who, loop = request.get(ASKER), asyncio.get_running_loop()
        outcome: web.Response | SluiceError | None = None
        del self._wanted[which]
        self._begun[which] = None
        self._made[who] += 1
        wanted.begun.set()
        self._tell()
        began = loop.time()
        try:
            answer = await handler(request)
            if isinstance(answer, web.Response) and isinstance(answer.body, bytes):
                self._hold_body(request, answer)  # before the next one may be made
                outcome = _like(answer)
            return answer
        except SluiceError as error:
            outcome = error
            raise
        finally:
            del self._begun[which]
            wanted.outcome.set_result(outcome)
            loop.call_later(min(REST * (loop.time() - began), REST_MOST_S), self._rested, who)
            self._tell()

    async def _alone(self) -> None:
        """Wait for a turn of the loop in which no other answer goes on: hundreds of pieces in one hold others up."""
        async with self._next:
            await asyncio.sleep(0)

    def _rested(self, who: str | None) -> None:
        _one_less(self._made, who)
        self._tell()

    async def _room(self, who: str | None, which: Hashable, wanted: WantedAnswer, until: float) -> None:
        """Wait until this answer may be made, or another request has begun to."""
        while not wanted.begun.is_set() and (which in self._begun or self._full(who)):
            now = asyncio.get_running_loop().time()
            if now >= until:
                raise Overloaded(f"too many large answers are being made or are unread; ask again in {HELD_S:g} s")
            wait = min(self._end_late(who, now), until - now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()

    def _full(self, who: str | None) -> bool:
        made = sum(count for one, count in self._made.items() if one is not None)
        return self._made[who] >= MADE_OF_ONE or (who is not None and made >= MADE) or bool(self._too_much(who))

    def _too_much(self, who: str | None) -> list[UnreadAnswer]:
        """The answers that leave no room for one of this role, the oldest first."""
        unread = list(self._unread.values())
        own = [one for one in unread if one.who == who]
        if _bytes_of(own) >= UNREAD_OF_ONE:
            return own
        return unread if who is not None and _bytes_of(unread) >= UNREAD_BYTES else []

    def _end_late(self, who: str | None, now: float) -> float:
        """End the oldest answer that leaves no room if it is late; the seconds until there is another one."""
        for one in self._too_much(who):
            if now - one.since < HELD_S:
                return HELD_S - (now - one.since)
            if one.transport is not None and not one.transport.is_closing():
                one.transport.abort()
                break
        return HELD_S

    def hold(self, request: web.Request, size: int, body: object) -> None:
        """An answer of this size is about to be written."""
        now = asyncio.get_running_loop().time()
        transport: Any = request.transport
        self._unread[request.protocol] = UnreadAnswer(request.get(ASKER), size, body, transport, now)

    def _hold_body(self, request: web.Request, answer: web.Response) -> None:
        if isinstance(answer.body, bytes):
            self.hold(request, len(answer.body), answer.body)

    def release(self, request: web.Request) -> None:
        """Forget an answer that was read, or whose connection has ended."""
        if self._unread.pop(request.protocol, None) is not None:
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @contextlib.contextmanager
    def stream(self, request: web.Request) -> Iterator[None]:
        """A stream of events is open. Raises Overloaded if there are too many."""
        who = request.get(ASKER)
        if self._streams[who] >= STREAMS_OF_ONE or self._streams.total() >= STREAMS:
            raise Overloaded(f"{self._streams[who]} live pages are open already: close some, then load this one again")
        self._streams[who] += 1
        try:
            yield
        finally:
            _one_less(self._streams, who)

    async def write(self, request: web.Request, answer: web.StreamResponse, seconds: float) -> web.StreamResponse:
        """Write an answer that is large, piece by piece, and leave any other one as it is. It counts until it is read.

        seconds: after so long without a byte read, the connection is ended.
        """
        if request.method == "HEAD":
            return answer
        body = answer.body if isinstance(answer, web.Response) else None
        written = answer
        if isinstance(answer, Pieces):
            size, pieces = STREAMED_BYTES, answer.pieces
        elif isinstance(body, bytes) and len(body) > PIECE:
            size, pieces = len(body), _pieces(body)
            written = web.StreamResponse(status=answer.status, headers=answer.headers)
            written.content_length = len(body)
        else:
            return answer
        self.hold(request, size, answer if body is None else body)
        self.patient[request.protocol] = None
        transport = request.transport
        try:
            await written.prepare(request)
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    await self._alone()
                    async with asyncio.timeout(seconds):
                        await written.write(piece)
            async with asyncio.timeout(seconds):
                await written.write_eof()
        except (TimeoutError, ConnectionError, SluiceError):  # a half answer is told from a whole one by its end
            if transport is not None:
                transport.abort()
        finally:
            self.patient.pop(request.protocol, None)
            self.release(request)
        return written


def _one_less(counts: Counter[str | None], who: str | None) -> None:
    counts[who] -= 1
    if not counts[who]:
        del counts[who]


def _bytes_of(answers: Iterable[UnreadAnswer]) -> int:
    """The bytes that answers have in memory, where several may share one body."""
    return sum({id(one.body): one.size for one in answers}.values())


def _like(answer: web.Response) -> web.Response:
    """The same answer for another request; one is written only once."""
    return web.Response(body=answer.body, status=answer.status, headers=answer.headers)


async def _pieces(body: bytes) -> AsyncGenerator[bytes]:
    for at in range(0, len(body), PIECE):
        yield body[at : at + PIECE]


_OF_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, Responses] = WeakKeyDictionary()


def responses_here() -> Responses:
    """Find the bounds of this process, which has one loop."""
    return _OF_LOOPS.setdefault(asyncio.get_running_loop(), Responses())


async def in_turns(parts: Iterable[T]) -> AsyncGenerator[T]:
    """Yield the parts of an answer in order. After each TURN_S of work on them the loop is as long for others."""
    began = time.monotonic()
    for part in parts:
        yield part
        if (spent := time.monotonic() - began) > TURN_S:
            await asyncio.sleep(min(spent, MOST_TURN_S))
            began = time.monotonic()


def large(handler: Handler) -> Handler:
    """Make the answer of a handler when there is room: it may be large.

    The answer depends on the path and the query alone. The guard has let the caller in before.
    """

    async def in_turn(request: web.Request) -> web.StreamResponse:
        return await responses_here().answer(request, handler)

    return in_turn
