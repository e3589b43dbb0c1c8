"""Subscriptions that are not durable and that no consumer uses: which they are, for the controller to delete them.

The owner on partition 0 says when it finds its subscription unused (`actors.dispatcher.deletion`). The controller
deletes it if the owners of all partitions say the same: a part must not go while another is in use. A cluster that was
stopped as a whole leaves subscriptions to which nobody comes back, so that nobody would start their owners. Now and
then these are started; then they find out that they are unused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from actors.dispatcher.subscription import settings_in
from actors.messages import SubscriptionSettings
from actors.ports import Address, Ports
from actors.supervisor import Supervisor
from storage.errors import Corrupt, SluiceError

PREFIX = "subscription/"
LOOK_MS = 600_000
"""Ten minutes: each record is read."""


class UnusedSubscriptions:
    """Asks the records and the owners. changes: whether a subscription or its topic is being deleted or grows."""

    def __init__(self, ports: Ports, supervisor: Supervisor, changes: Callable[[str, str], bool]) -> None:
        self._ports, self._supervisor, self._changes = ports, supervisor, changes

    async def owners(self, topic: str, subscription: str) -> dict[int, Address]:
        """The owners by partition. Raises SluiceErrors.

        None while it changes: the owner of what is being deleted must not be started anew.
        """
        if self._changes(topic, subscription):
            return {}
        owners = await self._owners(topic, subscription)
        return {} if self._changes(topic, subscription) else owners

    async def run(self) -> None:
        """Start the owners of all subscriptions that are not durable, where they do not run; again and again."""
        while True:
            await self._ports.clock.sleep(LOOK_MS)
            try:
                for topic, subscription in await self._not_durable():
                    if not self._changes(topic, subscription):
                        await self._owners(topic, subscription)
            except SluiceError as error:
                self._ports.log("unused_subscriptions_wait", error=str(error))

    async def _owners(self, topic: str, subscription: str) -> dict[int, Address]:
        """The dispatchers of the partitions that have a record of the subscription, started where they do not run."""
        keys = [key.split("/") for key in await self._ports.meta.keys(f"{PREFIX}{topic}/")]
        partitions = sorted(int(partition) for _, _, partition, name in keys if name == subscription)
        # The settings of the record count. If it is deleted just now, what is made anew must go by itself.
        plain = msgspec.to_builtins(SubscriptionSettings(durable=False))
        place = {"topic": topic, "subscription": subscription, "subscription_settings": plain}
        entries = [self._supervisor.want("dispatcher", {**place, "partition": number}) for number in partitions]
        return dict(zip(partitions, await self._supervisor.ensure_all(entries), strict=True))

    async def _not_durable(self) -> list[tuple[str, str]]:
        """Topic and name of each. Raises Unavailable."""
        found: dict[tuple[str, str], None] = {}
        for key in await self._ports.meta.keys(PREFIX):
            _, topic, _, name = key.split("/")
            record = None if (topic, name) in found else await self._ports.meta.read(key)
            with contextlib.suppress(Corrupt):  # its owner says so
                if record is not None and not settings_in(record.value).durable:
                    found[topic, name] = None
        return list(found)
