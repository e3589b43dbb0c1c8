"""The durable half of cancellations and reschedules.

New changes stand in the subscription's record, and are durable with the version that holds them, like acknowledgements.
That record is written with every group of acknowledgements, so it must stay small. When many changes have gathered
there, all of them are written as one table under a key of its own, and the record names that key. A table gets a name
that was never used before, and is never changed; the record says which one counts. An owner that loses the record has
written a table that no record names. The next owner removes such tables.

A table is not changed when the cursor moves back either: the record says from where on its cancellations are void.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from sluice.actors.dispatcher.delivery.subscription import PartitionSubscription
from sluice.actors.ownership.fenced_record import newest_version
from sluice.actors.ports import Ports
from sluice.actors.runtime.store_attempts import REFUSALS, attempt
from sluice.storage.delayed.changes import DelayChanges
from sluice.storage.delayed.entries import Entries
from sluice.storage.errors import Corrupt
from sluice.storage.format.cursor import Cursor
from sluice.storage.format.position import Positions

FOLD_AT = 4_096
"""The number of changes that may stand in the record before they move to a table of their own."""


class ChangedDelays:
    """See `Recorded`. now: all changes."""

    field = "delayedChanges"

    def __init__(
        self, ports: Ports, identity: PartitionSubscription, epoch: int, cursor: Cursor, *, fresh: bool = False
    ) -> None:
        """fresh: nobody owned the subscription before."""
        self._ports, self._epoch, self._cursor, self._fresh = ports, epoch, cursor, fresh
        self._prefix = f"delayed-changes/{identity.topic}/{identity.partition}/{identity.subscription}/"
        self.now = DelayChanges()
        self._recent = DelayChanges()
        """The changes that are not in the table."""
        self._since: DelayChanges | None = None
        """While a table is being written: the changes that are not in that one either."""
        self.used = False
        """Whether there was ever a change: most subscriptions have none."""
        self._table = ""
        self._reopened: int | None = None
        """From this position on the cancellations of the table are void."""
        self._reopened_since: int | None = None
        """While a table is being written: the same of that one."""
        self._number = 0
        self._stale: list[str] = []

    async def load(self, stored: Any) -> None:
        if stored:
            self.used = True
            self._table = stored["table"]
            if self._table:
                found = await attempt(self._ports, lambda: self._ports.meta.read(self._table))
                if found is None:
                    raise Corrupt(f"the table of changed delays {self._table} is gone")
                self.now = DelayChanges.decode(found.value)
                self._reopened = stored.get("reopened")
                if self._reopened is not None:
                    self.now.reopen(self._reopened)
            self._recent = DelayChanges.decode(stored["recent"])
            self.now.update(self._recent)
        self._forget_done()

    def to_record(self) -> Any:
        if not self._table and not len(self._recent):
            return None
        stored = {"table": self._table, "recent": self._recent.encode()}
        return stored if self._reopened is None else {**stored, "reopened": self._reopened}

    # -- what changes -----------------------------------------------------------------------------------------------

    def cancel(self, positions: Positions) -> None:
        """Cancel messages (positions ascending)."""
        for changes in self._all():
            changes.cancel(positions)

    def move(self, entries: Entries) -> None:
        """Set new due times of messages (positions ascending)."""
        for changes in self._all():
            changes.move(entries)

    def reopen(self, start: int) -> None:
        """Void the cancellations from this position on: the cursor was moved back."""
        for changes in self._all():
            changes.reopen(start)
        if self._table:
            self._reopened = _lower(self._reopened, start)
        if self._since is not None:
            self._reopened_since = _lower(self._reopened_since, start)

    def _all(self) -> list[DelayChanges]:
        self.used = True
        return [self.now, self._recent] if self._since is None else [self.now, self._recent, self._since]

    # -- the table --------------------------------------------------------------------------------------------------

    async def fold(self, first: int) -> None:
        """Move the changes out of the record if they are many. If that fails, nothing is lost or less durable.

        first: where the topic begins.
        """
        if len(self._recent) < FOLD_AT or self._since is not None:
            return
        for changes in self._all():
            changes.trimmed(first)
        self._forget_done()
        value, self._since, self._reopened_since = self.now.encode(), DelayChanges(), None
        try:
            table = await self._write(value)
        except (*REFUSALS, Corrupt) as error:
            self._since = None
            self._ports.log("delayed_changes_stay_in_the_record", changes=len(self._recent), error=str(error))
            return
        if self._table:
            self._stale.append(self._table)
        self._table, self._recent, self._since = table, self._since, None
        self._reopened = self._reopened_since

    async def _write(self, value: bytes) -> str:
        """Store a table; returns its key. Raises what the store says."""
        while True:
            self._number += 1
            key = f"{self._prefix}{self._epoch:012d}-{self._number:06d}"
            if await attempt(self._ports, lambda key=key: self._ports.meta.create(key, 1, value)):  # type: ignore[misc]
                return key
            read = partial(newest_version, self._ports.meta, key)
            if (await attempt(self._ports, read)).value == value:
                return key  # an earlier attempt, whose answer was lost

    def take_stale(self) -> list[str]:
        """Take the tables that no version of the record will name if its writing begins from now on."""
        stale, self._stale = self._stale, []
        return stale

    def start(self) -> None:
        """Remove the tables that earlier owners left, if there were any."""
        if not self._fresh:
            self._ports.spawn(self.remove_leftovers(), "delayed changes")

    async def remove_leftovers(self) -> None:
        """Remove tables of earlier owners that no record names. A table that a newer owner has named stays."""
        own = f"{self._prefix}{self._epoch:012d}"
        named = self._table
        try:
            keys = await attempt(self._ports, lambda: self._ports.meta.keys(self._prefix))
        except REFUSALS as error:
            self._ports.log("delayed_changes_left", error=str(error))
            return
        await self.remove([key for key in keys if key < own and key != named])

    async def delete(self) -> None:
        """Remove the tables of all owners up to this one: the subscription is deleted. Raises Unavailable."""
        later = f"{self._prefix}{self._epoch + 1:012d}"
        keys = await attempt(self._ports, lambda: self._ports.meta.keys(self._prefix))
        for key in [key for key in keys if key < later]:
            await attempt(self._ports, lambda key=key: self._ports.meta.remove(key))  # type: ignore[misc]

    async def remove(self, keys: list[str]) -> None:
        """Remove tables; a table that cannot be removed now is left to the next owner."""
        for key in keys:
            try:
                await attempt(self._ports, lambda key=key: self._ports.meta.remove(key))  # type: ignore[misc]
            except REFUSALS as error:
                self._ports.log("delayed_changes_left", key=key, error=str(error))

    def _forget_done(self) -> None:
        """Forget the due times of messages that are done."""
        for changes in self._all():
            if len(changes.moved):
                changes.keep(~self._cursor.is_acknowledged(changes.moved.positions))


def _lower(known: int | None, start: int) -> int:
    return start if known is None else min(known, start)
