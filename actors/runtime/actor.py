"""The shape of every actor: one entry point, and one handler method for each class of requests.

A handler is a method `on_<request_in_snake_case>`; `AddRun` is handled by `on_add_run`. Handlers run concurrently and
in no promised order. A SluiceError raised in a handler is an answer to the caller; anything else is a defect and
stops the actor.

A handler that only has to wait for something may be *immediate*: `now_<request>(request, answer)`. It takes the
request in the turn in which that comes, without a task. It calls `answer` once, then or later, with the reply or a
SluiceError. It does not await, asks no other actor, and returns whether it took the request. If it did not, it has
changed nothing, and `on_<request>` handles the request.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from sluice.actors import messages
from sluice.actors.ports import Ports
from sluice.actors.ports.wire import Reply, Request
from sluice.actors.runtime.waiting import SharedFuture
from sluice.storage.errors import Invalid, SluiceError
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
