"""Ledger ids: unique in the cluster, ascending for every owner of a partition, and never given twice for one disk.

The record `ids/ledger` is a series of versions; whoever creates version n owns the ids of block n: the BLOCK numbers
above `base + (n - 1) * BLOCK`, where `base` stands in the version. An attempt whose outcome is unknown is given up; at
most a block is wasted.

The base is there for a metadata store that is older than the disks, because it was restored from a backup: it would
give numbers again under which bookies hold runs of other topics. So a bookie that starts compares the highest number
that it knows with the record, and raises the base (`stay_above`) before it serves.
"""

from __future__ import annotations

import msgpack

from actors.ports import Meta, Ports, Version

LEDGER_IDS = "ids/ledger"
BLOCK = 16
"""Ledger ids are handed out in blocks of this many."""


class LedgerIds:
    """Gives ledger ids to one owner."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._next = 0
        self._end = 0

    async def take(self) -> int:
        """An id that nobody else has or will get. Raises Unavailable."""
        while self._next >= self._end:
            newest = await self._ports.meta.read(LEDGER_IDS)
            number, base = (newest.number if newest else 0) + 1, _base(newest)
            if await self._ports.meta.create(LEDGER_IDS, number, _pack(self._ports.me, base)):
                self._next = base + (number - 1) * BLOCK + 1
                self._end = self._next + BLOCK
        taken = self._next
        self._next += 1
        return taken


async def stay_above(meta: Meta, me: str, highest: int) -> bool:
    """See to it that no id up to `highest` is given from now on; whether the record had to be raised.

    Raises Unavailable.
    """
    raised = False
    while True:
        newest = await meta.read(LEDGER_IDS)
        number, base = (newest.number if newest else 0) + 1, _base(newest)
        given = base + (number - 1) * BLOCK
        if given >= highest:
            return raised
        raised = True
        await meta.create(LEDGER_IDS, number, _pack(me, base + highest - given))


def _base(newest: Version | None) -> int:
    if newest is None:
        return 0
    try:
        value = msgpack.unpackb(newest.value)
    except (ValueError, msgpack.UnpackException):
        return 0  # a version from before there was a base
    return int(value["base"]) if isinstance(value, dict) else 0


def _pack(me: str, base: int) -> bytes:
    packed: bytes = msgpack.packb({"owner": me, "base": base})
    return packed
