"""Reads ledgers whose runs lie in the object store.

A run is found by the ledger's record (which object), the object's footer (which row group), and that row group: two
range requests, the first of which is kept. The rows of the last row groups are kept too, because whoever reads one run
reads those behind it; the next row group is asked for while the runs of one are taken.

What is damaged, cut or gone is told by the checksums and never believed.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from actors.ledger.record import HistoryPart, LedgerRecord, Offloaded
from actors.ledger.run_offsets import RunOffsets
from actors.ports import Ports
from actors.signal import Signal
from actors.store_attempts import attempt
from storage.errors import Corrupt, NotFound, SluiceError, Unavailable
from storage.frame import Frame
from storage.history import GroupRows, PartFooter, decode_footer, decode_group

FOOTERS, GROUPS = 16, 2
"""So many of each stay in the memory of a partition's owner."""


class HistoryReader:
    """Reads the runs of offloaded ledgers of one partition. Safe for any number of readers at once."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._footers: OrderedDict[str, PartFooter] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], GroupRows] = OrderedDict()
        self._coming: dict[tuple[str, int], Signal] = {}

    async def run(self, ledger: LedgerRecord, run: int) -> Frame:
        """One run that is known to exist. Raises Unavailable if the store is away, Corrupt if it is damaged there."""
        part = _copy_of(ledger).part_of(run)
        footer = await self.footer(part)
        number = footer.group_of(run)
        rows = await self._rows(part, footer, number)
        if run == footer.groups[number].first_run and number + 1 < len(footer.groups):
            self._ports.spawn(self._ahead(part, footer, number + 1), "read ahead")
        return rows.frame(run)

    async def table(self, ledger: LedgerRecord) -> RunOffsets:
        """Where the runs of a ledger begin. Raises Unavailable, Corrupt."""
        table = np.concatenate([(await self.footer(part)).first_entries for part in _copy_of(ledger).parts])
        if len(table) != ledger.last_run + 1:
            raise Corrupt(f"the objects of ledger {ledger.id} hold {len(table)} runs, not {ledger.last_run + 1}")
        return RunOffsets(table.astype(np.uint32), ledger.last_entry + 1)

    async def footer(self, part: HistoryPart) -> PartFooter:
        """The footer of an object. Raises Unavailable, Corrupt."""
        known = self._footers.get(part.name)
        if known is None:
            tail = await self._read(part, part.size - part.footer_bytes, part.footer_bytes)
            with naming(part.name):
                known = self._footers[part.name] = decode_footer(tail, part.size, part.footer_crc)
            if len(self._footers) > FOOTERS:
                self._footers.popitem(last=False)
        return known

    async def group(self, part: HistoryPart, footer: PartFooter, number: int) -> GroupRows:
        """A row group, read now. Raises Unavailable, Corrupt."""
        at = footer.groups[number]
        data = await self._read(part, at.start, at.length)
        with naming(part.name):
            return await self._ports.work(lambda: decode_group(footer, number, data))

    async def _rows(self, part: HistoryPart, footer: PartFooter, number: int) -> GroupRows:
        """A row group that is kept; or read, once for all who want it at the same time."""
        place = (part.name, number)
        while (coming := self._coming.get(place)) is not None:
            await coming.wait(self._ports)
        known = self._groups.get(place)
        if known is None:
            done = self._coming[place] = Signal()
            try:
                known = self._groups[place] = await self.group(part, footer, number)
            finally:
                del self._coming[place]
                done.set()
            if len(self._groups) > GROUPS:
                self._groups.popitem(last=False)
        self._groups.move_to_end(place)
        return known

    async def _ahead(self, part: HistoryPart, footer: PartFooter, number: int) -> None:
        try:
            await self._rows(part, footer, number)
        except SluiceError as error:  # whoever wants it asks again, and is told
            self._ports.log("read_ahead_failed", name=part.name, error=str(error))

    async def _read(self, part: HistoryPart, start: int, length: int) -> bytes:
        with naming(part.name):
            return await attempt(self._ports, lambda: self._ports.objects.get(part.name, start, length))

    def forget(self) -> None:
        """Keep nothing in memory."""
        self._footers.clear()
        self._groups.clear()


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Damage names the object, and so does its absence."""
    try:
        yield
    except (Corrupt, NotFound) as error:
        raise Corrupt(f"object {name}: {error}") from error


def _copy_of(ledger: LedgerRecord) -> Offloaded:
    if ledger.offloaded is None:
        raise Unavailable(f"ledger {ledger.id} is not in the object store")
    return ledger.offloaded
