"""Reads a compacted table: the last messages of keys, from the object store.

A position is found by the record (which object), the object's footer (which row group), and that row group. What is
damaged, cut or gone is told by the checksums and never believed.
"""

from __future__ import annotations

from collections import OrderedDict

from actors.ledger.history_reader import naming
from actors.ledger.record import Compacted, CompactedPart
from actors.ports import Ports
from actors.store_attempts import attempt
from storage.compacted import CompactedFooter, CompactedRows, decode_compacted_footer, decode_compacted_group

FOOTERS, GROUPS = 16, 2
"""So many of each stay in the memory of a partition's owner."""


class CompactedReader:
    """Reads the tables of one partition. Safe for any number of readers at once."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._footers: OrderedDict[str, CompactedFooter] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], CompactedRows] = OrderedDict()

    async def rows_at(self, table: Compacted, at: int) -> CompactedRows | None:
        """The first row group with something from a position on; None if there is none. Raises Unavailable, Corrupt."""
        part = next((part for part in table.parts if part.last >= at), None)
        if part is None:
            return None
        footer = await self.footer(part)
        number = footer.group_of(at)
        known = self._groups.get((part.name, number))
        if known is None:
            known = self._groups[part.name, number] = await self.group(part, footer, number)
            if len(self._groups) > GROUPS:
                self._groups.popitem(last=False)
        return known

    async def footer(self, part: CompactedPart) -> CompactedFooter:
        """The footer of an object. Raises Unavailable, Corrupt."""
        known = self._footers.get(part.name)
        if known is None:
            tail = await self._read(part, part.size - part.footer_bytes, part.footer_bytes)
            with naming(part.name):
                known = self._footers[part.name] = decode_compacted_footer(tail, part.size, part.footer_crc)
            if len(self._footers) > FOOTERS:
                self._footers.popitem(last=False)
        return known

    async def group(self, part: CompactedPart, footer: CompactedFooter, number: int) -> CompactedRows:
        """A row group, read now. Raises Unavailable, Corrupt."""
        at = footer.groups[number]
        data = await self._read(part, at.start, at.length)
        with naming(part.name):
            return await self._ports.work(lambda: decode_compacted_group(footer, number, data))

    async def _read(self, part: CompactedPart, start: int, length: int) -> bytes:
        with naming(part.name):
            return await attempt(self._ports, lambda: self._ports.objects.get(part.name, start, length))

    def forget(self) -> None:
        """Keep nothing in memory."""
        self._footers.clear()
        self._groups.clear()
