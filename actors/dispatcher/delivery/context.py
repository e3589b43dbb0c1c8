"""The context that all parts of a dispatcher share. `takeover` makes it once, and every part gets the whole.

It holds the ports, the identity and the state of one subscription, and the parts that need no other one. State that
belongs to a single part is not here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from sluice.actors.consumer.payload import Payloads
from sluice.actors.delayed.tracker import RescheduledTracker
from sluice.actors.dispatcher.delivery.assignment_history import AssignmentHistory
from sluice.actors.dispatcher.delivery.changed_delays import ChangedDelays
from sluice.actors.dispatcher.delivery.damping import Damping
from sluice.actors.dispatcher.delivery.membership import Membership
from sluice.actors.dispatcher.delivery.progress import ProgressReporter
from sluice.actors.dispatcher.delivery.redelivery_clock import RedeliveryClock
from sluice.actors.dispatcher.delivery.sessions import Sessions
from sluice.actors.dispatcher.delivery.subscription import CursorStore, PartitionSubscription, SubscriptionState
from sluice.actors.dispatcher.delivery.unacked_runs import UnackedRuns
from sluice.actors.key_shared import KeySharedDispatcher
from sluice.actors.lookup.directory import Directory
from sluice.actors.lookup.topic_client import TopicClient, TopicLog
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.ports import Ports
from sluice.actors.runtime.waiting import Signal
from sluice.storage.format.cursor import Cursor


class Ownership(Protocol):
    """The knowledge of the actor whether it still owns the subscription. Parts ask again after every await."""

    def ended(self) -> bool:
        """Return whether this dispatcher has ended."""

    def check_owner(self) -> None:
        """Raise Fenced when this dispatcher has ended."""

    def end(self, reason: str) -> None:
        """Refuse everything from now on: there is, or will be, another owner."""


@dataclass(frozen=True, slots=True)
class Wakeups:
    """The signals that wake the parts. A part that changes something sets one, and does not know which parts wait.

    Everything that may make a message deliverable sets `route`. Setting it twice before the router runs costs one pass,
    and a pass that finds nothing is cheap; so no change needs to know what it might have freed, and none can be
    forgotten (L4, L5, L10).

    route: messages may go out. due: delayed messages may be taken. read: there may be room to read. places: a consumer
    came or went.
    """

    route: Signal = field(default_factory=Signal)
    due: Signal = field(default_factory=Signal)
    read: Signal = field(default_factory=Signal)
    places: Signal = field(default_factory=Signal)

    def came_or_went(self) -> None:
        """Wake the parts that wait for consumers to come or leave, as messages may go elsewhere."""
        self.places.set()
        self.route.set()

    def all(self) -> None:
        """Wake all parts: the subscription has changed outside of the data path."""
        self.route.set()
        self.due.set()
        self.read.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionContext:
    """A subscription in the hands of its owner.

    epoch: the owner's epoch. end: where the topic ended when a new subscription began (position of the last message, -1
    for none); None if it is not new. log: read by all parts; the compacted one by the reader alone. payloads: for
    reading messages whole.
    """

    ports: Ports
    directory: Directory
    topic: TopicClient
    log: TopicLog
    payloads: Payloads
    identity: PartitionSubscription
    ownership: Ownership
    epoch: int
    state: SubscriptionState
    core: KeySharedDispatcher
    tracker: RescheduledTracker
    changed_delays: ChangedDelays
    redelivery_clock: RedeliveryClock
    runs: UnackedRuns
    sessions: Sessions
    store: CursorStore
    wakeups: Wakeups
    damping: Damping
    reporter: ProgressReporter
    history: AssignmentHistory
    end: int | None

    @property
    def settings(self) -> SubscriptionSettings:
        """The settings in force; an owner keeps those that it began with."""
        return self.state.settings

    @property
    def cursor(self) -> Cursor:
        """The messages that are done."""
        return self.state.cursor

    @property
    def membership(self) -> Membership:
        """The consumers that may hold messages."""
        return self.state.membership
