"""The dispatcher actor: one subscription on one partition.

It is a thin shell: it takes the subscription over, joins the parts, and hands each request to the part that it
concerns. The parts know nothing of the actor. Each is given the `context` whole, and the few other parts that it needs.
What is decided where:

* who may get which message now: `actors.key_shared` (the core), with the order sentinel at its exit;
* what is done: `ack_handler` and `storage.format.cursor`, made durable by `CursorStore`;
* what is not due yet: `actors.delayed`, and `due`;
* what comes next from the log: `reader`;
* who is attached, and until when: `membership`, carried out by `consumers`, `leases` and `grace`;
* what goes out: `dispatch_loop`; what comes back unfinished: `ack_handler` and `dead_letters`;
* which keys wait for an operator's decision: `parked_keys`;
* which delayed messages are taken back, or come at another time: `delayed_messages`;
* where the cursor is moved to: `seek`;
* what operators are told: `statistics`, `inspection`, `hot_keys`.
"""

from __future__ import annotations

from functools import cached_property

from sluice.actors.delayed.shared import SharedIndex
from sluice.actors.dispatcher.delivery.ack_handler import AckHandler, Redelivery
from sluice.actors.dispatcher.delivery.consumers import Consumers
from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.dispatcher.delivery.dead_letters import DeadLetterMover
from sluice.actors.dispatcher.delivery.dispatch_loop import DispatchLoop
from sluice.actors.dispatcher.delivery.due import DueMessages
from sluice.actors.dispatcher.delivery.grace import ReconnectGrace
from sluice.actors.dispatcher.delivery.hot_keys import HotKeys, HotKeyWatch
from sluice.actors.dispatcher.delivery.leases import Leases
from sluice.actors.dispatcher.delivery.open_positions import OpenPositions
from sluice.actors.dispatcher.delivery.process_sessions import ProcessSessions
from sluice.actors.dispatcher.delivery.reader import BacklogReader
from sluice.actors.dispatcher.delivery.sessions import Session
from sluice.actors.dispatcher.delivery.subscription import PartitionSubscription
from sluice.actors.dispatcher.operator.configuration import SubscriptionConfiguration
from sluice.actors.dispatcher.operator.delayed_messages import DelayedMessages
from sluice.actors.dispatcher.operator.deletion import Deletion, UnusedWatch
from sluice.actors.dispatcher.operator.inspection import Inspection, document
from sluice.actors.dispatcher.operator.parked_keys import ParkedKeys
from sluice.actors.dispatcher.operator.seek import Seeker
from sluice.actors.dispatcher.operator.statistics import Statistics
from sluice.actors.dispatcher.takeover import ProcessRecorder, take_over
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import (
    Acknowledge,
    Acknowledged,
    Attach,
    Attached,
    BacklogFound,
    CancelDelayed,
    ClearBacklog,
    Closed,
    CloseIdle,
    Configure,
    Configured,
    Deleted,
    DeleteSubscription,
    Delivery,
    Detach,
    Discard,
    Done,
    ExpireMessages,
    Explain,
    FindBacklog,
    FindOpen,
    FindOwner,
    GivenBack,
    HandOver,
    Heartbeat,
    HeartbeatAnswer,
    ListAssignments,
    ListBlockedKeys,
    ListDelayed,
    ListHotKeys,
    ListParked,
    ListPending,
    NegativeAcknowledge,
    Pause,
    Paused,
    Poll,
    PrepareDeletion,
    RedeliverUnacknowledged,
    Redrive,
    RescheduleDelayed,
    Resume,
    Seek,
    SentApart,
    SetProperties,
    Skip,
    Skipped,
    Sought,
    Stats,
    StillOpen,
    SubscriptionSettings,
    Text,
    WhatIf,
)
from sluice.actors.ownership.fenced_record import FencedRecord
from sluice.actors.ports import Ports
from sluice.actors.runtime.host import Actor
from sluice.storage.errors import Fenced, Unavailable
from sluice.storage.format.position import show


