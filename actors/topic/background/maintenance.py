"""The background work of an owner: trim, restore copies, delete.

The chain in the record always changes first, the bookies hear of it afterwards; what they miss is found by
`actors.ledger.garbage_collection`. A subscription is made durable in the record before its first Progress is answered,
because from then on nothing above its mark may be trimmed; later marks are written along with the next trim, since an
older mark in the record only keeps more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import msgspec
from pyroaring import BitMap

from sluice.actors.ledger.bookies import Bookies
from sluice.actors.ledger.garbage_collection import noted_released
from sluice.actors.ledger.record import Asked, LedgerRecord, LedgerState, PartitionRecord
from sluice.actors.ledger.replication import Replicator, under_replicated
from sluice.actors.messages import DeleteLedgers, Progress
from sluice.actors.ownership.idle_waker import YOUNG_MS, IdleWaker
from sluice.actors.policies.retention import TopicRetention, TopicThresholds
from sluice.actors.ports import Ports
from sluice.actors.ports.wire import Reply, Request
from sluice.actors.runtime.waiting import Signal
from sluice.actors.topic.background.closed import has_work
from sluice.actors.topic.background.leaving import needs_jobs, offloads, statuses, trims_up_to
from sluice.actors.topic.background.trimming import consumed, trimmable
from sluice.actors.topic.partition.hooks import BackgroundJob, JobContext, OptionalJobs
from sluice.actors.topic.partition.managed_ledger import ManagedLedger
from sluice.actors.topic.partition.reads import LogReads
from sluice.storage.errors import Conflict, Corrupt, Fenced, SluiceError

if TYPE_CHECKING:
    from sluice.actors.topic.partition.compacted_reads import CompactedReads

R = TypeVar("R", bound=Reply)

DELETE_TIMEOUT = 10_000
LAST_TIMEOUT = 2_000
"""An owner that deletes its topic waits no longer than this for a bookie: what it leaves is garbage-collected."""
VERIFY_MS = YOUNG_MS
"""An older proof of the process is made anew; one that failed is not tried again for as long."""
FILL_RETRY_MS = 30_000
REST_MS = 10_000
"""An owner at which nothing changes looks so seldom whether there is something to do by now, until something is
confirmed or reported; one that is closed is not woken sooner for what retention lets go of.
"""
MOST_REST_MS = 60_000
"""After so long it looks at everything, and whether its only ledger is old, if there is nothing else to look at."""
UNUSED_MS = 30_000
"""Runs in memory that nobody wrote or read for so long are let go, once every subscription has passed them: a message
that waits comes from memory however long it waits, and who comes for an old one reads it from the bookies.
"""
LOOK_BYTES = 1024 * 1024
"""A partition with less in its only ledger has nothing that would leave or be compacted."""
PRUNE_AT = 64
"""With so many released ledgers in the record, a trim looks which of them the garbage collection has written down."""


class TopicMaintenance:
    """The background work of one partition's owner. jobs: makes those that most topics never need."""

    def __init__(
        self,
        ports: Ports,
        bookies: Bookies,
        topic: str,
        log: ManagedLedger,
        reads: LogReads,
        jobs: Callable[[JobContext], OptionalJobs],
    ) -> None:
        self._context = JobContext(ports, bookies, topic, log, lambda: self.marks, self._drop)
        self._jobs, self._made = jobs, OptionalJobs((), None)
        self._running: dict[str, None] = {}
        """Names of the jobs whose turns are under way."""
        self._ports = ports
        self._bookies = bookies
        self._log = log
        self._reads = reads
        self._replicator = Replicator(ports, bookies, log.reader, log.metadata)
        self._kept = TopicRetention(ports, topic)
        self._thresholds = TopicThresholds(ports, topic)
        self.settings = log.metadata.record.settings
        """The settings that hold now, as far as they are looked up."""
        self._numbers: dict[str, int] = {}
        self._lost: list[str] = []
        self._leftovers: dict[str, list[int]] = {}
        self._replicating = False
        self._prove_not_before = self._rests_until = self._forget_not_before = 0
        self._woken = Signal()
        self._fill_not_before = 0
        self._seen: tuple[object, ...] = ()
        self.marks: dict[str, int] = {}
        self.rejecting: dict[str, None] = {}
        log.on_wake(self.wake)

    def restore(self) -> None:
        """Begin with the marks that the record knows."""
        self.marks = dict(self._log.record.subscriptions)
        self._make_needed_jobs()

    # -- the jobs that most topics never need ------------------------------------------------------------------------

    def _make_needed_jobs(self) -> None:
        if needs_jobs(self._log.record, self.settings, catalog=self._ports.tables is not None):
            self._make_jobs()

    def _make_jobs(self) -> OptionalJobs:
        if not self._made.jobs:
            self._made = self._jobs(self._context)
        return self._made

    @property
    def compacted(self) -> CompactedReads | None:
        """The reads of the compacted log, where there is one."""
        return None if self._log.record.compacted is None else self._make_jobs().compacted

    async def ask(self, request: Request[R]) -> R:
        """Hand a request to its job; the work goes on behind the answer. Raises what the job raises."""
        job = next(job for job in self._make_jobs().jobs if job.request is type(request))
        reply: R = await job.ask(request)
        self.wake()
        return reply

    def statuses(self) -> dict[str, Reply]:
        """Return how each job stands, by its name in the statistics."""
        told = statuses(self._log)
        return told | {job.name: job.status() for job in self._made.jobs if job.name in told}

    def release(self) -> None:
        """Keep nothing in memory that only the jobs need."""
        for job in self._made.jobs:
            job.release()

    async def _run(self, job: BackgroundJob) -> None:
        """Run a job beside the others: a ledger takes minutes, and a catalog may hang."""
        try:
            released = await job.turn(self.settings)
        except Fenced:
            return  # the record has told the topic
        finally:
            del self._running[job.name]
        self._gone(released)

    # -- rounds ------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """End the rest because of a change or a request, unless there is still nothing to do."""
        if not self._only_grows:
            self._woken.set()

    async def turn(self) -> None:
        """Do one round of maintenance. Raises Fenced when there is a newer owner, other errors when it must wait."""
        now = self._ports.clock.monotonic()
        self._forget_unused(now)
        await self._prove(now)
        await self._log.snapshot()
        if self._log.roll_due:
            await self._log.roll()
        try:
            await self._look()
            await self.trim()
        except Corrupt:  # nobody knows what may be deleted or is to leave; copies are made all the same
            self._begin_to_replicate(now)
            raise
        self._begin_to_replicate(now)
        for job in self._made.jobs:
            if job.name not in self._running and job.due(self.settings):
                self._running[job.name] = None
                self._ports.spawn(self._run(job), job.name)

    def _begin_to_replicate(self, now: int) -> None:
        if not self._replicating and (
            self._lost or self._leftovers or (self._log.settled and now >= self._fill_not_before)
        ):
            self._replicating = True
            self._ports.spawn(self._replicate(now), "replicate")

    def _forget_unused(self, now: int) -> None:
        if now < self._forget_not_before:
            return
        self._forget_not_before = now + UNUSED_MS
        if self._all_passed():
            self._log.cache.forget_unused()
            self._reads.forget_unused()

    def _all_passed(self) -> bool:
        """Return whether no durable subscription waits for anything."""
        return all(mark >= self._log.last_confirmed for mark in self.marks.values())

    async def _prove(self, now: int) -> None:
        """Look whether there is a newer owner, unless that was done lately. Raises Fenced, Unavailable."""
        if now >= self._prove_not_before and not self._log.metadata.is_proved(VERIFY_MS):
            self._prove_not_before = now + VERIFY_MS
            await self._log.metadata.prove()
            self._prove_not_before = 0

    async def _look(self) -> None:
        """Look up the thresholds that hold now, where there is something that they could concern."""
        record = self._log.record
        made = record.settings
        closed = any(ledger.state is LedgerState.CLOSED for ledger in record.ledgers)
        self.settings = await self._thresholds.now(made) if closed or self._log.open_bytes >= LOOK_BYTES else made
        self._make_needed_jobs()

    @property
    def at_work(self) -> bool:
        """Whether anything is on its way, or to be copied, offloaded or deleted."""
        log = self._log
        works = self._running or any(job.at_work(self.settings) for job in self._made.jobs)
        moves = log.in_flight or log.settled or self._leftovers or self._replicating
        return bool(works or moves or self.under_replicated())

    @property
    def _only_grows(self) -> bool:
        """Whether there is one ledger at most, which is open, small and young, and nothing to do with it: then nothing
        is to be done before more comes or somebody asks, only to close it when it is old.
        """
        log, ledgers = self._log, self._log.record.ledgers
        if len(ledgers) > 1 or (ledgers and ledgers[0].state is not LedgerState.OPEN) or log.stopped:
            return False
        moves = log.settled or self._leftovers or self._replicating or self._lost or self._running
        due = log.open_bytes >= LOOK_BYTES or log.snapshot_due or log.roll_due
        return not (moves or due or any(job.concerned(self.settings) for job in self._made.jobs))

    async def rest(self) -> None:
        """Wait until something changes, if nothing did since this was last called and nothing is to be done; or until
        there may be a newer owner.
        """
        state = (self._log.last_confirmed, self._log.record, dict(self.marks))
        changed, self._seen = state != self._seen, state
        only_grows = self._only_grows
        if only_grows or not (changed or self._lost or self.at_work):
            self._woken.clear()
            now = self._ports.clock.monotonic()
            # What was said of the topic meanwhile would otherwise be known only after as long a rest once more.
            self._rests_until = now + min(MOST_REST_MS, self._kept.fresh_for(), self._thresholds.fresh_for())
            others, told = self._ports.process.of(IdleWaker), self._log.metadata.is_told()
            with others.rest(self._ports, self._woken.set, told=told):
                most = MOST_REST_MS if only_grows else min(REST_MS, self._rests_until - now)
                await self._woken.wait(self._ports, most, self._rest_longer)

    def _rest_longer(self) -> int:
        """Return for how many ms there is still nothing to do; 0 if there is something. Unused owners then wake no
        task.
        """
        now = self._ports.clock.monotonic()
        self._forget_unused(now)
        if self._only_grows and self._log.metadata.is_told():
            return MOST_REST_MS
        return 0 if self.at_work else max(min(REST_MS, self._rests_until - now), 0)

    async def prepare_end(self) -> int:
        """Write down what an owner that ends would forget, and trim what no subscription needs. Returns when retention
        has something to do, ms since 1970, 0 if it has not. Raises Fenced, Unavailable, Corrupt.
        """
        await self._log.seal(self._with_marks)
        await self._look()
        await self.trim()
        await self._forget(LAST_TIMEOUT)
        record = self._log.record
        kept = await self._kept.now(record.settings)
        if kept.ms < 0 or (kept.bytes > 0 and not kept.ms) or not self._all_passed():
            return 0
        then = self._ports.clock.now() + max(kept.ms, REST_MS)
        return then if has_work(record, then, kept, self.settings) else 0

    async def _replicate(self, now: int) -> None:
        """Make copies and delete ledgers, which needs bookies that may be away. Nothing else waits for it."""
        try:
            if self._lost:
                await self._replicator.run(lambda: self._lost, lambda: self._log.lost_bookies)
            if now >= self._fill_not_before:
                await self._fill(now)
            await self._forget()
        except Fenced:
            return  # the record has told the topic
        except SluiceError as error:
            self._ports.log("replication_waits", error=str(error))
        finally:
            self._replicating = False

    async def _fill(self, now: int) -> None:
        """Look whether ledgers that were closed lately have all their copies; what cannot be done now comes later."""
        for ledger_id in list(self._log.settled):
            ledger = self._log.record.ledger(ledger_id)
            try:
                copied = 0 if ledger is None else await self._replicator.fill(ledger)
            except Fenced:
                raise
            except SluiceError as error:
                self._ports.log("fill_waits", ledger=ledger_id, error=str(error))
                self._fill_not_before = now + FILL_RETRY_MS
                continue
            self._log.settled.remove(ledger_id)
            if copied:
                self._ports.log("filled", ledger=ledger_id, runs=copied)

    # -- subscriptions and trimming ----------------------------------------------------------------------------------

    async def progress(self, request: Progress) -> None:
        """Take note of a subscription's mark; durable at once when the subscription is new or gone, or goes back.

        A firm statement that is answered holds against every later owner, and every trim that was under way is over.
        One that comes twice is answered when that holds, both times.
        """
        name = request.subscription
        if request.number and request.number < self._numbers.get(name, 0):
            return
        self._numbers[name] = request.number
        self.rejecting.pop(name, None)
        if request.rejects_keyed_delay and not request.gone:
            self.rejecting[name] = None
        self.wake()
        if request.gone:
            self.marks.pop(name, None)
        else:
            self.marks[name] = request.mark_delete
        noted = self._log.record.subscriptions.get(name)
        # Also of one that is gone and not noted: a version that names it may be under way.
        if request.gone or request.firm or noted is None or request.mark_delete < noted:
            await self._log.metadata.update(self._with_marks)
        if request.firm:
            await self._log.metadata.verify()

    def heard(self, subscription: str) -> int:
        """Return the highest number of a statement of a subscription, 0 if none has come. A deleted subscription is
        remembered, so that late statements do not bring it back; a new one of its name counts on from there.
        """
        return self._numbers.get(subscription, 0)

    def _with_marks(self, record: PartitionRecord) -> PartitionRecord:
        ever = record.ever_subscribed or bool(self.marks)
        return msgspec.structs.replace(record, subscriptions=dict(sorted(self.marks.items())), ever_subscribed=ever)

    async def trim(self) -> None:
        """Delete what every subscription has passed and retention does not keep."""
        if not consumed(self._log.record, self._trim_marks()):
            return
        kept = await self._kept.now(self._log.record.settings)
        leaves = offloads(self.settings)
        if not trimmable(self._log.record, self._trim_marks(), self._ports.clock.now(), kept, leaves=leaves):
            return
        gone: list[LedgerRecord] = []
        noted = await noted_released(self._ports) if len(self._log.record.released) >= PRUNE_AT else BitMap()

        def change(record: PartitionRecord) -> PartitionRecord:
            # Decided again at the moment of the change: a subscription may have come meanwhile.
            ids = trimmable(record, self._trim_marks(), self._ports.clock.now(), kept, leaves=leaves)
            gone[:] = [ledger for ledger in record.ledgers if ledger.id in ids]
            left = tuple(number for number in record.released if number not in noted)
            return msgspec.structs.replace(self._with_marks(record), released=left).without_ledgers(ids)

        await self._log.metadata.update(change)
        ids = [ledger.id for ledger in gone]
        self._drop(ids)
        self._ports.log("trimmed", ledgers=ids)
        self._gone(gone)
        for job in self._made.jobs:
            job.trimmed(gone)

    def _trim_marks(self) -> dict[str, int]:
        held = [job.holds for job in self._made.jobs if job.holds is not None]
        return trims_up_to(self.marks, min(held, default=None))

    def _drop(self, ledgers: list[int]) -> None:
        """Keep nothing of these ledgers in memory."""
        self._log.evict(ledgers)
        self._reads.evict(ledgers)
        self._log.reader.forget_history()

    def _gone(self, ledgers: Iterable[LedgerRecord]) -> None:
        """Let the bookies forget these ledgers: the record does not name them any more."""
        for ledger in ledgers:
            for bookie in ledger.bookies():
                self._leftovers.setdefault(bookie, []).append(ledger.id)

    async def _forget(self, timeout: int = DELETE_TIMEOUT) -> None:
        """Tell the bookies about deleted ledgers; one that does not answer is told again in the next round."""
        for bookie in list(self._leftovers):
            ledgers = self._leftovers.pop(bookie, [])
            if not ledgers:
                continue  # a round that runs at the same time has taken it
            try:
                await self._bookies.ask(bookie, DeleteLedgers(ledgers=ledgers), timeout)
            except SluiceError as error:
                self._ports.log("delete_missed", ledgers=ledgers, bookie=bookie, error=str(error))
                if bookie not in self._log.lost_bookies:
                    self._leftovers.setdefault(bookie, []).extend(ledgers)

    # -- lost bookies and the end ------------------------------------------------------------------------------------

    def replicate(self, lost: Iterable[str], leaving: Iterable[str]) -> int:
        """Note all bookies that will not come back, or are to be left; returns how much is left to be copied.

        Counted are fragments that name one of them, and closed ledgers whose copies were not counted yet.
        """
        self._log.lost_bookies[:] = lost  # one that came back after all is used again
        self._lost[:] = [*lost, *leaving]
        self.wake()
        for bookie in self._lost:
            self._log.bookie_lost(bookie)
        self._fill_not_before = 0
        return self.under_replicated() + len(self._log.settled)

    def under_replicated(self) -> int:
        """Return how many fragments name a bookie that is lost for good, or is to be left."""
        return under_replicated(self._log.record, self._lost)

    def check_unused(self, force: bool) -> None:
        """Raise Conflict while subscriptions remain, unless forced."""
        if self.marks and not force:
            raise Conflict(f"the topic has subscriptions: {', '.join(sorted(self.marks))}")

    async def delete(self, force: bool) -> None:
        """Delete everything. The record stays as a tombstone, so that no version number is ever used twice.

        Raises Conflict while subscriptions remain, unless forced.
        """
        self.check_unused(force)
        last = [self._log.record]

        def change(record: PartitionRecord) -> PartitionRecord:
            last[0] = record
            emptied = record.without_ledgers([ledger.id for ledger in record.ledgers])
            return msgspec.structs.replace(
                emptied,
                deleted=True,
                subscriptions={},
                producers={},
                results={},
                compacted=None,
                erasures=(),
                asked=Asked(),
            )

        await self._log.metadata.update(change)
        self._log.halt()
        self._gone(last[0].ledgers)
        await self._forget(LAST_TIMEOUT)
        for job in self._made.jobs:
            await job.delete(last[0])
