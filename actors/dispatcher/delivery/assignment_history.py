"""The history of assignments outlives the dispatcher that made it.

Who owned which hashes, and why that changed, is kept by the decision core (`actors.key_shared.state.history`), the
newest few hundred changes of it. A later owner reads them back, and can still answer who owned a key at a time before
it.

The newest changes lie in the subscription's record as long as they are few and small: the version that says that a
consumer came or left says this as well. So most subscriptions, with a consumer or two, need no objects. Once they are
more, each group of changes becomes an object `assignments/<topic>/<partition>/<subscription>/<epoch>-<number>`, and
leaves the record. Groups gather while one is being written.

The number of objects is bounded: when there are too many, the next one holds all the changes that are kept, and those
before it are deleted. A crash in between leaves changes in two objects, or in one and in the record; they have numbers
that are never used twice (an owner counts from its epoch times a million), so they are told apart when they are read
back.

This is for people who look for a cause, and no promise depends on it: a damaged or lost object is a gap, a store that
does not answer is asked again later, and dispatching never waits for it. A bounded number of changes waits in memory.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.actors.dispatcher.delivery.subscription import PartitionSubscription
from sluice.actors.key_shared import KEPT, Change, History
from sluice.actors.ports import Ports
from sluice.storage.errors import Corrupt, NotFound, Overloaded, Unavailable
from sluice.storage.format.checked_payload import payload_crc

CHANGES_AN_EPOCH = 1_000_000
MOST_OBJECTS = 16
GROUP_MS = 200
"""Milliseconds for which changes gather before they are written."""
RETRY_MS = 1_000
MOST_RECORDED = 8
"""Stretches of hashes that moved, in all changes together, that are left to the record."""


class AssignmentHistory:
    """Keeps the history of one subscription on one partition. `history` is the core's, and outlives it."""

    def __init__(self, ports: Ports, identity: PartitionSubscription, epoch: int, *, fresh: bool = False) -> None:
        """fresh: nobody owned it before, so there is nothing to read back."""
        self._read = fresh
        """Whether what is in objects was read."""
        self.history = History(epoch * CHANGES_AN_EPOCH, self._changed)
        self._prefix = f"assignments/{identity.topic}/{identity.partition}/{identity.subscription}/"
        self._ports, self._epoch = ports, epoch
        self._names: list[str] = []
        self._stored = self.history.number
        """The last change that is in an object."""
        self._encoded: bytes | None = None
        self._encoded_for = (self._stored, self.history.number)
        """The last change in an object, and the newest one, as of which `_encoded` says what the record has."""
        self._number = 0
        self._begun = self._working = False

    # -- in the record: see Recorded ------------------------------------------------------------------------------

    used = True

    @property
    def field(self) -> str:
        return "assignments"

    def to_record(self) -> Any:
        """Return the changes that are in no object; none while they move into one, because they are many."""
        newest = self._stored, self.history.number
        if self._encoded_for != newest:
            changes = self.history.since(self._stored)
            few = changes and not self._are_many(changes)
            self._encoded_for, self._encoded = newest, msgspec.json.encode(changes) if few else None
        return self._encoded

    async def load(self, stored: Any) -> None:
        changes = self._decode("the record", stored) if stored else []
        if changes:
            self.history.remember(changes)
            self._stored = changes[0].number - 1

    # -- in objects -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Read what is in objects, and keep in objects what is too much for the record from now on."""
        self._begun = True
        self._changed()

    def _changed(self) -> None:
        if not self._begun or self._working:
            return
        if not self._read or self._are_many(self.history.since(self._stored)):
            self._working = True
            self._ports.spawn(self._work(), "history")

    @staticmethod
    def _are_many(changes: list[Change]) -> bool:
        return sum(len(change.moved) for change in changes) > MOST_RECORDED

    async def _work(self) -> None:
        """Read if that is not done, then write as long as there is too much for the record."""
        while not (self._read or await self._load_objects()):
            await self._ports.clock.sleep(RETRY_MS)
        while self._are_many(self.history.since(self._stored)):
            await self._ports.clock.sleep(GROUP_MS)
            whole = len(self._names) + 1 >= MOST_OBJECTS
            group = list(self.history.changes) if whole else self.history.since(self._stored)
            await self._put(group)
            self._stored = group[-1].number
            if whole:
                await self._drop(self._names[:-1])
        self._working = False

    async def clear(self) -> None:
        """Delete the objects that owners up to this one wrote: the subscription is deleted. Raises Unavailable."""
        later = f"{self._prefix}{self._epoch + 1:012d}"
        for name in [name for name in await self._ports.objects.names(self._prefix) if name < later]:
            await self._ports.objects.delete(name)

    async def _load_objects(self) -> bool:
        """Read the newest changes back; False if the store did not answer or something vanished meanwhile."""
        try:
            names = await self._ports.objects.names(self._prefix)
            earlier: list[Change] = []
            for name in reversed(names):
                try:
                    earlier += self._checked(name, await self._ports.objects.get(name))
                except Corrupt as error:
                    self._damaged(name, str(error))
                if len(earlier) >= KEPT:
                    break
        except (Unavailable, Overloaded, NotFound) as error:
            self._ports.log("history_waits", error=str(error))
            return False
        self._names, self._read = names, True
        self._stored = max([self._stored, *(change.number for change in earlier)])
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

    def _checked(self, name: str, data: bytes) -> list[Change]:
        if int.from_bytes(data[:4], "little") != payload_crc(data[4:]):
            self._damaged(name, "the checksum is wrong")
            return []
        return self._decode(name, data[4:])

    def _decode(self, name: str, data: bytes) -> list[Change]:
        try:
            return msgspec.json.decode(data, type=list[Change])
        except (msgspec.DecodeError, TypeError, ValueError) as error:  # the latter where a text is not UTF-8
            self._damaged(name, str(error))
            return []

    def _damaged(self, name: str, error: str) -> None:
        self._ports.log("history_damaged", name=name, error=error)
