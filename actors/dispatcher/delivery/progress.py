"""Reports how far this subscription is, so that the topic trims only messages that all subscriptions have seen.

A statement carries a mark-delete position that is durable here. It may only rise, with one exception: a seek back.
Then the topic is told first, and its answer means that the lower mark is durable there and that nothing is being
trimmed on the strength of the higher one; from the moment at which the seek begins no statement names a higher mark.
A statement that was prepared before a seek is dropped, as it would undo this. After the statement that the subscription
is deleted there are no others: the topic would keep everything for a subscription that does not exist.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator

from sluice.actors.dispatcher.delivery.subscription import CursorStore, PartitionSubscription, SubscriptionState
from sluice.actors.lookup.topic_client import TopicClient
from sluice.actors.messages import Progress, ReadEnds
from sluice.actors.ports import Address, Ports
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import Fenced, SluiceError, Unavailable

SECURE_TIMEOUT = 3_000
"""The time (ms) for which a seek waits for the answer; the operator can ask again."""
PROGRESS_MS = 1_000
RETRY_MS = 50
EXPIRE_MS, REST_MS = 5_000, 120_000
"""The time (ms) between two looks whether messages are too old, or the topic has a new owner. The second is for a
subscription that has every message and reported it; that one is also woken when either may be so.
"""

_EPOCH_SHIFT = 32


def epoch_of(number: int) -> int:
    """Return the epoch of the owner that made the statement of this number."""
    return number >> _EPOCH_SHIFT


class ProgressReporter:
    """A task that tells the owner of the topic how far its subscription has come."""

    def __init__(
        self, ports: Ports, topic: TopicClient, identity: PartitionSubscription, epoch: int, state: SubscriptionState
    ) -> None:
        self._ports, self._topic, self._identity, self._epoch, self._state = ports, topic, identity, epoch, state
        self._reported: tuple[Address, int] = ("", -1)
        self._news, self._expected = Signal(), False
        self._statements = 0
        self._seeks = 0
        self._gone = False
        self._limits: list[int] = []

    def statement(self, mark_delete: int | None = None, *, gone: bool = False, firm: bool = False) -> Progress:
        """Return the next statement of how far this subscription is; numbered, so that a late one is recognised.

        Raises Unavailable after the statement that it is deleted.
        """
        if self._gone and not gone:
            raise Unavailable(f"subscription {self._identity.subscription!r} is being deleted")
        self._statements += 1
        mark_delete = self._state.cursor.mark_delete if mark_delete is None else mark_delete
        return Progress(
            subscription=self._identity.subscription,
            mark_delete=min([mark_delete, *self._limits]),
            gone=gone,
            number=self._epoch << _EPOCH_SHIFT | self._statements,
            rejects_keyed_delay=self._state.settings.delay_key_policy == "reject",
            firm=firm,
        )

    async def introduce(self) -> None:
        """Introduce a new subscription before it is used, so that the topic keeps messages that it has not seen."""
        while not self._state.known:
            with contextlib.suppress(Unavailable, Fenced):
                await self._send(await self._topic.owner(), self._state.cursor.mark_delete)
                self._state.introduced()
            if not self._state.known:
                await self._ports.clock.sleep(RETRY_MS)

    def schedule(self) -> None:
        """Look soon whether there is something to do; several calls cost one look.

        Call this when more is done, messages have come, or the topic has another owner.
        """
        if not self._expected:
            self._expected = True
            self._ports.clock.timer(PROGRESS_MS, self._news.set)

    async def run(self, store: CursorStore, expire: Callable[[], Awaitable[None]], has_all: Callable[[], bool]) -> None:
        """Report to the topic when this subscription has advanced, and to each new owner; then let old messages expire.

        has_all: whether all messages are done, as far as this dispatcher knows.
        """
        logged, rest = "", PROGRESS_MS
        store.on_saved(self.schedule)
        while True:
            if await self._news.wait(self._ports, rest, lambda: self._rest_longer(has_all)):
                self._expected = False
                self._news.clear()
            try:
                reached, seeks = self._durable(store), self._seeks
                address = await self._topic.owner()
                if (address, reached) != self._reported and seeks == self._seeks:
                    # To this address and no other: a later owner may have heard from a later dispatcher already.
                    await self._send(address, reached)
                logged, rest = "", REST_MS if has_all() else EXPIRE_MS
                if rest == EXPIRE_MS:
                    await expire()
            except SluiceError as error:
                rest = PROGRESS_MS
                if str(error) != logged:
                    logged = str(error)
                    self._ports.log("progress_waits", error=logged)

    def _durable(self, store: CursorStore) -> int:
        """Return how far all is done durably; the rest is made durable, and reported then."""
        reached = self._state.cursor.mark_delete
        if store.mark_delete < reached and store.settled:
            store.dirty(gather=True)
        return min(reached, store.mark_delete)

    def _rest_longer(self, has_all: Callable[[], bool]) -> int:
        """Return ms for which there is still nothing to do, 0 if there is. An unused subscription wakes no task."""
        now = self._topic.known_owner(), self._state.cursor.mark_delete
        return REST_MS if has_all() and self._reported == now else 0

    def reported(self) -> bool:
        """Return whether the topic knows how far this subscription is."""
        return self._reported[1] == self._state.cursor.mark_delete

    async def _send(self, address: Address, reached: int) -> None:
        """Report to the topic; `reached` must be durable. Raises Unavailable if it did not answer."""
        seeks = self._seeks
        await self._topic.ask(self.statement(reached), to=address)
        if seeks == self._seeks:
            self._reported = (address, reached)

    async def gone(self) -> None:
        """Tell the topic that this subscription was deleted. Raises Unavailable if it did not answer."""
        self._gone = True
        await self._topic.ask(self.statement(gone=True))

    @contextlib.contextmanager
    def seeking(self, target: int) -> Iterator[None]:
        """Let no statement within the block say that more is done than the messages before `target`."""
        self._seeks += 1
        self._limits.append(target - 1)
        try:
            yield
        finally:
            self._limits.remove(target - 1)
            self._seeks += 1
            self._reported = ("", -1)

    async def secure(self, target: int) -> int:
        """Let the topic keep everything from `target` on; returns its oldest kept position, or `target`.

        Call this within `seeking`. Raises Unavailable or Fenced if the topic did not confirm it.
        """
        if target > self._state.cursor.mark_delete:
            return target
        address = await self._topic.owner()
        await self._topic.ask(self.statement(firm=True), SECURE_TIMEOUT, to=address)
        ends = await self._topic.ask(ReadEnds(), to=address)
        return max(target, ends.first)
