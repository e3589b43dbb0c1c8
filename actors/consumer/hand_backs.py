"""What a consumer gave back, until an owner of the subscription has confirmed it.

A confirmed hand-back is in the subscription's record. One that is not may be known to the owner or not, and to the next
owner or not; so it is said again in every new session, with the redelivery counts that this consumer saw and with what
is left of its delay. Said twice it changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from actors.messages import NegativeAcknowledge
from actors.ports import Ports
from actors.signal import Signal
from storage.position import Positions


@dataclass(eq=False, slots=True)
class HandBack:
    """positions: int64. seen: uint8, the redelivery count that came with each. until: monotonic ms, 0 = no delay.

    settled: it is confirmed, or nobody will ever confirm it.
    """

    number: int
    positions: Positions
    seen: npt.NDArray[np.uint8]
    until: int
    counted: bool
    settled: Signal = field(default_factory=Signal)
    confirmed: bool = False


class HandBacks:
    """The hand-backs of one partition that are not confirmed, oldest first."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._open: dict[int, HandBack] = {}
        self._last = 0

    def note(
        self, positions: Positions, seen: npt.NDArray[np.uint8], *, delay: int = 0, counted: bool = True
    ) -> HandBack:
        """Messages are given back now, to be sent again after `delay` ms."""
        self._last += 1
        until = self._ports.clock.monotonic() + delay if delay else 0
        back = self._open[self._last] = HandBack(self._last, positions, seen, until, counted)
        return back

    def oldest(self) -> HandBack | None:
        """The first that is not confirmed."""
        return next(iter(self._open.values()), None)

    def request(self, back: HandBack, session: int, *, again: bool, consumer_epoch: int = 0) -> NegativeAcknowledge:
        """How it is said in a session; again: it was said in an earlier one, perhaps."""
        return NegativeAcknowledge(
            session=session,
            positions=back.positions,
            seen=back.seen,
            delay=max(back.until - self._ports.clock.monotonic(), 0) if back.until else 0,
            counted=back.counted,
            number=back.number,
            consumer_epoch=consumer_epoch,
            again=again,
        )

    def settle(self, back: HandBack, *, confirmed: bool) -> None:
        """An owner has it, or has refused it; it is not said again."""
        back.confirmed = confirmed
        self._open.pop(back.number, None)
        back.settled.set()

    def close(self) -> None:
        """Nobody says anything any more."""
        for back in self._open.values():
            back.settled.set()
        self._open.clear()
