"""Every actor, and what its host owes it, for any transport: between processes, within one, or simulated.

**An actor** has one entry point, and one handler method for each class of requests: `on_<request_in_snake_case>`;
`AddRun` is handled by `on_add_run`. Handlers run concurrently and in no promised order. A SluiceError raised in a
handler is an answer to the caller; anything else is a defect and stops the actor.

A handler that only has to wait for something may be *immediate*: `now_<request>(request, answer)`. It takes the
request in the turn in which that comes, without a task. It calls `answer` once, then or later, with the reply or a
SluiceError. It does not await, asks no other actor, and returns whether it took the request. If it did not, it has
changed nothing, and `on_<request>` handles the request.

**The duties of its host:**

* No request reaches an actor before it has started: requests that come earlier wait.
* Every request and every reply passes the codec, even between two actors of one process, unless it can never change.
  So a caller may change its columns afterwards, and a value that cannot be encoded fails where it is first tried: in a
  test, because the simulator's requests all pass the codec.
* A request belongs to the callee, and goes on when its caller gives up. An immediate handler has it in the turn in
  which it comes; every other one runs in a task of the host.
* An actor ends once. Callers that wait for an answer then learn at once that it is gone, and so do later ones.

Where a handler fails by a defect the host is told, and ends the actor. A background task that ends with any error ends
its actor, which is then started again: no actor goes on without one of its tasks. A task that can go on after an error
catches it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import msgspec

from sluice.actors import messages
from sluice.actors.ports import Address, Ports, Spawn, Unknown
from sluice.actors.ports.wire import Packed, Reply, Request, is_value, pack, pack_error, unpack, unpack_error
from sluice.actors.runtime.gc_pressure import LET_GO, OWNER
from sluice.actors.runtime.waiting import SharedFuture
from sluice.storage.errors import Invalid, SluiceError, Unavailable
from sluice.storage.format.frame import NEWEST

_WORD = re.compile(r"(?<!^)(?=[A-Z])")

HANDLERS: dict[tuple[type, type], tuple[str, str]] = {}
"""The names of the handlers by class of actor and class of request; filled on demand."""

Outcome = Reply | SluiceError
"""The answer of an immediate handler: a reply, or a refusal."""

ImmediateHandler = Callable[[Any, Callable[[Outcome], None]], bool]
"""A function of a request and of a callback for the answer. It returns whether it took the request."""

NO_USE: tuple[type[Request[Any]], ...] = (messages.Stats, messages.CloseIdle)
"""The requests that keep no actor open (Ping is another one)."""

REQUESTS: dict[str, type[Request[Any]]] = {
    name: kind
    for name, kind in sorted(vars(messages).items())
    if isinstance(kind, type)
    and issubclass(kind, msgspec.Struct)
    and issubclass(kind, Request)
    and not kind.__subclasses__()
}
"""Every request class by the name that travels; what several have in common is none."""


class Actor:
    """The base of every actor: topic, bookie, dispatcher, controller, gateway.

    outlives: errors of a background task that do not end the actor. It is for actors whose tasks each belong to one of
    many clients. Any other actor would go on answering pings, with a part of its work undone for good.
    """

    outlives: tuple[type[Exception], ...] = ()

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self.stopped: str | None = None
        self.ended_because = ""
        """Why its host stopped it; empty while it lives."""
        self._under_way = 0
        self._idle_since: int | None = None

    @property
    def refuses(self) -> str:
        """Why the actor takes no new work although it lives; empty if it does."""
        return ""

    @property
    def problem(self) -> str:
        """The reason why the actor cannot do part of its work, in one line; empty if there is none."""
        return ""

    @property
    def at_work(self) -> bool:
        """Whether the actor must stay open without requests. Other actors are closed after a while."""
        return True

    @property
    def figures(self) -> object:
        """Values that its statistics follow from, if nothing else changes them; None: they may change at any time."""
        return None

    @property
    def used(self) -> bool:
        """Whether a request is under way, or the actor is at work."""
        return self._under_way > 0 or self.at_work

    def idle_ms(self) -> int:
        """Return for how long the actor was not used, as far as earlier calls have seen."""
        now = self.ports.clock.monotonic()
        if self.used:
            self._idle_since = None
            return 0
        if self._idle_since is None:
            self._idle_since = now
        return now - self._idle_since

    async def start(self) -> None:
        """Take possession: read metadata, raise epochs, start background work. Raises Fenced if it cannot."""

    async def stop(self, reason: str) -> None:
        """Refuse everything from now on. Idempotent. Never writes: a stopped owner may be an outdated one."""
        self.stopped = self.stopped or reason

    def release(self) -> None:
        """Drop what takes much memory after the actor has ended, as its process goes on. Idempotent."""

    def immediate(self, kind: type[Request[Any]]) -> ImmediateHandler | None:
        """Return the immediate handler of a class of requests, if there is one."""
        now, _ = handlers(type(self), kind)
        return getattr(self, now) if now else None

    def began(self) -> None:
        """Count a request that is under way and keeps the actor open."""
        self._under_way += 1

    def done(self) -> None:
        """Count down a request that has its answer."""
        self._under_way -= 1
        self._idle_since = None

    async def handle(self, request: Request[Any]) -> Reply:
        """Answer a request. Raises the refusal."""
        if isinstance(request, messages.Ping):
            idle_ms = self.idle_ms()
            return messages.Alive(refuses=self.refuses, problem=self.problem, idle_ms=idle_ms, frames=NEWEST)
        now, later = handlers(type(self), type(request))
        if not later:
            raise Invalid(f"{type(self).__name__} does not answer {type(request).__name__}")
        handler: Callable[[Request[Any]], Awaitable[Reply]] = getattr(self, later)
        if isinstance(request, NO_USE):
            return await handler(request)
        self.began()
        try:
            answered: SharedFuture[Reply] = SharedFuture()
            if now and getattr(self, now)(request, answered.set_outcome):
                return await answered
            return await handler(request)
        finally:
            self.done()


def handlers(actor: type[Actor], kind: type[Request[Any]]) -> tuple[str, str]:
    """Return the names of the immediate handler and the other one that an actor has for a request; empty for none."""
    known = HANDLERS.get((actor, kind))
    if known is None:
        name = _WORD.sub("_", kind.__name__).lower()
        now, later = f"now_{name}", f"on_{name}"
        known = now if hasattr(actor, now) else "", later if hasattr(actor, later) else ""
        HANDLERS[actor, kind] = known
    return known


R = TypeVar("R", bound=Reply)

Refusal = tuple[str, str]
"""A SluiceError on its way: the name of its class, and what it says."""

Answer = Packed | Reply | Refusal | Unknown
"""The outcome of a request: a reply, a refusal, or no answer. A reply is packed unless its request came as a value."""

Message = Packed | Request[Any]
"""A request on its way: packed, or as it is, because it never changes (`is_value`)."""

OnAnswer = Callable[[Answer], None]
"""Called once with the outcome of a request. Raises nothing."""


class HostedActor:
    """An actor and the requests that it is answering.

    broken: called with the exception when a handler or a background task raised what it must not; it is expected to
    call `end`. spawn: starts the tasks of handlers, which the end of the actor does not cancel by itself.
    """

    def __init__(self, actor: Actor, broken: Callable[[str, Exception], None], spawn: Spawn) -> None:
        self.actor = actor
        self._spawn = spawn
        self.born: asyncio.Future[SluiceError | None] = asyncio.get_running_loop().create_future()
        """Done when the actor has started (None), or ended before it had."""
        self._broken = broken
        self._calls: dict[asyncio.Task[Any], None] = {}
        self._waiting: dict[_PendingAnswer, None] = {}
        self._immediate: dict[str, tuple[type[Request[Any]], ImmediateHandler | None]] = {}
        """The class and the immediate handler of each kind of request that came so far."""
        self._over = ""
        self._looks = LET_GO.looks

    @property
    def serves(self) -> bool:
        """Whether it has started and has not ended."""
        return self.born.done() and not self._gone()

    async def start(self) -> None:
        """Start the actor, then let requests in. Raises what its start raises; then it has ended."""
        try:
            await self.actor.start()
        except BaseException as error:
            if isinstance(error, SluiceError):
                self.resolve_start(error)
            self.end(f"could not start: {error}")
            raise
        self.resolve_start(None)

    def task_failed(self, name: str, error: Exception) -> None:
        """Note that a background task of the actor ended with an error."""
        if not self._over and not isinstance(error, self.actor.outlives):
            self._broken(name, error)

    def resolve_start(self, error: SluiceError | None) -> None:
        """Let callers go on that wait for the start: the actor has started, or will not."""
        if not self.born.done():
            self.born.set_result(error)

    def end(self, reason: str) -> None:
        """Stop answering, and fail the requests that wait. Idempotent."""
        if not self._over:
            LET_GO.add(OWNER, self._looks)
        self._over = self._over or reason or "stopped"
        self.actor.ports.actor.over = True
        self.resolve_start(Unavailable(f"{self.actor.ports.me} ended: {reason}"))
        self.actor.ended_because = self._over
        self.actor.release()
        for call in list(self._calls):
            call.cancel()
        for waiting in list(self._waiting):
            waiting.give_up(self._ended())

    def accept(self, kind: str, message: Message, on_answer: OnAnswer) -> None:
        """Answer a request: in this turn if an immediate handler takes it, else in a task of the host."""
        known = self._immediate.get(kind)
        if known is None and (named := REQUESTS.get(kind)) is not None:
            known = self._immediate[kind] = named, self.actor.immediate(named)
        wanted, immediate = known or (None, None)
        if wanted is None or immediate is None or not self.serves:
            self._spawn(self._answer(kind, message, on_answer), kind)
            return
        waiting = _PendingAnswer(self, on_answer, isinstance(message, Packed))
        self._waiting[waiting] = None
        self.actor.began()
        try:
            if not immediate(_opened(wanted, message), waiting) and waiting.take_back():
                self._spawn(self._answer(kind, message, on_answer), kind)
        except SluiceError as error:
            waiting(error)
        except Exception as error:
            waiting.give_up(self._defect(kind, error))

    async def _answer(self, kind: str, message: Message, on_answer: OnAnswer) -> None:
        """Answer a request in a task of its own. Raises nothing but its own cancellation."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._calls[task] = None
        answer: Answer
        try:
            if not self.born.done():
                await self.born
            if self._gone():
                answer = self._ended()
            else:
                wanted = REQUESTS.get(kind)
                if wanted is None:
                    raise Unavailable(f"{self.actor.ports.me} does not know {kind}; is it an older version?")
                packs = isinstance(message, Packed)
                request = _opened(wanted, message)
                del message  # a poll waits for long
                answer = _closed(await self.actor.handle(request), packs=packs)
        except SluiceError as error:
            answer = pack_error(error)
        except asyncio.CancelledError:
            if not self._over:
                raise
            task.uncancel()
            answer = self._ended()
        except Exception as error:
            self._calls.pop(task, None)  # it has its answer: the end that follows is for those who wait
            answer = self._defect(kind, error)
        finally:
            self._calls.pop(task, None)
        on_answer(answer)

    def _defect(self, kind: str, error: Exception) -> Unknown:
        self._broken(kind, error)
        return self._ended()

    def _gone(self) -> str:
        return self._over or self.actor.stopped or ""

    def _ended(self) -> Unknown:
        return ended(self.actor.ports.me, self._gone())


