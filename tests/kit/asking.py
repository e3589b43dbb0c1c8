"""Nets and processes of tests that know one way of asking, and are asked in the other way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from sluice.actors.ports import Address, Unknown
from sluice.actors.ports.wire import Packed, Reply, Request
from sluice.actors.runtime.host import Answer, Message, OnAnswer
from sluice.storage.errors import SluiceError

R = TypeVar("R", bound=Reply)

_TASKS: dict[asyncio.Task[None], None] = {}


class Calls(Protocol):
    """A net that calls."""

    def call(self, to: Address, request: Request[R], timeout: int) -> Coroutine[Any, Any, R | Unknown]:
        """See actors.ports.Net."""


class Accepts(Protocol):
    """A process that accepts requests."""

    def accept(self, actor: str, kind: str, message: Message, on_answer: OnAnswer) -> None:
        """See cluster.wire.listener.RequestHandler."""


def ask_in_task(
    net: Calls, to: Address, request: Request[R], timeout: int, on_answer: Callable[[R | Unknown | SluiceError], None]
) -> None:
    """Ask as Net.ask does, through the net's `call`."""

    async def asking() -> None:
        outcome: R | Unknown | SluiceError
        try:
            outcome = await net.call(to, request, timeout)
        except SluiceError as error:
            outcome = error
        on_answer(outcome)

    _keep(asking())


def answer_in_task(
    answer: Callable[[str, str, Packed], Coroutine[Any, Any, Answer]],
    actor: str,
    kind: str,
    message: Message,
    on_answer: OnAnswer,
) -> None:
    """Call `on_answer` with the outcome of a coroutine."""
    assert isinstance(message, Packed)

    async def answering() -> None:
        on_answer(await answer(actor, kind, message))

    _keep(answering())


async def answer_of(process: Accepts, actor: str, kind: str, packed: Packed) -> Answer:
    """The answer of a process to a request."""
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    process.accept(actor, kind, packed, answered.set_result)
    return await answered


def _keep(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    _TASKS[task] = None
    task.add_done_callback(_TASKS.pop)
