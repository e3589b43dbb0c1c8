"""An operator's switches: pause, resume, properties, and other settings."""

from __future__ import annotations

import msgspec

from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.messages import Configure, Configured, SubscriptionSettings
from sluice.actors.messages.settings import OF_MAKING, check_properties, check_subscription
from sluice.storage.errors import Conflict


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

    async def change(self, asked: Configure) -> Configured:
        """Set other settings. Raises Conflict while a consumer is connected or awaited.

        A durable subscription stays durable (Conflict): its backlog must not go with a consumer.

        An owner keeps the settings that it began with, and the trust in itself that depends on its lease: when the new
        ones are durable it ends, and the next one begins with them. Raises Invalid for settings that cannot work.
        """
        now, settings = self._state.settings, self._wanted(asked)
        check_subscription(settings)
        if settings == now and self._state.next_settings is None:
            return Configured(changed=False, settings=settings)
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
        return Configured(changed=True, settings=settings)

    def _wanted(self, asked: Configure) -> SubscriptionSettings:
        """Return the settings in force, with the caller's changes."""
        now, settings = self._state.next_settings or self._state.settings, asked.settings
        meant = settings.__struct_fields__ if asked.said is None else asked.said
        changes = {name: getattr(settings, name) for name in settings.__struct_fields__ if name in meant}
        if "sticky" in meant and "sticky" in (settings.selector, now.selector):
            changes["selector"] = settings.selector
        changes |= {name: getattr(now, name) for name in OF_MAKING}
        return msgspec.structs.replace(now, **changes)
