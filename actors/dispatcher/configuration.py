"""An operator's switches: pause, resume, properties, and other settings."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from actors.dispatcher.context import SubscriptionContext
from actors.messages import SubscriptionSettings
from actors.messages.settings import check_properties, check_subscription
from storage.errors import Conflict

_OF_MAKING = ("initial_position",)
"""Settings that count only when a subscription is made: whoever joins it later may say otherwise."""


class SubscriptionConfiguration:
    """Pauses the subscription, resumes it, and changes its settings and properties."""

    def __init__(self, context: SubscriptionContext) -> None:
        self._identity, self._state = context.identity, context.state
        self._store, self._wakeups, self._ownership = context.store, context.wakeups, context.ownership

    async def pause(self, paused: bool) -> None:
        """Send nothing from now on, or go on; durable when it returns."""
        self._state.pause(paused)
        await self._store.barrier()
        self._wakeups.all()

    async def set_properties(self, properties: dict[str, str]) -> None:
        """Keep these in place of those that there are; durable when it returns. Raises Invalid."""
        check_properties(properties)
        self._state.set_properties(properties)
        await self._store.barrier()

    async def change(self, settings: SubscriptionSettings, said: Sequence[str] = ()) -> bool:
        """Set other settings; returns whether any changed. Raises Conflict while a consumer is connected or awaited.

        said: see messages.Configure. A durable subscription stays durable (Conflict): its backlog must not go with a
        consumer.

        An owner keeps the settings that it began with, and the trust in itself that depends on its lease: when the new
        ones are durable it ends, and the next one begins with them. Raises Invalid for settings that cannot work.
        """
        now = self._state.settings
        kept = [name for name in settings.__struct_fields__ if name in _OF_MAKING or (said and name not in said)]
        if said and "sticky" not in (settings.selector, now.selector):
            kept.append("selector")  # a client of Pulsar does not say in which way the hashes are divided
        settings = msgspec.structs.replace(settings, **{name: getattr(now, name) for name in kept})
        check_subscription(settings)
        if settings == now and self._state.next_settings is None:
            return False
        if len(self._state.membership):
            names = [name for name in settings.__struct_fields__ if getattr(settings, name) != getattr(now, name)]
            differences = ", ".join(
                f"{name} is {getattr(now, name)!r}, not {getattr(settings, name)!r}" for name in names
            )
            raise Conflict(
                f"the settings of {self._identity.subscription} can change only while no consumer is connected: "
                f"{differences}"
            )
        if not settings.durable and (self._state.next_settings or now).durable:
            raise Conflict(
                f"subscription {self._identity.subscription} is durable and stays so; delete it first, or choose "
                "another name"
            )
        self._state.begin_next_with(settings)
        await self._store.barrier()
        self._ownership.end("it begins again with other settings")
        return True
