"""Taking a subscription over: everything that a new owner must find out and make durable before it serves anybody.

A new owner raises the epoch in the record, so that the old one can no longer save a cursor. The record says how far the
subscription is and which consumers were attached; `leases` decides which of them to wait for.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sluice.actors.consumer.payload import Payloads
from sluice.actors.delayed.manifest import last_epoch, manifest_key
from sluice.actors.delayed.open_tracker import make_tracker
from sluice.actors.delayed.shared import SharedIndex
from sluice.actors.delayed.tracker import RescheduledTracker
from sluice.actors.dispatcher.delivery.assignment_history import AssignmentHistory
from sluice.actors.dispatcher.delivery.changed_delays import ChangedDelays
from sluice.actors.dispatcher.delivery.context import Ownership, SubscriptionContext, Wakeups
from sluice.actors.dispatcher.delivery.grace import RecordedPlaces
from sluice.actors.dispatcher.delivery.progress import ProgressReporter, epoch_of
from sluice.actors.dispatcher.delivery.redelivery_clock import RecordedRedeliveries, RedeliveryClock
from sluice.actors.dispatcher.delivery.sessions import Sessions, first_session
from sluice.actors.dispatcher.delivery.subscription import (
    CursorStore,
    PartitionSubscription,
    Recorded,
    SubscriptionState,
    reading,
    recorded_settings,
)
from sluice.actors.dispatcher.delivery.unacked_runs import UnackedRuns
from sluice.actors.dispatcher.operator.parked_keys import RecordedParkedKeys
from sluice.actors.key_shared import KeySharedDispatcher
from sluice.actors.lookup.directory import Directory
from sluice.actors.lookup.topic_client import TopicClient, TopicLog
from sluice.actors.messages import Ends, SubscriptionSettings
from sluice.actors.ownership.fenced_record import FencedRecord
from sluice.actors.ports import Ports
from sluice.storage.errors import NotFound
from sluice.storage.format.cursor import Cursor
from sluice.storage.format.position import ledger_of

if TYPE_CHECKING:  # imported where something is recorded
    from sluice.actors.recorder.flight_recorder import FlightRecorder

START_PATIENCE_MS = 15_000
"""How long a start waits for the topic: then the caller learns why, and the start is tried again."""


@dataclass
class ProcessRecorder:
    """The recorder of a process, if there is one."""

    recorder: FlightRecorder | None = None


async def take_over(
    ports: Ports,
    directory: Directory,
    identity: PartitionSubscription,
    ownership: Ownership,
    record: FencedRecord,
    settings: SubscriptionSettings | None,
    shared: SharedIndex | None,
) -> SubscriptionContext:
    """Become the owner under a new epoch. settings: used if the subscription is new; otherwise those of the record
    count. None: it is not to be made. A subscription that was deleted only in part is new.

    Raises Fenced if there is a newer owner, Unavailable if the topic of a new subscription does not answer, NotFound if
    there is no subscription and none is to be made.
    """
    topic = TopicClient(ports, directory, identity.topic, identity.partition)
    log = TopicLog(ports, topic)
    value, indexed = await _looked_up(ports, identity, record)
    fresh = value is None  # nobody has owned it, or all that it left was removed with it
    if settings is None and value is None:
        raise NotFound(f"subscription {identity.subscription!r} of {identity.topic!r} was deleted")
    if value is not None and value.get("deleted"):
        settings, _ = recorded_settings(value)
        value = None
    if value is None:
        if isinstance(indexed, BaseException):
            raise indexed
        ends = await log.ends(START_PATIENCE_MS, identity.subscription)
        # The topic and the index take no word of an earlier subscription of this name for a later one of this.
        record.begin_after(max(indexed or 0, epoch_of(ends.heard)))
        assert settings is not None
        state = SubscriptionState.begun(settings, _initial_cursor(ends, settings))
    else:
        ends = None
        state = SubscriptionState.stored(value, ports.log)
    epoch = record.epoch
    history = AssignmentHistory(ports, identity, epoch, fresh=fresh)
    recorder = ports.process.of(ProcessRecorder).recorder
    of = identity.topic, identity.partition, identity.subscription, epoch
    core = (KeySharedDispatcher if recorder is None else partial(recorder.decisions, of))(
        state.settings,
        partition=identity.partition,
        first_consumer=first_session(epoch, ports.me),
        history=history.history,
    )
    changed_delays = ChangedDelays(ports, identity, epoch, state.cursor, fresh=fresh)
    places = RecordedPlaces(ports, core, state.settings)
    clock = RedeliveryClock(ports, core)
    recorded: list[Recorded] = [
        clock,
        RecordedRedeliveries(ports, core, clock),
        changed_delays,
        RecordedParkedKeys(core, state.cursor),
        places,
        history,
    ]
    if value is not None:
        for part in recorded:
            with reading(f"{part.field} in the record of a subscription"):
                await part.load(value.get(part.field))
    snapshot = partial(state.contents, recorded)
    await record.save(snapshot())
    reporter = ProgressReporter(ports, topic, identity, epoch, state)
    await reporter.introduce()
    wakeups, sessions = Wakeups(), Sessions()
    tracker = await make_tracker(
        ports,
        topic=identity.topic,
        partition=identity.partition,
        subscription=identity.subscription,
        settings=state.settings,
        changed=wakeups.due.set,
        owner_epoch=epoch,
        shared=shared,
        # Where there was none, an owner before this one may have written one since; before a new subscription is none.
        indexed=isinstance(indexed, int) or (None if ends is None else False),
    )
    core.mark_deleted(state.cursor.mark_delete)
    store = CursorStore(
        ports,
        record,
        snapshot,
        state.mark_delete,
        sessions.behind,
        ownership.end,
        state.membership.trust_ms,
    )
    return SubscriptionContext(
        ports=ports,
        directory=directory,
        topic=topic,
        log=log,
        payloads=Payloads(ports, directory, identity.topic, identity.partition),
        identity=identity,
        ownership=ownership,
        epoch=epoch,
        state=state,
        core=core,
        tracker=RescheduledTracker(tracker, changed_delays.now),
        changed_delays=changed_delays,
        redelivery_clock=clock,
        runs=UnackedRuns(ports.clock.monotonic),
        sessions=sessions,
        store=store,
        wakeups=wakeups,
        damping=places.damping,
        reporter=reporter,
        history=history,
        end=None if ends is None else ends.last,
    )


async def _looked_up(
    ports: Ports, identity: PartitionSubscription, record: FencedRecord
) -> tuple[dict[str, Any] | None, int | BaseException | None]:
    """Read the last owner's record, see FencedRecord.acquire, and the epoch of a delayed index's last writer, or why
    it is not known. Only a new subscription needs that; a client waits for it, so both are asked for at once.
    """
    manifest = manifest_key(identity.topic, identity.partition, identity.subscription)
    value, indexed = await asyncio.gather(record.acquire(), last_epoch(ports, manifest), return_exceptions=True)
    if isinstance(value, BaseException):
        raise value
    return value, indexed


def _initial_cursor(ends: Ends, settings: SubscriptionSettings) -> Cursor:
    at = ends.first if settings.initial_position == "earliest" else ends.next
    cursor = Cursor()
    cursor.chain([(ledger_of(at), None)])
    cursor.reset(at)
    return cursor