class Dispatcher(Actor):
    """Owns a subscription on a partition: sessions in, deliveries out."""

    def __init__(
        self,
        ports: Ports,
        *,
        topic: str,
        partition: int,
        subscription: str,
        settings: SubscriptionSettings | None,
        directory: Directory,
        shared: SharedIndex | None = None,
    ) -> None:
        """settings: see `take_over`."""
        super().__init__(ports)
        self.identity = PartitionSubscription(topic, partition, subscription)
        self.directory = directory
        self._settings, self._shared = settings, shared
        self._record = FencedRecord(ports, self.identity.key, removable=True)
        self._parts: Components | None = None

    # -- life -----------------------------------------------------------------------------------------------------

    @property
    def parts(self) -> Components:
        """Everything that there is once the subscription is taken over. Raises Unavailable before that."""
        if self._parts is None:
            raise Unavailable(f"{self.identity.subscription} on {self.identity.topic!r} is still being taken over")
        return self._parts

    @property
    def serves(self) -> bool:
        """Whether the subscription is taken over."""
        return self._parts is not None

    async def start(self) -> None:
        """Take the subscription over under a new epoch, and find out its state."""
        context = await take_over(
            self.ports, self.directory, self.identity, self, self._record, self._settings, self._shared
        )
        self._parts = Components(context)
        self._parts.start()
        self.ports.process.of(ProcessSessions).join(self.ports.me, self._parts.leases)

    def release(self) -> None:
        """See Actor. However it ended, it takes nothing more out of the shared delayed index."""
        self.ports.process.of(ProcessSessions).leave(self.ports.me)
        recorder = self.ports.process.of(ProcessRecorder).recorder
        if self._parts is not None and recorder is not None:
            recorder.end(self._parts.context.core, self.ended_because)
        if self._shared is not None:
            self._shared.leave(self.ports.me)

    def end(self, reason: str) -> None:
        """Refuse everything, and end all sessions: there is, or will be, another owner."""
        context = self.parts.context
        if self.stopped is None:
            self.ports.spawn(context.tracker.close(), "close")
        self.stopped = self.stopped or reason
        for session in context.sessions.all():
            context.sessions.close(session)

    @property
    def problem(self) -> str:
        """See Actor: parked keys that are at their limit, a key that holds the others back."""
        return "" if self._parts is None else self._parts.problem

    def ended(self) -> bool:
        """Return whether this dispatcher has ended."""
        return self.stopped is not None

    def check_owner(self) -> None:
        """Raise Fenced when this dispatcher has ended."""
        if self.stopped is not None:
            raise Fenced(self.stopped)

    @property
    def at_work(self) -> bool:
        """Whether a consumer has it, or may still hold messages of it, or anything is not durable or not told.

        One that is not durable stays until it is deleted.
        """
        return self._parts is None or self._parts.at_work()

    @property
    def figures(self) -> object:
        """See Actor: those of a subscription that has everything."""
        if self._parts is None or not self._parts.reader.has_all() or self._parts.context.tracker.count():
            return None
        context = self._parts.context
        sessions = tuple(session.number for session in context.sessions.all())
        # The last two change by time alone: a kept place is given up, and a key is blamed no longer.
        moved, blamed = context.core.history.number, self._parts.hot_key_watch.problem
        return context.cursor.mark_delete, sessions, context.state.paused, self._parts.parked.alarm(), moved, blamed

    async def on_close_idle(self, request: CloseIdle) -> Closed:
        """Everything is in the records and in the log: who attaches next finds it as after a change of owners."""
        if self.ended() or self.idle_ms() < request.idle_ms:
            return Closed(closed=False)
        # No await from here on.
        now = self.ports.clock.now()
        due = self.parts.context.tracker.next_due(now)
        self.end("closed, because nobody uses it")
        return Closed(closed=True, wake_at=due if due is not None and due > now else 0)

    # -- consumers ------------------------------------------------------------------------------------------------

    async def on_attach(self, request: Attach) -> Attached:
        self.parts.deletion.check_attaching()
        return await self.parts.consumers.attach(request)

    async def on_detach(self, request: Detach) -> Done:
        await self.parts.consumers.detach(request)
        return Done()

    async def on_hand_over(self, request: HandOver) -> Done:
        await self.parts.grace.hand_over(self._speaking(request.session), request)
        return Done()

    async def on_poll(self, request: Poll) -> Delivery:
        if self.parts.grace.newcomers:
            await self.parts.grace.asks(request.session)
        return await self.parts.deliverer.poll(request)

    async def on_heartbeat(self, request: Heartbeat) -> HeartbeatAnswer:
        return await self.ports.process.of(ProcessSessions).heartbeat(self.ports, request)

    async def on_acknowledge(self, request: Acknowledge) -> Acknowledged:
        return await self.parts.deliverer.acknowledge(request)

    async def on_find_open(self, request: FindOpen) -> StillOpen:
        self._speaking(request.session)
        return self.parts.deliverer.still_open(request)

    async def on_sent_apart(self, request: SentApart) -> Done:
        self._speaking(request.session)
        return await self.parts.deliverer.sent_apart(request)

    async def on_negative_acknowledge(self, request: NegativeAcknowledge) -> GivenBack:
        return await self.parts.redelivery.negative_acknowledge(self._speaking(request.session), request)

    async def on_redeliver_unacknowledged(self, request: RedeliverUnacknowledged) -> Done:
        await self.parts.redelivery.redeliver(self._speaking(request.session), request)
        return Done()

    def _speaking(self, number: int) -> Session:
        """Renew the session that asks, and return it. Raises Fenced if it is over."""
        session = self.parts.context.sessions.get(number)
        self.parts.leases.renew(session)
        return session

    # -- operators ------------------------------------------------------------------------------------------------

    @property
    def _owning(self) -> Components:
        """The parts, while this dispatcher may change anything. Raises Fenced."""
        self.check_owner()
        return self.parts

    async def on_seek(self, request: Seek) -> Sought:
        parts = self._owning
        seeker = parts.seeker
        to = await (seeker.to_message(request.message_id) if request.time is None else seeker.to_time(request.time))
        return Sought(position=show(to))

    async def on_cancel_delayed(self, request: CancelDelayed) -> Text:
        return document(await self._owning.delayed.cancel(request))

    async def on_reschedule_delayed(self, request: RescheduleDelayed) -> Text:
        return document(await self._owning.delayed.reschedule(request))

    async def on_redrive(self, request: Redrive) -> Text:
        return document(await self._owning.parked.redrive(request))

    async def on_discard(self, request: Discard) -> Text:
        return document(await self._owning.parked.discard(request))

    async def on_skip(self, request: Skip) -> Skipped:
        return _skipped(await self._owning.seeker.skip(request.messages))

    async def on_clear_backlog(self, request: ClearBacklog) -> Skipped:
        return _skipped(await self._owning.seeker.clear())

    async def on_expire_messages(self, request: ExpireMessages) -> Skipped:
        return _skipped(await self._owning.seeker.expire(request.before))

    async def on_prepare_deletion(self, request: PrepareDeletion) -> Done:
        self._owning.deletion.prepare(request)
        return Done()

    async def on_delete_subscription(self, request: DeleteSubscription) -> Deleted:
        await self._owning.deletion.delete(request)
        return Deleted(deleted=True)

    async def on_pause(self, request: Pause) -> Paused:
        await self._owning.configuration.pause(True)
        return Paused(paused=True)

    async def on_resume(self, request: Resume) -> Paused:
        await self._owning.configuration.pause(False)
        return Paused(paused=False)

    async def on_configure(self, request: Configure) -> Configured:
        return await self._owning.configuration.change(request)

    async def on_set_properties(self, request: SetProperties) -> Done:
        await self._owning.configuration.set_properties(request.properties)
        return Done()

    # -- questions ------------------------------------------------------------------------------------------------

    async def on_stats(self, request: Stats) -> Text:
        return document(await self.parts.statistics.collect())

    async def on_explain(self, request: Explain) -> Text:
        return document(await self.parts.inspection.explain(request))

    async def on_list_pending(self, request: ListPending) -> Text:
        return document(self._owning.inspection.pending(request))

    async def on_find_backlog(self, request: FindBacklog) -> BacklogFound:
        return BacklogFound(position=await self._owning.inspection.backlog(request))

    async def on_list_blocked_keys(self, request: ListBlockedKeys) -> Text:
        return document(self._owning.inspection.blocked_keys(request))

    async def on_list_hot_keys(self, request: ListHotKeys) -> Text:
        return document(await self._owning.hot_keys.top(request.top))

    async def on_list_parked(self, request: ListParked) -> Text:
        return document(self._owning.parked.listing(request))

    async def on_list_delayed(self, request: ListDelayed) -> Text:
        return document(self._owning.inspection.delayed(request))

    async def on_list_assignments(self, request: ListAssignments) -> Text:
        return document(self._owning.context.core.assignments())

    async def on_find_owner(self, request: FindOwner) -> Text:
        return document(self._owning.inspection.owner(request))

    async def on_what_if(self, request: WhatIf) -> Text:
        return document(self._owning.context.core.what_if(request.add, request.remove))


