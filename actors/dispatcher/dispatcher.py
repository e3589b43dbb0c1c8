"""The dispatcher actor: one subscription on one partition.

It is a thin shell: it takes the subscription over, joins the parts, and hands each request to the part that it
concerns. The parts know nothing of the actor, and of each other only what they are given. What is decided where:

* who may get which message now: `actors.key_shared` (the core), with the order sentinel at its exit;
* what is done: `backlog` and `storage.cursor`, made durable by `store`;
* what is not due yet: `actors.delayed`, and `due`;
* what comes next from the log: `reader`;
* who is attached, and until when: `membership`, carried out by `consumers`, `leases` and `rejoin`;
* what goes out: `delivery`; what comes back unfinished: `redelivery` and `dead_letters`;
* which keys wait for an operator's decision: `parked_keys`;
* which delayed messages are taken back, or come at another time: `delayed_messages`;
* where the cursor is moved to: `seek`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from actors.actor import Actor
from actors.consumer.payload import Payloads
from actors.delayed.shared import SharedIndex
from actors.directory import Directory
from actors.dispatcher.backlog import Backlog
from actors.dispatcher.client_batches import BatchAnswers
from actors.dispatcher.configuration import SubscriptionConfiguration
from actors.dispatcher.consumers import Consumers
from actors.dispatcher.dead_letters import DeadLetters
from actors.dispatcher.delayed_messages import DelayedMessages
from actors.dispatcher.delayed_selection import DelayedSelection
from actors.dispatcher.delivery import Deliverer
from actors.dispatcher.documents import document
from actors.dispatcher.due import DueMessages
from actors.dispatcher.explanation import Explanation
from actors.dispatcher.grace import Grace
from actors.dispatcher.hot_key_watch import HotKeyWatch
from actors.dispatcher.hot_keys import HotKeys
from actors.dispatcher.inspection import Inspection
from actors.dispatcher.leases import Leases
from actors.dispatcher.open_runs import OpenRuns
from actors.dispatcher.parked_keys import ParkedKeys
from actors.dispatcher.reader import Reader
from actors.dispatcher.redelivery import Redelivery
from actors.dispatcher.rejoin import Rejoin
from actors.dispatcher.seek import Seeker
from actors.dispatcher.sessions import Session, Sessions
from actors.dispatcher.statistics import Statistics
from actors.dispatcher.store import CursorStore
from actors.dispatcher.subscription import PartitionSubscription
from actors.dispatcher.takeover import OwnedSubscription, take_over
from actors.dispatcher.unused_watch import UnusedWatch
from actors.fenced_record import FencedRecord
from actors.key_shared.dispatch import Dispatch
from actors.messages import (
    Acknowledge,
    Acknowledged,
    Attach,
    Attached,
    BacklogFound,
    CancelDelayed,
    ClearBacklog,
    Configure,
    Configured,
    Deleted,
    DeleteSubscription,
    Delivery,
    Detach,
    Discard,
    Done,
    EvictExcess,
    ExpireMessages,
    Explain,
    FindBacklog,
    FindOpen,
    FindOwner,
    GivenBack,
    HandOver,
    IsUnused,
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
    RedeliverUnacknowledged,
    Redrive,
    RescheduleDelayed,
    Resume,
    Seek,
    SentApart,
    Skip,
    Skipped,
    Sought,
    Stats,
    StillOpen,
    SubscriptionSettings,
    Text,
    Unused,
    WhatIf,
)
from actors.ports import Ports
from actors.topic_client import TopicClient
from storage.errors import Fenced, Invalid, Unavailable
from storage.position import show


class Dispatcher(Actor):
    """Owns a subscription on a partition: sessions in, deliveries out."""

    def __init__(
        self,
        ports: Ports,
        *,
        topic: str,
        partition: int,
        subscription: str,
        settings: SubscriptionSettings,
        directory: Directory,
        shared: SharedIndex | None = None,
    ) -> None:
        super().__init__(ports)
        self.of = PartitionSubscription(topic, partition, subscription)
        self.directory = directory
        self.topic = TopicClient(ports, directory, topic, partition)
        self._settings, self._shared = settings, shared
        self._record = FencedRecord(ports, self.of.key)
        self._parts: Components | None = None

    # -- life -----------------------------------------------------------------------------------------------------

    @property
    def parts(self) -> Components:
        """Everything that there is once the subscription is taken over. Raises Unavailable before that."""
        if self._parts is None:
            raise Unavailable(f"{self.of.subscription} on {self.of.topic!r} is still being taken over")
        return self._parts

    @property
    def serves(self) -> bool:
        """Whether the subscription is taken over."""
        return self._parts is not None

    async def start(self) -> None:
        """Take the subscription over under a new epoch, and find out where it stands."""
        own = await take_over(self.ports, self.topic, self.of, self._record, self._settings, self._shared)
        self._parts = Components(self, own)
        self._parts.begin()

    async def stop(self, reason: str) -> None:
        """Refuse everything from now on, and take nothing more out of the shared delayed index. Idempotent."""
        await super().stop(reason)
        if self._shared is not None:
            self._shared.leave(self.of.subscription, self._record.epoch)

    def end(self, reason: str) -> None:
        """There is, or will be, another owner: refuse everything, and let nobody believe that a session stands."""
        parts = self.parts
        if self.stopped is None:
            self.ports.spawn(parts.own.tracker.close(), "close")
        self.stopped = self.stopped or reason
        for session in parts.sessions.all():
            parts.sessions.close(session)

    @property
    def problem(self) -> str:
        """See Actor: parked keys that are at their limit, a key that holds the others back."""
        parts = self._parts
        return "" if parts is None else "; ".join(filter(None, (parts.parked.alarm(), parts.hot_key_watch.problem)))

    def ended(self) -> bool:
        """Whether this dispatcher is one no more."""
        return self.stopped is not None

    def check_owner(self) -> None:
        """Raises Fenced when this dispatcher has ended."""
        if self.stopped is not None:
            raise Fenced(self.stopped)

    # -- consumers ------------------------------------------------------------------------------------------------

    async def on_attach(self, request: Attach) -> Attached:
        return await self.parts.consumers.attach(request)

    async def on_detach(self, request: Detach) -> Done:
        self.parts.consumers.detach(request)
        return Done()

    async def on_hand_over(self, request: HandOver) -> Done:
        await self.parts.grace.hand_over(self._speaking(request.session), request)
        return Done()

    async def on_poll(self, request: Poll) -> Delivery:
        return await self.parts.deliverer.poll(request)

    async def on_acknowledge(self, request: Acknowledge) -> Acknowledged:
        return await self.parts.deliverer.acknowledge(request)

    async def on_find_open(self, request: FindOpen) -> StillOpen:
        self._speaking(request.session)
        return self.parts.batches.still_open(request)

    async def on_sent_apart(self, request: SentApart) -> Done:
        self._speaking(request.session)
        return await self.parts.batches.sent_apart(request)

    async def on_negative_acknowledge(self, request: NegativeAcknowledge) -> GivenBack:
        return await self.parts.redelivery.negative_acknowledge(self._speaking(request.session), request)

    async def on_redeliver_unacknowledged(self, request: RedeliverUnacknowledged) -> Done:
        await self.parts.redelivery.redeliver(self._speaking(request.session), request)
        return Done()

    def _speaking(self, number: int) -> Session:
        """The session that asks, heard. Raises Fenced if it is over."""
        session = self.parts.sessions.get(number)
        self.parts.leases.heard(session)
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

    async def on_evict_excess(self, request: EvictExcess) -> Skipped:
        return _skipped(await self._owning.seeker.evict(request.limit, request.keep))

    async def on_delete_subscription(self, request: DeleteSubscription) -> Deleted:
        """See messages.DeleteSubscription: the delayed index goes first, then the record, then this actor."""
        parts = self._owning
        if len(parts.sessions) and not request.force:
            raise Invalid(f"{len(parts.sessions)} consumers are connected; close them, or use force")
        if request.only_unused and not parts.use.unused():
            raise Invalid("the subscription is durable, or in use")
        for session in parts.sessions.all():
            parts.leases.end(session, "deleted")
        own = parts.own
        for forget in (own.tracker.delete, own.changed_delays.delete, own.reporter.gone, own.history.clear):
            await forget()
            self.check_owner()  # a newer owner serves what it has found, and its record is not ours to remove
        self.stopped = "the subscription was deleted"
        await self.ports.meta.remove(self.of.key)
        return Deleted(deleted=True)

    async def on_pause(self, request: Pause) -> Paused:
        await self._owning.configuration.pause(True)
        return Paused(paused=True)

    async def on_resume(self, request: Resume) -> Paused:
        await self._owning.configuration.pause(False)
        return Paused(paused=False)

    async def on_configure(self, request: Configure) -> Configured:
        return Configured(changed=await self._owning.configuration.change(request.settings))

    # -- questions ------------------------------------------------------------------------------------------------

    async def on_stats(self, request: Stats) -> Text:
        parts = self.parts
        told = await parts.statistics.tell()
        for part in (parts.delayed, parts.hot_keys, parts.hot_key_watch, parts.parked, parts.grace):
            told |= part.stats()
        return document(told)

    async def on_explain(self, request: Explain) -> Text:
        return document(self.parts.explanation.explain(request))

    async def on_list_pending(self, request: ListPending) -> Text:
        return document(self._owning.inspection.pending(request))

    async def on_is_unused(self, request: IsUnused) -> Unused:
        return Unused(unused=self._owning.use.unused())

    async def on_find_backlog(self, request: FindBacklog) -> BacklogFound:
        return BacklogFound(position=await self._owning.inspection.backlog(request))

    async def on_list_blocked_keys(self, request: ListBlockedKeys) -> Text:
        return document(self._owning.own.core.blocked_keys(request.top, self.ports.clock.now()))

    async def on_list_hot_keys(self, request: ListHotKeys) -> Text:
        return document(await self._owning.hot_keys.tell(request.top))

    async def on_list_parked(self, request: ListParked) -> Text:
        return document(self._owning.parked.listing(request))

    async def on_list_delayed(self, request: ListDelayed) -> Text:
        return document(self._owning.inspection.delayed(request))

    async def on_list_assignments(self, request: ListAssignments) -> Text:
        return document(self._owning.own.core.assignments())

    async def on_find_owner(self, request: FindOwner) -> Text:
        return document(self._owning.inspection.owner(request))

    async def on_what_if(self, request: WhatIf) -> Text:
        return document(self._owning.own.core.what_if(request.add, request.remove))


class Components:
    """The parts of a dispatcher, joined: whole as soon as it exists. own: what the take-over found and made."""

    def __init__(self, actor: Dispatcher, own: OwnedSubscription) -> None:
        ports, topic, of, epoch = actor.ports, actor.topic, actor.of, own.epoch
        state, core, tracker, wakeups = own.state, own.core, own.tracker, own.wakeups
        cursor, membership, wake = state.cursor, state.membership, wakeups.route.set
        snapshot = partial(own.snapshot, ports.log)
        runs, sessions, ended = OpenRuns(), Sessions(), actor.ended

        store = CursorStore(ports, own.record, snapshot, sessions.all, actor.end, membership.trust_ms)
        backlog = Backlog(cursor, core, runs, tracker, store, wakeups)
        self.hot_keys = hot = HotKeys(ports, core, Payloads(ports, actor.directory, of.topic, of.partition))
        self.hot_key_watch = HotKeyWatch(ports, of, core, hot)
        reader = Reader(ports, topic, cursor, core, tracker, runs, wakeups, sessions.any, backlog.give_up, hot.read)
        leases = Leases(ports, membership, sessions, core, store, wakeups.came_or_went)
        self.grace = grace = Grace(
            ports, state.settings, core, own.damping, membership, sessions, leases, store, wakeups, ended
        )
        rejoin = Rejoin(ports, topic, core, membership, sessions, store, wake)
        dead_letters = DeadLetters(ports, actor.directory, of, state.settings, core, runs, backlog.done_elsewhere)
        self.parked = parked = _parked_keys(actor, own, runs, store, backlog)
        self.consumers = Consumers(
            ports, epoch, state, sessions, core, store, leases, rejoin, grace, wakeups, actor.check_owner
        )
        self.batches = BatchAnswers(state, store, actor.check_owner)
        failed = _looking_at_what_failed(core, dead_letters, parked)
        self.deliverer = deliverer = Deliverer(
            ports, state, core, runs, sessions, leases, rejoin, reader, backlog, store, failed, wakeups, ended
        )
        self.delayed = _delayed_messages(actor, own, reader, rejoin, sessions, backlog, store)
        self.due = DueMessages(ports, tracker, core, cursor, wakeups, sessions.any, actor.end)
        self.redelivery = Redelivery(ports, core, cursor, backlog, store, wake)
        changed = own.changed_delays
        self.seeker = Seeker(
            ports, topic, actor.directory, cursor, reader, backlog, changed, leases, own.reporter, store, wakeups
        )
        self.configuration = SubscriptionConfiguration(of, state, store, wakeups, actor.end)
        self.statistics = Statistics(ports, of, epoch, state, core, runs, sessions, tracker, reader, backlog, deliverer)
        self.explanation = Explanation(
            ports, of, state, core, tracker, own.changed_delays.now, reader, rejoin, self.parked
        )
        self.use = UnusedWatch(ports, of, state, actor.directory)
        self.inspection = Inspection(of, core, sessions, tracker, cursor, reader)
        self.own, self.runs, self.sessions, self.store, self._spawn = own, runs, sessions, store, ports.spawn
        self.reader, self.leases = reader, leases

    def begin(self) -> None:
        """Let everything that goes on by itself begin."""
        self.leases.expect_members()
        for name, work in (
            ("keep", self.store.run()),
            ("index", self.reader.restore_index()),
            ("read", self.reader.run()),
            ("route", self.deliverer.run()),
            ("due", self.due.run()),
            ("lease", self.leases.run(self._look)),
            ("places", self.grace.run()),
            ("progress", self.own.reporter.run(self.store, self.seeker.expire_old)),
            ("history", self.own.history.run()),
            ("use", self.use.run()),
            ("delayed changes", self.own.changed_delays.remove_leftovers()),
        ):
            self._spawn(work, name)

    def _look(self) -> None:
        """Every now and then, while nobody is awaited."""
        self.deliverer.look_if_stalled()
        self.hot_keys.look()
        self.hot_key_watch.look(paused=self.own.state.paused)


def _delayed_messages(
    actor: Dispatcher,
    own: OwnedSubscription,
    reader: Reader,
    rejoin: Rejoin,
    sessions: Sessions,
    backlog: Backlog,
    store: CursorStore,
) -> DelayedMessages:
    changed = own.changed_delays
    payloads = Payloads(actor.ports, actor.directory, actor.of.topic, actor.of.partition)
    return DelayedMessages(
        actor.ports,
        actor.topic,
        own.core,
        own.state.cursor,
        own.tracker,
        changed,
        DelayedSelection(actor.ports, actor.topic, payloads, changed.now),
        reader,
        rejoin,
        sessions,
        backlog,
        store,
        own.wakeups,
    )


def _parked_keys(
    actor: Dispatcher, own: OwnedSubscription, runs: OpenRuns, store: CursorStore, backlog: Backlog
) -> ParkedKeys:
    payloads = Payloads(actor.ports, actor.directory, actor.of.topic, actor.of.partition)
    return ParkedKeys(
        actor.ports,
        actor.of,
        actor.topic,
        own.core,
        own.state.cursor,
        own.tracker,
        runs,
        payloads,
        store,
        backlog.done_elsewhere,
        own.wakeups.route.set,
    )


def _looking_at_what_failed(core: Dispatch, dead_letters: DeadLetters, parked: ParkedKeys) -> Callable[[], None]:
    def look() -> None:
        if core.has_dead_letters():
            dead_letters.wake()
        parked.look()

    return look


def _skipped(moved: tuple[int, int]) -> Skipped:
    skipped, position = moved
    return Skipped(skipped=skipped, position=show(position))
