"""A simulated catalog of tables, which is away, slow, and loses answers whenever the object store does."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from sluice.actors.ledger.record import record_key, unpack_record
from sluice.storage.errors import Unavailable
from tests.sim.meta import MetaStore, Trouble
from tests.sim.objects import ObjectStore

COMMIT_MS = 20


class SimColumns:
    """Each payload once more, beside itself. What is empty says nothing, and what ends in a digit does not decode."""

    schema = pa.schema([pa.field("again", pa.binary())])

    def decode(self, rows: pa.Table) -> tuple[list[pa.Array], int]:
        """See storage.history.part.PayloadColumns."""
        payloads = rows.column("payload").combine_chunks()
        digit = pc.match_substring_regex(payloads, "[0-9]$")
        nothing = pc.or_(pc.equal(pc.binary_length(payloads), 0), digit)
        return [pc.if_else(nothing, pa.scalar(None, pa.binary()), payloads)], int(pc.sum(digit).as_py() or 0)


class TableCatalog:
    """The objects in each topic's table; one in a world, if its cluster has a catalog."""

    def __init__(self, meta: MetaStore, objects: ObjectStore, seed: int) -> None:
        self._meta, self._objects = meta, objects
        self.trouble = Trouble(meta.trouble.loop, f"tables/{seed}")
        self.tables: dict[str, list[str]] = {}
        self.commits = 0

    def named(self, topic: str) -> list[str]:
        """The objects that the newest record of a topic of one partition names, sorted."""
        versions = self._meta.records.get(record_key(topic, 0))
        ledgers = unpack_record(versions[-1]).ledgers if versions else ()
        return sorted(part.name for one in ledgers if one.offloaded for part in one.offloaded.parts)

    async def follow(self, machine: str, topic: str) -> None:
        """Commit the difference, unless somebody else has in between."""
        trouble = self.trouble
        trouble.faults, trouble.cut = self._objects.trouble.faults, self._objects.trouble.cut
        await trouble.before(machine)
        before, named = self.tables.get(topic), self.named(topic)
        await trouble.loop.pause(trouble.between((0, COMMIT_MS)))
        if self.tables.get(topic) != before:
            raise Unavailable("others commit all the time")
        self.tables[topic] = named
        self.commits += 1
        await trouble.after(machine)

    async def columns(self, machine: str) -> SimColumns:
        """Return an object that makes columns of payloads, unless the store is away."""
        trouble = self.trouble
        trouble.faults, trouble.cut = self._objects.trouble.faults, self._objects.trouble.cut
        await trouble.before(machine)
        return SimColumns()


class SimTables:
    """The catalog as one process sees it. Implements actors.ports.Tables."""

    def __init__(self, catalog: TableCatalog, machine: str) -> None:
        self._catalog, self._machine = catalog, machine

    async def follow(self, topic: str) -> None:
        """See the catalog."""
        await self._catalog.follow(self._machine, topic)

    async def columns(self, topic: str) -> SimColumns:
        """See the catalog."""
        return await self._catalog.columns(self._machine)
