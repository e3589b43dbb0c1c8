"""The dispatcher actor: one subscription on one partition.

It is a thin shell. What is decided where:

* who may get which message now: `actors.key_shared` (the core), with the order sentinel at its exit;
* what is done: `storage.cursor`, made durable by `actors.dispatcher.keeper`;
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

import contextlib
from typing import Any

import msgspec
import numpy as np

from actors.actor import Actor
from actors.delayed.shared import SharedIndex
from actors.delayed.tracker import make_tracker
from actors.directory import Directory
from actors.dispatcher import leases, moving, returning
from actors.dispatcher.admin import Administration
from actors.dispatcher.dead_letters import DeadLetters
from actors.dispatcher.history import Assignments
from actors.dispatcher.keeper import Keeper
from actors.dispatcher.pump import Pump
from actors.dispatcher.reader import Reader
from actors.dispatcher.runs import RunTable
from actors.dispatcher.sessions import Session, Sessions
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
    Progress,
    ReadEnds,
    Stats,
    SubscriptionSettings,
    Text,
)
from actors.owned import OwnedRecord
from actors.ports import Ports, Unknown
from actors.signal import Signal
from storage.cursor import Cursor
from storage.errors import Conflict, Fenced, Invalid, SluiceError, Unavailable
from storage.position import Positions

CALL_TIMEOUT = 5_000
PROGRESS_MS = 500
RETRY_MS = 50


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
        self.directory = directory
        self._record = OwnedRecord(ports, record_key(topic, partition, subscription))
        self.members: dict[str, dict[str, Any]] = {}
        self.pump = Pump(self)
        self._attaching: dict[str, Signal] = {}
        self._reported = ("", -1)
        self._statements = 0
        self.paused = False
        self.watchdog_stalls = 0
        self.messages_out_before = 0

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take the subscription over under a new epoch, and find out where it stands."""
        value = await self._record.take()
        if value is None:
            self.cursor = await self._initial_cursor()
        else:
            self.settings = msgspec.json.decode(value["settings"], type=SubscriptionSettings)
            self.cursor = Cursor.decode(value["cursor"])
            self.members = {member["incarnation"]: member for member in value["members"]}
            self.paused = bool(value.get("paused", False))
        self.sessions = Sessions(self._record.epoch)
        self.past = Assignments(self.ports, self.topic, self.partition, self.subscription, self._record.epoch)
        self.core = Dispatch(self.settings, history=self.past.history)
        self.runs = RunTable()
        await self._record.save(self._snapshot())
        if value is None:
            await self._protect()
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
            ("keep", self.keeper.run()),
            ("index", self.reader.restore_index()),
            ("read", self.reader.run()),
            ("pump", self.pump.run()),
            ("due", self.pump.release_due()),
            ("lease", leases.watch_leases(self)),
            ("progress", self._report_progress()),
            ("history", self.past.run()),
        ):
            self.ports.spawn(work, name)

    def _assemble(self) -> None:
        """The parts around the core."""
        self.reader = Reader(
            self.ports,
            self.directory,
            self.topic,
            self.partition,
            cursor=self.cursor,
            core=self.core,
            tracker=self.tracker,
            runs=self.runs,
            fed=self.pump.wake,
        )
        self.reader.move(self.cursor.mark_delete + 1)
        trust = leases.trusted_ms(self.settings.lease_ms)
        self.keeper = Keeper(self.ports, self._record, self._snapshot, self.sessions.all, self.fenced, trust)
        self.administration = Administration(self)
        self.dead_letters = DeadLetters(self)

    @property
    def epoch(self) -> int:
        """The epoch under which this dispatcher owns its subscription."""
        return self._record.epoch

    async def _initial_cursor(self) -> Cursor:
        if self.settings.initial_position not in ("latest", "earliest"):
            raise Invalid(f"initial_position is latest or earliest, not {self.settings.initial_position!r}")
        ends = await self.read_ends()
        at = ends.first if self.settings.initial_position == "earliest" else ends.next
        cursor = Cursor()
        cursor.chain([(at >> 32, None)])
        cursor.reset(at)
        return cursor

    async def read_ends(self) -> Ends:
        """Where the partition begins and ends now; waits for its owner."""
        while True:
            try:
                address = await self.directory.topic(self.topic, self.partition)
                reply = await self.ports.net.call(address, ReadEnds(), CALL_TIMEOUT)
                if not isinstance(reply, Unknown):
                    return reply
                await self.directory.suspect(address)
            except (Unavailable, Fenced) as error:
                self.ports.log("topic_waits", error=str(error))
            await self.ports.clock.sleep(RETRY_MS)

    def _snapshot(self) -> dict[str, Any]:
        return {
            "settings": msgspec.json.encode(self.settings),
            "cursor": self.cursor.encode(),
            "members": list(self.members.values()),
            "paused": self.paused,
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
        while request.incarnation in self._attaching:
            await self._attaching[request.incarnation].wait(self.ports)
        self._check_owner()
        session = self.sessions.of_incarnation(request.incarnation)
        if session is None and self._is_void(request):
            return Attached(session=0, epoch=self.epoch, lease=self.settings.lease_ms)
        if session is None:
            done = self._attaching[request.incarnation] = Signal()
            try:
                session = await self._join(request)
            finally:
                self._attaching.pop(request.incarnation, None)
                done.set()
        await self.keeper.be_certain()
        if not self.sessions.is_open(session):
            raise Unavailable("the session ended while its owner made sure of itself; attach again")
        self._renew(session)
        return Attached(session=session.session, epoch=self.epoch, lease=self.settings.lease_ms)

    async def _join(self, request: Attach) -> Session:
        now, mono = self.ports.clock.now(), self.ports.clock.monotonic()
        if request.incarnation not in self.members:
            self.members[request.incarnation] = {
                "name": request.consumer,
                "incarnation": request.incarnation,
                "process": request.process,
            }
            await self.keeper.barrier()
            self._check_owner()
        try:
            number = self.core.join(
                request.consumer,
                request.incarnation,
                now=now,
                ranges=request.ranges,
                priority=request.priority,
                holding=_ascending(request.holding),
            )
        except (Conflict, Invalid):
            self.members.pop(request.incarnation, None)
            self.keeper.dirty()
            raise
        self.pump.came_back(request.incarnation)
        session = self.sessions.open(number, request.consumer, request.incarnation, mono + self.settings.lease_ms, now)
        returning.identify(self, session)
        self.reader.enabled = True
        self.reader.signal.set()
        self.pump.wake()
        leases.watch_session(self, session, request.process)
        self.ports.log("attached", consumer=request.consumer, session=session.session)
        return session

    def _is_void(self, request: Attach) -> bool:
        """Whether a consumer's earlier session was ended, so that it must begin another life.

        Who was dismissed does so even with empty hands: this may be a late copy of its first request.
        """
        member = self.members.get(request.incarnation)
        return bool(len(request.holding)) if member is None else "dismissed" in member

    def end_session(self, session: Session, reason: str) -> None:
        """The consumer is out: its messages go to the others."""
        self.ports.log("session_ended", consumer=session.name, session=session.session, reason=reason)
        self.sessions.close(session)
        self.messages_out_before += session.messages_out
        self.core.leave(session.number, now=self.ports.clock.now())
        self.members.pop(session.incarnation, None)
        self.keeper.dirty()
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

    def _renew(self, session: Session) -> None:
        session.expires = self.ports.clock.monotonic() + self.settings.lease_ms

    def _check_owner(self) -> None:
        if self.stopped is not None:
            raise Fenced(self.stopped)

    # -- messages out, acknowledgements in ------------------------------------------------------------------------

    async def on_poll(self, request: Poll) -> Delivery:
        """See messages.Poll."""
        session = self.sessions.get(request.session)
        self._renew(session)
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
        await self.keeper.be_certain()
        if not self.sessions.is_open(session):
            raise Fenced(f"session {request.session} is over")
        if request.turn != session.turn:
            raise Conflict(f"turn {request.turn} was overtaken by {session.turn}")
        self._renew(session)
        return session.answered or session.deliver()

    async def on_acknowledge(self, request: Acknowledge) -> Acknowledged:
        """See messages.Acknowledge."""
        session = self.sessions.get(request.session)
        self._renew(session)
        self._acknowledge(session, request.ack_turn, request.acks)
        if request.granted and self.core.grant(session.number, request.granted):
            self.pump.wake()
        while request.durable and session.durable < request.ack_turn:
            await self.keeper.barrier()
            if not self.sessions.is_open(session):
                raise Fenced(f"session {request.session} is over")
            if session.received < request.ack_turn:
                raise Conflict("an earlier acknowledgement has not arrived")
        await self.keeper.be_certain()
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
        self.cursor.acknowledge(positions)
        session.messages_acked += len(positions)
        session.last_acked = self.ports.clock.now()
        self.mark_delete_moved()
        self.pump.wake_soon()

    def mark_delete_moved(self) -> None:
        """The cursor changed: let go of what lies below it, and make the rest durable."""
        mark_delete = self.cursor.mark_delete
        self.runs.drop_below(mark_delete)
        self.core.mark_deleted(mark_delete)
        self.tracker.trim(mark_delete)
        self.keeper.dirty()

    async def on_negative_acknowledge(self, request: NegativeAcknowledge) -> Done:
        """See messages.NegativeAcknowledge."""
        session = self.sessions.get(request.session)
        self._renew(session)
        if request.number and not session.first_time(request.number):
            return Done()
        session.messages_redelivered += self.core.negative_acknowledge(
            session.number,
            None if request.everything else _ascending(request.positions),
            now=self.ports.clock.now(),
            delay=request.delay,
            counted=request.counted,
        )
        self.pump.wake()
        return Done()

    def done_elsewhere(self, positions: Positions) -> None:
        """Messages that nobody acknowledges, but that are done: the dead letter topic has them."""
        self.core.acknowledge(positions)
        self.cursor.acknowledge(positions)
        self.mark_delete_moved()
        self.pump.wake()

    async def _report_progress(self) -> None:
        """Tell the topic how far this subscription is, so that it can trim, and every new owner of it anew; then let
        old messages expire.
        """
        while True:
            await self.ports.clock.sleep(PROGRESS_MS)
            with contextlib.suppress(SluiceError):
                reached = self.cursor.mark_delete
                address = await self.directory.topic(self.topic, self.partition)
                if (address, reached) != self._reported:
                    await self.keeper.barrier()
                    await self._send_progress(reached)
                await moving.expire_old(self)

    def progress(self, mark_delete: int | None = None, *, gone: bool = False) -> Progress:
        """The next statement of how far this subscription is; numbered, so that a late one is recognised."""
        self._statements += 1
        return Progress(
            subscription=self.subscription,
            mark_delete=self.cursor.mark_delete if mark_delete is None else mark_delete,
            gone=gone,
            number=self.epoch << 32 | self._statements,
            rejects_keyed_delay=self.settings.delay_key_policy == "reject",
        )

    async def _send_progress(self, reached: int) -> bool:
        """Tell the topic; False if it did not answer. `reached` must be durable."""
        address = await self.directory.topic(self.topic, self.partition)
        reply = await self.ports.net.call(address, self.progress(reached), CALL_TIMEOUT)
        if isinstance(reply, Unknown):
            await self.directory.suspect(address)
            return False
        self._reported = (address, reached)
        return True

    async def _protect(self) -> None:
        """Before a new subscription is used: from now on the topic keeps what it has not seen."""
        while True:
            with contextlib.suppress(Unavailable, Fenced):
                if await self._send_progress(self.cursor.mark_delete):
                    return
            await self.ports.clock.sleep(RETRY_MS)

    # -- moving ---------------------------------------------------------------------------------------------------

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
