"""Copies of ledgers that are newer than the record, which was restored from a backup: they are found again.

A ledger left for the store after the backup was made, and its bookies have forgotten it; or its objects were rewritten,
and those that the record names are gone. What the record does not name is then the only copy. It counts if it is whole:
all runs and messages that the ledger has, each row group with its checksum. Of several objects with the same first run
the newest counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.actors.ledger.history_objects import ledger_of_object, writing_of
from sluice.actors.ledger.history_reader import HistoryReader
from sluice.actors.ledger.record import HistoryPart, LedgerRecord, LedgerState, PartitionRecord
from sluice.actors.ports import Ports
from sluice.actors.runtime.store_attempts import attempt
from sluice.storage.errors import Corrupt, NotFound
from sluice.storage.history.checked_parquet import footer_in
from sluice.storage.history.part import decode_footer


async def find_copies(
    ports: Ports, reader: HistoryReader, names: Sequence[str], record: PartitionRecord
) -> dict[int, tuple[HistoryPart, ...]]:
    """Return the whole copies among objects of these names, by ledger. Raises Unavailable."""
    found: dict[int, tuple[HistoryPart, ...]] = {}
    for ledger in record.ledgers:
        own = [name for name in sorted(names, key=writing_of) if ledger_of_object(name) == ledger.id]
        if not own or ledger.state is not LedgerState.CLOSED:
            continue
        try:
            found[ledger.id] = await _copy_of(ports, reader, ledger, own)
        except (Corrupt, NotFound) as error:
            ports.log("copy_not_whole", ledger=ledger.id, error=str(error))
    return found


async def _copy_of(
    ports: Ports, reader: HistoryReader, ledger: LedgerRecord, names: Sequence[str]
) -> tuple[HistoryPart, ...]:
    """Return the objects that hold a ledger, in order. names: oldest first. Raises Corrupt, NotFound, Unavailable."""
    by_run = {part.first_run: part for part in (ledger.offloaded.parts if ledger.offloaded is not None else ())}
    for name in names:
        part = await _part_of(ports, ledger, name)
        by_run[part.first_run] = part
    parts = tuple(by_run[run] for run in sorted(by_run))
    run = entry = 0
    for part in parts:
        footer = await reader.footer(part)
        if (part.first_run, part.first_entry) != (run, entry):
            raise Corrupt(f"object {part.name} does not follow the one before it in ledger {ledger.id}")
        for number in range(len(footer.groups)):
            await reader.group(part, footer, number)
        run, entry = footer.groups[-1].stop_run, entry + int(footer.counts.sum())
    if (run, entry) != (ledger.last_run + 1, ledger.last_entry + 1):
        raise Corrupt(f"the objects of ledger {ledger.id} end at run {run - 1}, not {ledger.last_run}")
    return parts


async def _part_of(ports: Ports, ledger: LedgerRecord, name: str) -> HistoryPart:
    """Return the record's entry for an object that no record names. Raises Corrupt, NotFound, Unavailable."""
    data = await attempt(ports, lambda: ports.objects.get(name))
    size, crc = footer_in(data)
    footer = decode_footer(data[-size:], len(data), crc)
    if footer.ledger != ledger.id:
        raise Corrupt(f"object {name} is of ledger {footer.ledger}")
    return HistoryPart(name, len(data), size, crc, footer.groups[0].first_run, footer.groups[0].first_entry)
