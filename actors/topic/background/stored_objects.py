"""The objects that a partition's owner writes under one prefix: their names, and the deletion of unwanted ones.

Names carry the epoch and a number of the owner that wrote them and are never used twice. What the record does not name,
and was written under this epoch or an earlier one, is deleted: an owner that died, or a store that was late, left it.

Unless the record is older than the object. One that was restored from a backup knows nothing of what left after that,
and bookies may have forgotten it since. So an object stays while its ledger is neither in the record nor was trimmed,
or ought to be on bookies and is not found there, or in other objects if one of them is missing: they were rewritten.
What was written after the compacted table that the record names stays while anything that it stands for is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from sluice.actors.ledger.history_objects import delete_history, epoch_of, ledger_of_object, object_name, writing_of
from sluice.actors.ledger.record import LedgerRecord, LedgerState
from sluice.actors.ports import Ports
from sluice.actors.runtime.store_attempts import attempt
from sluice.actors.topic.partition.managed_ledger import ManagedLedger
from sluice.storage.errors import Corrupt, Fenced, SluiceError, Unavailable
from sluice.storage.format.frame import Buffer
from sluice.storage.format.position import EARLIEST, ledger_of, position

READ_AT_ONCE = 8
"""Runs that are read from bookies at a time, for objects that are made of them."""
RETRY_MS = 30_000
"""After what did not work, so long nothing is tried again."""
COLLECT_MS = 3_600_000
"""The interval of the search for objects that no record names: a write of an earlier owner may land at any time."""


class StoredObjects:
    """Objects under a prefix. named: the names that are in the record now. copies: whether each is a copy of what is in
    the ledger of its name.
    """

    def __init__(
        self, ports: Ports, log: ManagedLedger, prefix: str, named: Callable[[], set[str]], *, copies: bool
    ) -> None:
        self._ports, self._log, self._prefix, self._named, self._copies = ports, log, prefix, named, copies
        self._numbers = 0
        self._collect_at = 0
        self._unwanted: list[str] = []
        self._kept: list[str] = []
        """Objects that the last look found, that the record does not name, and that may be newer than the record."""
        self._not_ours: dict[str, None] = {}
        """Names that were taken: by an owner of whom a restored record knows nothing."""

    def new_name(self, ledger: int) -> str:
        """Return a name that was never used."""
        self._numbers += 1
        return object_name(self._prefix, ledger, self._log.epoch, self._numbers)

    async def put(self, name: str, data: Buffer) -> None:
        """Put a new object into the store. What is there is compared afterwards, whatever was answered.

        Raises Corrupt if the name is taken, Unavailable.
        """
        unclear = False

        async def put() -> None:
            nonlocal unclear
            try:
                created = await self._ports.objects.put(name, data)
            except Unavailable:
                unclear = True
                raise
            if not created and not unclear:
                self._not_ours[name] = None
                raise Corrupt(f"there is an object {name} already")

        await attempt(self._ports, put)

    def unwanted(self, names: Iterable[str]) -> None:
        """Note objects to be deleted: no record names them any more, or ever will."""
        self._unwanted += [name for name in names if name not in self._not_ours]

    @property
    def any_unwanted(self) -> bool:
        return bool(self._unwanted)

    def take_kept(self) -> list[str]:
        """Return the objects that the last look kept because they may be newer than the record, and forget them."""
        kept, self._kept = self._kept, []
        return kept

    def collection_due(self) -> bool:
        """Return whether it is time to look for objects that no record names."""
        return self._ports.clock.monotonic() >= self._collect_at

    async def clean_up(self) -> None:
        """Delete unwanted objects, and now and then whatever else the record does not name. Raises Fenced, Unavailable,
        and what else the store refuses with.
        """
        while self._unwanted:
            name = self._unwanted[0]
            await attempt(self._ports, lambda: self._ports.objects.delete(name))  # noqa: B023
            self._unwanted.remove(name)  # others may have come meanwhile
        if not self.collection_due():
            return
        names = await attempt(self._ports, lambda: self._ports.objects.names(self._prefix))
        # Whether this is still the owner is asked after the list was made: what a newer one names is not ours to judge.
        await self._log.metadata.verify()
        named = self._named()
        there, epoch, kept = {*names}, self._log.epoch, list[str]()
        # One that was restored may have an epoch that was another owner's.
        self._numbers = max([self._numbers, *(writing_of(name)[1] for name in names if epoch_of(name) == epoch)])
        for name in names:
            if name in named or epoch_of(name) > epoch:
                continue
            if not await self._is_left_over(name, there):
                self._ports.log("history_kept", name=name)
                kept.append(name)
                continue
            await attempt(self._ports, lambda name=name: self._ports.objects.delete(name))  # type: ignore[misc]
            self._ports.log("history_collected", name=name)
        self._kept = kept
        self._collect_at = self._ports.clock.monotonic() + COLLECT_MS

    async def _is_left_over(self, name: str, there: Container[str]) -> bool:
        """Whether what an object holds that the record does not name is elsewhere, or was forgotten on purpose. there:
        the names of all that are.
        """
        record, ledger_id = self._log.record, ledger_of_object(name)
        if epoch_of(name) < record.first_epoch:
            return True  # of a topic of this name that was deleted
        ledger = record.ledger(ledger_id)
        if not self._copies:
            return await self._is_replaced(name, there)
        if ledger is None:
            return position(ledger_id, 0) < record.trimmed_before
        if ledger.offloaded is not None:
            return all(part.name in there for part in ledger.offloaded.parts)
        return await self._is_there(ledger)

    async def _is_replaced(self, name: str, there: Container[str]) -> bool:
        """Whether a part of a compacted table that the record does not name is older than the one that it names, or
        can be made again: from that one, and the log behind it.
        """
        record, last = self._log.record, ledger_of_object(name)
        table = record.compacted
        named = [] if table is None else [part.name for part in table.parts]
        if table is None and position(last, 0) < record.trimmed_before:
            return True
        if named and writing_of(name) < min(map(writing_of, named)):
            return True
        known = max([ledger.id for ledger in record.ledgers], default=0)
        first = ledger_of(EARLIEST if table is None else table.horizon)
        if not all(part in there for part in named) or last > max(known, first):
            return False
        behind = [ledger for ledger in record.ledgers if first <= ledger.id <= last]
        found = [ledger.state is not LedgerState.CLOSED or await self._is_there(ledger) for ledger in behind]
        return all(found)

    async def _is_there(self, ledger: LedgerRecord) -> bool:
        if ledger.last_run < 0:
            return False  # what was not closed, or is empty, has not been copied by anybody whom the record knows
        try:
            await self._log.reader.table(ledger)
        except Fenced:
            raise
        except SluiceError:
            return False
        return True

    async def delete_all(self) -> None:
        """Delete all objects: the topic was deleted. The garbage collection finds those that cannot be deleted now."""
        try:
            await delete_history(self._ports, self._prefix, self._log.epoch)
        except SluiceError as error:
            self._ports.log("history_left", error=str(error))