class _PendingAnswer:
    """The answer to one request that an immediate handler has: called once with the outcome; later calls do nothing."""

    __slots__ = ("_hosted", "_on_answer", "packs")

    def __init__(self, hosted: HostedActor, on_answer: OnAnswer, packs: bool) -> None:
        self._hosted, self._on_answer, self.packs = hosted, on_answer, packs

    def __call__(self, outcome: Outcome) -> None:
        if self.take_back():
            answer: Answer
            try:
                answer = pack_error(outcome) if isinstance(outcome, SluiceError) else _closed(outcome, packs=self.packs)
            except SluiceError as error:
                answer = pack_error(error)
            self._on_answer(answer)

    def give_up(self, answer: Unknown) -> None:
        """Settle without an outcome: there will be none."""
        if self.take_back():
            self._on_answer(answer)

    def take_back(self) -> bool:
        """Wait no longer; False if nobody does any more."""
        waits = self in self._hosted._waiting
        if waits:
            del self._hosted._waiting[self]
            self._hosted.actor.done()
        return waits


def _opened(wanted: type[Request[Any]], message: Message) -> Request[Any]:
    return (
        unpack(wanted, message.head, message.attachments, message.handles) if isinstance(message, Packed) else message
    )


def _closed(reply: Reply, *, packs: bool) -> Packed | Reply:
    return pack(reply) if packs or not is_value(type(reply)) else reply


def ended(address: Address, why: str) -> Unknown:
    """Return the error for callers of an actor that has ended, with the reason that its host knows."""
    return Unknown(f"{address}{_ENDED}{why}", gone=True)


def why_ended(address: Address, answer: Unknown) -> str:
    """Return why an actor ended, if its host reported it; empty if only the end of its process is known."""
    return answer.reason.partition(f"{address}{_ENDED}")[2] if answer.gone else ""


_ENDED = " has ended: "


def opened(request: Request[R], answer: Answer) -> R | Unknown:
    """Return an answer as the caller of the Net port sees it. Raises the refusal."""
    if isinstance(answer, Packed):
        return cast(R, unpack(type(request).reply, answer.head, answer.attachments, answer.handles))
    if isinstance(answer, Unknown):
        return answer
    if isinstance(answer, Reply):
        return cast(R, answer)
    raise unpack_error(*answer)


def outcome_of(request: Request[R], answer: Answer) -> R | Unknown | SluiceError:
    """Return the same for a callback: the refusal is a value."""
    try:
        return opened(request, answer)
    except SluiceError as error:
        return error
