"""Messages that a dispatcher revokes (`nack_order=key`): the consumer takes them from its queues and gives them back.

An earlier message of the same keys was given back and goes out again before these. What the application has not seen
is dropped unseen. What it has already is taken from it: acknowledging that has no effect any more, and it comes again,
marked as `overtook`. A gateway cannot take from its client what it has sent there, so it leaves that to the client's
application: the key waits until it is acknowledged or given back.

**A new owner** can ask for messages only when it knows their keys, and of what a consumer gave back it knows the key
only when it has read the log so far. The consumer does not wait for that: of the messages that came from an owner
before, it takes back itself what a new owner would ask for (`forestall`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pyarrow as pa

from sluice.actors.consumer.negative_acks import NegativeAcksTracker, PendingNack
from sluice.actors.consumer.payload_fetcher import PayloadFetcher
from sluice.actors.consumer.unacked_messages import FirstOfKeys, UnackedMessageTracker
from sluice.actors.messages import NO_COUNTS, Revocation
from sluice.actors.ports import Ports
from sluice.actors.runtime.waiting import Signal
from sluice.storage.format.batch import order_keys
from sluice.storage.format.position import Positions


@dataclass(frozen=True, slots=True)
class TakingBack:
    """A way to take messages back from an application.

    guard: held meanwhile, and while messages are shown to the application. shown_too: messages that were shown are
    taken back as well. taken_back: told of the positions (int64, ascending).
    """

    guard: AbstractContextManager[object] = field(default_factory=nullcontext)
    shown_too: bool = True
    taken_back: Callable[[Positions], object] = len


class Revocations:
    """Carries out the revocations of one partition's dispatcher."""

    def __init__(
        self,
        ports: Ports,
        holding: UnackedMessageTracker,
        inbox: PayloadFetcher,
        hand_backs: NegativeAcksTracker,
        manner: TakingBack,
    ) -> None:
        self._ports, self._holding, self._inbox, self._hand_backs = ports, holding, inbox, hand_backs
        self._manner = manner
        self._number = 0
        self._awaited: dict[int, list[PendingNack]] = {}
        """Revocations that are known to come, with what was given back and led to each."""
        self._heard = Signal()

    def reset(self) -> None:
        """Begin another session, whose revocations are numbered from the start."""
        self._number = 0
        self._awaited.clear()
        self._heard.set()

    def carry_out(self, revocation: Revocation) -> tuple[PendingNack | None, int]:
        """Take revoked messages from the queues; returns the answers, and how many left the queue unseen."""
        back, unseen = self._take_back(revocation.positions, shown_too=self._manner.shown_too)
        self._number = revocation.number
        self._awaited = {number: backs for number, backs in self._awaited.items() if number > revocation.number}
        self._heard.set()
        return back, unseen

    def forestall(self, session: int, backs: Iterable[PendingNack] | None = None) -> tuple[list[PendingNack], int]:
        """Before the owner of this session is told of hand-backs (by default all that it or the one before may not know
        of, with what they lead to): take back what came before the session and lies behind them. What nobody has seen
        goes back whatever its key is; of what the application has, the messages of the same keys.

        Returns the answers, and how many messages left the queue unseen.
        """
        if backs is None:
            backs = [*chain.from_iterable(self._awaited.values()), *self._hand_backs.unconfirmed()]
        backs = [back for back in backs if len(back.positions)]
        if not backs:
            return [], 0
        lowest = min(int(back.positions[0]) for back in backs)
        here = np.concatenate([self._holding.positions(before=session), self._inbox.positions(before=session)])
        taken = [self._take_back(here[here > lowest], shown_too=False)]
        if self._manner.shown_too:
            later = self._holding.behind(FirstOfKeys(_keys_of(backs)), before=session)
            taken.append(self._take_back(later, shown_too=True))
        return [answer for answer, _ in taken if answer is not None], sum(unseen for _, unseen in taken)

    def _take_back(self, positions: Positions, *, shown_too: bool) -> tuple[PendingNack | None, int]:
        """Returns the answers, and how many messages left the queue unseen."""
        if not len(positions):
            return None, 0
        in_inbox = self._inbox.take_back(positions)
        with self._manner.guard:
            held, shown, unseen = self._holding.take_back(positions, shown_too=shown_too)
        back = None
        every = np.union1d(in_inbox, held)
        if len(every):
            back = self._hand_backs.note(every, NO_COUNTS, counted=False, overtook=shown)
            self._manner.taken_back(every)
        return back, unseen + len(in_inbox)

    async def wait(self, number: int, backs: Sequence[PendingNack], over: Callable[[], bool]) -> None:
        """Until a revocation, which these led to, was carried out, or the session is over."""
        if number > self._number and not over():
            self._awaited.setdefault(number, []).extend(backs)
        while self._number < number and not over():
            self._heard.clear()
            await self._heard.wait(self._ports, 1_000)


def _keys_of(backs: Iterable[PendingNack]) -> Iterator[tuple[pa.Array, Positions]]:
    """The keys of what the application gave back, and its positions."""
    for back in backs:
        for part in back.parts:
            rows = np.flatnonzero(np.isin(part.positions, back.positions))
            if len(rows):
                yield order_keys(part.few(rows)), part.positions[rows]
