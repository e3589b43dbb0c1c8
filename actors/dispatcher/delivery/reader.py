"""The read slot of a dispatcher: at most one forward read is outstanding, and it has an identity (KS-42, KS-66).

A read belongs to a generation. A seek, or anything else that moves the read position, starts a new generation; the
answer to a read of an older one is dropped, and the reader does not wait for it: at the end of a topic that wait is
long. The reader sees index columns only: rows that are done are masked out, rows that are not due go to the delayed
tracker, the rest goes to the decision core.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import numpy as np

from sluice.actors.dispatcher.delivery.ack_handler import AckHandler
from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.dispatcher.delivery.hot_keys import HotKeys
from sluice.actors.lookup.topic_client import READ_MOST
from sluice.actors.messages import NO_POSITIONS, IndexRead, ReadEnds, RunIndex
from sluice.actors.ownership.fenced_record import process_of
from sluice.actors.runtime.waiting import Backoff, CancellableWait, Signal
from sluice.storage.errors import Fenced, NotFound, SluiceError, Unavailable
from sluice.storage.format.frame import index_columns
from sluice.storage.format.position import Positions, entry_of, ledger_of, position, positions_of, run_positions

LOOK_TIMEOUT = 1_000
READ_WAIT, MOST_READ_WAIT, GROWTH = 2_000, 30_000, 2
"""Milliseconds that a read waits at the end of the topic: at first, at most, and the factor while nothing comes."""
READ_WAIT_HERE, READ_WAIT_UNUSED = 300_000, 120_000
"""The same where the topic's owner is in this process, from where no answer is lost. The second is the wait without
consumers. It is shorter, because a topic that nobody uses is closed only when the last read there has ended.
"""
INDEX_PATIENCE = 2_000
"""Milliseconds that the first read waits for the delayed index; without it more is read, but nothing is wrong."""
SOON_MS = 10_000
"""The time (ms) within which messages must be due so that their run is kept; later, the consumer asks the topic."""
RETRY_FIRST, RETRY_MOST = 5, 500


class BacklogReader:
    """The reader that feeds the core from the log."""

    def __init__(self, context: SubscriptionContext, ack_handler: AckHandler, hot_keys: HotKeys) -> None:
        self._ports, self._topic, self._sessions = context.ports, context.topic, context.sessions
        self._cursor, self._core = context.cursor, context.core
        self._tracker, self._runs, self._wakeups = context.tracker, context.runs, context.wakeups
        self._ack_handler, self._hot_keys = ack_handler, hot_keys
        self._reporter, self._owner = context.reporter, ""
        self.problem = ""
        """Why the last read was refused; empty if it was not."""
        self.position = self._cursor.mark_delete + 1
        """The first position that was not read forward. Invariant: only `move` lowers it."""
        self.end = -1
        self.end_known = False
        self.over = False
        """Whether the topic was terminated, and everything in it was read."""
        self.reading, self._wait = False, READ_WAIT
        self.generation = self._holds = 0
        """Invariant: the answer to a read counts only in the generation in which it was asked, and not while held."""
        if context.end is not None:
            self._reaches(context.end)
        self._log = context.log
        self._asking = CancellableWait()
        self.index_ready = Signal()
        self._rescans: list[tuple[int, int]] = []
        self._lost = NO_POSITIONS
        """The messages, ascending, to read again whether or not they were delayed."""

    def move(self, to: int) -> None:
        """Read on from another position (start, seek, skip); a read under way becomes void."""
        self._begin_anew()
        self.position, self.over = to, False
        self._wakeups.read.set()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Read nothing within the block; a read under way becomes void."""
        self._begin_anew()
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self._wakeups.read.set()

    def _begin_anew(self) -> None:
        """Void a read that is under way."""
        self.generation += 1
        self._log.begin_anew()
        self._asking.end()

    async def restore_index(self) -> None:
        """Wait for the delayed index to be restored; only this subscription waits for an object store that is away."""
        await self._tracker.recovered()
        self._tracker.trim(self._cursor.mark_delete)
        if self._tracker.count():  # what was cancelled is in the buckets that were written before
            for done in self._cursor.beyond():
                self._tracker.untrack(done)
        self.index_ready.set()

    async def run(self) -> None:
        """Read whenever the core has room; ends with the actor."""
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        await self.index_ready.wait(self._ports, INDEX_PATIENCE)
        while True:
            if self._sessions.unswept and not self._holds:
                if not await self._attempt(self._sweep):
                    await wait.pause()
                continue
            self._rescans += self._tracker.take_rescans()
            room = self._room()
            if room <= 0:
                self._reporter.schedule()
                await self._wakeups.read.wait(self._ports)
                self._wakeups.read.clear()
                continue
            self.reading = True
            answered = await self._attempt(partial(self._read_or_rescan, room))
            self.reading = False
            if answered:
                wait.reset()
                continue
            await wait.pause()

    def _room(self) -> int:
        """Return how many messages may be read now: none while held, or while the delayed index cannot keep up."""
        if not self._sessions.any() or self._holds:
            return 0
        if self._tracker.pause_reads(self._ports.clock.now()):
            return 0
        room = self._core.room()
        return min(room, self._tracker.room()) if room > 0 else room

    async def _attempt(self, read: Callable[[], Awaitable[bool]]) -> bool:
        """Read once; False without an answer, so that the next try waits.

        After any refusal another read follows: no other part would ask for it (KS-66).
        """
        generation = self.generation
        try:
            owner = await self._topic.owner()  # may take long; from here on the answer alone does
            if owner != self._owner:
                self._owner = owner
                self._reporter.schedule()
            if generation != self.generation:
                return True  # the room that was found, or the position, was another one's
            answered = await read()
            self.problem = ""
            return answered
        except SluiceError as error:
            self._ports.log("read_waits", error=str(error))
            self.problem = str(error)
        return False

    def stop_waiting(self) -> None:
        """End a read that waits at the end of the topic, because something else must be read first."""
        self._asking.end()
        self._wakeups.read.set()

    def look_for_lost(self) -> None:
        """Read the lost parts of the delayed index from the log again at once: the index has changed."""
        if lost := self._tracker.take_rescans():
            self._rescans += lost
            self.stop_waiting()

    def read_again(self, lost: Positions) -> None:
        """Read messages again that no table knows (int64, ascending, of one ledger)."""
        self._lost = np.union1d(self._lost[self._lost > self._cursor.mark_delete], lost)
        self._rescans.append((int(lost[0]), int(lost[-1])))
        self.stop_waiting()

    def reads_again(self, position: int | None = None) -> bool:
        """Return whether a lost part of the delayed index is to be read again: one with this position, or any."""
        lost = [(first, min(last, self.position - 1)) for first, last in self._rescans]
        return any(first <= last and (position is None or first <= position <= last) for first, last in lost)

    async def _read_or_rescan(self, room: int) -> bool:
        if self._sessions.unswept:
            return True  # they came while the owner was looked for, and come first
        return await (self._rescan(room) if self._rescans else self._read(room))

    async def _rescan(self, room: int) -> bool:
        """Read the messages of a lost part of the delayed index again, a piece at a time; the log is the truth.

        Only messages that were read before count here: the others come with the forward reads.
        """
        first, last = self._rescans[0]
        last = min(last, self.position - 1)
        if first > last:
            self._rescans.pop(0)
            return True
        generation = self.generation
        start = self._cursor.next_unacknowledged(first)
        found, resume = await self._log.runs(start, min(room, READ_MOST))
        if generation != self.generation:
            return True
        for run, columns in found:
            self._restore(run, columns, first, last)
        if resume is None:
            self._rescans.pop(0)
        else:
            self._rescans[0] = (resume, self._rescans[0][1])
        self._wakeups.route.set()
        return True

    def _restore(self, run: RunIndex, columns: memoryview, first: int, last: int) -> None:
        """Give the lost and the delayed rows of one run back to the index, or to the core if they are due by now."""
        due, hashes = index_columns(columns, run.count, run.delayed)
        positions = run_positions(run.ledger, run.first_entry, run.count)
        wanted = np.isin(positions, self._lost)
        if due is None:
            due = np.zeros(run.count, np.int64)
        else:
            wanted |= due > 0
        wanted &= (positions >= first) & (positions <= last) & ~self._cursor.is_acknowledged(positions)
        positions, hashes, due = positions[wanted], hashes[wanted], due[wanted]
        now = self._ports.clock.now()
        later = self._tracker.add(positions, hashes, due, now)
        self._core.due(positions[~later], hashes[~later], now=now)

    async def _read(self, room: int) -> bool:
        """Read forward, and wait for messages at the end of the topic."""
        generation = self.generation
        start = self._next()
        compacted = self._sessions.read_compacted
        asked = self._log.read(start, min(room, READ_MOST), wait=self._wait, ends_known=self.over, compacted=compacted)
        reply = await self._asking.run(asked)  # None as soon as the read is void
        nothing = reply is not None and not reply.runs and reply.last_confirmed <= self.end
        here = process_of(self._topic.known_owner()) == process_of(self._ports.me)
        if not nothing:
            self._wait = READ_WAIT
        elif here:
            self._wait = READ_WAIT_HERE if self._sessions.any() else READ_WAIT_UNUSED
        else:
            self._wait = min(self._wait * GROWTH, MOST_READ_WAIT)
        if reply is not None:
            await self._take(reply, generation, start)
        return True

    def _next(self) -> int:
        """Return the next position that may be neither done nor delayed: whole stretches are never read."""
        at = self._cursor.next_unacknowledged(max(self.position, 0))
        while self.end >= at and not self._core.holds_keys:
            beyond = self._tracker.next_untracked(at, self.end + 1)
            beyond = self._cursor.next_unacknowledged(beyond)
            if beyond == at:
                break
            at = beyond
        return at

    async def _take(self, reply: IndexRead, generation: int, start: int) -> None:
        """Feed the answer to the core, unless its read is of an older generation. Raises SluiceError."""
        if generation == self.generation:
            self._begins_at(_first_ledger(reply), start)
        if reply.table >= 0 and generation == self.generation:
            self._pass_over(reply, start)
        for run in reply.runs:
            columns = await self._log.columns(run)
            if generation != self.generation:
                return
            self._cursor.chain([(run.ledger, None)])
            self._feed(run, columns)
        if generation != self.generation:
            return
        for ledger, first_entry, count in reply.lost:
            # No bookie can read them, and an operator gave them up: they are done, and what comes behind them goes on.
            self._cursor.chain([(ledger, None)])
            self._ack_handler.give_up(run_positions(ledger, first_entry, count))
        chain: list[tuple[int, int | None]] = list(reply.ended)
        if reply.resume >= 0 and (not chain or chain[-1][0] < ledger_of(reply.resume)):
            chain.append((ledger_of(reply.resume), None))
        if chain:
            self._cursor.chain(chain)
        self._reaches(reply.last_confirmed)
        if reply.runs:
            self._reporter.schedule()
        self.position, self.over = max(self.position, reply.resume), reply.ends
        self._core.reach(self.position - 1)
        self._wakeups.route.set()

    def _begins_at(self, first: int, start: int) -> None:
        """Note that the topic holds nothing between `start`, up to where it was read, and the ledger `first`."""
        # An answer names every ledger from the asked position on. If the asked one is not among them, it is gone, or
        # never held more than was read of it. What lies in ledgers before it may still be held by a consumer.
        if first > ledger_of(start):
            if start == 0:
                self._cursor.chain([(first, None)], complete=True)
            else:
                self._cursor.trimmed(start, first)

    async def _sweep(self) -> bool:
        """Mark as done what was read before, is not in the compacted log and is held by no consumer.

        This is for the first consumers that want a compacted log; nothing is sent before it is done.
        """
        generation, at = self.generation, max(self._cursor.mark_delete + 1, 0)
        while at < self.position:
            reply = await self._log.read(at, compacted=True)
            if generation != self.generation:
                return True
            if reply.table < 0 or reply.resume <= at:
                break
            kept = _kept_in(reply)
            for ledger, first, last in self._pass_over(reply, at):
                gone = np.arange(position(ledger, first), min(position(ledger, last) + 1, self.position))
                self._core.remove(gone[~np.isin(gone, kept)])
            at = reply.resume
        self._sessions.swept()
        self._wakeups.route.set()
        return True

    def _pass_over(self, reply: IndexRead, start: int) -> list[tuple[int, int, int]]:
        """Mark as done what compaction removed between the asked position and where to go on.

        Return these stretches: ledger, first entry, last entry.
        """
        self._log.go_on_from(reply)
        home, passed = ledger_of(reply.resume), list(reply.ended)
        if not passed or passed[-1][0] < home:
            self._cursor.chain([*passed, (home, None)])
            passed.append((home, entry_of(reply.resume) - 1))
        else:
            self._cursor.chain(list[tuple[int, int | None]](passed))
        stretches = [(ledger, entry_of(start) if ledger == ledger_of(start) else 0, last) for ledger, last in passed]
        stretches = [stretch for stretch in stretches if stretch[1] <= stretch[2]]
        self._ack_handler.pass_over(stretches, _kept_in(reply))
        return stretches

    async def refresh_end(self) -> bool:
        """Ask where the topic ends now; False if it does not answer, and then nothing changes."""
        with contextlib.suppress(Unavailable, Fenced, NotFound):
            ends = await self._topic.ask(ReadEnds(), LOOK_TIMEOUT)
            self._begins_at(ledger_of(max(ends.first, 0)), self._next())
            self._cursor.chain(ends.ledgers)
            self._reaches(ends.last)
            return True
        return False

    async def know_end(self) -> None:
        """Ask where the topic ends, unless a read waits there: then the end and every ledger on the way are known."""
        if not self.reading or not self.end_known or self.position <= self.end:
            await self.refresh_end()

    @property
    def at_end(self) -> bool:
        """Whether everything was read, as far as this dispatcher knows."""
        return self.end_known and self.position > self.end

    def has_all(self) -> bool:
        """Return whether everything is done, and a read waits for more."""
        return self.reading and self.end_known and self._cursor.mark_delete >= self.end and self._core.idle()

    @property
    def reach(self) -> int:
        """The end of the topic as far as it is known, else the position up to which it was read."""
        return self.end if self.end >= 0 else self.position - 1

    def _reaches(self, end: int) -> None:
        """Note the end that the topic reported: the position of the last confirmed message, -1 if there is none."""
        self.end = max(self.end, end)
        self.end_known = True

    def _feed(self, run: RunIndex, columns: memoryview) -> None:
        """Divide the rows of one run: done, delayed, deliverable now."""
        first = position(run.ledger, run.first_entry)
        if first + run.count <= self.position:
            return
        due, hashes = index_columns(columns, run.rows, run.delayed)
        positions = _positions_in(run)
        keep = ~self._cursor.is_acknowledged(positions)
        keep &= positions >= self.position
        self._hot_keys.read(hashes, positions, run.bytes // run.rows)
        waiting = np.zeros(run.rows, bool)
        if due is not None:
            delayed = keep & (due > 0)
            if delayed.any():
                now = self._ports.clock.now()
                waiting[delayed] = self._tracker.add(positions[delayed], hashes[delayed], due[delayed], now)
        elif self._tracker.count():
            waiting = keep & self._tracker.contains(positions)
        later = waiting if due is None else waiting & (due > self._ports.clock.now() + SOON_MS)
        open_messages = int(np.count_nonzero(keep & ~later))
        if open_messages:  # else nobody would ever forget it: what it held is done already, or not due for long
            self._runs.add(run, open_messages)
        if bool((keep & ~waiting).any()):
            self._tracker.undelayed()
        self.position = first + run.count
        if self._core.holds_keys:
            if keep.any():
                self._core.append(positions[keep], hashes[keep], delayed=waiting[keep], appended=run.appended)
            return
        keep &= ~waiting
        if keep.all():
            self._core.append(positions, hashes, appended=run.appended)
        elif keep.any():
            self._core.append(positions[keep], hashes[keep], appended=run.appended)


def _kept_in(reply: IndexRead) -> Positions:
    """Return the positions of all messages in an answer."""
    kept = [_positions_in(run) for run in reply.runs]
    return np.concatenate(kept) if kept else np.empty(0, np.int64)


def _positions_in(run: RunIndex) -> Positions:
    """Return the positions of a run's messages; of a run that was compacted, those that are left."""
    if not len(run.cut):
        return run_positions(run.ledger, run.first_entry, run.count)
    return positions_of(run.ledger, run.first_entry + run.cut.astype(np.int64))


def _first_ledger(reply: IndexRead) -> int:
    """Return the first ledger that an answer names; 0 if there is none."""
    named = [reply.runs[0].ledger] if reply.runs else []
    named += [ledger for ledger, _ in reply.ended[:1]]
    return min(named, default=ledger_of(max(reply.resume, 0)))
