"""Questions without a task of the one who asks: the answer comes by a call.

A wait for a bookie is most of what a message does. As a task it costs more than the work before and behind it. A call
has the rules of a background task: an error in it ends its actor, and after the end of its actor none is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.ports.wire import Reply, Request
from sluice.storage.errors import SluiceError

R = TypeVar("R", bound=Reply)


def ask(
    ports: Ports,
    to: Address,
    request: Request[R],
    timeout: int,
    on_answer: Callable[[R | Unknown | SluiceError], None],
) -> None:
    """Ask a peer and wait at most `timeout` ms. on_answer: called once, after this has returned."""

    def answered(outcome: R | Unknown | SluiceError) -> None:
        if ports.actor.over:
            return
        try:
            on_answer(outcome)
        except Exception as error:
            ports.spawn(_fail(error), "answer")

    ports.net.ask(to, request, timeout, answered)


async def _fail(error: Exception) -> None:
    raise error
