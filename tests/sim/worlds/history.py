"""The world `ledger` with a topic whose closed ledgers leave for the object store while all of it goes wrong.

Readers follow the log and read it from its beginning again and again, so runs are read from bookies, from both, and
from the store, while owners crash between any two steps, freeze while they write, and live beside their successors. The
store refuses, is slow, answers 503 after it has done what was asked, and writes late. All checks of that world hold,
whatever a ledger is read from, and these:

H1   what a record names is in the object store, with the sizes and checksums that it names
H2   a ledger that its bookies may forget is named in the record, whole
H3   once all is well, every ledger that is to leave has left, and its bookies have forgotten it
H4   once all is well, the topic's table in the catalog has the objects that the record names, and no others
H5   the column beside the payload says what that payload is
"""

from __future__ import annotations

import random
from unittest.mock import patch

import google_crc32c
import msgspec
import pyarrow as pa
from pyarrow import parquet

from sluice.actors.ledger.record import LedgerRecord, LedgerState, PartitionRecord
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import PayloadRead, ReadPayload, RunIndex, TopicSettings
from sluice.actors.ports import Ports, Unknown
from sluice.actors.topic.background import offloading, table_following
from sluice.storage.errors import NotFound, SluiceError
from sluice.storage.format.batch import decode_body
from sluice.storage.format.checked_payload import payload_crc
from sluice.storage.format.position import EARLIEST, position, show
from tests.sim.faults import Fault
from tests.sim.tables import SimColumns, TableCatalog
from tests.sim.world import World
from tests.sim.worlds.ledger import HEALED_MS, TOPIC, Course, LedgerWorld, Size

GROUP_BYTES, PART_BYTES = (200, 2_000), (400, 10_000)
"""So that ledgers of this world have several row groups and objects."""


class HistoryWorld(LedgerWorld):
    """See the module."""

    name = "history"
    kinds = [*LedgerWorld.kinds, "object_503", "object_lost_answer", "object_late", "object_slow"]
    favourites = ("two_owners", "crash", "object_lost_answer", "object_late")

    @staticmethod
    def course(world: World, faults: list[Fault]) -> Course:
        return HistoryCourse(world, faults)


