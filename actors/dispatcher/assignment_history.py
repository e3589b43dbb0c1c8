"""The history of assignments outlives the dispatcher that made it.

Who owned which hashes, and why that changed, is kept by the decision core (`actors.key_shared.history`), the newest
few hundred changes of it. Here each group of new changes becomes an object
`assignments/<topic>/<partition>/<subscription>/<epoch>-<number>`, so that a later owner reads them back and can still
answer who owned a key at a time before it. Groups gather while one is being written.

The number of objects is bounded: when there are too many, the next one holds all the changes that are kept, and those
before it are deleted. A crash in between leaves changes in two objects; they have numbers that are never used twice
(an owner counts from its epoch times a million), so they are told apart when they are read back.

This is for people who look for a cause, and no promise depends on it: a damaged or lost object is a gap, a store that
does not answer is asked again later, and dispatching never waits for it. A bounded number of changes waits in memory.
"""

from __future__ import annotations

import msgspec

from actors.dispatcher.subscription import PartitionSubscription
from actors.key_shared import KEPT, Change, History
from actors.ports import Ports
from actors.signal import Signal
from storage.errors import NotFound, Overloaded, Unavailable
from storage.frame import payload_crc

CHANGES_AN_EPOCH = 1_000_000
MOST_OBJECTS = 16
GROUP_MS = 200
"""Milliseconds for which changes gather before they are written."""
RETRY_MS = 1_000


class AssignmentHistory:
    """Keeps the history of one subscription on one partition. `history` is the core's, and outlives it."""

    def __init__(self, ports: Ports, identity: PartitionSubscription, epoch: int, *, fresh: bool = False) -> None:
        """fresh: nobody owned it before, so there is nothing to read back."""
        self._fresh = fresh
        self._new = Signal()
        self.history = History(epoch * CHANGES_AN_EPOCH, self._new.set)
        self._prefix = f"assignments/{identity.topic}/{identity.partition}/{identity.subscription}/"
        self._ports, self._epoch = ports, epoch
        self._names: list[str] = []
        self._written = self.history.number
        self._number = 0

    async def run(self) -> None:
        """Read the stored history back, then record changes, for ever."""
        while not (self._fresh or await self._load()):
            await self._ports.clock.sleep(RETRY_MS)
        while True:
            await self._new.wait(self._ports)
            await self._ports.clock.sleep(GROUP_MS)
            self._new.clear()
            whole = len(self._names) + 1 >= MOST_OBJECTS
            group = list(self.history.changes) if whole else self.history.since(self._written)
            if not group:
                continue
            await self._put(group)
            self._written = group[-1].number
            if whole:
                await self._drop(self._names[:-1])

    async def clear(self) -> None:
        """The subscription is gone, and with it what owners up to this one wrote. Raises Unavailable."""
        later = f"{self._prefix}{self._epoch + 1:012d}"
        for name in [name for name in await self._ports.objects.names(self._prefix) if name < later]:
            await self._ports.objects.delete(name)

    async def _load(self) -> bool:
        """Read the newest changes back; False if the store did not answer or something vanished meanwhile."""
        try:
            names = await self._ports.objects.names(self._prefix)
            earlier: list[Change] = []
            for name in reversed(names):
                earlier += self._decode(name, await self._ports.objects.get(name))
                if len(earlier) >= KEPT:
                    break
        except (Unavailable, Overloaded, NotFound) as error:
            self._ports.log("history_waits", error=str(error))
            return False
        self._names = names
        self.history.remember(earlier)
        return True

    async def _put(self, group: list[Change]) -> None:
        data = msgspec.json.encode(group)
        data = payload_crc(data).to_bytes(4, "little") + data
        self._number += 1
        name = f"{self._prefix}{self._epoch:012d}-{self._number:010d}"
        while True:
            try:
                # False: an earlier try arrived after all. Nobody else writes under this epoch.
                await self._ports.objects.put(name, data)
                break
            except (Unavailable, Overloaded) as error:
                self._ports.log("history_waits", error=str(error))
                await self._ports.clock.sleep(RETRY_MS)
        self._names.append(name)

    async def _drop(self, names: list[str]) -> None:
        for name in names:
            try:
                await self._ports.objects.delete(name)
            except (Unavailable, Overloaded):
                return  # the next owner finds it, or the next time here
            self._names.remove(name)

    def _decode(self, name: str, data: bytes) -> list[Change]:
        try:
            if int.from_bytes(data[:4], "little") != payload_crc(data[4:]):
                raise msgspec.DecodeError("the checksum is wrong")
            return msgspec.json.decode(data[4:], type=list[Change])
        except msgspec.DecodeError as error:
            self._ports.log("history_damaged", name=name, error=str(error))
            return []
