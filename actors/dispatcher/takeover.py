"""Taking a subscription over: everything that a new owner must find out and make durable before it serves anybody.

A new owner raises the epoch in the record, so that the old one can no longer save a cursor, and knows from the record
how far the subscription is and which consumers were attached. For which of them it waits then: `rejoin`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actors.delayed.manifest import last_epoch, manifest_key
from actors.delayed.rescheduled import RescheduledTracker
from actors.delayed.shared import SharedIndex
from actors.delayed.tracker import make_tracker
from actors.dispatcher.assignment_history import AssignmentHistory
from actors.dispatcher.changed_delays import FIELD as DELAYS
from actors.dispatcher.changed_delays import ChangedDelays
from actors.dispatcher.damping import Damping
from actors.dispatcher.ends import read_ends
from actors.dispatcher.grace import FIELD, places_record, restore_places
from actors.dispatcher.parked_keys import FIELD as PARKED
from actors.dispatcher.parked_keys import load_parked, parked_record
from actors.dispatcher.progress import ProgressReporter
from actors.dispatcher.redelivery import durable_redeliveries
from actors.dispatcher.sessions import first_session
from actors.dispatcher.state import SubscriptionState
from actors.dispatcher.subscription import PartitionSubscription
from actors.dispatcher.wakeups import Wakeups
from actors.fenced_record import FencedRecord
from actors.key_shared.dispatch import Dispatch
from actors.messages import SubscriptionSettings
from actors.ports import Log, Ports
from actors.topic_client import TopicClient
from storage import redeliveries
from storage.cursor import Cursor
from storage.position import ledger_of

START_PATIENCE_MS = 15_000
"""How long a start waits for the topic: then the caller learns why, and the start is tried again."""


@dataclass(frozen=True, slots=True)
class OwnedSubscription:
    """A subscription in the hands of its owner."""

    epoch: int
    record: FencedRecord
    state: SubscriptionState
    core: Dispatch
    history: AssignmentHistory
    reporter: ProgressReporter
    changed_delays: ChangedDelays
    damping: Damping
    tracker: RescheduledTracker
    wakeups: Wakeups

    def snapshot(self, log: Log) -> dict[str, Any]:
        """What the record is to say now."""
        core = self.core
        known = self.changed_delays.record() | parked_record(core)
        known |= places_record(core, self.state.settings, self.damping)
        return self.state.record(durable_redeliveries(core, log)) | known


async def take_over(
    ports: Ports,
    topic: TopicClient,
    of: PartitionSubscription,
    record: FencedRecord,
    settings: SubscriptionSettings,
    shared: SharedIndex | None,
) -> OwnedSubscription:
    """Become the owner under a new epoch. settings: of a subscription that is new; else those of the record count.

    Raises Fenced if there is a newer owner, Unavailable if the topic of a new subscription does not answer.
    """
    value = await record.take()
    if value is None:
        before = await last_epoch(ports, manifest_key(of.topic, of.partition, of.subscription))
        record.begin_after(before)
        state = SubscriptionState.begun(settings, await _initial_cursor(ports, topic, settings))
    else:
        state = SubscriptionState.stored(value, ports.log)
    history = AssignmentHistory(ports, of.topic, of.partition, of.subscription, record.epoch)
    number = first_session(record.epoch)
    core = Dispatch(state.settings, partition=of.partition, first_consumer=number, history=history.history)
    if value is not None:
        core.remember(redeliveries.decode(value.get("redeliveries", b"")), ports.clock.now())
        load_parked(core, value.get(PARKED), state.cursor)
    changed_delays = ChangedDelays(ports, of, record.epoch)
    await changed_delays.load(value and value.get(DELAYS), state.cursor)
    damping = restore_places(core, state.settings, value and value.get(FIELD), ports)
    known = changed_delays.record() | parked_record(core) | places_record(core, state.settings, damping)
    await record.save(state.record(durable_redeliveries(core, ports.log)) | known)
    reporter = ProgressReporter(ports, topic, of, record.epoch, state)
    await reporter.introduce()
    wakeups = Wakeups()
    tracker = await make_tracker(
        ports,
        topic=of.topic,
        partition=of.partition,
        subscription=of.subscription,
        settings=state.settings,
        changed=wakeups.due.set,
        owner_epoch=record.epoch,
        shared=shared,
    )
    core.mark_deleted(state.cursor.mark_delete)
    delayed = RescheduledTracker(tracker, changed_delays.now)
    return OwnedSubscription(
        record.epoch, record, state, core, history, reporter, changed_delays, damping, delayed, wakeups
    )


async def _initial_cursor(ports: Ports, topic: TopicClient, settings: SubscriptionSettings) -> Cursor:
    ends = await read_ends(ports, topic, START_PATIENCE_MS)
    at = ends.first if settings.initial_position == "earliest" else ends.next
    cursor = Cursor()
    cursor.chain([(ledger_of(at), None)])
    cursor.reset(at)
    return cursor