class HistoryCourse(Course):
    """One run."""

    bytes_stay = False
    """What comes out of a table are the same rows (storage.history.part)."""
    again_ms = 400
    """The longest pause of the reader that reads the log again and again."""

    def __init__(self, world: World, faults: list[Fault]) -> None:
        super().__init__(world, faults)
        self.catalog = world.tables = TableCatalog(world.meta, world.objects, world.seed)
        self.seen: dict[int, list[bytes]] = {}
        """The messages of each run, by its first position, as they were read first."""

    def draw(self) -> Size:
        size = super().draw()
        offloaded = msgspec.structs.replace(
            size.settings,
            roll_entries=self.rng.choice((5, 10, 40)),
            offload_threshold_bytes=self.rng.choice((0, 0, 2_000)),
            offload_deletion_lag_ms=self.rng.choice((0, 300, 3_000)),
        )
        return Size(size.bookies, offloaded, size.producers, size.sends, max(size.trouble_ms, 3_000), size.dense)

    async def run(self) -> None:
        group, part = self.rng.choice(GROUP_BYTES), self.rng.choice(PART_BYTES)
        with (
            patch.multiple(offloading, RETRY_MS=500, GROUP_BYTES=group, PART_BYTES=part),
            patch.object(table_following, "RETRY_MS", 500),
        ):
            again = self.world.client("again")
            again.spawn(self._again(again, random.Random(f"again/{self.world.seed}")), "again")
            await super().run()
            await self.world.within(HEALED_MS, self._left(), "H3: a ledger does not leave")
            await self.world.within(HEALED_MS, self._followed(), "H4: the table does not follow")
        self._check_named()

    async def _again(self, ports: Ports, rng: random.Random) -> None:
        """Read the log from its beginning again and again, payloads as well: what was shown stands there."""
        directory = Directory(ports, "registry/registry.1")
        while True:
            start = EARLIEST
            try:
                while (reply := await self._index(ports, directory, start)).resume > start:
                    for run in reply.runs:
                        self._show(position(run.ledger, run.first_entry), run.count, run.crc)
                        await self._look(ports, directory, run)
                    start = reply.resume
            except SluiceError as error:
                ports.log("reading waits", error=str(error))
            await ports.clock.sleep(rng.randrange(self.again_ms))

    async def _look(self, ports: Ports, directory: Directory, run: RunIndex) -> None:
        request = ReadPayload(ledger=run.ledger, entry=run.first_entry)
        reply = await ports.net.call(await directory.topic(TOPIC, 0), request, 3_000)
        if isinstance(reply, Unknown) or (payload := await ports.net.fetch(reply.payload)) is None:
            return
        assert payload_crc(payload) == reply.crc, f"S18: the payload of {run.ledger}:{run.first_entry}"
        rows = decode_body(payload[index_bytes(reply) :], reply.shape, reply.count)
        first, values = position(run.ledger, run.first_entry), self.names_of(rows)
        assert self.seen.setdefault(first, values) == values, f"S3: there are other messages at {show(first)}"

    async def _check_ledger(self, ports: Ports, ledger: LedgerRecord, log: dict[int, list[bytes]], epoch: int) -> int:
        try:
            return await super()._check_ledger(ports, ledger, log, epoch)
        except NotFound:  # it has left since the record was looked into
            [now] = [one for one in self._record().ledgers if one.id == ledger.id]
            assert not now.fragments, f"H2: ledger {ledger.id} is gone from a bookie that the record names"
            return epoch

    async def _left(self) -> None:
        """Wait until what is to leave has left."""
        while any(ledger.fragments for ledger in leaving(self._record(), self.size.settings)):
            await self.world.loop.pause(100)

    async def _followed(self) -> None:
        """Wait until the table has what the record names."""
        while self.catalog.tables.get(TOPIC, []) != self.catalog.named(TOPIC):
            await self.world.loop.pause(100)
        self.counters["commits"] = self.catalog.commits

    def _check_named(self) -> None:
        """H1, H2."""
        objects = self.world.objects.objects
        for ledger in self._record().ledgers:
            assert ledger.fragments or ledger.offloaded, f"H2: ledger {ledger.id} is nowhere"
            self.counters["offloaded"] = self.counters.get("offloaded", 0) + (ledger.offloaded is not None)
            for part in ledger.offloaded.parts if ledger.offloaded else ():
                data = objects.get(part.name, b"")
                assert len(data) == part.size, f"H1: {part.name} has {len(data)} bytes, not {part.size}"
                crc = google_crc32c.value(data[part.size - part.footer_bytes :])
                assert crc == part.footer_crc, f"H1: {part.name} has another footer"
                rows = parquet.read_table(pa.BufferReader(data), columns=["payload", SimColumns.schema[0].name])
                [wanted], _ = SimColumns().decode(rows)
                assert rows.column(1).combine_chunks().equals(wanted), f"H5: {part.name} has another column"


def index_bytes(read: PayloadRead) -> int:
    """How long the index columns before the rows are."""
    return read.count * (12 if read.delayed else 4)


def leaving(record: PartitionRecord, settings: TopicSettings) -> list[LedgerRecord]:
    """The closed ledgers that are to leave, or have left."""
    closed = [ledger for ledger in record.ledgers if ledger.state is LedgerState.CLOSED]
    size = sum(ledger.bytes for ledger in closed if ledger.offloaded is None)
    found = [ledger for ledger in closed if ledger.offloaded is not None]
    for ledger in closed:
        if ledger.offloaded is None and size > settings.offload_threshold_bytes:
            found.append(ledger)
            size -= ledger.bytes
    return found
