"""The owners of a subscription that perhaps nobody uses any more, which is to be deleted if they all say so.

One that is not durable goes when it is unused. The owner on partition 0 says when it finds it so
(`actors.dispatcher.operator.deletion`). The controller deletes it if the owners of all partitions say the same: a part
must not go while another is in use. Those whose owners nobody would start are found by
`actors/controller/closed_owners.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.actors.controller.closed_owners import SUBSCRIPTIONS
from sluice.actors.controller.idle_owners import goes_by_itself
from sluice.actors.controller.supervisor import Supervisor
from sluice.actors.ports import Address, Ports


class UnusedSubscriptions:
    """Asks the records and the owners. changes: whether a subscription or its topic is being deleted or grows."""

    def __init__(self, ports: Ports, supervisor: Supervisor, changes: Callable[[str, str], bool]) -> None:
        self._ports, self._supervisor, self._changes = ports, supervisor, changes

    async def owners(self, topic: str, subscription: str) -> dict[int, Address]:
        """Return the owners by partition. Raises SluiceErrors.

        Returns none while the subscription changes: a start would create again what is being deleted.
        """
        if self._changes(topic, subscription):
            return {}
        owners = await self._owners(topic, subscription)
        return {} if self._changes(topic, subscription) else owners

    async def _owners(self, topic: str, subscription: str) -> dict[int, Address]:
        """The dispatchers of the partitions that have a record of the subscription, started where they do not run."""
        keys = [key.split("/") for key in await self._ports.meta.keys(f"{SUBSCRIPTIONS}{topic}/")]
        partitions = sorted(int(partition) for _, _, partition, name in keys if name == subscription)
        place = goes_by_itself({"topic": topic, "subscription": subscription})
        entries = [self._supervisor.want("dispatcher", {**place, "partition": number}) for number in partitions]
        return dict(zip(partitions, await self._supervisor.ensure_all(entries), strict=True))
