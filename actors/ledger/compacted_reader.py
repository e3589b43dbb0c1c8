"""Reads a compacted table: the last messages of keys, from the object store.

A position is found by the record (which object), the object's footer (which row group), and that row group
(actors.ledger.row_group_reader).
"""

from __future__ import annotations

from sluice.actors.ledger.record import Compacted, CompactedPart
from sluice.actors.ledger.row_group_reader import RowGroupReader
from sluice.actors.ports import Ports
from sluice.storage.history.compacted import (
    CompactedFooter,
    CompactedRows,
    decode_compacted_footer,
    decode_compacted_group,
)


class CompactedReader(RowGroupReader[CompactedPart, CompactedFooter, CompactedRows]):
    """Reads the tables of one partition."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports, decode_compacted_footer, decode_compacted_group)

    async def rows_at(self, table: Compacted, at: int) -> CompactedRows | None:
        """The first row group with something from a position on; None if there is none. Raises Unavailable, Corrupt."""
        part = next((part for part in table.parts if part.last >= at), None)
        if part is None:
            return None
        footer = await self.footer(part)
        return await self.rows(part, footer, footer.group_of(at))
