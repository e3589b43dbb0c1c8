"""Ledger ids: unique in the cluster, ascending in every partition, and never given twice for one disk.

The record `ids/ledger` is a series of versions, and the creator of a version owns a block of ids: those behind the
blocks of the versions before it, up to `base + number * BLOCK`, where `base` stands in the version. A version whose
base is that of the one before owns BLOCK ids; one that raises the base by n owns n more. An attempt whose outcome is
unknown is given up, and its block is wasted.

**One giver for a process.** The owners of a process share its block, so that a thousand partitions that open a ledger
at once ask the store a few times and not a thousand times for the same version. A block may therefore be older than the
ledgers that a partition has already, which another process made. Nothing may descend in a partition, not even over a
ledger that stayed empty and is forgotten. So a partition's record keeps the highest id that it ever had, and an owner
takes one above it; where that is not known (the record is of an earlier version) it takes one of a block that was asked
for only after the partition was taken over. A block that has nothing high enough is left for a new one.

Blocks double in size while they are used up, from BLOCK to MOST, so that what an end of the process wastes is at most
about what it used.

The base is there as well for a metadata store that is older than the disks, because it was restored from a backup: it
would give numbers again under which bookies hold runs of other topics. So a bookie that starts compares the highest
number that it knows with the record, and raises the base (`stay_above`) before it serves.
"""

from __future__ import annotations

import msgpack

from sluice.actors.ports import Meta, Ports, Version
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import Corrupt

LEDGER_IDS = "ids/ledger"
BLOCK = 16
"""Ids that a version gives without raising the base."""
MOST = 64 * BLOCK
"""Ids that are asked for at a time at the most."""
PATIENCE_MS = 1_000
"""How long an owner waits for a block that another one asks for: that one may have ended meanwhile."""


class LedgerIds:
    """Gives ledger ids to the owners of one process."""

    def __init__(self) -> None:
        self._next = self._end = 1
        """The ids at hand: from the one up to, and without, the other."""
        self._asked = self._block = 0
        """How many blocks were asked for so far, and the number of the one at hand among them."""
        self._size = BLOCK
        self._asking: Signal | None = None
        self._seen: tuple[int, int] | None = None
        """Number and base of the version that this process created last."""

    async def allocate(self, ports: Ports, above: int | None) -> int:
        """An id that nobody else has or will get, above this one; None: above all that were given before this call.

        ports: those of the owner that asks. Raises Unavailable.
        """
        block, least = (self._asked + 1, 0) if above is None else (0, above + 1)
        while self._block < block or max(self._next, least) >= self._end:
            if self._asking is None:
                await self._ask(ports)
            elif not await self._asking.wait(ports, PATIENCE_MS):
                self._asking = None
        taken = max(self._next, least)
        self._next = taken + 1
        return taken

    async def _ask(self, ports: Ports) -> None:
        """Get another block, for all who wait. Raises Unavailable."""
        done = self._asking = Signal()
        self._asked += 1
        asked, size = self._asked, self._wanted()
        try:
            first, end = await self._create(ports, size)
        finally:
            if self._asking is done:
                self._asking = None
            done.set()
        if first >= self._end:  # else it came late, and a later one is at hand
            self._next, self._end, self._size = first, end, size
        self._block = max(self._block, asked)

    def _wanted(self) -> int:
        """Twice the last block if that is used up."""
        return min(self._size * 2, MOST) if self._next >= self._end > 1 else BLOCK

    async def _create(self, ports: Ports, size: int) -> tuple[int, int]:
        """First id of a new block, and the one behind its last."""
        while True:
            seen, self._seen = self._seen, None
            if seen is None:
                newest = await ports.meta.read(LEDGER_IDS)
                seen = (newest.number if newest else 0), _base(newest)
            number, base = seen
            raised = base + size - BLOCK
            if await ports.meta.create(LEDGER_IDS, number + 1, _pack(ports.me, raised)):
                self._seen = number + 1, raised
                return base + number * BLOCK + 1, raised + (number + 1) * BLOCK + 1


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
    return 0 if newest is None else base_in(newest.value)


def base_in(value: bytes) -> int:
    """The base in a version's bytes; 0 in one from before there was a base. Raises Corrupt."""
    try:
        said = msgpack.unpackb(value)
    except (ValueError, msgpack.UnpackException):
        return 0
    if not isinstance(said, dict):
        return 0
    if not isinstance(base := said.get("base"), int):
        raise Corrupt(f"the record {LEDGER_IDS} has no base that can be read")
    return base


def _pack(me: str, base: int) -> bytes:
    packed: bytes = msgpack.packb({"owner": me, "base": base})
    return packed
