"""Messages that a consumer gave back, until an owner of the subscription has confirmed that.

A confirmed hand-back is in the subscription's record. One that is not may be known to the owner or not, and to the next
owner or not; so it is said again in every new session, with the redelivery counts that this consumer saw and with what
is left of its delay. Said twice it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.messages import NO_POSITIONS, GivenBack, NegativeAcknowledge
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.ports.wire import Request
from sluice.actors.runtime.waiting import Backoff, Signal
from sluice.storage.errors import Fenced, SluiceError, Unavailable
from sluice.storage.format.position import Positions

CALL_TIMEOUT = 3_000
RETRY_FIRST, RETRY_MOST = 5, 500


@dataclass(eq=False, slots=True)
class PendingNack:
    """positions: int64. seen: uint8, the redelivery count that came with each. until: monotonic ms, 0 = no delay.

    overtook: int64, those of them that were asked back when the application had them. parts: what the application gave
    back of. settled: it is confirmed, or nobody will ever confirm it. partial: some of it came again before it was
    confirmed, and is said no more.
    """

    number: int
    positions: Positions
    seen: npt.NDArray[np.uint8]
    until: int
    counted: bool
    overtook: Positions
    parts: tuple[Received, ...] = ()
    settled: Signal = field(default_factory=Signal)
    confirmed: bool = False
    partial: bool = False


class NegativeAcksTracker:
    """The hand-backs of one partition that are not confirmed, oldest first."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._open: dict[int, PendingNack] = {}
        self._last = 0

    def note(
        self,
        positions: Positions,
        seen: npt.NDArray[np.uint8],
        *,
        delay: int = 0,
        counted: bool = True,
        overtook: Positions = NO_POSITIONS,
        parts: tuple[Received, ...] = (),
    ) -> PendingNack:
        """Messages are given back now, to be sent again after `delay` ms."""
        self._last += 1
        until = self._ports.clock.monotonic() + delay if delay else 0
        back = self._open[self._last] = PendingNack(self._last, positions, seen, until, counted, overtook, parts)
        return back

    def oldest(self, held: Positions) -> PendingNack | None:
        """The first that is not confirmed, without what the consumer holds again.

        That was heard, or it would not have come again; to say it to a new owner would take it from under the consumer.
        """
        for back in list(self._open.values()):
            rest = np.isin(back.positions, held, invert=True)
            if not rest.all():
                back.seen = back.seen[rest] if len(back.seen) else back.seen
                back.positions, back.partial = back.positions[rest], True
            if len(back.positions):
                return back
            self.finish(back, confirmed=False)
        return None

    def unconfirmed(self) -> list[PendingNack]:
        """All of them, oldest first."""
        return list(self._open.values())

    def lowest(self) -> int | None:
        """The first position of all that is not confirmed."""
        return min((int(back.positions[0]) for back in self._open.values() if len(back.positions)), default=None)

    def request(
        self, back: PendingNack, session: int, *, again: bool = False, consumer_epoch: int = 0
    ) -> NegativeAcknowledge:
        """The request for a session. again: an earlier session may have sent it already."""
        return NegativeAcknowledge(
            session=session,
            positions=back.positions,
            seen=back.seen,
            delay=max(back.until - self._ports.clock.monotonic(), 0) if back.until else 0,
            counted=back.counted,
            number=back.number,
            consumer_epoch=consumer_epoch,
            again=again,
            overtook=back.overtook,
        )

    async def say(
        self,
        request: Request[Any],
        backs: Sequence[PendingNack],
        address: Callable[[], Address],
        over: Callable[[], bool],
    ) -> int:
        """Report returned messages until that is confirmed; returns the revocation that it caused, 0 for none.

        over: the session is another by now. The opener of that session repeats the report, so this call waits for that.
        """
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while not over():
            try:
                reply = await self._ports.net.call(address(), request, CALL_TIMEOUT)
                if not isinstance(reply, Unknown):
                    for back in backs:
                        self.finish(back, confirmed=True)
                    return reply.revocation if isinstance(reply, GivenBack) else 0
            except Unavailable:
                pass
            except Fenced:
                break
            except SluiceError:
                for back in backs:
                    self.finish(back, confirmed=False)
                raise
            await wait.pause()
        for back in backs:
            await back.settled.wait(self._ports)
        return 0

    def finish(self, back: PendingNack, *, confirmed: bool) -> None:
        """An owner has accepted or refused it, so it is not repeated."""
        back.confirmed = confirmed and not back.partial
        self._open.pop(back.number, None)
        back.settled.set()

    def close(self) -> None:
        """Settle all open returns without a confirmation; no further reports follow."""
        for back in self._open.values():
            back.settled.set()
        self._open.clear()
