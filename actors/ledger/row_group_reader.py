"""Reads row groups of objects in the store: two range requests, the footer's and its own
(storage.history.checked_parquet).

Footers are kept, and so are the rows of the last row groups, because a reader of one message reads those behind it.
Checksums find damaged, cut and missing data, which is never used.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from sluice.actors.ports import Ports
from sluice.actors.runtime.store_attempts import attempt
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import Corrupt, NotFound
from sluice.storage.history.checked_parquet import CheckedFooter

FOOTERS, GROUPS = 16, 2
"""The numbers of footers and row groups that stay in the memory of a partition's owner."""


class NamedPart(Protocol):
    """An object as a partition's record names it: the last footer_bytes of its size bytes have this CRC32C."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def footer_bytes(self) -> int: ...
    @property
    def footer_crc(self) -> int: ...


Part = TypeVar("Part", bound=NamedPart)
Footer = TypeVar("Footer", bound=CheckedFooter)
Rows = TypeVar("Rows")


class RowGroupReader(Generic[Part, Footer, Rows]):
    """Reads the objects of one partition. Safe for any number of readers at once."""

    def __init__(
        self,
        ports: Ports,
        decode_footer: Callable[[bytes, int, int], Footer],
        decode_group: Callable[[Footer, int, bytes], Rows],
    ) -> None:
        """decode_footer: of its bytes, the object's size and the checksum. decode_group: of its number and bytes."""
        self._ports, self._decode_footer, self._decode_group = ports, decode_footer, decode_group
        self._footers: OrderedDict[str, Footer] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], Rows] = OrderedDict()
        self._coming: dict[tuple[str, int], Signal] = {}

    async def footer(self, part: Part) -> Footer:
        """The footer of an object. Raises Unavailable, Corrupt."""
        known = self._footers.get(part.name)
        if known is None:
            tail = await self._read(part, part.size - part.footer_bytes, part.footer_bytes)
            with naming(part.name):
                known = self._footers[part.name] = self._decode_footer(tail, part.size, part.footer_crc)
            if len(self._footers) > FOOTERS:
                self._footers.popitem(last=False)
        return known

    async def group(self, part: Part, footer: Footer, number: int) -> Rows:
        """A row group, read now. Raises Unavailable, Corrupt."""
        at = footer.groups[number]
        data = await self._read(part, at.start, at.length)
        with naming(part.name):
            return await self._ports.work(lambda: self._decode_group(footer, number, data))

    async def rows(self, part: Part, footer: Footer, number: int) -> Rows:
        """A row group that is kept; or read, once for all who want it at the same time. Raises Unavailable, Corrupt."""
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

    async def _read(self, part: Part, start: int, length: int) -> bytes:
        with naming(part.name):
            return await attempt(self._ports, lambda: self._ports.objects.get(part.name, start, length))

    def clear(self) -> None:
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
