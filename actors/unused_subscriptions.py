"""Subscriptions that no consumer uses, but whose owner has something to do: the controller sees to them.

One that is not durable is to be deleted. One of a topic whose messages expire is to count them as done.

The owner on partition 0 says when it finds its subscription unused (`actors.dispatcher.deletion`). The controller
deletes it if the owners of all partitions say the same: a part must not go while another is in use. A cluster that was
stopped as a whole leaves subscriptions to which nobody comes back, so that nobody would start their owners. Now and
then these are started; then they find out what is to be done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from actors.dispatcher.subscription import settings_in
from actors.messages import SubscriptionSettings
from actors.policies.expiry import TopicExpiry
from actors.ports import Address, Ports
from actors.supervisor import Supervisor
from actors.topic_catalog import TopicCatalog
from storage.errors import Corrupt, NotFound, SluiceError

PREFIX = "subscription/"
LOOK_MS = 600_000
"""Ten minutes: each record is read."""


class UnusedSubscriptions:
    """Asks the records and the owners. changes: whether a subscription or its topic is being deleted or grows."""

    def __init__(
        self, ports: Ports, supervisor: Supervisor, catalog: TopicCatalog, changes: Callable[[str, str], bool]
    ) -> None:
        self._ports, self._supervisor, self._catalog, self._changes = ports, supervisor, catalog, changes

    async def owners(self, topic: str, subscription: str) -> dict[int, Address]:
        """The owners by partition. Raises SluiceErrors.

        None while it changes: the owner of what is being deleted must not be started anew.
        """
        if self._changes(topic, subscription):
            return {}
        owners = await self._owners(topic, subscription)
        return {} if self._changes(topic, subscription) else owners

    async def run(self) -> None:
        """Start the owners that have something to do, where they do not run; again and again."""
        while True:
            await self._ports.clock.sleep(LOOK_MS)
            try:
                for topic, subscription in await self._with_work():
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

    async def _with_work(self) -> list[tuple[str, str]]:
        """Topic and name of each that is not durable, or whose topic's messages expire. Raises Unavailable."""
        found: dict[tuple[str, str], None] = {}
        expires: dict[str, bool] = {}
        for key in await self._ports.meta.keys(PREFIX):
            _, topic, _, name = key.split("/")
            if (topic, name) in found:
                continue
            if topic not in expires:
                expires[topic] = await self._expires(topic)
            record = None if expires[topic] else await self._ports.meta.read(key)
            with contextlib.suppress(Corrupt):  # its owner says so
                if expires[topic] or (record is not None and not settings_in(record.value).durable):
                    found[topic, name] = None
        return list(found)

    async def _expires(self, topic: str) -> bool:
        """Whether messages of a topic may count as done without an acknowledgement. Raises Unavailable."""
        with contextlib.suppress(NotFound, Corrupt):  # the topic goes just now, or its owners say what is wrong
            limits = await TopicExpiry(self._ports, topic).now(await self._catalog.settings(topic))
            return limits.age > 0 or limits.size is not None
        return False
