"""A topic's table in a catalog follows the record of a partition: what came to the object store, and what went.

The record is the truth, and a commit compares the table with it. So nothing is kept here but which objects the record
named when the table was last known to follow. An owner that dies in between, or never hears of a commit, is followed
by one that compares once more. A catalog that is away or hangs holds nothing up, neither what leaves for the store nor
what goes nor what is erased; only the end of an erasing waits, because the table may have copies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from sluice.actors.ledger.record import LedgerRecord
from sluice.actors.messages import TopicSettings
from sluice.actors.ports import Ports
from sluice.actors.topic.partition.hooks import BackgroundJob
from sluice.actors.topic.partition.managed_ledger import ManagedLedger
from sluice.storage.errors import SluiceError
from sluice.storage.history.part import PayloadColumns

RETRY_MS = 30_000
"""After a commit that did not work, so long none is tried."""


class TableFollowing(BackgroundJob):
    """The part of one partition's owner that lets the table follow. named: the objects that are in the record now.
    leaving: whether more is on its way there, which is waited for.
    """

    name = "table"

    def __init__(
        self,
        ports: Ports,
        log: ManagedLedger,
        topic: str,
        named: Callable[[], set[str]],
        leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        self._ports, self._log, self._topic, self._named, self._leaving = ports, log, topic, named, leaving
        self._followed: set[str] | None = None
        self._not_before = 0
        self._turns = asyncio.Lock()
        self.error = ""
        """Why the last try failed; empty if it did not."""

    @property
    def behind(self) -> bool:
        """Whether the table may have other objects than the record."""
        if self._ports.tables is None:
            return False
        named = self._named()
        if self._followed is None:
            return bool(named or self._log.record.trimmed_before)
        return named != self._followed

    def due(self, settings: TopicSettings) -> bool:
        """Return whether the table is behind, and it is time to try."""
        return self._is_due() and not self._leaving()

    def _is_due(self) -> bool:
        return self.behind and self._ports.clock.monotonic() >= self._not_before

    def at_work(self, settings: TopicSettings) -> bool:
        """Return whether the table is behind."""
        return self.behind

    concerned = at_work

    async def columns(self) -> PayloadColumns | None:
        """Return what makes columns of payloads for the table; None without one. Raises Unavailable."""
        return None if self._ports.tables is None else await self._ports.tables.columns(self._topic)

    async def turn(self, settings: TopicSettings) -> Sequence[LedgerRecord]:
        """Let it follow, if it is behind. What fails is told in `error` and tried again.

        Turns come one after another, and each one looks whether the table is still behind.
        """
        async with self._turns:
            await self._follow()
        return ()

    async def _follow(self) -> None:
        if self._ports.tables is None or not self._is_due():
            return
        named = self._named()
        try:
            await self._ports.tables.follow(self._topic)
        except SluiceError as error:
            self.error = f"the table: {error}"
            self._not_before = self._ports.clock.monotonic() + RETRY_MS
            self._ports.log("table_waits", error=str(error))
            return
        self._followed, self.error = named, ""