class Components:
    """The parts of a dispatcher, joined. What most subscriptions never need is made when it is asked for first; what
    answers operators and keeps nothing is made for each request.
    """

    def __init__(self, context: SubscriptionContext) -> None:
        self.context = context
        self._ack_handler = ack_handler = AckHandler(context)
        self.hot_keys = HotKeys(context)
        self.hot_key_watch = HotKeyWatch(context, self.hot_keys)
        self._alarm = ""
        self.reader = BacklogReader(context, ack_handler, self.hot_keys)
        self.open_positions = OpenPositions(context, self.reader)
        self.leases = Leases(context)
        self.grace = ReconnectGrace(context, self.leases)
        self.consumers = Consumers(context, self.leases, self.grace)
        self.parked, self._sets_aside = ParkedKeys(context, ack_handler), context.core.parking.on
        self.deliverer = DispatchLoop(context, self.reader, ack_handler, self.leases, self._look_at_failed)
        self.redelivery = Redelivery(context, ack_handler)
        self.due = DueMessages(context, self.reader)
        self.seeker = Seeker(context, self.reader, ack_handler, self.leases)
        self.unused_watch = UnusedWatch(context)
        self.deletion = Deletion(context, self.consumers, self.leases, self.unused_watch)

    @cached_property
    def dead_letters(self) -> DeadLetterMover:
        return DeadLetterMover(self.context, self._ack_handler)

    @cached_property
    def delayed(self) -> DelayedMessages:
        return DelayedMessages(self.context, self.reader, self._ack_handler, self.leases)

    @property
    def configuration(self) -> SubscriptionConfiguration:
        return SubscriptionConfiguration(self.context)

    @property
    def statistics(self) -> Statistics:
        watches = (self.hot_key_watch, self.open_positions)
        counting = (self.delayed, self.hot_keys, *watches, self.parked, self.grace, self.seeker)
        return Statistics(self.context, self.reader, self._ack_handler, self.deliverer, counting)

    @property
    def inspection(self) -> Inspection:
        return Inspection(self.context, self.reader, self.leases, self.parked)

    def start(self) -> None:
        """Let everything that goes on by itself begin."""
        self.leases.expect_members()
        context = self.context
        for name, work in (
            ("index", self.reader.restore_index()),
            ("read", self.reader.run()),
            ("lease", self.leases.run(self._look)),
            ("places", self.grace.run()),
            ("progress", context.reporter.run(context.store, self._tend_backlog, self.reader.has_all)),
        ):
            context.ports.spawn(work, name)
        context.store.start()
        self.deliverer.start()
        self.due.start()
        context.history.start()
        context.changed_delays.start()
        self.unused_watch.start()

    def at_work(self) -> bool:
        context = self.context
        there = context.sessions.any() or len(context.membership) or self.consumers.attaching or self.grace.keeps
        undone = context.core.has_dead_letters() or not (context.store.settled and context.reporter.reported())
        return bool(there or undone or not context.settings.durable)

    @property
    def problem(self) -> str:
        """The alarms of the subscription in one line; empty if there are none."""
        return "; ".join(filter(None, (self.parked.alarm(), self.hot_key_watch.problem)))

    def _look(self) -> None:
        """Look for stalls and hot keys regularly, while no consumer is awaited."""
        context = self.context
        stalls = self.deliverer.stalls
        self.deliverer.look_if_stalled()
        if self.deliverer.stalls > stalls:
            self._remark("the watchdog found messages that could go out and did not")
        self.hot_keys.sample()
        self.hot_key_watch.check(paused=context.state.paused)
        if self.problem != self._alarm:
            self._alarm = self.problem
            told = "; ".join(filter(None, (self.parked.alarm(), self.hot_key_watch.problem_without_key)))
            self._remark(f"alarm: {told}" if told else "the alarm is over")

    def _remark(self, text: str) -> None:
        recorder = self.context.ports.process.of(ProcessRecorder).recorder
        if recorder is not None:
            recorder.remark(self.context.core, text)

    async def _tend_backlog(self) -> None:
        """Search open positions and expire old messages, while some message is not done. Raises SluiceError."""
        self.open_positions.search()
        await self.seeker.expire_old()

    def _look_at_failed(self) -> None:
        """Take care of messages that failed for good; called after every dispatch."""
        if self.context.core.has_dead_letters():
            self.dead_letters.wake()
        if self._sets_aside:
            self.parked.examine()


def _skipped(moved: tuple[int, int]) -> Skipped:
    skipped, position = moved
    return Skipped(skipped=skipped, position=show(position))
