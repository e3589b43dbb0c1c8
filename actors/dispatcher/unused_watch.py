"""Deletes a subscription that is not durable when no consumer uses it any more.

A gateway whose last client leaves says so to the controller at once. One that dies says nothing, so the owner looks as
well: when for a whole lease nobody was attached, joining or awaited, it asks the controller to delete the subscription.
The controller asks the owners of all partitions first, so it is enough that one of them, that of partition 0, begins.
A lease is also the time in which the clients of a dead gateway come back through another one, and find their cursor.
"""

from __future__ import annotations

import contextlib

from actors.dispatcher.context import SubscriptionContext
from storage.errors import SluiceError

LOOK_MS = 1_000


class UnusedWatch:
    """Watches whether a subscription is used."""

    def __init__(self, context: SubscriptionContext) -> None:
        self._ports, self._directory = context.ports, context.directory
        self._identity, self._state = context.identity, context.state

    def unused(self) -> bool:
        """Whether it is not durable, and nobody on this partition has it, joins it, or may still hold messages."""
        return not self._state.settings.durable and not len(self._state.membership)

    async def run(self) -> None:
        """Look again and again; ends at once where there is nothing to look for."""
        settings, clock = self._state.settings, self._ports.clock
        if settings.durable or self._identity.partition != 0:
            return
        patience = max(settings.lease_ms, settings.grace_ms)
        used = clock.monotonic()
        while True:
            await clock.sleep(LOOK_MS)
            if not self.unused():
                used = clock.monotonic()
            elif clock.monotonic() - used >= patience:
                self._ports.log("unused", subscription=self._identity.subscription)
                with contextlib.suppress(SluiceError):  # it is asked again, after as long a time
                    await self._directory.remove_unused(self._identity.topic, self._identity.subscription)
                used = clock.monotonic()
