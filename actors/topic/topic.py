"""The owner of one partition of a topic.

The actor that writes the next version of the partition's record owns it. start() does that and recovers the log in the
background, so fencing the previous owner never waits for anything. Requests wait a moment for the recovery and are
Unavailable after that. As soon as the topic notices a newer owner (a lost metadata write, or a bookie that refuses the
epoch) it answers everything with Fenced.

Publishing goes in steps. Each run is checked whole, because a run that nobody can decode would stop every consumer that
gets it; this copies nothing and makes no row an object. A large run is shared once. The wait for room comes before the
decision about the sequences, and between that decision and the place in the log there is no await. So the order of
places is the order of sequences, however calls overtake one another. A run for which nothing has to be waited for gets
its place in the turn in which it comes, without a task.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import pyarrow as pa

from sluice.actors.delayed.owner import IndexOwner
from sluice.actors.delayed.shared import SharedIndex
from sluice.actors.ledger.bookies import Bookies
from sluice.actors.ledger.partition_metadata import PartitionMetadata
from sluice.actors.lookup.cutting import cut_read
from sluice.actors.messages import (
    AcceptLoss,
    BacklogSize,
    BookieList,
    Closed,
    CloseIdle,
    CloseProducer,
    Compact,
    CompactionStatus,
    DeleteTopic,
    Done,
    Ends,
    Erase,
    EraseStatus,
    Excess,
    FindExcess,
    FindTime,
    IndexRead,
    MeasureBacklog,
    Offload,
    OffloadStatus,
    OpenProducer,
    PayloadRead,
    PositionFound,
    ProducerOpened,
    Progress,
    Publish,
    Published,
    PublishMany,
    PublishResults,
    ReadEnds,
    ReadIndex,
    ReadPayload,
    ReadRowIndex,
    Replicate,
    Replicated,
    RowIndex,
    Stats,
    Terminate,
    Text,
    TopicSettings,
)
from sluice.actors.ports import Ports
from sluice.actors.ports.wire import Blob
from sluice.actors.runtime.host import Actor, Outcome
from sluice.actors.runtime.waiting import SharedFuture, Signal
from sluice.actors.topic.background.maintenance import TopicMaintenance
from sluice.actors.topic.partition.admission import Admission
from sluice.actors.topic.partition.amounts import backlog_bytes, bytes_behind, first_waiting, weighs_at_most
from sluice.actors.topic.partition.hooks import ProcessResources
from sluice.actors.topic.partition.managed_ledger import ManagedLedger
from sluice.actors.topic.partition.producers import (
    Join,
    KnownProducer,
    NotYet,
    Pending,
    Producers,
    Stored,
    StoreNow,
    Tail,
    check_segments,
    check_sequences,
)
from sluice.actors.topic.partition.reads import LogReads
from sluice.actors.topic.partition.termination import Termination
from sluice.actors.topic.partition.unreadable import ALARM_MS, GivingUp
from sluice.actors.topic.stats import describe, describe_loss
from sluice.storage.errors import Conflict, Corrupt, Fenced, Invalid, NotFound, ProducerFenced, SluiceError, Unavailable
from sluice.storage.format.batch import (
    MAX_RUN_BYTES,
    MAX_RUN_MESSAGES,
    StoredBatch,
    check_published,
    decode_body,
    has_keyed_delay,
)
from sluice.storage.format.checked_payload import payload_crc
from sluice.storage.format.frame import KIND_WITH_SEGMENTS, Run, Segment, index_columns, make_run

SERVING_WAIT_MS = 5_000
"""How long a request waits for the recovery."""
PREDECESSOR_WAIT_MS = 3_000
"""How long a publish waits for the one before it."""
TEND_MS = 1_000


class Topic(Actor):
    """The owner of one partition. bookies: asks which bookies there are (ListBookies). resources: what it shares
    with the others of its process.
    """

    def __init__(
        self,
        ports: Ports,
        *,
        topic: str,
        partition: int,
        settings: TopicSettings,
        bookies: Callable[[], Awaitable[BookieList]],
        resources: ProcessResources,
        shared: SharedIndex | None = None,
    ) -> None:
        super().__init__(ports)
        self.topic = topic
        self.partition = partition
        self.settings = settings
        self._producers = Producers(resources.results)
        known = Bookies(ports, bookies)
        metadata = PartitionMetadata(ports, topic, partition, self._halt)
        self._log = ManagedLedger(ports, known, metadata, settings, self._producers, self._halt, resources)
        self._admission = Admission(ports, self._log, self._producers, topic, partition)
        self._reads = LogReads(ports, self._log, resources.room)
        self._termination = Termination(ports, self._log)
        self._make_intake = resources.intake
        self._giving_up = GivingUp(ports, known, self._log)
        self._maintenance = TopicMaintenance(ports, known, topic, self._log, self._reads, resources.jobs)
        self._delayed = IndexOwner(ports, shared or SharedIndex(), topic, partition)
        self._deleted = False
        self._neglected = ""
        """Why nothing is deleted or leaves, where that is damage."""
        self._serving = Signal()
        self._publishes_waiting: dict[str, list[Signal]] = {}

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take the partition over; the log is recovered in the background. Raises Fenced if there is a newer owner."""
        await self._log.acquire()
        self.ports.spawn(self._recover(), "recover")

    async def stop(self, reason: str) -> None:
        """Refuse everything from now on. Idempotent."""
        self._halt(reason)

    def _halt(self, reason: str) -> None:
        if self.stopped is not None:
            return
        self.stopped = reason
        self.ports.log("topic_stopped", topic=self.topic, partition=self.partition, reason=reason)
        self._log.halt()
        self._serving.set()
        self._producers.fail(Fenced(self._gone()))
        self.release()

    def release(self) -> None:
        self._log.cache.close()
        self._log.reader.forget_history()
        self._maintenance.release()
        self._reads.close()
        self._delayed.release()

    def _gone(self) -> str:
        return f"partition {self.partition} of {self.topic!r} is no longer served here: {self.stopped}"

    async def _recover(self) -> None:
        try:
            await self._log.recover()
        except SluiceError as error:
            self._halt(f"the log cannot be recovered: {error}")
            return
        self._maintenance.restore()
        self._admission.restore()
        self._serving.set()
        self._delayed.enable(self._log.epoch, self._passed)
        while self.stopped is None:
            try:
                await self._maintenance.turn()
                self._neglected = ""
            except Fenced:
                return
            except SluiceError as error:
                self._neglected = str(error) if isinstance(error, Corrupt) else ""
                self.ports.log("upkeep_waits", error=str(error))
            await self.ports.clock.sleep(TEND_MS)
            await self._maintenance.rest()

    def _passed(self) -> int:
        """The position that every durable subscription has passed; without one, the end of the log."""
        return min(self._maintenance.marks.values(), default=self._log.last_confirmed)

    async def _ready(self) -> None:
        """Wait for the recovery. Raises Unavailable while it lasts, Fenced when this owner was replaced."""
        if self._deleted:
            raise NotFound(f"topic {self.topic!r} was deleted")
        if not self._serving.is_set():
            await self._serving.wait(self.ports, SERVING_WAIT_MS)
        if self.stopped is not None:
            raise Fenced(self._gone())
        if not self._serving.is_set():
            waits = f", which waits: {self._log.waits_for}" if self._log.waits_for else ""
            raise Unavailable(f"partition {self.partition} of {self.topic!r} is being recovered{waits}")

    @property
    def at_work(self) -> bool:
        """Whether it is being recovered, has producers that it would hear of if they went, or has something to do."""
        return not self._serving.is_set() or self._maintenance.at_work or self._admission.occupied

    @property
    def figures(self) -> object:
        log, marks = self._log, tuple(self._maintenance.marks.items())
        if not self._serving.is_set() or self._maintenance.at_work or self._delayed.stats() is not None:
            return None
        return log.messages_in, log.last_confirmed, log.record, marks, len(self._producers)

    def _stays(self, idle_ms: int) -> bool:
        return self.stopped is not None or self.idle_ms() < idle_ms

    async def on_close_idle(self, request: CloseIdle) -> Closed:
        """Close the idle topic: the next owner finds what this one wrote."""
        if self._stays(request.idle_ms):
            return Closed(closed=False)
        wake_at = await self._maintenance.prepare_end()
        if self._stays(request.idle_ms):
            return Closed(closed=False)
        # No await from here on.
        self._halt("closed, because nobody uses it")
        return Closed(closed=True, wake_at=wake_at)

    # -- producers ---------------------------------------------------------------------------------------------------

    async def on_open_producer(self, request: OpenProducer) -> ProducerOpened:
        """Register a producer; its earlier messages are settled first, so that last_sequence is exact."""
        await self._ready()
        if not request.resumes:
            self._termination.check()
        now, exclusive = self.ports.clock.now(), -1
        if not self._producers.is_replaced(request.producer, request.incarnation):  # else `open` refuses it
            admitted = await self._admission.admit(request)
            await self._ready()
            if admitted is None:
                return ProducerOpened(session=0, last_sequence=-1, epoch=self._log.epoch)
            exclusive = admitted
        producer = self._producers.open(request.producer, request.incarnation, self._log.epoch, now)
        session = producer.session
        while producer.pending and self.stopped is None:
            await next(reversed(producer.pending.values())).outcome
        await self._ready()
        if producer.session != session:
            raise ProducerFenced(f"producer {request.producer!r} was opened again by a newer instance")
        stored, epoch = producer.stored, self._log.epoch
        return ProducerOpened(session=session, last_sequence=stored, epoch=epoch, topic_epoch=exclusive)

    async def on_close_producer(self, request: CloseProducer) -> Done:
        """Let a producer with a home leave; producers that wait for it go on."""
        await self._ready()
        self._admission.leave(request.incarnation)
        return Done()

    def now_publish(self, request: Publish, answer: Callable[[Outcome], None]) -> bool:
        """Append a run in this turn, unless it was stored before or something must be waited for."""
        if not self._takes_now(request):
            return False
        producer = self._producers.find(request.producer, request.session)
        first, count, follows = request.first_sequence, request.count, request.follows
        check_sequences(first, count)
        if not isinstance(self._producers.judge(producer, first, count, follows), StoreNow):
            return False
        run, _ = self._decoded(request, cast(memoryview, request.payload.data))
        if self._log.record.terminated or self._termination.under_way:
            self._termination.check()
        stored = self._append(run, Blob(run.payload), [producer], ((request.producer, first, count),))
        stored.then(lambda: answer(stored.outcome()))
        return True

    def now_publish_many(self, request: PublishMany, answer: Callable[[Outcome], None]) -> bool:
        """Append a run of several producers in this turn, unless something must be waited for."""
        if not self._takes_now(request) or self._log.bookies.frames < KIND_WITH_SEGMENTS:
            return False
        check_segments(request)
        run, _ = self._decoded(request, cast(memoryview, request.payload.data))
        stored = self._append_many(request, run, Blob(run.payload))
        stored.then(lambda: answer(stored.outcome()))
        return True

    def _takes_now(self, request: Publish | PublishMany) -> bool:
        """Return whether a run could be appended at this instant. Raises Invalid for a size that no producer sends."""
        serves = self._serving.is_set() and self.stopped is None and not self._deleted
        if not serves or request.payload.data is None or request.payload.size >= self.ports.shared_from:
            return False
        self._check_size(request)
        return self._log.has_room

    async def on_publish(self, request: Publish) -> Published:
        """Append a run, once. Raises Fenced, Conflict (a gap), Overloaded, Unavailable, Invalid."""
        await self._ready()
        producer = self._producers.find(request.producer, request.session)
        self._check_size(request)
        check_sequences(request.first_sequence, request.count)
        stored = self._producers.judge(producer, request.first_sequence, request.count)
        if isinstance(stored, Stored):
            # Before anything that may be refused: what is stored was valid when it came, whatever has changed since.
            return stored.published
        run, _ = await self._check(request)
        if request.follows is not None:
            self._producers.believe(producer, request.follows, given_up=self._ever_given_up)
        blob: Blob | None = None
        while True:
            verdict = self._producers.judge(producer, request.first_sequence, request.count, request.follows)
            if isinstance(verdict, Stored):
                return verdict.published
            if isinstance(verdict, Join):
                return await verdict.pending.published()
            if isinstance(verdict, Tail):
                await self._publish_tail(request, run, verdict.skip)
                return Published(ledger=0, first_entry=0, count=request.count, duplicate=True)
            if isinstance(verdict, NotYet):
                await self._wait_for_turn(request, producer, verdict)
            else:
                self._termination.check()
                if blob is None:
                    blob = await self._shared(run)
                await self._log.make_room()
            await self._ready()
            producer = self._producers.find(request.producer, request.session)
            if isinstance(verdict, StoreNow) and blob is not None and self._log.ready:
                # No await from here on until the run has its place.
                again = self._producers.judge(producer, request.first_sequence, request.count, request.follows)
                if isinstance(again, StoreNow):
                    self._termination.check()
                    segment = (request.producer, request.first_sequence, run.count)
                    return await self._append(run, blob, [producer], (segment,))

    def _append(
        self, run: Run, blob: Blob, producers: Sequence[KnownProducer], segments: tuple[Segment, ...]
    ) -> SharedFuture[Published]:
        """Give a run its place; returns its outcome. producers: those of the segments.

        Others may wait for it too: a caller that goes ends it for nobody.
        """
        outcome: SharedFuture[Published] = SharedFuture()
        now, before = self.ports.clock.now(), 0
        for producer, (_, first, count) in zip(producers, segments, strict=True):
            self._producers.push(producer, Pending(first, count, outcome, before), now)
            before += count
        self._log.append(run, segments, blob)
        if self._publishes_waiting:
            for name, _, _ in segments:
                for signal in self._publishes_waiting.pop(name, ()):
                    signal.set()
        return outcome

    @property
    def _ever_given_up(self) -> bool:
        """Whether runs of the partition were given up."""
        record = self._log.record
        return bool(record.given_up) or record.ever_given_up

    async def on_publish_many(self, request: PublishMany) -> Published:
        """Append a run of several producers, once. Raises what `on_publish` raises."""
        await self._ready()
        self._check_size(request)
        check_segments(request)
        await self._log.bookies.check_frames(KIND_WITH_SEGMENTS)
        self._judge_all(request)
        run, _ = await self._check(request)
        blob = await self._shared(run)
        while True:
            self._termination.check()
            await self._log.make_room()
            await self._ready()
            if self._log.ready:
                break
        # No await from here on until the run has its place.
        return await self._append_many(request, run, blob)

    def _append_many(self, request: PublishMany, run: Run, blob: Blob) -> SharedFuture[Published]:
        """Give a run of several producers its place; returns its outcome. Raises Conflict, Fenced."""
        producers = self._judge_all(request)
        self._termination.check()
        segments = tuple(zip(request.producers, request.first_sequences, request.counts, strict=True))
        return self._append(run, blob, producers, segments)

    def _judge_all(self, request: PublishMany) -> list[KnownProducer]:
        """Return the producers of a run that may be stored whole and now. Raises Conflict for any other; Fenced."""
        found, given_up = [], self._ever_given_up
        columns = request.producers, request.sessions, request.first_sequences, request.counts, request.follows
        for name, session, first, count, follows in zip(*columns, strict=True):
            producer = self._producers.find(name, session)
            self._producers.believe(producer, follows, given_up=given_up)
            if not isinstance(self._producers.judge(producer, first, count, follows), StoreNow):
                raise Conflict(f"messages of producer {name!r} must be sent by themselves")
            found.append(producer)
        return found

    async def _wait_for_turn(self, request: Publish, producer: KnownProducer, verdict: NotYet) -> None:
        """Wait until another run of the producer was pushed, or until nothing is pending."""
        if not verdict.predecessor:
            await next(reversed(producer.pending.values())).outcome
            return
        signal = Signal()
        self._publishes_waiting.setdefault(request.producer, []).append(signal)
        if not await signal.wait(self.ports, PREDECESSOR_WAIT_MS):
            waiting = self._publishes_waiting.get(request.producer, [])
            if signal in waiting:
                waiting.remove(signal)
            if not waiting:
                self._publishes_waiting.pop(request.producer, None)
            raise Conflict(
                f"sequence {request.first_sequence} does not follow {producer.pushed} of producer {request.producer!r}"
            )

    @staticmethod
    def _check_size(request: Publish | PublishMany | PublishResults) -> None:
        """Raise Invalid for a run that no producer makes."""
        if not 0 < request.count <= MAX_RUN_MESSAGES:
            raise Invalid(f"a run holds 1 to {MAX_RUN_MESSAGES} messages, not {request.count}")
        if request.payload.size > MAX_RUN_BYTES:
            raise Invalid(f"a run holds at most {MAX_RUN_BYTES} bytes, not {request.payload.size}")

    async def _check(self, request: Publish | PublishMany | PublishResults) -> tuple[Run, StoredBatch]:
        """Return the run of a request with its payload, and its rows. Raises Invalid, Unavailable."""
        payload = request.payload.data
        if payload is None:
            payload = await self.ports.net.fetch(request.payload)
        if payload is None:
            raise Unavailable("the payload's handle is gone; send it again")
        return self._decoded(request, payload)

    def _decoded(self, request: Publish | PublishMany | PublishResults, payload: memoryview) -> tuple[Run, StoredBatch]:
        """Decode and check the run of a request. Raises Invalid; Corrupt if it was damaged on its way.

        A batch that this process encoded is neither decoded nor held to the limits again: its maker held it to them.
        """
        run = Run(request.count, request.delayed, request.shape, payload, request.crc)
        batch = request.payload.decoded
        if not isinstance(batch, StoredBatch):
            batch = _decode_run(request, run)
            check_published(batch.rows, batch.deliver_at, batch.hashes)
        rows, deliver_at = batch.rows, batch.deliver_at
        if self._maintenance.rejecting and (request.keyed_delay or has_keyed_delay(rows, deliver_at)):
            refused_by = next(iter(self._maintenance.rejecting))
            raise Invalid(
                f"subscription {refused_by} refuses messages with a key and a delay; send one without the other"
            )
        if deliver_at is not None and self.settings.max_delay_ms:
            limit = self.ports.clock.now() + self.settings.max_delay_ms
            if int(deliver_at.max()) > limit:
                raise Invalid(f"a message is delayed by more than the topic's {self.settings.max_delay_ms} ms")
        return run, batch

    async def _shared(self, run: Run) -> Blob:
        large = len(run.payload) >= self.ports.shared_from
        return await self.ports.net.share(run.payload) if large else Blob(run.payload)

    async def _publish_tail(self, request: Publish, run: Run, skip: int) -> None:
        """Store only the messages after the first `skip`: the slow path, which decodes and encodes the run."""
        rest = make_run(_decode_run(request, run).slice(skip, run.count))
        await self.on_publish(
            Publish(
                producer=request.producer,
                session=request.session,
                first_sequence=request.first_sequence + skip,
                count=rest.count,
                delayed=rest.delayed,
                shape=rest.shape,
                crc=rest.crc,
                payload=Blob(rest.payload),
            )
        )

    async def on_publish_results(self, request: PublishResults) -> Published:
        """Append results of those messages that have none here yet. Raises Conflict, and what `on_publish` raises."""
        await self._ready()
        intake = self._make_intake(self.ports, self._log, self._producers.results, self._termination, self._ready)
        intake.check(request, deduplicates=self.settings.deduplication_enabled)
        self._check_size(request)
        run, batch = await self._check(request)
        return await intake.store(request, run, batch)

    # -- readers -----------------------------------------------------------------------------------------------------

    async def on_read_index(self, request: ReadIndex) -> IndexRead:
        """Return confirmed runs; wait for the first one at most `wait` ms."""
        await self._ready()
        until = self.ports.clock.monotonic() + request.wait
        knows_end = self._log.record.terminated if request.ends_known is None else request.ends_known
        while True:
            table = self._maintenance.compacted if request.compacted else None
            if table is not None and (compacted := await table.index(request)) is not None:
                await self._ready()
                return compacted
            reply = await self._reads.index(request)
            await self._ready()
            reply.ends = self._log.record.terminated and reply.resume > self._log.last_confirmed
            left = until - self.ports.clock.monotonic()
            if reply.runs or reply.ended or reply.lost or left <= 0 or (reply.ends and not knows_end):
                return reply
            if self._log.last_confirmed == reply.last_confirmed:
                await self._log.news(left)

    async def on_read_payload(self, request: ReadPayload) -> PayloadRead:
        """Return the run that contains an entry."""
        await self._ready()
        try:
            reply = await self._reads.payload(request.ledger, request.entry, again=request.again)
        except NotFound:
            table = self._maintenance.compacted
            if table is None or (compacted := await table.payload(request.ledger, request.entry)) is None:
                raise
            return compacted
        reply.ahead = await self._reads.ahead(request.ledger, request.ahead)
        if not (least := request.rows_from):
            return reply
        reply.ahead = [await cut_read(self.ports, read, request.ahead, least) for read in reply.ahead]
        return await cut_read(self.ports, reply, request.wanted, least)

    async def on_read_row_index(self, request: ReadRowIndex) -> RowIndex:
        """Return index columns of single messages."""
        await self._ready()
        return await self._reads.rows(request.positions)

    async def on_read_ends(self, request: ReadEnds) -> Ends:
        """Answer with the ends of the topic."""
        await self._ready()
        ends = self._reads.ends()
        ends.heard = self._maintenance.heard(request.subscription)
        table = self._maintenance.compacted if request.compacted else None
        return ends if table is None else table.ends(ends)

    async def on_measure_backlog(self, request: MeasureBacklog) -> BacklogSize:
        await self._ready()
        marks, old = self._maintenance.marks, False
        if request.before and (first := first_waiting(self._log, marks)) is not None:
            old = first < (await self._reads.find_time(request.before)).position
        return BacklogSize(bytes=backlog_bytes(self._log, marks), old=old)

    async def on_find_excess(self, request: FindExcess) -> Excess:
        """Return the position from which on the waiting messages have at most `keep` bytes."""
        await self._ready()
        waits = bytes_behind(self._log, request.mark_delete)
        return Excess(weighs_at_most(self._log, request.keep) if waits >= max(request.limit, 1) else None)

    async def on_find_time(self, request: FindTime) -> PositionFound:
        """Return the first message published at or after a time."""
        await self._ready()
        return await self._reads.find_time(request.time)

    # -- the rest ----------------------------------------------------------------------------------------------------

    async def on_progress(self, request: Progress) -> Done:
        """Note how far a durable subscription has come."""
        await self._ready()
        await self._maintenance.progress(request)
        return Done()

    @property
    def problem(self) -> str:
        """The trouble that an operator must look at, or "": a stuck recovery, unreadable runs or policies."""
        waits = "" if self._serving.is_set() else self._log.recovery_waits(ALARM_MS)
        if waits:
            return f"the recovery waits: {waits}"
        unreadable = self._reads.unreadable.line(self.topic)
        table = self._maintenance.compacted
        compacted = f"the compacted log of {self.topic!r}: {table.problem}" if table and table.problem else ""
        neglected = f"retention and offloading of {self.topic!r} wait: {self._neglected}" if self._neglected else ""
        return "; ".join(filter(None, (unreadable, compacted, neglected)))

    async def on_accept_loss(self, request: AcceptLoss) -> Text:
        """Give a run up; also while the log is being recovered, because that may be what the recovery waits for."""
        if self.stopped is not None:
            await self._ready()
        lost = await self._giving_up.accept(request)
        if not request.dry_run:
            self._reads.given_up(lost)
        return Text(json=json.dumps({"partition": self.partition, **describe_loss(lost)}))

    async def on_replicate(self, request: Replicate) -> Replicated:
        """Copy what lost and leaving bookies held; the work goes on behind the answer."""
        await self._ready()
        return Replicated(remaining=self._maintenance.replicate(request.lost, request.leaving))

    async def on_offload(self, request: Offload) -> OffloadStatus:
        """Begin to move ledgers to the object store; the work goes on after the answer."""
        await self._ready()
        return await self._maintenance.ask(request)

    async def on_erase(self, request: Erase) -> EraseStatus:
        """Begin to erase the messages of a key; the work goes on after the answer."""
        await self._ready()
        return await self._maintenance.ask(request)

    async def on_compact(self, request: Compact) -> CompactionStatus:
        """Begin to make a table of the last messages of keys; the work goes on after the answer."""
        await self._ready()
        return await self._maintenance.ask(request)

    async def on_terminate(self, request: Terminate) -> Ends:
        """Take no more messages, for good."""
        await self._ready()
        await self._termination.end()
        await self._ready()
        self._admission.over()
        return self._reads.ends()

    async def on_delete_topic(self, request: DeleteTopic) -> Done:
        """Delete the partition. Raises Conflict while it has subscriptions, unless forced."""
        if not self._deleted:
            await self._ready()
            self._maintenance.check_unused(request.force)
            await self._delayed.delete(self._log.epoch)
            try:
                await self._maintenance.delete(request.force)
            except Conflict:  # a subscription has come meanwhile
                self._delayed.reopen()
                raise
            self._deleted = True
            self._halt("the topic was deleted")
        return Done()

    async def on_stats(self, request: Stats) -> Text:
        """Return the partition's statistics, with Pulsar's names where it has them."""
        await self._ready()
        stats = describe(self._log, self._producers, self._maintenance, self._reads.unreadable)
        return Text(json=json.dumps({**stats, "bucketDelayedIndexStats": self._delayed.stats()}))


def _decode_run(request: Publish | PublishMany | PublishResults, run: Run) -> StoredBatch:
    """Decode a run. Raises Invalid; Corrupt if it was damaged on its way."""
    columns = run.count * (12 if run.delayed else 4)
    if len(run.payload) < columns:
        raise Invalid(f"{len(run.payload)} bytes cannot hold the index columns of {run.count} messages")
    # Each run, not only a producer's first: what nobody can decode would stop every consumer that gets it.
    if payload_crc(run.payload) != run.crc:
        raise Corrupt("the payload does not fit its checksum; send it again")
    deliver_at, hashes = index_columns(run.payload[:columns], run.count, run.delayed)
    return StoredBatch(_rows_of(run.payload[columns:], request), deliver_at, hashes)


def _rows_of(body: memoryview, request: Publish | PublishMany | PublishResults) -> pa.RecordBatch:
    """Return the rows of a body whose checksum fits. Raises Invalid: a repetition of the producer is the same."""
    try:
        return decode_body(body, request.shape, request.count)
    except Corrupt as error:
        raise Invalid(f"a run that nobody could read is not stored: {error}") from error
