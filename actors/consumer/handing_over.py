"""A consumer hands its hashes over to another one (`grace_ms`).

The offer is said until an owner has it durably, and comes along with every later attaching, so it holds whatever
becomes of the owner. Who took over is told by an event, and told again by each new owner.
"""

from __future__ import annotations

from collections.abc import Callable

from actors.backoff import Backoff
from actors.consumer.hand_backs import CALL_TIMEOUT, RETRY_FIRST, RETRY_MOST
from actors.messages import Event, HandOver
from actors.ports import Address, Ports, Unknown
from storage.errors import Fenced, Unavailable


class HandingOver:
    """to: whom one partition's hashes are offered, empty: to none. done: that consumer has taken them."""

    def __init__(self, ports: Ports, where: Callable[[], tuple[Address, int] | None]) -> None:
        """where: the owner and the session by now; None once the consumer closes."""
        self._ports, self._where = ports, where
        self.to = ""
        self.done = False

    async def offer(self, to: str) -> None:
        """Let a consumer that attaches under this name take over; durable when it returns. See messages.HandOver.

        Raises Invalid, Conflict.
        """
        before, self.to = self.to, to
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while (owner := self._where()) is not None:
            try:
                reply = await self._ports.net.call(owner[0], HandOver(session=owner[1], to=to), CALL_TIMEOUT)
                if not isinstance(reply, Unknown):
                    return
            except (Unavailable, Fenced):
                pass
            except Exception:
                self.to = before
                raise
            await wait.pause()

    def on_event(self, event: Event) -> None:
        """The owner has news."""
        self.done = self.done or event.kind == "handed_over"
