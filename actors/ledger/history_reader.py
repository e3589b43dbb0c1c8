"""Reads ledgers whose runs lie in the object store.

A run is found by the ledger's record (which object), the object's footer (which row group), and that row group
(actors.ledger.row_group_reader). The next row group is asked for while the runs of one are taken.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sluice.actors.ledger.record import HistoryPart, LedgerRecord, Offloaded
from sluice.actors.ledger.row_group_reader import RowGroupReader, naming
from sluice.actors.ledger.run_offsets import RunOffsets
from sluice.actors.ports import Ports
from sluice.storage.errors import Corrupt, SluiceError, Unavailable
from sluice.storage.format.frame import Frame
from sluice.storage.history.checked_parquet import read_pieces
from sluice.storage.history.column_reader import column_extents
from sluice.storage.history.part import GroupRows, PartFooter, decode_footer, decode_group


class HistoryReader(RowGroupReader[HistoryPart, PartFooter, GroupRows]):
    """Reads the runs of offloaded ledgers of one partition."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports, decode_footer, decode_group)

    async def run(self, ledger: LedgerRecord, run: int) -> Frame:
        """One run that is known to exist. Raises Unavailable if the store is away, Corrupt if it is damaged there."""
        part = _copy_of(ledger).part_of(run)
        footer = await self.footer(part)
        number = footer.group_of(run)
        rows = await self.rows(part, footer, number)
        if run == footer.groups[number].first_run and number + 1 < len(footer.groups):
            self._ports.spawn(self._ahead(part, footer, number + 1), "read ahead")
        return rows.frame(run)

    async def table(self, ledger: LedgerRecord) -> RunOffsets:
        """Return the offsets at which the runs of a ledger begin. Raises Unavailable, Corrupt."""
        table = np.concatenate([(await self.footer(part)).first_entries for part in _copy_of(ledger).parts])
        if len(table) != ledger.last_run + 1:
            raise Corrupt(f"the objects of ledger {ledger.id} hold {len(table)} runs, not {ledger.last_run + 1}")
        return RunOffsets(table.astype(np.uint32), ledger.last_entry + 1)

    async def keys(self, part: HistoryPart, footer: PartFooter, number: int) -> pa.Table:
        """The column of keys of a row group. Raises Unavailable, Corrupt."""
        extents = column_extents(footer.metadata, number, ["key"])
        pieces = [(start, await self._read(part, start, stop - start)) for start, stop in extents]
        with naming(part.name):
            return await self._ports.work(lambda: read_pieces(footer, number, pieces, ["key"]))

    async def _ahead(self, part: HistoryPart, footer: PartFooter, number: int) -> None:
        try:
            await self.rows(part, footer, number)
        except SluiceError as error:  # whoever wants it asks again, and is told
            self._ports.log("read_ahead_failed", name=part.name, error=str(error))


def _copy_of(ledger: LedgerRecord) -> Offloaded:
    if ledger.offloaded is None:
        raise Unavailable(f"ledger {ledger.id} is not in the object store")
    return ledger.offloaded
