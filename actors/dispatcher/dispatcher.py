"""The dispatcher actor: one subscription on one partition.

It is a thin shell. What is decided where:

* who may get which message now: `actors.key_shared` (the core), with the order sentinel at its exit;
* what is done: `storage.cursor`, made durable by `actors.dispatcher.store`;
* what is not due yet: `actors.delayed`;
* what comes next from the log: `actors.dispatcher.reader`.

**Taking over.** A new owner raises the epoch in the record, so that the old one can no longer save a cursor, and then
knows from the record who was attached. Those consumers may still be working on messages: nothing is dispatched until
each of them came back and said what it holds, or its lease has run out and it must have stopped (promise 2).

**Pump.** Everything that may make a message deliverable (new rows, permits, acknowledgements, a consumer that joins
or leaves, a due time) sets one signal; one task routes. So a burst of calls costs one pass, and no change can be
forgotten (L4, L5, L10).
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from actors.actor import Actor
from actors.delayed.manifest import last_epoch, manifest_key
from actors.delayed.shared import SharedIndex
from actors.delayed.tracker import make_tracker
from actors.directory import Directory
from actors.dispatcher import leases, redelivery, rejoin, rivals
from actors.dispatcher.admin import Administration
from actors.dispatcher.dead_letters import DeadLetters
from actors.dispatcher.history import AssignmentHistory
from actors.dispatcher.membership import Membership
from actors.dispatcher.open_runs import OpenRuns
from actors.dispatcher.progress import Reporter
from actors.dispatcher.pump import Pump
from actors.dispatcher.reader import Reader
from actors.dispatcher.sessions import Session, Sessions, first_session
from actors.dispatcher.store import CursorStore
from actors.fenced_record import FencedRecord
from actors.key_shared.dispatch import Dispatch
from actors.messages import (
    Acknowledge,
    Acknowledged,
    Admin,
    Attach,
    Attached,
    Delivery,
    Detach,
    Done,
    Ends,
    Explain,
    NegativeAcknowledge,
    Poll,
    ReadEnds,
    RedeliverUnacknowledged,
    Stats,
    SubscriptionSettings,
    Text,
)
from actors.messages.settings import stored_settings
from actors.names import check_name
from actors.ports import Ports
from actors.signal import Signal
from actors.topic_client import TopicClient
from storage import redeliveries
from storage.cursor import Cursor
from storage.errors import Conflict, Fenced, Invalid, SluiceError, Unavailable
from storage.position import Positions

CALL_TIMEOUT = 5_000
RETRY_MS = 50
START_PATIENCE_MS, FOREVER_MS = 15_000, 1 << 62
"""How long a start waits for the topic: then who asked for it learns why, and the start is tried again."""


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
        self._shared = shared
        self.topic, self.partition, self.subscription = topic, partition, subscription
        self.settings = settings
        self.next_settings: SubscriptionSettings | None = None
        """What the next owner begins with, if that differs."""
        self.directory = directory
        self.partition_client = TopicClient(ports, directory, topic, partition)
        self._record = FencedRecord(ports, record_key(topic, partition, subscription))
        self.membership = Membership(lease_ms=settings.lease_ms)
        self.pump = Pump(self)
        self.reporter = Reporter(self)
        self._attaching: dict[str, Signal] = {}
        self.paused = False
        self.watchdog_stalls = 0

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take the subscription over under a new epoch, and find out where it stands."""
        value = await self._record.take()
        if value is None:
            before = await last_epoch(self.ports, manifest_key(self.topic, self.partition, self.subscription))
            self._record.epoch = max(self._record.epoch, before + 1)
            self.cursor = await self._initial_cursor()
        else:
            self.settings, told = stored_settings(value["settings"], SubscriptionSettings)
            for line in told:
                self.ports.log("settings_repaired", change=line)
            self.cursor = Cursor.decode(value["cursor"])
            self.paused = bool(value.get("paused", False))
            self.reporter.known = bool(value.get("known", True))
        self.membership = Membership(value["members"] if value else (), lease_ms=self.settings.lease_ms)
        self.sessions = Sessions()
        self.past = AssignmentHistory(self.ports, self.topic, self.partition, self.subscription, self._record.epoch)
        first = first_session(self._record.epoch)
        self.core = Dispatch(self.settings, first_consumer=first, history=self.past.history)
        if value is not None:
            self.core.remember(redeliveries.decode(value.get("redeliveries", b"")), self.ports.clock.now())
        self.runs = OpenRuns()
        await self._record.save(self._snapshot())
        await self.reporter.introduce()
        self.tracker = await make_tracker(
            self.ports,
            topic=self.topic,
            partition=self.partition,
            subscription=self.subscription,
            settings=self.settings,
            changed=self.pump.due.set,
            owner_epoch=self._record.epoch,
            shared=self._shared,
        )
        self.core.mark_deleted(self.cursor.mark_delete)
        self._assemble()
        leases.expect_members(self)
        for name, work in (
            ("keep", self.store.run()),
            ("index", self.reader.restore_index()),
            ("read", self.reader.run()),
            ("pump", self.pump.run()),
            ("due", self.pump.release_due()),
            ("lease", leases.watch_leases(self)),
            ("progress", self.reporter.run()),
            ("history", self.past.run()),
        ):
            self.ports.spawn(work, name)

    async def stop(self, reason: str) -> None:
        """Refuse everything from now on, and take nothing more out of the shared delayed index. Idempotent."""
        await super().stop(reason)
        if self._shared is not None:
            self._shared.leave(self.subscription, self._record.epoch)

    def _assemble(self) -> None:
        """The parts around the core."""
        self.reader = Reader(
            self.ports,
            self.partition_client,
            cursor=self.cursor,
            core=self.core,
            tracker=self.tracker,
            runs=self.runs,
            fed=self.pump.wake,
            given_up=self._given_up,
        )
        self.reader.move(self.cursor.mark_delete + 1)
        trust = self.membership.trust_ms
        self.store = CursorStore(self.ports, self._record, self._snapshot, self.sessions.all, self.fenced, trust)
        self.administration = Administration(self)
        self.dead_letters = DeadLetters(self)

    @property
    def epoch(self) -> int:
        """The epoch under which this dispatcher owns its subscription."""
        return self._record.epoch

    async def _initial_cursor(self) -> Cursor:
        ends = await self.read_ends(START_PATIENCE_MS)
        at = ends.first if self.settings.initial_position == "earliest" else ends.next
        cursor = Cursor()
        cursor.chain([(at >> 32, None)])
        cursor.reset(at)
        return cursor

    async def read_ends(self, patience: int = FOREVER_MS) -> Ends:
        """Where the partition begins and ends now; waits so long for its owner. Raises Unavailable: why it does not."""
        until = self.ports.clock.monotonic() + patience

        def waits(error: SluiceError) -> bool:
            self.ports.log("topic_waits", error=str(error))
            return isinstance(error, (Unavailable, Fenced)) and self.ports.clock.monotonic() <= until

        try:
            return await self.partition_client.insist(ReadEnds(), refused=waits)
        except Fenced as error:
            raise Unavailable(str(error)) from error

    def _snapshot(self) -> dict[str, Any]:
        return {
            "settings": msgspec.json.encode(self.next_settings or self.settings),
            "cursor": self.cursor.encode(),
            "members": self.membership.rows(),
            "paused": self.paused,
            "known": self.reporter.known,
            "redeliveries": redelivery.kept(self),
        }

    def fenced(self, reason: str) -> None:
        """There is a newer owner: refuse everything, and let nobody believe that a session stands."""
        if self.stopped is None:
            self.ports.spawn(self.tracker.close(), "close")
        self.stopped = self.stopped or reason
        self.reader.enabled = False
        for session in self.sessions.all():
            self.sessions.close(session)

    # -- sessions -------------------------------------------------------------------------------------------------

    async def on_attach(self, request: Attach) -> Attached:
        """See messages.Attach. The membership is durable before anything is sent to the consumer."""
        check_name("consumer", request.consumer)
        while request.incarnation in self._attaching:
            await self._attaching[request.incarnation].wait(self.ports)
        self._check_owner()
        leases.forget_retired(self, self.membership.retired_lives(request.incarnation))
        session = self.sessions.find(self.membership.session(request.incarnation))
        if session is None and self._is_void(request):
            return Attached(session=0, epoch=self.epoch, lease=self.settings.lease_ms)
        if session is None:
            done = self._attaching[request.incarnation] = Signal()
            try:
                session = await self._join(request)
            finally:
                self._attaching.pop(request.incarnation, None)
                done.set()
        await self.store.be_certain()
        if not self.sessions.is_open(session):
            raise Unavailable("the session ended while its owner made sure of itself; attach again")
        self._renew(session)
        return Attached(session=session.number, epoch=self.epoch, lease=self.settings.lease_ms)

    async def _join(self, request: Attach) -> Session:
        now = self.ports.clock.now()
        if self.membership.admit(request.incarnation, request.consumer, request.process):
            await self.store.barrier()
            self._check_owner()
        try:
            number = await self._enter_core(request, now)
        except (Conflict, Invalid):
            self.membership.refuse(request.incarnation)
            self.store.dirty()
            raise
        if self.membership.attach(request.incarnation, number, self.ports.clock.monotonic()):
            self.store.dirty()
        session = self.sessions.open(number, request.consumer, request.incarnation)
        rejoin.identify(self, session)
        self.reader.enabled = True
        self.reader.signal.set()
        self.pump.wake()
        leases.watch_session(self, session, request.process)
        self.ports.log("attached", consumer=request.consumer, session=session.number)
        return session

    async def _enter_core(self, request: Attach, now: int) -> int:
        """Its number in the core. Who finds its place taken asks those who have it, as Pulsar does (KS-15)."""
        holding = _ascending(request.holding)

        def join() -> int:
            return self.core.join(
                request.consumer,
                now=now,
                ranges=request.ranges,
                priority=request.priority,
                holding=holding,
                finished=holding[self.cursor.is_acknowledged(holding)],
            )

        try:
            return join()
        except Conflict:
            if not await rivals.make_room(self, request.ranges):
                raise
        self._check_owner()
        if self._is_void(request):
            raise Unavailable("every session was ended meanwhile; attach again")
        return join()

    def _is_void(self, request: Attach) -> bool:
        """Whether a consumer's earlier session was ended, so that it must begin another life."""
        return self.membership.is_void(request.incarnation, holds=bool(len(request.holding)))

    def end_session(self, session: Session, reason: str, *, dismissed: bool = False) -> None:
        """The consumer is out: its messages go to the others. dismissed: it does not know, and stays a member."""
        self.ports.log("session_ended", consumer=session.name, session=session.number, reason=reason)
        self.sessions.close(session)
        self.core.leave(session.number, now=self.ports.clock.now())
        if not dismissed:
            self.membership.leave(session.incarnation)
        self.store.dirty()
        self.pump.wake()
        self.reader.enabled = len(self.sessions) > 0

    async def on_detach(self, request: Detach) -> Done:
        """See messages.Detach; a session that is over is fine."""
        try:
            session = self.sessions.get(request.session)
        except Fenced:
            return Done()
        self.end_session(session, "detached")
        return Done()

    def _heard(self, session: Session) -> None:
        session.heard.set()
        self._renew(session)

    def _renew(self, session: Session) -> None:
        self.membership.renew(session.incarnation, self.ports.clock.monotonic())

    def _check_owner(self) -> None:
        if self.stopped is not None:
            raise Fenced(self.stopped)

    # -- messages out, acknowledgements in ------------------------------------------------------------------------

    async def on_poll(self, request: Poll) -> Delivery:
        """See messages.Poll."""
        session = self.sessions.get(request.session)
        self._heard(session)
        self._acknowledge(session, request.ack_turn, request.acks)
        if request.turn < session.turn:
            raise Conflict(f"turn {request.turn} is over, the session is at {session.turn}")
        if request.turn > session.turn:
            session.turn, session.answered = request.turn, None
        if session.answered is None:
            self.core.grant(session.number, request.granted)
            self.pump.wake()
            if not session.outbox and not session.events:
                session.ready.clear()
                await session.ready.wait(self.ports, request.wait)
        await self.store.be_certain()
        if not self.sessions.is_open(session):
            raise Fenced(f"session {request.session} is over")
        if request.turn != session.turn:
            raise Conflict(f"turn {request.turn} was overtaken by {session.turn}")
        self._renew(session)
        return session.answered or session.deliver()

    async def on_acknowledge(self, request: Acknowledge) -> Acknowledged:
        """See messages.Acknowledge."""
        session = self.sessions.get(request.session)
        self._heard(session)
        self._acknowledge(session, request.ack_turn, request.acks)
        if request.granted and self.core.grant(session.number, request.granted):
            self.pump.wake()
        while request.durable and session.durable < request.ack_turn:
            await self.store.barrier()
            if not self.sessions.is_open(session):
                raise Fenced(f"session {request.session} is over")
            if session.received < request.ack_turn:
                raise Conflict("an earlier acknowledgement has not arrived")
        await self.store.be_certain()
        if not self.sessions.is_open(session):
            raise Fenced(f"session {request.session} is over")
        return Acknowledged(confirmed=session.durable)

    def _acknowledge(self, session: Session, turn: int, positions: Positions) -> None:
        if not len(positions) or not session.arrived(turn):
            return
        positions = _ascending(positions)
        # What was never sent cannot be done: it was read, or was due, or the consumer brought it from an earlier owner.
        known = positions < self.reader.position
        if not known.all():
            known |= self.core.knows(session.number, positions)
            positions = positions[known]
        self.core.acknowledge_soon(positions, session.number)
        self._finish(positions)
        session.last_acked = self.ports.clock.now()
        self.mark_delete_moved()
        self.pump.wake_soon()

    def _given_up(self, positions: Positions) -> None:
        """Messages that nobody can read count as done."""
        self.cursor.acknowledge(positions)
        self.mark_delete_moved()

    def mark_delete_moved(self) -> None:
        """The cursor changed: let go of what lies below it, and make the rest durable."""
        mark_delete = self.cursor.mark_delete
        self.runs.drop_below(mark_delete)
        self.core.mark_deleted(mark_delete)
        self.tracker.trim(mark_delete)
        self.store.dirty(gather=True)

    async def on_negative_acknowledge(self, request: NegativeAcknowledge) -> Done:
        """See messages.NegativeAcknowledge."""
        session = self.sessions.get(request.session)
        self._heard(session)
        await redelivery.negative_acknowledge(self, session, request)
        return Done()

    async def on_redeliver_unacknowledged(self, request: RedeliverUnacknowledged) -> Done:
        """See messages.RedeliverUnacknowledged."""
        session = self.sessions.get(request.session)
        self._heard(session)
        await redelivery.redeliver(self, session, request)
        return Done()

    def done_elsewhere(self, positions: Positions) -> None:
        """Messages that nobody acknowledges, but that are done: the dead letter topic has them."""
        self.core.acknowledge(positions)
        self._finish(positions)
        self.mark_delete_moved()
        self.pump.wake()

    def _finish(self, positions: Positions) -> None:
        """These are done, some of them perhaps for the second time; a run counts each of its messages once."""
        self.runs.done(positions[~self.cursor.is_acknowledged(positions)])
        self.cursor.acknowledge(positions)

    # -- seek ---------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something changed outside of the data path; look again."""
        self.pump.wake()
        self.pump.due.set()
        self.reader.signal.set()

    async def forget(self) -> None:
        """Delete the record and end: the subscription is gone."""
        await self.past.clear()
        self.stopped = "the subscription was deleted"
        await self.ports.meta.remove(record_key(self.topic, self.partition, self.subscription))

    # -- questions ------------------------------------------------------------------------------------------------

    async def on_stats(self, request: Stats) -> Text:
        """Statistics with Pulsar's names. Without room nothing is read, so the end of the topic is looked up first.

        Raises Unavailable while an owner that is new has not heard of the topic's end: it cannot tell the backlog, and
        whoever waits for an empty one must not be told of one.
        """
        if not self.reader.reading or not self.reader.end_known:
            await self.reader.look()
        if not self.reader.end_known:
            raise Unavailable(f"how far partition {self.partition} of {self.topic!r} reaches is not known yet")
        return Text(json=self.administration.stats())

    async def on_explain(self, request: Explain) -> Text:
        """Why something is not being delivered."""
        return Text(json=self.administration.explain(request))

    async def on_admin(self, request: Admin) -> Text:
        """Administrative verbs."""
        self._check_owner()
        return Text(json=await self.administration.run(request.verb, request.arguments))


def record_key(topic: str, partition: int, subscription: str) -> str:
    """The metadata key of a subscription on a partition."""
    return f"subscription/{topic}/{partition}/{subscription}"


def _ascending(positions: Positions) -> Positions:
    if len(positions) > 1 and not bool((positions[1:] > positions[:-1]).all()):
        return np.unique(positions)
    return positions
