"""A producer's conversation with the owners of a topic's partitions. It lives in the caller's process.

A producer has one run under way for each partition, and its other batches wait and go together with the next one. So
order per key needs no window, and a slow broker gets larger runs, not more calls. The waves (actors.producer.waves) say
when the next run goes, and which producers share it. Every message has a sequence. A Publish whose outcome is unknown
is sent again, unchanged, until it is answered, and the topic stores each sequence once (promise 1, S4, S7, S19).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import msgspec

from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import AccessMode, CloseProducer, OpenProducer, Publish, Published
from sluice.actors.ports import Address, Ports, Task, Unknown
from sluice.actors.ports.wire import Blob
from sluice.actors.producer.batches import RUN_BYTES, RUN_MESSAGES, Outgoing, halves
from sluice.actors.producer.waves import PUBLISH_TIMEOUT, Outcome, Over, PublishColumns, Waves
from sluice.actors.runtime.gc_pressure import CLIENT, LET_GO
from sluice.actors.runtime.waiting import Backoff, Signal, ask
from sluice.storage.errors import (
    Conflict,
    Corrupt,
    Fenced,
    Invalid,
    InvariantViolation,
    NotFound,
    Overloaded,
    ProducerFenced,
    SluiceError,
    Terminated,
    Unavailable,
)
from sluice.storage.format.batch import (
    StoredBatch,
    has_keyed_delay,
    joined,
)
from sluice.storage.format.checked_payload import payload_crc
from sluice.storage.format.frame import Run, make_run, run_of, run_parts
from sluice.storage.format.position import position

RETRY_FIRST, RETRY_MOST = 5, 500
STAY_MS = 3_000
"""A producer without a home asks so often for what it has to itself; see actors.topic.partition.access."""


@dataclass(slots=True)
class Entrance:
    """How a producer opens a partition; see messages.OpenProducer.

    again: true at most until it is in. waits: told when the producer has to wait until it has the partition to itself.
    """

    home: Address = ""
    access: AccessMode = "shared"
    topic_epoch: int | None = None
    again: bool = False
    waits: Callable[[], None] = lambda: None


class Repartitioned(SluiceError):
    """The topic has another number of partitions, and the batch was not stored: its sender divides it once more."""


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """One producer on one partition of a topic."""

    topic: str
    partition: int
    name: str
    incarnation: str
    compression: str | None = None
    entrance: Entrance = field(default_factory=Entrance)


class PartitionProducer:
    """A producer on one partition: its queue, and the one run that it has under way.

    on_published: called with each run, its place, and the rows that it was made of; several producers may share a run.
    waves: those of its client or gateway.
    """

    def __init__(
        self,
        ports: Ports,
        directory: Directory,
        config: ProducerConfig,
        on_published: Callable[[Run, Published, StoredBatch], None] = lambda run, published, batch: None,
        waves: Waves | None = None,
    ) -> None:
        self._ports, self._directory = ports, directory
        waves = waves or Waves(ports)
        self._rounds, self.waves = waves.rounds, waves.to(config.topic, config.partition)
        self._config, self.on_published = config, on_published
        self.name, self.name_bytes, self.segments = config.name, len(config.name.encode()), 1
        self.alone = config.compression is not None
        """Whether its batches always go by themselves."""
        self._entrance = config.entrance
        self._queue: list[Outgoing] = []
        self._busy = True
        """Whether it is being opened, waits for a wave, or has a batch under way."""
        self._staying: Task | None = None
        self._idle = Signal()
        self._idle.set()
        self.address: Address = ""
        self.session = 0
        self._opened = False
        self.closed: SluiceError | None = None
        self.last_sequence = -1
        self.partitions = 0
        """The number by which its sender divides. What cannot be stored any more where that number has changed comes
        back as `Repartitioned`. 0: of a sender that does not divide.
        """
        self._repartitioned: Repartitioned | None = None
        self._looks = LET_GO.looks

    async def open(self, *, attempts: int = 20) -> None:
        """Register the name at the partition's owner; retries while the owner is being replaced, 0: without end."""
        await self._reopen(attempts)
        if not self._entrance.home and self._entrance.access != "shared" and self.closed is None:
            self._staying = self._ports.spawn(self._stay(), "stay")
        self.go_on()

    def send(self, outgoing: Outgoing) -> None:
        """Queue a batch; `outgoing.done` gets its outcome. Never blocks."""
        if (ended := self.closed or self._repartitioned) is not None:
            outgoing.done(outgoing.rows, 0, ended)
            return
        self._queue.append(outgoing)
        if not self._busy:
            self._busy = True
            self.waves.join(self)
        self._idle.clear()

    async def flush(self) -> None:
        """Wait until everything queued so far is confirmed or refused."""
        await self._idle.wait(self._ports)

    def close(self, reason: SluiceError | None = None) -> None:
        """Fail queued batches; further sends fail at once."""
        if self.closed is None:
            LET_GO.add(CLIENT, self._looks)
        self.closed = self.closed or reason or Fenced("the producer is closed")
        if self._staying is not None:
            self._staying.cancel()
        self._refuse_queue(self.closed)
        self._idle.set()

    def _refuse_queue(self, reason: SluiceError) -> None:
        while self._queue:
            outgoing = self._queue.pop(0)
            outgoing.done(outgoing.rows, 0, reason)

    def divide_by(self, partitions: int) -> None:
        """Take batches that were divided by this number of partitions; no earlier one is open any more."""
        self.partitions, self._repartitioned = partitions, None

    @property
    def topic_epoch(self) -> int | None:
        """Pulsar's topic epoch: how often a producer got the partition exclusively, up to this one; None if shared."""
        return None if self._entrance.access == "shared" else self._entrance.topic_epoch

    async def _stay(self) -> None:
        """Ask for the partition again and again, as long as the producer has it."""
        try:
            while True:
                await self._ports.clock.sleep(STAY_MS)
                session = self.session
                await self._reopen(attempts=0)
                if self.session != session and not self._busy and self._is_repartitioned():
                    self._repartitioned = Repartitioned(f"topic {self._config.topic!r} was made again")
        except SluiceError as error:
            self.close(error)

    async def leave(self) -> None:
        """Tell the owner that the producer leaves; an owner that does not hear it finds out."""
        if self.address:
            request = CloseProducer(producer=self._config.name, incarnation=self._config.incarnation)
            with contextlib.suppress(SluiceError):
                await self._ports.net.call(self.address, request, PUBLISH_TIMEOUT)

    # -- what its waves ask of it -------------------------------------------------------------------------------------

    @property
    def head(self) -> Outgoing | None:
        """The batch that is to be published next."""
        return self._queue[0] if self._queue else None

    def gather(self) -> tuple[list[Outgoing], int, int]:
        """Take the head of the queue and what may join it in one run: next sequences, same shape, within the limits.

        Returns also how many messages and bytes these are.
        """
        first = self._queue[0]
        gathered, messages, size = [first], len(first.rows), first.bytes
        follows = first.first_sequence + messages
        for following in islice(self._queue, 1, None):
            count, more = len(following.rows), following.bytes
            joins = following.first_sequence == follows or (first.only_end and following.only_end)
            fits = messages + count <= RUN_MESSAGES and size + more <= RUN_BYTES and joins
            if not fits or not following.batch.schema.equals(first.batch.schema):
                break
            gathered.append(following)
            messages, size, follows = messages + count, size + more, follows + count
        del self._queue[: len(gathered)]
        return gathered, messages, size

    def add_segments(self, to: PublishColumns, gathered: list[Outgoing], count: int) -> None:
        """See WaveProducer. Of the batches only the end of the last one may be a number of its own."""
        last = gathered[-1]
        to.producers.append(self.name)
        to.sessions.append(self.session)
        to.first_sequences.append(last.first_sequence + len(last.rows) - count)
        to.counts.append(count)
        to.follows.append(self.last_sequence)

    def is_free(self) -> bool:
        """Return whether nothing of it is queued or under way, and it takes batches."""
        return not self._busy and self.closed is None and self._repartitioned is None

    def send_jointly(self) -> None:
        """Note that messages of it, which is free, are under way with those of others."""
        self._busy = True
        self._idle.clear()

    def go_on(self) -> None:
        """Wait for the next wave if anything is queued; nothing of this producer is under way."""
        self._busy = bool(self._queue)
        if self._busy:
            self.waves.join(self)
        else:
            self._idle.set()

    def publish(self, gathered: list[Outgoing], over: Over) -> None:
        """Publish what was gathered, once; what has no outcome then is published again beside the waves. over: called
        at the end of the first attempt.
        """
        if self._is_large(gathered):
            self._ports.spawn(self._publish_large(gathered, over), f"publish-{self._config.partition}")
            return
        try:
            request, run, batch = self._encoded(gathered)
        except SluiceError:  # the attempt beside the waves reports it
            over(partial(self.publish_alone, gathered))
            return

        def answered(outcome: Outcome) -> None:
            over(partial(self._settle, gathered, run, outcome, batch))

        ask(self._ports, self.address, request, PUBLISH_TIMEOUT, answered)

    async def _publish_large(self, gathered: list[Outgoing], over: Over) -> None:
        try:
            request, run, batch = await self._prepare(gathered)
        except SluiceError:  # the attempt beside the waves reports it
            over(partial(self.publish_alone, gathered))
        else:
            over(partial(self._settle, gathered, run, await self._ask(request), batch))

    def _settle(self, gathered: list[Outgoing], run: Run, outcome: Outcome, batch: StoredBatch) -> None:
        """Report the outcome of the first attempt, or publish again beside the waves."""
        if isinstance(outcome, Published):
            self._check_and_confirm(gathered, run, outcome, batch)
            self.go_on()
        else:
            self.publish_alone(gathered, outcome)

    def confirm(self, gathered: list[Outgoing], ledger: int, first_entry: int) -> None:
        """Report that these were published, their first message at this entry. ledger 0: the place is forgotten."""
        last = gathered[-1]
        self.last_sequence = last.first_sequence + len(last.rows) - 1
        self._report(gathered, position(ledger, first_entry) if ledger else -1, None)

    def publish_alone(self, gathered: list[Outgoing], outcome: Outcome | None = None) -> None:
        """Publish these beside the waves, until they are stored or refused. outcome: of a first attempt."""
        self._ports.spawn(self._publish_alone(gathered, outcome), f"publish-{self._config.partition}")

    async def _publish_alone(self, gathered: list[Outgoing], outcome: Outcome | None) -> None:
        place = await self._rounds.wait()
        try:
            await self._publish_group(gathered, outcome)
        finally:
            place.end()
        self.go_on()

    # -- until there is an outcome ------------------------------------------------------------------------------------

    async def _publish_group(self, gathered: list[Outgoing], outcome: Outcome | None) -> None:
        """Publish messages, and report their outcome. If one of them may not be stored the run is refused as a whole.
        Then its halves are published in turn, so that in the end that message alone is refused.
        """
        waiting = [gathered]
        while waiting:
            group = waiting.pop()
            if (ended := self.closed or self._repartitioned) is not None:
                self._report(group, 0, ended)
                continue
            try:
                await self._publish(group, outcome)
            except SluiceError as error:
                if isinstance(error, Repartitioned):
                    self._repartitioned = error
                refused = isinstance(error, Invalid) and not isinstance(error, Terminated)
                if refused and (parts := halves(group)):
                    waiting += reversed(parts)
                else:
                    self._report(group, 0, error)
                    if isinstance(error, Fenced):
                        self.close(error)
            outcome = None
        if self._repartitioned is not None:
            self._refuse_queue(self._repartitioned)

    async def _publish(self, gathered: list[Outgoing], outcome: Outcome | None) -> None:
        request, run, batch = await self._prepare(gathered)
        published = await self._append(request, run, outcome)
        self._check_and_confirm(gathered, run, published, batch)

    def _is_large(self, gathered: list[Outgoing]) -> bool:
        """Whether these are shared with the owner, not sent."""
        size = sum([outgoing.bytes for outgoing in gathered])
        return size >= self._ports.shared_from and self._config.compression is None

    async def _prepare(self, gathered: list[Outgoing]) -> tuple[Publish, Run, StoredBatch]:
        """Make the request that publishes these batches as one run."""
        if not self._is_large(gathered):
            return self._encoded(gathered)
        batch = joined([outgoing.batch for outgoing in gathered])
        run, payload = await self._shared(batch)
        return self._request(gathered, batch, run, payload), run, batch

    def _encoded(self, gathered: list[Outgoing]) -> tuple[Publish, Run, StoredBatch]:
        """The same for a run that travels in its request."""
        batch = joined([outgoing.batch for outgoing in gathered])
        run = make_run(batch, self._config.compression)
        return self._request(gathered, batch, run, Blob(run.payload, decoded=batch)), run, batch

    def _request(self, gathered: list[Outgoing], batch: StoredBatch, run: Run, payload: Blob) -> Publish:
        last = gathered[-1]
        return Publish(
            producer=self.name,
            session=self.session,
            first_sequence=last.first_sequence + len(last.rows) - run.count,
            count=run.count,
            delayed=run.delayed,
            shape=run.shape,
            crc=run.crc,
            payload=payload,
            # Everything between what is confirmed and this run had its outcome: no predecessor will come.
            follows=self.last_sequence,
            keyed_delay=has_keyed_delay(batch.rows, batch.deliver_at),
        )

    def _check_and_confirm(self, gathered: list[Outgoing], run: Run, published: Published, batch: StoredBatch) -> None:
        if published.count != run.count:
            raise InvariantViolation(f"{run.count} messages were published, {published.count} confirmed")
        self.on_published(run, published, batch)
        self.confirm(gathered, published.ledger, published.first_entry)

    def _report(self, gathered: list[Outgoing], first: int, error: SluiceError | None) -> None:
        for outgoing in gathered:
            outgoing.done(outgoing.rows, first, error)
            if first >= 0:
                first += len(outgoing.rows)

    async def _ask(self, request: Publish) -> Outcome:
        try:
            return await self._ports.net.call(self.address, request, PUBLISH_TIMEOUT)
        except SluiceError as error:
            return error

    async def _append(self, request: Publish, run: Run, outcome: Outcome | None) -> Published:
        """Publish until there is an answer. Sequences and rows never change, so a repetition is recognised."""
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while True:
            outcome = outcome or await self._ask(request)
            if isinstance(outcome, Published):
                return outcome
            if isinstance(outcome, (Unknown, NotFound)):  # also of an owner whose topic was deleted
                reason = outcome.reason if isinstance(outcome, Unknown) else str(outcome)
                self._ports.log("publish_unknown", partition=self._config.partition, reason=reason)
                await self._directory.suspect(self.address)
                await self._find_again(request)
            elif isinstance(outcome, (Fenced, Conflict)):
                await self._find_again(request)
            elif isinstance(outcome, (Overloaded, Unavailable)) or (
                isinstance(outcome, Corrupt) and payload_crc(run.payload) == run.crc  # it was damaged on its way
            ):
                self._ports.log("publish_waits", partition=self._config.partition, error=str(outcome))
            else:
                raise outcome
            if self.closed is not None:
                raise self.closed
            outcome = None
            # A handle is never the only copy: it may be what was wrong.
            request = msgspec.structs.replace(
                request, session=self.session, follows=self.last_sequence, payload=Blob(run.payload)
            )
            await wait.pause()

    async def _find_again(self, request: Publish) -> None:
        """Open a session at the owner by now. Raises Repartitioned if the topic was made again with another number of
        partitions, or grew, and this partition has not stored the request and stores it no more.
        """
        missing = None
        try:
            await self._reopen(attempts=0)
        except NotFound as error:
            missing = error
            with contextlib.suppress(Unavailable):
                await self._directory.settings_now(self._config.topic)
        # An owner that knows the session could still store the request, which may be on its way.
        lost = missing or (self.session != request.session and self.last_sequence < request.first_sequence)
        if lost and self._is_repartitioned():
            raise Repartitioned(f"topic {self._config.topic!r} has another number of partitions now")
        if missing is not None:
            raise missing

    def _is_repartitioned(self) -> bool:
        known = self._directory.known_settings(self._config.topic)
        return self.partitions > 0 and known is not None and known.partitions != self.partitions

    async def _shared(self, batch: StoredBatch) -> tuple[Run, Blob]:
        """Make a run of a large batch, and the payload that travels. The rows are written once, into the shared memory
        from which the owner and every later reader take them.
        """
        if not self._ports.net.rows_from(self.address):
            parts = run_parts(batch)
            shared = await self._ports.net.share(*parts)
            payload = await self._ports.net.fetch(shared)
            if payload is not None:
                handle = Blob(handle=shared.handle, size=shared.size)
                return run_of(batch, payload, parts), shared if shared.handle is None else handle
        run = make_run(batch)
        return run, Blob(run.payload)

    def _opening(self) -> OpenProducer:
        way = self._entrance
        return OpenProducer(
            producer=self._config.name,
            incarnation=self._config.incarnation,
            home=way.home,
            access=way.access,
            topic_epoch=way.topic_epoch,
            again=way.again,
            resumes=self._opened,
        )

    async def _reopen(self, attempts: int) -> None:
        """Find the owner and open a session there. attempts 0: go on until it works or we are fenced."""
        wait, tries, warned = Backoff(self._ports, RETRY_FIRST, RETRY_MOST), 0, False
        while self.closed is None:
            tries += 1
            try:
                self.address = await self._directory.topic(self._config.topic, self._config.partition)
                reply = await self._ports.net.call(self.address, self._opening(), PUBLISH_TIMEOUT)
                if not isinstance(reply, Unknown):
                    if not reply.session:
                        if not warned:
                            self._entrance.waits()
                        tries, warned = 0, True
                        continue
                    if reply.topic_epoch >= 0:
                        self._entrance.topic_epoch = reply.topic_epoch
                    self._entrance.again = False  # a producer that has the name from now on is another one
                    if self._opened:
                        config = self._config
                        place = {"topic": config.topic, "partition": config.partition, "producer": config.name}
                        self._ports.log("opened_again", session=reply.session, **place)
                    self.session, self._opened = reply.session, True
                    self.last_sequence = max(self.last_sequence, reply.last_sequence)
                    return
                await self._directory.suspect(self.address)
            except (Unavailable, Overloaded) as error:
                self._ports.log("open_waits", partition=self._config.partition, error=str(error))
                if attempts and tries >= attempts:
                    raise Unavailable(f"cannot open a producer on {self._config.topic}: {error}") from error
            except Corrupt as error:
                # The topic's metadata is damaged. A producer with messages waits until an operator has mended it.
                self._ports.log("open_waits", partition=self._config.partition, error=str(error))
                if attempts:
                    raise
            except ProducerFenced:
                raise
            except Fenced:
                await self._directory.suspect(self.address)
            await wait.pause()
