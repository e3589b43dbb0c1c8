"""Which keys are the heaviest of a subscription on a partition, in bounded memory.

What is read is counted by the hash of its key, in groups of many thousand messages: one sort of a column a group, and
two summaries of a fixed size, by messages and by bytes. The index columns know hashes alone; what the key is called
stands in the message, so one message of each of the heaviest hashes is remembered and read when somebody asks. Every
million messages all counts are halved: what was heavy once fades.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from actors.consumer.payload import Payloads
from actors.key_shared.dispatch import Dispatch
from actors.messages import Part
from actors.ports import Ports
from storage.errors import SluiceError
from storage.hashing import Hashes
from storage.heavy_hitters import HeavyHitters
from storage.position import Positions, entry_of, ledger_of, show

GROUP = 65_536
"""So many messages are counted together; until then 12 bytes of each are kept."""
FADE = 1_000_000
NAMED = 256
"""So many heavy hashes have a message by which their key can be looked up."""


class HotKeys:
    """See the module. Counts in memory alone; a new owner begins anew."""

    def __init__(self, ports: Ports, core: Dispatch, payloads: Payloads) -> None:
        self._ports, self._core, self._payloads = ports, core, payloads
        self._messages, self._bytes = HeavyHitters(), HeavyHitters()
        self._hashes: list[Hashes] = []
        self._positions: list[Positions] = []
        self._sizes: list[tuple[int, int]] = []
        """Bytes of one message, and how many, for each column."""
        self._gathered = 0
        self._counted = 0
        self._examples: dict[int, int] = {}

    def read(self, hashes: Hashes, positions: Positions, size: int) -> None:
        """These messages were read, uint32 and int64 (n,); `size` is about the bytes of one."""
        if not len(hashes):
            return
        self._hashes.append(hashes.copy())  # else the whole answer that it lies in would stay
        self._positions.append(positions)
        self._sizes.append((size, len(hashes)))
        self._gathered += len(hashes)
        if self._gathered >= GROUP:
            self._count()

    async def tell(self, top: int) -> dict[str, Any]:
        """The `top` heaviest keys, by messages and by bytes, and the hashes that wait longest."""
        self._count()
        by_messages, by_bytes = self._messages.top(top), self._bytes.top(top)
        wanted = dict([*by_messages, *by_bytes])
        names = {one: await self._name(one) for one in wanted}
        return {
            "messages": self._rows(self._messages, by_messages, names),
            "bytes": self._rows(self._bytes, by_bytes, names),
            "waiting": self._core.blocked_keys(top, self._ports.clock.now()),
            "counted": self._messages.total,
            "memoryBytes": self._messages.nbytes() + self._bytes.nbytes(),
        }

    def stats(self) -> dict[str, Any]:
        """How much of all messages the heaviest key has; which one it is, `tell` says."""
        self._count()
        first = self._messages.top(1)
        share = first[0][1] / self._messages.total if first and self._messages.total else 0.0
        return {"hottestKeyShare": round(share, 4)}

    def _rows(
        self, found: HeavyHitters, top: list[tuple[int, int]], names: dict[int, str | None]
    ) -> list[dict[str, Any]]:
        return [
            {
                "key": names[wanted],
                "hash": int(self._core.reduce(np.array([wanted], np.uint32))[0]),
                "count": weight,
                "share": round(weight / found.total, 4),
                "countAtMost": weight + found.error,
            }
            for wanted, weight in top
        ]

    async def _name(self, wanted: int) -> str | None:
        """The key behind a hash; None if no message of it can be read now, or it has none."""
        at = self._examples.get(wanted)
        if at is None:
            return None
        rows = np.array([entry_of(at)], np.uint32)
        part = Part(ledger=ledger_of(at), first_entry=0, count=0, delayed=False, shape=0, crc=0, dispatch=0, rows=rows)
        try:
            received = await self._payloads.resolve(part, 0, 0)
        except SluiceError as error:
            self._ports.log("key_not_read", position=show(at), error=str(error))
            return None
        for one in received:
            for column in ("ordering_key", "key"):
                if column in one.rows.schema.names and (key := one.rows.column(column)[0].as_py()) is not None:
                    return bytes(key).decode("utf-8", "replace")
        return None

    def _count(self) -> None:
        if not self._gathered:
            return
        hashes, positions = np.concatenate(self._hashes), np.concatenate(self._positions)
        sizes = np.array(self._sizes, np.int64)
        size = np.repeat(sizes[:, 0], sizes[:, 1])
        self._hashes, self._positions, self._sizes, self._gathered = [], [], [], 0
        # The row rides along in the low bits, so that one plain sort gives hashes and rows.
        packed = hashes.astype(np.uint64) << np.uint64(32) | np.arange(len(hashes), dtype=np.uint64)
        packed.sort()
        rows = (packed & np.uint64(0xFFFFFFFF)).astype(np.int64)
        ordered = (packed >> np.uint64(32)).astype(np.uint32)
        first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        distinct, number = ordered[first], np.diff(first, append=len(ordered))
        self._messages.add(distinct, number.astype(np.int64))
        self._bytes.add(distinct, np.add.reduceat(size[rows], first))
        self._remember(distinct, positions[rows[first]], number)
        self._counted += len(hashes)
        if self._counted >= FADE:
            self._counted = 0
            self._messages.halve()
            self._bytes.halve()

    def _remember(self, hashes: Hashes, positions: Positions, number: npt.NDArray[np.intp]) -> None:
        """Keep a message of each of the heaviest; the newest, for older ones are trimmed first."""
        top = np.argsort(-number, kind="stable")[:NAMED]
        heavy = {wanted for found in (self._messages, self._bytes) for wanted, _ in found.top(NAMED)}
        seen = dict(zip(hashes[top].tolist(), positions[top].tolist(), strict=True))
        known = {wanted: at for wanted, at in self._examples.items() if wanted in heavy}
        self._examples = known | {wanted: at for wanted, at in seen.items() if wanted in heavy}
