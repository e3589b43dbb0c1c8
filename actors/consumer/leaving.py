"""How a consumer leaves its dispatcher, also while it attaches to one, and how it hands its hashes over (`grace_ms`).

The answer to an attach may come after the consumer has left. Nobody uses the session that it names, and its lease would
keep its keys from the others, so that session is left as well.

An offer to hand over is said until an owner has it durably, and comes along with every later attaching, so it holds
whatever becomes of the owner. Who took over is told by an event, and told again by each new owner.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.actors.consumer.negative_acks import CALL_TIMEOUT, RETRY_FIRST, RETRY_MOST
from sluice.actors.messages import Detach, Event, HandOver
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.runtime.waiting import Backoff
from sluice.storage.errors import Fenced, SluiceError, Unavailable


class Leaving:
    """The end of one partition's consumer."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._keep_place: bool | None = None

    async def leave(self, address: Address, session: int, *, for_good: bool) -> None:
        """Leave, now and whenever an attach is answered later. for_good: nothing is kept for one of its name."""
        self._keep_place = not for_good
        await self.after_attach(address, session)

    async def after_attach(self, address: Address, session: int) -> None:
        """Leave this session too, if the consumer has left. A dispatcher that does not hear it waits for the lease."""
        if self._keep_place is not None and session:
            await self.give_up(address, session, keep_place=self._keep_place)

    async def give_up(self, address: Address, session: int, *, keep_place: bool = True) -> None:
        """Leave a session that nobody uses."""
        try:
            await self._ports.net.call(address, Detach(session=session, keep_place=keep_place), CALL_TIMEOUT)
        except SluiceError as error:
            self._ports.log("leave_failed", address=address, error=str(error))


class HandingOver:
    """to: whom one partition's hashes are offered, empty: to none. done: that consumer has taken them."""

    def __init__(self, ports: Ports, where: Callable[[], tuple[Address, int] | None]) -> None:
        """Begin for one partition. where: returns the current owner and session, None once the consumer closes."""
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
