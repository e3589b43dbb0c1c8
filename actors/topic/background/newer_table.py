"""A compacted table that is newer than the one in the record, which was restored from a backup: it is found again.

What the record names may be gone, and the log behind it was trimmed since, so the newer table is all there is. The last
file of a table says what the whole table is; a table without it was never finished, and says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sluice.actors.ledger.compacted_reader import CompactedReader
from sluice.actors.ledger.history_objects import writing_of
from sluice.actors.ledger.record import Compacted, CompactedPart, LedgerState, PartitionRecord
from sluice.actors.ports import Ports
from sluice.actors.runtime.store_attempts import attempt
from sluice.storage.errors import Corrupt, NotFound
from sluice.storage.format.position import EARLIEST, ledger_of
from sluice.storage.history.checked_parquet import footer_in
from sluice.storage.history.compacted import decode_compacted_footer


async def find_newer(
    ports: Ports, reader: CompactedReader, names: Sequence[str], record: PartitionRecord
) -> Compacted | None:
    """Return the newest whole table among objects of these names that may replace the record's; None without one.

    Raises Unavailable.
    """
    for name in sorted(names, key=writing_of, reverse=True):
        try:
            table = await _table_of(ports, reader, name)
        except (Corrupt, NotFound) as error:
            ports.log("table_not_whole", name=name, error=str(error))
            continue
        if table is not None and fits(table, record):
            return table
    return None


def fits(table: Compacted, record: PartitionRecord) -> bool:
    """Return whether a table may stand for the log of a record.

    A table from before a key was erased may hold that key. A table that reaches into the ledger that is written now
    would hide messages that come.
    """
    known = record.compacted
    ahead = table.horizon > (EARLIEST if known is None else known.horizon)
    erased = max([one.at for one in record.erased], default=0)
    written = [ledger.id for ledger in record.ledgers if ledger.state is not LedgerState.CLOSED]
    return ahead and table.at > erased and all(ledger_of(table.horizon) < ledger for ledger in written)


async def _table_of(ports: Ports, reader: CompactedReader, name: str) -> Compacted | None:
    """Return the table whose last object this is; None if it is not one. Raises Corrupt, NotFound, Unavailable."""
    data = await attempt(ports, lambda: ports.objects.get(name))
    size, crc = footer_in(data)
    footer = decode_compacted_footer(data[-size:], len(data), crc)
    if footer.table is None:
        return None
    try:
        table = msgspec.convert(footer.table, Compacted)
    except msgspec.ValidationError as error:
        raise Corrupt(f"object {name} does not say what its table is: {error}") from error
    rows = footer.metadata.num_rows
    last = CompactedPart(name, len(data), size, crc, footer.groups[0].first, footer.groups[-1].last, rows)
    whole = msgspec.structs.replace(table, parts=(*table.parts, last))
    for part in whole.parts:
        found = await reader.footer(part)
        for number in range(len(found.groups)):
            await reader.group(part, found, number)
    return whole
