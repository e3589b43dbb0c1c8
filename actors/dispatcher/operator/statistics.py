"""Statistics of one subscription on one partition, with Pulsar's names.

Each part counts its own events, and here the counts are only put together: a part that counts something has a method
`stats`, and is in the list that `Components` hands over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sluice.actors.dispatcher.delivery.ack_handler import AckHandler
from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.dispatcher.delivery.dispatch_loop import DispatchLoop
from sluice.actors.dispatcher.delivery.membership import LeaseState
from sluice.actors.dispatcher.delivery.reader import BacklogReader
from sluice.actors.dispatcher.delivery.subscription import PartitionSubscription
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.messages.settings import dead_letter_topic
from sluice.storage.errors import Unavailable
from sluice.storage.format.position import show


class Counts(Protocol):
    """A part of the dispatcher that counts something."""

    def stats(self) -> dict[str, Any]:
        """Return the part's statistics, with names that no other part uses."""


class Statistics:
    """The collection of all statistics. parts: the parts that count something of their own."""

    def __init__(
        self,
        context: SubscriptionContext,
        reader: BacklogReader,
        ack_handler: AckHandler,
        deliverer: DispatchLoop,
        parts: Sequence[Counts],
    ) -> None:
        self._ports, self._identity = context.ports, context.identity
        self._epoch, self._state = context.epoch, context.state
        self._core, self._runs = context.core, context.runs
        self._sessions, self._tracker = context.sessions, context.tracker
        self._reader, self._ack_handler, self._deliverer, self._parts = reader, ack_handler, deliverer, parts

    async def collect(self) -> dict[str, Any]:
        """Return all statistics. The end of the topic is looked up first, unless a read waits there and knows it.

        Raises Unavailable while a new owner does not know the topic's end: it cannot count the backlog, and a caller
        that waits for an empty one must not see one.
        """
        reader = self._reader
        await reader.know_end()
        if not reader.end_known:
            raise Unavailable(
                f"how far partition {self._identity.partition} of {self._identity.topic!r} reaches is not known yet"
            )
        core = self._core.stats(self._ports.clock.now())
        sentinel = core.get("sentinel", {})
        consumers = {row["consumerNumber"]: row for row in core.pop("consumers", [])}
        return {
            **self._subscription(),
            **self._position(),
            **core,
            "orderCheckedTotal": sentinel.get("checkedHolder", 0) + sentinel.get("checkedOrder", 0),
            "orderViolationsTotal": sentinel.get("violationsHolder", 0) + sentinel.get("violationsOrder", 0),
            "hashesMovedTotal": self._core.history.hashes_moved,
            "type": self._state.settings.type,
            "consumersCount": len(self._sessions),
            "consumers": [
                {
                    **consumers.get(session.number, {}),
                    "session": session.number,
                    "lastAckedTimestamp": session.last_acked,
                }
                for session in self._sessions.all()
            ],
            **{name: value for part in self._parts for name, value in part.stats().items()},
        }

    def _subscription(self) -> dict[str, Any]:
        settings = self._state.settings
        return {
            "topic": self._identity.topic,
            "partition": self._identity.partition,
            "subscription": self._identity.subscription,
            "epoch": self._epoch,
            "policy": settings.policy,
            "deadLetterTopic": _dead_letter_topic(self._identity, settings),
            "isDurable": settings.durable,
            "paused": self._state.paused,
            "subscriptionProperties": self._state.properties,
            "awaitedConsumers": len(self._state.membership.all(LeaseState.AWAITED)),
            "watchdogStalls": self._deliverer.stalls,
        }

    def _position(self) -> dict[str, Any]:
        """Return the counts of the subscription's position and backlog, and the memory for them."""
        delayed = self._tracker.count()
        backlog = self._ack_handler.count(self._reader.reach)
        return {
            "msgBacklog": backlog,
            "msgBacklogNoDelayed": max(backlog - delayed, 0),
            "msgDelayed": delayed,
            "delayedMessageIndexSizeInBytes": self._tracker.memory_bytes(),
            "bucketDelayedIndexStats": self._tracker.stats(),
            "markDeletePosition": show(self._state.cursor.mark_delete),
            "readPosition": show(self._reader.position),
            "nonContiguousDeletedMessagesRanges": self._state.cursor.holes,
            "pendingRead": self._reader.reading,
            "runsHeld": len(self._runs),
        }


def _dead_letter_topic(of: PartitionSubscription, settings: SubscriptionSettings) -> str:
    """Return the dead letter topic of a subscription; empty if no message leaves it."""
    moves = settings.max_redeliver_count and settings.dead_letter_policy == "skip"
    return dead_letter_topic(of.topic, of.subscription, settings) if moves else ""
