"""Tells the topics that a bookie is lost, or is to be left, until each of them has all its copies elsewhere.

A topic keeps the list of them in memory only, and counts what it still has to copy. So every partition gets the list,
again after each change of the list or of the partition's owner, and is asked every AUDIT_MS until it reports that
nothing remains. Topics that nobody uses are started for this, because their old data needs its copies as well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from sluice.actors.messages import Replicate
from sluice.actors.ports import Address, Ports, Unknown
from sluice.storage.errors import SluiceError

AUDIT_MS = 1_000
ASK_TIMEOUT = 3_000

Partitions = Callable[[bool], Awaitable[list[tuple[str, Address]]]]
"""The partitions in use (True: all that there are): key, and address of the owner, empty while there is none."""


class ReplicationAuditor:
    """The auditor that tells each partition which bookies are lost or left, and counts the fragments still to be
    copied.
    """

    def __init__(
        self,
        ports: Ports,
        lost: Callable[[], tuple[str, ...]],
        partitions: Partitions,
        leaving: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        """leaving: the bookies that still answer, and that nothing is to need any more."""
        self._ports = ports
        self._lost, self._leaving = lost, leaving
        self._partitions = partitions
        self._reported: tuple[tuple[str, ...], tuple[str, ...]] = (), ()
        self._all_known = True
        self._remaining: dict[str, tuple[Address, int]] = {}

    async def run(self) -> None:
        while True:
            await self._ports.clock.sleep(AUDIT_MS)
            try:
                await self.turn()
            except SluiceError as error:
                self._ports.log("replication_waits", error=str(error))

    async def turn(self) -> None:
        """Tell topics about these bookies, and ask those that are not done. Raises SluiceErrors of the metadata."""
        lost = self._lost()
        leaving = tuple(bookie for bookie in self._leaving() if bookie not in lost)
        if (lost, leaving) != self._reported:
            self._ports.log("bookies_lost", lost=list(lost), leaving=list(leaving))
            self._reported, self._all_known = (lost, leaving), False
            self._remaining = dict.fromkeys(self._remaining, ("", 1))
        if not lost and not leaving and self._all_known and not self.remaining():
            return
        known = await self._partitions(not self._all_known)
        self._all_known = True
        self._remaining = {key: self._remaining.get(key, ("", 1)) for key, _ in known}
        for key, address in known:
            if self._remaining[key] != (address, 0):
                await self._tell(key, address)

    async def _tell(self, key: str, address: Address) -> None:
        """One partition. While it does not answer, it counts as one fragment to be copied."""
        self._remaining[key] = ("", max(self._remaining[key][1], 1))
        if not address:
            return
        lost, leaving = self._reported
        request = Replicate(lost=list(lost), leaving=list(leaving))
        try:
            reply = await self._ports.net.call(address, request, ASK_TIMEOUT)
        except SluiceError as error:
            self._ports.log("replication_refused", key=key, error=str(error))
            return
        if not isinstance(reply, Unknown):
            self._remaining[key] = (address, reply.remaining)

    def remaining(self) -> int:
        """Fragments that are to be copied, by the last answers of the topics; one without an answer counts as one."""
        return sum(remaining for _, remaining in self._remaining.values())

    def under_replicated(self) -> int:
        """Return how many fragments lack copies; 0 if bookies are only leaving, since each fragment then has its
        copies.
        """
        lost, leaving = self._reported
        return self.remaining() if lost or not leaving else 0

    def knows_left(self, bookies: Sequence[str]) -> bool:
        """Whether the topics were told of these leaving bookies, and each has said what is left."""
        return self._all_known and all(bookie in (*self._reported[0], *self._reported[1]) for bookie in bookies)
