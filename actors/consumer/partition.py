"""One consumer's conversation with one dispatcher.

Poll asks for messages with a cumulative grant of permits and carries acknowledgements; its turn number makes a
repetition bring the same delivery again. When no poll comes by soon, acknowledgements go by themselves. The session
is a lease, renewed by every answer and, while a poll waits, by heartbeats of the whole process (`heartbeats`): a
consumer that could not renew it in time must assume that its messages were given to others, drop them, and attach again
under another incarnation. When only the *dispatcher* was replaced, the consumer comes back under the same incarnation
and says what it holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from sluice.actors.consumer.client_batches import BatchAcks
from sluice.actors.consumer.config import ConsumerCallbacks, ConsumerConfig
from sluice.actors.consumer.heartbeats import SessionHeartbeat
from sluice.actors.consumer.leaving import HandingOver, Leaving
from sluice.actors.consumer.negative_acks import CALL_TIMEOUT, RETRY_FIRST, RETRY_MOST, NegativeAcksTracker, PendingNack
from sluice.actors.consumer.payload import Payloads
from sluice.actors.consumer.payload_fetcher import PayloadFetcher
from sluice.actors.consumer.revocations import Revocations
from sluice.actors.consumer.session import Lease, LongPoll
from sluice.actors.consumer.unacked_messages import (
    Acknowledgements,
    LostAcks,
    Received,
    UnackedMessageTracker,
    report_losses,
)
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import (
    NO_COUNTS,
    Acknowledge,
    Attach,
    Attached,
    Delivery,
    Event,
    NegativeAcknowledge,
    Poll,
    RedeliverUnacknowledged,
)
from sluice.actors.ports import Address, Clock, Ports, Unknown
from sluice.actors.runtime.gc_pressure import CLIENT, LET_GO
from sluice.actors.runtime.waiting import Backoff, SharedFuture, Signal, SignalTask, carry_through
from sluice.storage.errors import Conflict, Corrupt, Fenced, Invalid, NotFound, Overloaded, SluiceError, Unavailable
from sluice.storage.format.batch import LAST_TIME
from sluice.storage.format.position import Positions

ATTACH_TIMEOUT = 20_000
PASSING = (Unavailable, Overloaded, Conflict, Corrupt)  # the last: of the records of a dispatcher that will start again
ACK_LINGER = 20
"""Milliseconds that acknowledgements wait for a poll to ride on before they go by themselves."""


class PartitionConsumer:
    """Attach, poll, acknowledge; reattach when the owner changes; start over when the lease was lost."""

    # With thirty attributes each object would have a dictionary of its own otherwise, which takes 1.2 KB more.
    __slots__ = (
        "_ack_due", "_ack_signal", "_address", "_asking", "_callbacks", "_closed", "_config", "_consumer_epoch",
        "_directory", "_gathering", "_generation", "_got", "_granted_sent", "_hand_backs", "_heartbeat", "_holding",
        "_inbox", "_leaving", "_looks", "_paused", "_ports", "_queue_size", "_queued", "_revocations", "_revokes",
        "_session_changed", "_taken_turn", "_turn", "acknowledgements", "batches", "by_index", "closing", "epoch",
        "failed", "handing_over", "lease", "long_poll", "losses", "partition", "session", "sought", "sure_at"
    )  # fmt: skip

    def __init__(
        self,
        ports: Ports,
        directory: Directory,
        config: ConsumerConfig,
        callbacks: ConsumerCallbacks,
        payloads: Payloads | None = None,
    ) -> None:
        """payloads: if they are shared."""
        self._ports = ports
        self._directory, self._config, self._callbacks = directory, config, callbacks
        self.partition, self._generation = config.partition, 0
        self.handing_over = HandingOver(ports, self._owner)
        self._queue_size = config.queue_size
        self._holding, self._hand_backs, self._leaving = (
            UnackedMessageTracker(),
            NegativeAcksTracker(ports),
            Leaving(ports),
        )
        self.batches = BatchAcks(ports, self._owner, self._holding)
        self._address: Address = ""
        self.lease, self.long_poll = Lease(ports), LongPoll(ports)
        self.sure_at = 0
        """A moment (monotonic) at which what is handed over next was this consumer's, and not done."""
        self._heartbeat = SessionHeartbeat(ports, self.lease, self.long_poll, self._owner)
        self.session = self.epoch = self.sought = 0  # the last: the session that the caller ends by a seek
        self._turn = self._got = self._queued = self._granted_sent = 0
        self.acknowledgements = Acknowledgements()
        self._taken_turn = self._consumer_epoch = 0
        """The last delivery that was taken; how often everything was given back under this session."""
        self._ack_due = 0
        self.losses = LostAcks()
        self._ack_signal, self._session_changed = Signal(), Signal()
        payloads = payloads or Payloads(ports, directory, config.topic, config.partition)
        self._inbox = PayloadFetcher(ports, payloads, self._came)
        self._revocations = Revocations(ports, self._holding, self._inbox, self._hand_backs, callbacks.taking_back)
        self._paused = self._asking = self._gathering = self.closing = self.by_index = False  # the last: see Poll
        self._revokes = False
        """The owner keeps the order of what is given back (`nack_order=key`)."""
        self.failed: SluiceError | None = None
        self._closed: SharedFuture[None] | None = None
        self._looks = LET_GO.looks

    @property
    def topic(self) -> str:
        return self._config.topic

    @property
    def clock(self) -> Clock:
        return self._ports.clock

    def _owner(self) -> tuple[Address, int] | None:
        """The owner and the session by now; None once this consumer closes."""
        return None if self.closing else (self._address, self.session)

    async def open(self) -> None:
        """Attach once (errors of the caller's making are raised here), then go on in the background. A caller that
        gives up waiting closes it: then the session of an attach that is under way is left as soon as its answer names
        it.
        """
        await carry_through(self._ports, partial(self._attach, first=True), f"attach-{self.partition}")
        self.converse()

    def converse(self) -> None:
        """Go on in the background, and attach there, as one that comes back does, where that was not done."""
        self._heartbeat.start()
        self._ports.spawn(self._converse(), f"poll-{self.partition}")
        SignalTask(self._ports, self._ack_signal, self._acknowledge_alone, f"ack-{self.partition}")
        self._ports.spawn(self.lease.watch(self._lost), f"lease-{self.partition}")

    # -- what the user does ---------------------------------------------------------------------------------------

    def lease_over(self) -> bool:
        """The session was not renewed in time: others may have its messages, so none may be handed out."""
        return self.lease.over()

    def pause(self) -> None:
        """Ask for no more messages; those that were granted may still come."""
        self._paused = True

    def resume(self) -> None:
        """Ask for messages again, and at once: the poll that waits has asked for none."""
        self._paused = False
        self._ack_signal.set()

    def taken(self, part: Received) -> None:
        """The user took a part from the queue: that many permits are free again."""
        self._queued -= len(part)
        if not self._gathering and self._starving():
            self._ack_signal.set()

    def grant(self, permits: int) -> None:
        """Ask for more messages at once: for a caller that counts permits itself, with a queue of 0."""
        self._queue_size += permits
        self._asking = True
        self._ack_signal.set()

    def hold(self, held: bool) -> None:
        """Fetch no payloads of messages that come, or go on: for a caller that bounds their bytes."""
        self._inbox.hold(held)

    def _starving(self) -> bool:
        """Half of the queue is free and the dispatcher does not know it, so it is told before the next poll."""
        granted = self._granted() - self._granted_sent
        return granted >= max(self._queue_size // 2, 1) or (self._asking and granted > 0)

    def acknowledge(self, part: Received, rows: np.ndarray | None = None, *, waited: bool = False) -> None:
        """Messages are done. Those of a revoked part are not sent, because others have them (see `wait_confirmed`)."""
        self.losses.count += part.revoked
        self.acknowledge_positions(part.close(rows), waited=waited)

    def acknowledge_positions(self, positions: Positions, *, waited: bool = False) -> None:
        """Acknowledge positions with the next poll, or soon (waited: at once), no matter which consumer held them
        before.
        """
        if not len(positions):
            return  # a turn without any would never count as arrived, nor would a later one
        if waited or not self.acknowledgements.waiting:
            self._ack_due = self._ports.clock.monotonic() + ACK_LINGER * (not waited)
        self.acknowledgements.add(positions)
        if not self._gathering:
            self._ack_signal.set()

    async def negative_acknowledge(self, part: Received, rows: np.ndarray | None, delay: int) -> bool:
        """Give messages back, to be delivered again after `delay` ms. Returns when the subscription has it durably,
        whatever becomes of its owner; False if this consumer ended, or got some of them again, before.
        """
        return await self.nack([(part, rows)], delay)

    async def nack(self, given: Sequence[tuple[Received, np.ndarray | None]], delay: int) -> bool:
        """The same of several parts at once, which come again in the order of the log. Raises Invalid for a delay that
        cannot be kept: then nothing was given back.
        """
        if not isinstance(delay, int) or delay > LAST_TIME:
            raise Invalid(f"a redelivery delay is a whole number of milliseconds up to {LAST_TIME}, not {delay}")
        seen = np.concatenate([part.counts(rows) for part, rows in given])
        positions = np.concatenate([part.close(rows) for part, rows in given])
        if not len(order := np.argsort(positions)):
            return True
        parts = tuple(part for part, _ in given) if self._revokes else ()
        back = self._hand_backs.note(positions[order], seen[order], delay=delay, parts=parts)
        if any(part.session != self.session for part in parts):
            self._forestall(back)
        await self._tell(self._hand_backs.request(back, self.session, consumer_epoch=self._consumer_epoch), back)
        return back.confirmed

    def redeliver_all(self) -> Coroutine[Any, Any, None]:
        """Give back all unacknowledged messages, in order; those on their way are void from now on. What is returned
        waits until that is durable.
        """
        positions, seen = self._holding.close()
        backs = [self._hand_backs.note(positions, seen)] if len(positions) else []
        if len(self._inbox):
            backs.append(self._hand_backs.note(self._inbox.positions(), NO_COUNTS, counted=False))
        self._queued -= self._inbox.clear()
        self._consumer_epoch += 1
        turn, epoch = self._taken_turn, self._consumer_epoch
        request = RedeliverUnacknowledged(
            session=self.session,
            consumer_epoch=epoch,
            turn=turn,
            positions=positions,
            seen=seen,
            done=self.acknowledgements.positions(),
        )
        return self._tell(request, *backs)

    async def wait_confirmed(self) -> None:
        """Wait until every acknowledgement so far is durable.

        Raises Fenced, once, if a session was lost with acknowledgements that were not: those messages come again.
        """
        reported = self.losses.reported
        await self.settle()
        report_losses([self.losses], since=[reported])

    async def settle(self) -> None:
        """Wait until every acknowledgement so far is durable or void."""
        self._callbacks.before_send()
        wanted = (acks := self.acknowledgements).said
        while acks.heard < wanted:
            if self.failed is not None:
                raise self.failed
            if self.closing:
                await self._send_rest()
                continue
            if (turn := acks.turn_with(wanted)) is not None:
                await self._send_acks(Acknowledge(session=self.session, ack_turn=turn, durable=True))
            elif self.session and acks.waiting:
                # What it takes along nobody else says: it is said even when whoever waits for it gives up.
                saying = partial(self._send_acks, self._acknowledgement(durable=True))
                await carry_through(self._ports, saying, "settle")
            else:  # there is no session
                self._session_changed.clear()
                await self._session_changed.wait(self._ports)

    async def _send_rest(self) -> None:
        """Send the remaining acknowledgements, as no other task does while this consumer closes. Raises Fenced when the
        session is over.
        """
        if not self.session:
            raise Fenced("this consumer has left its session")
        self._take_acks()
        session, last = self.session, self.acknowledgements.turn
        for turn, _, positions in list(self.acknowledgements.unconfirmed):
            await self._send_acks(Acknowledge(session=session, ack_turn=turn, acks=positions, durable=turn == last))

    async def close(self, *, for_good: bool = False) -> None:
        """Send the acknowledgements, then leave, even if the caller gives up waiting; held messages go to the others in
        order. A second call waits for the same end. for_good: nothing is kept for one of its name (`grace_ms`).
        """
        await self.begin_close(for_good=for_good)

    def begin_close(self, *, for_good: bool = False) -> SharedFuture[None]:
        """The same in the background. Returns what is settled when it has left."""
        if self._closed is None:
            self.closing, self._closed = True, SharedFuture()
            LET_GO.add(CLIENT, self._looks)
            self._inbox.close()
            self._hand_backs.close()
            self._session_changed.set()
            self._ports.spawn(self._close(self._closed, for_good=for_good), f"close-{self.partition}")
        return self._closed

    async def _close(self, closed: SharedFuture[None], *, for_good: bool) -> None:
        try:
            if self.acknowledgements:
                await self.settle()
        except SluiceError as error:
            self._ports.log("close_failed", partition=self.partition, error=str(error))
        await self._leaving.leave(self._address, self.session, for_good=for_good)
        self.lease.close()
        self._heartbeat.end()
        self._holding.revoke()
        # Nobody will confirm what is left, and nobody looks any more whether the lease is over.
        self.session, lost = 0, self.acknowledgements.void()
        self.losses.count += lost
        closed.set_result(None)

    def held(self) -> int:
        """Messages that were given to us and are not done."""
        return len(self._holding.positions()) + len(self._inbox)

    def find(self, position: int) -> tuple[Received, int] | None:
        """Return the part and row of a message that this consumer holds and that is not done; None if there is none."""
        return self._holding.find(position)

    # -- the session ----------------------------------------------------------------------------------------------

    async def _attach(self, *, first: bool = False) -> None:
        """Find the dispatcher and open a session, however long that takes; a returning consumer waits for its place.

        A session that comes too late is given up: for a life whose lease ended meanwhile, or later than its own lease.
        """
        wait, config = Backoff(self._ports, RETRY_FIRST, RETRY_MOST), self._config
        while not self.closing:
            try:
                place = config.topic, config.partition, config.subscription, config.settings
                if first:
                    self._address = await self._directory.dispatcher(*place, config.said)
                else:
                    self._address = await self._directory.dispatcher_again(*place)
                request = Attach(
                    consumer=config.name, incarnation=f"{config.incarnation}.{self._generation}",
                    process=config.process, ranges=list(config.ranges), priority=config.priority,
                    holding=self._all_held(), keep_place=config.keep_place, hands_over_to=self.handing_over.to,
                    read_compacted=config.read_compacted, moves=config.moves, properties=dict(config.properties),
                )  # fmt: skip
                sent, life = self._ports.clock.monotonic(), self._generation
                reply = await self._ports.net.call(self._address, request, ATTACH_TIMEOUT)
                if isinstance(reply, Unknown):
                    self._ports.log("attach_unknown", partition=self.partition, reason=reply.reason)
                    await self._directory.suspect(self._address)
                elif not reply.session:
                    if life == self._generation and not self.closing:
                        self._lost()
                    continue
                elif life == self._generation and not await self._say_given_back(reply):
                    pass
                elif life != self._generation:
                    await self._leaving.give_up(self._address, reply.session)
                elif self.closing or self._ports.clock.monotonic() - sent <= reply.lease:
                    self.batches.attached(apart=reply.apart)
                    self._enter(reply.session, reply.epoch, reply.lease, sent)
                    if not first:
                        self._ports.log("attached_again", session=reply.session, **self._named())
                        self.failed = None
                        self._callbacks.on_event(self.partition, Event(kind="found"))
                    await self._leaving.after_attach(self._address, reply.session)
                    return
            except PASSING as error:
                if first and not isinstance(error, Unavailable):
                    raise
                self._ports.log("attach_waits", partition=self.partition, error=str(error))
            except Fenced:
                await self._directory.suspect(self._address)
            await wait.pause()

    def _named(self) -> dict[str, object]:
        """The fields by which the log names this consumer."""
        config = self._config
        return {
            "topic": config.topic, "partition": config.partition, "subscription": config.subscription,
            "consumer": config.name,
        }  # fmt: skip

    async def _say_given_back(self, attached: Attached) -> bool:
        """Repeat unconfirmed returns to a new session before it delivers. False: attach again."""
        if attached.session == self.session:
            return True  # it is not new, and has been told or is being told
        self._revokes = attached.revokes
        while True:  # there may be more while it is told
            if attached.revokes:
                self._queued -= self._revocations.forestall(attached.session)[1]
            back = self._hand_backs.oldest(self._all_held())
            if back is None:
                return True
            request = self._hand_backs.request(back, attached.session, again=True)
            if isinstance(await self._ports.net.call(self._address, request, CALL_TIMEOUT), Unknown):
                await self._directory.suspect(self._address)
                return False
            self._hand_backs.finish(back, confirmed=True)

    def _forestall(self, back: PendingNack) -> None:
        """Take back messages that came from an earlier owner, because the new owner may not know yet that it must ask
        for them.
        """
        answers, unseen = self._revocations.forestall(self.session, [back])
        self._queued -= unseen
        for answer in answers:
            self._tell_soon(answer)

    def _tell_soon(self, back: PendingNack) -> None:
        request = self._hand_backs.request(back, self.session, consumer_epoch=self._consumer_epoch)
        self._ports.spawn(self._tell(request, back), f"revoked-{self.partition}")

    def _enter(self, session: int, epoch: int, lease: int, sent: int) -> None:
        if self._closed is not None and self._closed.done():
            return  # it has left, and leaves this one as well
        self.lease.start(sent, lease)
        if (session, epoch) != (self.session, self.epoch):
            self.session, self.epoch, self._turn, self._got = session, epoch, 0, 0
            self._granted_sent = self._taken_turn = self._consumer_epoch = 0
            self.long_poll.again()
            self._revocations.reset()
            self.acknowledgements.say_again()
            self._session_changed.set()
        self._heartbeat.attached(lease)

    def _all_held(self) -> Positions:
        """Held, waiting to be resolved, or acknowledged without confirmation: nobody else may get these yet."""
        return np.unique(
            np.concatenate([self._holding.positions(), self._inbox.positions(), self.acknowledgements.positions()])
        )

    def has_come(self, stats: Mapping[str, Any]) -> bool:
        """Whether all that the owner sent is here. stats: those of the subscription on this partition."""
        sent = sum(row["unackedMessages"] for row in stats["consumers"] if row["session"] == self.session)
        return not len(self._inbox.positions()) and sent <= len(self._all_held())

    def _lost(self) -> None:
        """The lease ran out or the broker ended the session: everything we held is others' now."""
        self.lease.end()
        if self.session != self.sought:
            self._ports.log("session_lost", session=self.session, **self._named())
        self._holding.revoke()
        self._queued -= self._inbox.clear()
        self.losses.count += self.acknowledgements.void()
        self._generation += 1
        self.session = self.epoch = 0
        self.long_poll.again()
        self._session_changed.set()
        self._callbacks.on_event(self.partition, Event(kind="lost"))

    async def _converse(self) -> None:
        """Poll for ever. An error that attaching again cannot mend ends it and is reported. A topic that was deleted is
        reported as well, and looked for again: producers go on as soon as it is made again, and so does a consumer.
        """
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while not self.closing:
            try:
                await self._turn_or_attach()
            except NotFound as error:
                if self.session:
                    self._lost()
                    wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
                self._fail(error)
                await wait.pause()
            except SluiceError as error:
                self._hand_backs.close()
                self._fail(error)
                return

    def _fail(self, error: SluiceError) -> None:
        self.failed = error
        self._session_changed.set()
        self._callbacks.on_event(self.partition, Event(kind="failed"))

    async def _turn_or_attach(self) -> None:
        session = self.session
        try:
            await (self._poll() if self.session else self._attach())
        except Fenced:
            if not self.closing:
                if session == self.session:
                    self._lost()
                await self._attach()

    async def _poll(self) -> None:
        """One turn, repeated until it is answered. Raises Fenced when the session is over."""
        self._turn += 1
        self._gathering = True  # it goes with this poll: nobody else need be woken
        self._callbacks.before_send()
        self._gathering = False
        (ack_turn, acks), session, epoch = self._take_acks(), self.session, self.epoch
        wait, first = Backoff(self._ports, RETRY_FIRST, RETRY_MOST), None
        while not self.closing:
            self._granted_sent = self._granted()
            request = Poll(
                session=session, turn=self._turn, granted=self._granted_sent, ack_turn=ack_turn, acks=acks,
                rows_from=self._ports.net.rows_from(self._address), by_index=self.by_index,
                wait=self.long_poll.wait(unconfirmed=bool(self.acknowledgements)),
            )  # fmt: skip
            sent = self._ports.clock.monotonic()
            first = sent if first is None else first
            try:
                reply = await self.long_poll.ask(self._address, request)
            except PASSING as error:  # it was heard or not, as one without an answer
                reply = Unknown(str(error), gone=True)
                self._turn += isinstance(error, Conflict)  # which says that the turn is over
                await wait.pause()
            except Invalid as error:  # asking the same again would change nothing
                self._ports.log("poll_refused", partition=self.partition, error=str(error))
                await self._ports.clock.sleep(RETRY_MOST)
                raise Fenced("the dispatcher refuses what is said in this session") from error
            if (session, epoch) != (self.session, self.epoch):
                return
            if not isinstance(reply, Unknown):
                self.lease.renew(sent)
                if reply.consumer_epoch >= self._consumer_epoch:
                    # What comes again may have been decided when it was asked for first.
                    self._take_delivery(reply, first if first < sent else self._ports.clock.monotonic())
                    return
                await wait.pause()  # it was made before everything was given back: ask again, until that is known
                continue
            if reply.gone:
                await self._directory.suspect(self._address)
                await self._attach()
                if (session, epoch) != (self.session, self.epoch):
                    return
                continue  # the same session still stands: the same turn again, or its delivery would be lost
            await wait.pause()

    def _granted(self) -> int:
        """Cumulative permits of this session: the messages that came, and the free room of the queue."""
        room = 0 if self._paused else max(self._queue_size - self._queued, 0)
        return self._got + room

    def _take_delivery(self, delivery: Delivery, at: int) -> None:
        """at: since when (monotonic) it may have been on its way."""
        if delivery.turn != self._turn:
            return
        self.sure_at = min(self.sure_at, at) if len(self._inbox) else at
        self._taken_turn, self.by_index = delivery.turn, self.by_index or delivery.by_index
        self.acknowledgements.confirm(delivery.confirmed)
        came = sum(len(part.rows) for part in delivery.parts)
        self.long_poll.answered(came)
        self._got, self._queued = self._got + came, self._queued + came
        if delivery.parts:
            self._inbox.add(delivery.parts, self.epoch, self.session)
        for event in delivery.events:
            self.handing_over.on_event(event)
            self._callbacks.on_event(self.partition, event)
        if delivery.revocation is not None:
            back, unseen = self._revocations.carry_out(delivery.revocation)
            self._queued -= unseen
            if back is not None:
                self._tell_soon(back)

    def _came(self, messages: Sequence[Received], trimmed: Positions) -> None:
        """Messages are complete. What was trimmed before its payload was fetched never comes: it frees its permits and
        is acknowledged, or it would count as held, and hold back its key.
        """
        if len(trimmed):
            self._queued -= len(trimmed)
            self.acknowledge_positions(trimmed)
        for came in messages:
            for received in self._callbacks.divide(came) if "pulsar" in came.schema.names else (came,):
                self._holding.add(received)
                self._callbacks.on_received(received)

    # -- acknowledgements -----------------------------------------------------------------------------------------

    def _take_acks(self) -> tuple[int, Positions]:
        if self.acknowledgements.waiting:
            self._ack_signal.clear()
            self._holding.prune()
        return self.acknowledgements.pop_waiting()

    async def _acknowledge_alone(self) -> None:
        self._ack_signal.clear()
        acks, clock = self.acknowledgements, self._ports.clock
        while acks.waiting and not self._starving() and (left := self._ack_due - clock.monotonic()) > 0:
            await clock.sleep(left)
        if self.session and (acks.waiting or self._starving()):
            with contextlib.suppress(Fenced, Invalid):  # it closes, and whoever closes it is told
                await self._send_acks(self._acknowledgement(durable=False))

    def _acknowledgement(self, *, durable: bool) -> Acknowledge:
        """All acknowledgements up to now, as a request of their own."""
        self._granted_sent, self._asking = self._granted(), False
        turn, acks = self._take_acks()
        return Acknowledge(session=self.session, ack_turn=turn, acks=acks, granted=self._granted_sent, durable=durable)

    async def _send_acks(self, request: Acknowledge) -> None:
        """Send until answered. A change of session ends this; there the acknowledgements are repeated."""
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while request.session == self.session:
            try:
                sent = self._ports.clock.monotonic()
                request.by_index = self.by_index
                reply = await self._ports.net.call(self._address, request, CALL_TIMEOUT)
                if not isinstance(reply, Unknown):
                    if request.session == self.session:
                        self.lease.renew(sent)
                        self.acknowledgements.confirm(reply.confirmed)
                    return
            except PASSING:
                pass
            except (Fenced, Invalid) as error:
                if self.closing:
                    raise
                if isinstance(error, Invalid) and request.session == self.session:
                    self._ports.log("acknowledgements_refused", partition=self.partition, error=str(error))
                    self._lost()
                return
            await wait.pause()

    async def _tell(self, request: NegativeAcknowledge | RedeliverUnacknowledged, *backs: PendingNack) -> None:
        """Say what was given back until it is confirmed, and what that revoked is taken back; after a change of session
        `_say_given_back` says it.
        """

        def over() -> bool:
            return request.session != self.session or self.closing

        async def say() -> None:
            revocation = await self._hand_backs.say(request, backs, lambda: self._address, over)
            await self._revocations.wait(revocation, backs, over)

        # Nobody holds these any more: they are given back even when whoever waits for it gives up.
        await carry_through(self._ports, say, f"tell-{self.partition}")
