"""The messages of a key are forgotten: in the object store, in the compacted table, and on bookies.

    asked -> each ledger that holds some: offloaded, rewritten, named -> old objects deleted, bookies told -> done

What was asked stands in the partition's record until it is done, so the next owner of the partition goes on with it. It
is for all ledgers up to the one that was open then, which is closed. A ledger that holds nothing of the key stays as it
is, on bookies or in the store. Of one that does, each object with such messages is rewritten
(storage.history.erasure), read back and compared; then one version of the record names the new objects, drops the
copies on bookies, and counts the ledger and its messages. So a crash at any point leaves objects that no record names,
which are collected, or work that is found again by looking. A ledger that cannot be read, or may not leave, is told and
tried again; it keeps the others from nothing but the end.

The end is told when nothing of it is left: no ledger, no compacted table, no object that was replaced, no copy in the
topic's table where there is a catalog, every bookie that is not lost for good has answered that it has forgotten
the ledgers, and dispatchers, consumers and gateways have dropped what they had in memory. They are not asked, since
one that is cut off could not answer: each keeps what it has read of a log for KEPT_MS, and the end waits for longer. A
bookie's disk has the bytes until it compacts its segments. Readers that have the old record look again
(actors.topic.partition.reads, cluster.history.scan).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice.actors.ledger.fan_out import together
from sluice.actors.ledger.record import (
    Erased,
    Erasure,
    HistoryPart,
    LedgerRecord,
    LedgerState,
    Offloaded,
    PartitionRecord,
)
from sluice.actors.messages import DeleteLedgers, Erase, EraseStatus, TopicSettings
from sluice.actors.messages.limits import KEPT_MS
from sluice.actors.runtime.store_attempts import REFUSALS
from sluice.actors.topic.background.compaction import Compaction
from sluice.actors.topic.background.leaving import erase_status
from sluice.actors.topic.background.offloading import LedgerStays, Offloading
from sluice.actors.topic.background.stored_objects import READ_AT_ONCE, RETRY_MS
from sluice.actors.topic.partition.hooks import BackgroundJob, JobContext
from sluice.storage.errors import Corrupt, Fenced, Invalid, NotFound, Overloaded, SluiceError, Unavailable
from sluice.storage.format.batch import MAX_KEY_BYTES, decode_body
from sluice.storage.format.frame import Header
from sluice.storage.format.position import MAX_ENTRY, ledger_of
from sluice.storage.history.column_reader import PartColumns, Selection
from sluice.storage.history.erasure import holds
from sluice.storage.history.part import GroupRows, PartFooter, PartWriter, same_rows

MOST_KEYS = 64
"""The most keys of a partition that are being erased at a time."""
KEPT = 64
"""The number of complete erasures that stay in the record."""
DELETE_TIMEOUT = 10_000
FORGOTTEN_MS = 2 * KEPT_MS
"""The time after an erasure here until no process sends the message any more: an answer with it may have been under
way.
"""


class Erasing(BackgroundJob):
    """The erasing of one partition's owner. Its turns never come beside those of Offloading."""

    name, request = "erasing", Erase

    def __init__(self, context: JobContext, offloading: Offloading, compaction: Compaction) -> None:
        self._ports, self._log, self._bookies = context.ports, context.log, context.bookies
        self._offloading, self._objects = offloading, offloading.objects
        self._compaction, self._forget = compaction, context.forget
        self._clean: dict[int, tuple[bytes, ...]] = {}
        """Keys of which a ledger was found to hold nothing."""
        self._clean_since: dict[tuple[bytes, int], int] = {}
        """Since when nothing that is read here has anything of a key, by the key and how far it is erased."""
        self._not_before = 0
        self.error = ""
        """Why it does not go on; empty if it does."""

    # -- asking ------------------------------------------------------------------------------------------------------

    async def ask(self, request: Erase) -> EraseStatus:
        """Take a request durably, if there is one; how it stands. Raises Invalid, Overloaded, Fenced, Unavailable."""
        if request.key is not None:
            if not 0 < len(request.key) <= MAX_KEY_BYTES:
                raise Invalid(f"a key has 1 to {MAX_KEY_BYTES} bytes, not {len(request.key)}")
            await self._log.metadata.update(partial(self._with_asked, request.key))
            self._not_before, self.error = 0, ""
        return self.status()

    def _with_asked(self, key: bytes, record: PartitionRecord) -> PartitionRecord:
        # The table may hold messages of ledgers that were trimmed.
        until = max([record.highest_ledger or 0, ledger_of(self._compaction.horizon), *_ids(record)])
        known = next((one for one in record.erasures if one.key == key), None)
        if known is None and len(record.erasures) >= MOST_KEYS:
            raise Overloaded(f"{MOST_KEYS} keys are being erased; ask again when one of them is done")
        asked = Erasure(key, until, self._ports.clock.now())
        if known is not None:
            asked = msgspec.structs.replace(known, until=until)
        others = tuple(one for one in record.erasures if one.key != key)
        return msgspec.structs.replace(record, erasures=(*others, asked))

    def status(self) -> EraseStatus:
        """Return how erasing stands."""
        left = sum(bool(self._doubtful(ledger)) for ledger in self._log.record.ledgers)
        return msgspec.structs.replace(erase_status(self._log.record), ledgers_left=left, error=self.error)

    def at_work(self, settings: TopicSettings) -> bool:
        """Return whether there are keys to be erased."""
        return bool(self._log.record.erasures)

    concerned = at_work

    def due(self, settings: TopicSettings) -> bool:
        """Return whether there is something to do now."""
        return self.at_work(settings) and self._ports.clock.monotonic() >= self._not_before

    # -- doing -------------------------------------------------------------------------------------------------------

    async def turn(self, settings: TopicSettings) -> list[LedgerRecord]:
        """Erase what is to be erased; returns ledgers that the bookies may forget.

        Raises Fenced. A failure is reported in `error`, and the work tried again.
        """
        async with self._offloading.turns:
            return await self._turn(settings)

    async def _turn(self, settings: TopicSettings) -> list[LedgerRecord]:
        gone: list[LedgerRecord] = []
        stays: SluiceError | None = None
        if not self.due(settings):
            return gone
        try:
            await self._close_ledgers()
            for ledger in self._log.record.ledgers:
                try:
                    gone += await self._erase(ledger.id)
                except (LedgerStays, Corrupt, NotFound) as error:
                    stays = stays or error
            if stays is not None:
                raise stays
            await self._finish(settings)
            self.error = ""
        except (*REFUSALS, Corrupt, NotFound) as error:
            self.error = str(error)
            self._not_before = self._ports.clock.monotonic() + RETRY_MS
            self._ports.log("erasing_waits", error=str(error))
        return gone

    async def _close_ledgers(self) -> None:
        self._log.close_up_to = max(one.until for one in self._log.record.erasures)
        if self._log.roll_due:
            await self._log.roll()

    def _doubtful(self, ledger: LedgerRecord) -> list[bytes]:
        """Return the keys to be erased that a ledger may hold messages of."""
        known = self._clean.get(ledger.id, ())
        keys = [one.key for one in self._log.record.erasures if ledger.id <= one.until and one.key not in known]
        empty = ledger.state is LedgerState.CLOSED and ledger.last_run < 0
        return [] if empty else keys

    async def _erase(self, ledger_id: int) -> list[LedgerRecord]:
        """Let one ledger hold nothing of the keys; returns it if its bookies may forget it."""
        gone: list[LedgerRecord] = []
        ledger = self._log.record.ledger(ledger_id)
        if ledger is None or not (keys := self._doubtful(ledger)):
            return gone
        if ledger.state is not LedgerState.CLOSED:
            return gone  # it will be, or it is empty, and what comes now came later
        if await self._holds(ledger, keys):
            # Also where the key was asked for before: its messages of since then may be in somebody's memory as well.
            self._clean_since = {at: since for at, since in self._clean_since.items() if at[0] not in keys}
            if ledger.offloaded is None:
                await self._check_may_leave(ledger)
                await self._offloading.offload(ledger)
                ledger = self._log.record.ledger(ledger_id)
            if ledger is not None:
                gone = await self._write_anew(ledger, keys)
        self._clean[ledger_id] = (*self._clean.get(ledger_id, ()), *keys)
        return gone

    async def _check_may_leave(self, ledger: LedgerRecord) -> None:
        """Raise LedgerStays if a ledger may not leave for the object store."""
        if any(lost.ledger == ledger.id for lost in self._log.record.given_up):
            raise LedgerStays(
                f"ledger {ledger.id} holds such messages and stays on its bookies, because a run of it was given up; "
                "they go when it is trimmed"
            )
        record = self._log.record
        if (ledger.id, ledger.last_run) > (record.covered_ledger, record.covered_run):
            await self._log.cover(lambda record: record)  # else the next owner would read it, head by head

    async def _holds(self, ledger: LedgerRecord, keys: Sequence[bytes]) -> bool:
        """Return whether a ledger has messages of these keys. Raises LedgerStays, Unavailable, Corrupt, NotFound."""
        if ledger.offloaded is not None:
            found = [await self._part_holds(part, keys) for part in ledger.offloaded.parts]
            return any(found)
        there = [run for run in range(ledger.last_run + 1) if self._log.record.lost_run(ledger.id, run) is None]
        for start in range(0, len(there), READ_AT_ONCE):
            self._log.check()
            reads = [partial(self._log.reader.frame, ledger, run) for run in there[start : start + READ_AT_ONCE]]
            try:
                frames = await together(self._ports, "erase", reads)
            except Unavailable as error:
                raise LedgerStays(str(error)) from error
            for frame in frames:
                body = await self._ports.work(partial(decode_body, frame.body, frame.header.shape, frame.header.count))
                if holds(body, keys):
                    return True
        return False

    async def _part_holds(self, part: HistoryPart, keys: Sequence[bytes]) -> bool:
        """Return whether an object has any of these keys' messages, by its statistics and its column of keys."""
        self._log.check()
        history = self._log.reader.history
        footer = await history.footer(part)
        columns = PartColumns(footer, _nothing)
        for number in columns.groups(0, MAX_ENTRY, Selection(keys=tuple(keys))):
            if holds(await history.keys(part, footer, number), keys):
                return True
        return False

    # -- one ledger --------------------------------------------------------------------------------------------------

    async def _write_anew(self, ledger: LedgerRecord, keys: Sequence[bytes]) -> list[LedgerRecord]:
        """Rewrite the objects of a ledger that hold such messages, compare them, and name them in the record. Raises
        as `turn` says.
        """
        before = ledger.offloaded.parts if ledger.offloaded is not None else ()
        parts: list[HistoryPart] = []
        counts = [0] * len(keys)
        try:
            for part in before:
                if await self._part_holds(part, keys):
                    parts.append(await self._part_anew(ledger, part, keys, counts))
                else:
                    parts.append(part)
        except SluiceError:
            self._objects.unwanted(part.name for part in parts if part not in before)
            raise
        gone: list[LedgerRecord] = []

        def change(record: PartitionRecord) -> PartitionRecord:
            newest = record.ledger(ledger.id)
            if newest is None or newest.offloaded is None or newest.offloaded.parts != before:
                return record  # it was trimmed meanwhile
            gone[:] = [newest] if newest.fragments else []
            copy = Offloaded(newest.offloaded.at, tuple(parts))
            record = record.with_ledger(msgspec.structs.replace(newest, offloaded=copy, fragments=()))
            found = dict(zip(keys, counts, strict=True))
            erasures = tuple(
                one.noting([ledger.id], found[one.key]) if found.get(one.key) else one for one in record.erasures
            )
            return msgspec.structs.replace(record, erasures=erasures).with_released([one.id for one in gone])

        await self._log.metadata.update(change)
        newest = self._log.record.ledger(ledger.id)
        named = newest.offloaded.parts if newest is not None and newest.offloaded is not None else ()
        self._objects.unwanted(part.name for part in (*before, *parts) if part not in named)
        self._forget([ledger.id])
        if newest is not None and named != tuple(parts):
            raise Unavailable(f"ledger {ledger.id} has changed meanwhile")
        self._ports.log("erased", ledger=ledger.id, messages=sum(counts))
        return gone

    async def _part_anew(
        self, ledger: LedgerRecord, part: HistoryPart, keys: Sequence[bytes], counts: list[int]
    ) -> HistoryPart:
        """Put an object without these keys' messages into the store, read it back and compare.

        counts: how many each key had is added here. What is in the store when this fails is deleted.
        """
        history = self._log.reader.history
        footer = await history.footer(part)
        writer = PartWriter(ledger.id, part.first_run, part.first_entry, await self._offloading.table.columns())
        for number in range(len(footer.groups)):
            self._log.check()
            rows, found = await self._group_without(part, footer, number, keys)
            counts[:] = [count + more for count, more in zip(counts, found, strict=True)]
            await self._ports.work(lambda rows=rows: writer.add(rows.frames()))  # type: ignore[misc]
        sealed = await self._ports.work(writer.finish)
        name, size = self._objects.new_name(ledger.id), len(sealed.data)
        anew = HistoryPart(name, size, sealed.footer_bytes, sealed.footer_crc, part.first_run, part.first_entry)
        try:
            await self._objects.put(name, sealed.data)
            await self._compare(anew, sealed.headers, part, keys)
        except SluiceError:
            self._objects.unwanted([name])
            raise
        return anew

    async def _group_without(
        self, part: HistoryPart, footer: PartFooter, number: int, keys: Sequence[bytes]
    ) -> tuple[GroupRows, list[int]]:
        rows = await self._log.reader.history.group(part, footer, number)
        return await self._ports.work(partial(rows.without, keys))

    async def _compare(
        self, anew: HistoryPart, headers: Sequence[Header], part: HistoryPart, keys: Sequence[bytes]
    ) -> None:
        """Hold each run of a new object against the old one without the messages. Raises Corrupt, NotFound."""
        history = self._log.reader.history
        old, new = await history.footer(part), await history.footer(anew)
        for number, group in enumerate(new.groups):
            self._log.check()
            found = await history.group(anew, new, number)
            wanted = headers[group.first_run - anew.first_run : group.stop_run - anew.first_run]
            for run in await self._ports.work(partial(found.unlike, wanted)):
                rows, _ = await self._group_without(part, old, number, keys)
                if not same_rows(found.frame(run), rows.frame(run)):
                    raise Corrupt(f"run {run} does not come out of {anew.name} as it went in")

    # -- the end -----------------------------------------------------------------------------------------------------

    async def _finish(self, settings: TopicSettings) -> None:
        """Report the erasures that are done everywhere. Raises Fenced, Unavailable while they are not."""
        done = self._log.record.erasures
        if any(self._doubtful(ledger) for ledger in self._log.record.ledgers if self._log.last_entry(ledger) >= 0):
            return  # a ledger came meanwhile
        if not self._compaction.wanted and await self._table_holds(done):
            self._compaction.want()
        if self._compaction.wanted or not self._compaction.is_clean:
            self._check_compaction()
            return
        await self._objects.clean_up()
        await self._check_followed(settings)
        ledgers = sorted({ledger for one in done for ledger in one.ledgers})
        self._forget(ledgers)
        left_ms = self._note_clean(done)
        if ledgers:
            await self._tell_bookies(ledgers)
        done = tuple(one for one in done if left_ms[one.key] <= 0)
        now = self._ports.clock.now()

        def change(record: PartitionRecord) -> PartitionRecord:
            over = [one for one in record.erasures if one in done]
            told = (*record.erased, *(Erased(one.at, now, one.messages) for one in over))[-KEPT:]
            left = tuple(one for one in record.erasures if one not in done)
            return msgspec.structs.replace(record, erasures=left, erased=told)

        if done:
            await self._log.metadata.update(change)
            self._ports.log("erasing_done", keys=len(done), messages=sum(one.messages for one in done))
        if (longest := max(left_ms.values(), default=0)) > 0:
            raise Unavailable(f"other processes may have it in memory for {-(-longest // 1000)} more seconds")
        self._clean.clear()
        self._clean_since.clear()

    def _note_clean(self, done: Sequence[Erasure]) -> dict[bytes, int]:
        """Note that nothing that is read here has messages of these keys; return how long (ms) other processes may."""
        now = self._ports.clock.monotonic()
        known = self._clean_since
        self._clean_since = {(one.key, one.until): known.get((one.key, one.until), now) for one in done}
        return {key: since + FORGOTTEN_MS - now for (key, _), since in self._clean_since.items()}

    def _check_compaction(self) -> None:
        """Raise Unavailable if the compaction that is waited for does not go on."""
        if self._compaction.state.error:
            raise Unavailable(f"the compacted log: {self._compaction.state.error}")

    async def _check_followed(self, settings: TopicSettings) -> None:
        """Raise Unavailable while the topic's table has files that it no longer needs: it may have copies of the old
        objects.
        """
        table = self._offloading.table
        await table.turn(settings)
        if table.behind:
            raise Unavailable(table.error or "the table does not follow yet")

    async def _tell_bookies(self, ledgers: list[int]) -> None:
        """Let every bookie forget ledgers: one that was away may still have them. Raises Unavailable if one is away."""
        away = []
        for bookie in await self._bookies.ever():
            if bookie in self._log.lost_bookies:
                continue
            try:
                await self._bookies.ask(bookie, DeleteLedgers(ledgers=ledgers), DELETE_TIMEOUT)
            except Fenced:
                raise
            except SluiceError as error:
                away.append(str(error))
        if away:
            raise Unavailable("; ".join(away))

    async def _table_holds(self, erasures: Sequence[Erasure]) -> bool:
        """Return whether the compacted table has any message that is to be forgotten."""
        table = self._log.record.compacted
        for part in () if table is None else table.parts:
            footer = await self._compaction.reader.footer(part)
            for number in range(len(footer.groups)):
                self._log.check()
                rows = (await self._compaction.reader.group(part, footer, number)).table
                if any(_within(rows, one) for one in erasures):
                    return True
        return False


def _ids(record: PartitionRecord) -> list[int]:
    return [ledger.id for ledger in record.ledgers]


def _within(rows: pa.Table, one: Erasure) -> bool:
    return holds(rows.filter(pc.less_equal(rows.column("ledger"), one.until)), [one.key])


def _nothing(start: int, length: int) -> bytes:
    raise Unavailable("only statistics are looked at")
