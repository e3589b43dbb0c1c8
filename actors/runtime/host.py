"""The duties of a host to its actor, for any transport: between processes, within one, or simulated.

* No request reaches an actor before it has started: requests that come earlier wait.
* Every request and every reply passes the codec, even between two actors of one process. So a caller may change its
  columns afterwards, and a value that cannot be encoded fails where it is first tried: in a test.
* A request belongs to the callee. It runs in a task of the host, and goes on when its caller gives up.
* An actor ends once. Callers that wait for an answer then learn at once that it is gone, and so do later ones.

A SluiceError raised by a handler is an answer. Anything else is a defect of the actor: the host is told, and ends it.
A background task that ends with any error ends its actor, which is then started again: no actor goes on without one of
its tasks. A task that can go on after an error catches it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

from sluice.actors.ports import Address, Unknown
from sluice.actors.ports.wire import Packed, Reply, Request, pack, pack_error, unpack, unpack_error
from sluice.actors.runtime.actor import REQUESTS, Actor
from sluice.actors.runtime.gc_pressure import LET_GO, OWNER
from sluice.storage.errors import SluiceError, Unavailable

R = TypeVar("R", bound=Reply)

Refusal = tuple[str, str]
"""A SluiceError on its way: the name of its class, and what it says."""

Answer = Packed | Refusal | Unknown
"""The outcome of a request: a packed reply, a refusal, or no answer."""


class HostedActor:
    """One actor and the requests that it is answering.

    broken: called with the exception when a handler or a background task raised what it must not; it is expected to
    call `end`.
    """

    def __init__(self, actor: Actor, broken: Callable[[str, Exception], None]) -> None:
        self.actor = actor
        self.born: asyncio.Future[SluiceError | None] = asyncio.get_running_loop().create_future()
        """Done when the actor has started (None), or ended before it had."""
        self._broken = broken
        self._calls: dict[asyncio.Task[Any], None] = {}
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
                self.settle(error)
            self.end(f"could not start: {error}")
            raise
        self.settle(None)

    def task_failed(self, name: str, error: Exception) -> None:
        """A background task of the actor ended with an error."""
        if not self._over and not isinstance(error, self.actor.outlives):
            self._broken(name, error)

    def settle(self, error: SluiceError | None) -> None:
        """The actor has started, or will not: let those go on that wait for it."""
        if not self.born.done():
            self.born.set_result(error)

    def end(self, reason: str) -> None:
        """Stop answering, and fail the requests that wait. Idempotent."""
        if not self._over:
            LET_GO.add(OWNER, self._looks)
        self._over = self._over or reason or "stopped"
        self.settle(Unavailable(f"{self.actor.ports.me} ended: {reason}"))
        self.actor.release()
        for call in list(self._calls):
            call.cancel()

    async def answer(self, kind: str, packed: Packed) -> Answer:
        """Answer a request. Runs in a task that belongs to the host; raises nothing but its own cancellation."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._calls[task] = None
        try:
            if not self.born.done():
                await self.born
            if self._gone():
                return self._ended()
            wanted = REQUESTS.get(kind)
            if wanted is None:
                raise Unavailable(f"{self.actor.ports.me} does not know {kind}; is it an older version?")
            request = unpack(wanted, packed.head, packed.attachments, packed.handles)
            del packed  # a poll waits for long
            return pack(await self.actor.handle(request))
        except SluiceError as error:
            return pack_error(error)
        except asyncio.CancelledError:
            if not self._over:
                raise
            task.uncancel()
            return self._ended()
        except Exception as error:
            self._calls.pop(task, None)  # it has its answer: the end that follows is for those who wait
            self._broken(kind, error)
            return self._ended()
        finally:
            self._calls.pop(task, None)

    def _gone(self) -> str:
        return self._over or self.actor.stopped or ""

    def _ended(self) -> Unknown:
        return ended(self.actor.ports.me, self._gone())


def ended(address: Address, why: str) -> Unknown:
    """The error for callers of an actor that has ended, with the reason that its host knows."""
    return Unknown(f"{address}{_ENDED}{why}", gone=True)


def why_ended(address: Address, answer: Unknown) -> str:
    """Why an actor ended, if its host reported it; empty if only the end of its process is known."""
    return answer.reason.partition(f"{address}{_ENDED}")[2] if answer.gone else ""


_ENDED = " has ended: "


def opened(request: Request[R], answer: Answer) -> R | Unknown:
    """An answer as the caller of the Net port sees it. Raises the refusal."""
    if isinstance(answer, Packed):
        return cast(R, unpack(type(request).reply, answer.head, answer.attachments, answer.handles))
    if isinstance(answer, Unknown):
        return answer
    raise unpack_error(*answer)
