"""Deletes the subscription on one partition, on request or when no consumer uses it any more.

The owners of several partitions all agree before one deletes anything (`prepare`), and from then on no consumer can
attach for HOLD_MS.

The first step of a deletion is a version of the record that calls the subscription deleted. It proves that this owner
was not replaced, and it decides: an owner that takes the record over from then on begins a new subscription. The other
steps clear away. A newer owner may be at work meanwhile, so each step concerns only the writes of owners up to this
one, and the record is removed only if that version is still the newest.

**A subscription that is not durable** is deleted when no consumer uses it any more. A gateway whose last client leaves
says so to the controller at once. A gateway that dies says nothing, so the owner looks as well: when for a whole lease
no consumer was attached, joining or awaited, it asks the controller to delete the subscription. The controller asks the
owners of all partitions first, so it is enough that one of them, that of partition 0, begins. A lease is also the time
in which the clients of a dead gateway come back through another one, and find their cursor.
"""

from __future__ import annotations

import contextlib

from sluice.actors.dispatcher.delivery.consumers import Consumers
from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.dispatcher.delivery.leases import Leases
from sluice.actors.messages import DeleteSubscription, PrepareDeletion
from sluice.actors.runtime.waiting import SharedFuture
from sluice.storage.errors import Invalid, SluiceError, Unavailable

HOLD_MS = 60_000
"""The time (ms) without attaching; longer than a caller waits for the deletion on all partitions."""
LOOK_MS = 1_000


class UnusedWatch:
    """A watch on whether a subscription is used."""

    def __init__(self, context: SubscriptionContext) -> None:
        self._ports, self._directory = context.ports, context.directory
        self._identity, self._state = context.identity, context.state

    def unused(self) -> bool:
        """Return whether the subscription is not durable and has no members here.

        Members are consumers on this partition that are attached, join, or may still hold messages.
        """
        return not self._state.settings.durable and not len(self._state.membership)

    def start(self) -> None:
        """Look regularly, if the subscription is not durable."""
        if not self._state.settings.durable and self._identity.partition == 0:
            self._ports.spawn(self._run(), "use")

    async def _run(self) -> None:
        settings, clock = self._state.settings, self._ports.clock
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


class Deletion:
    """The deletion of a subscription; no consumer can attach meanwhile."""

    def __init__(self, context: SubscriptionContext, consumers: Consumers, leases: Leases, use: UnusedWatch) -> None:
        self._context, self._consumers, self._leases, self._use = context, consumers, leases, use
        self._held_until = 0
        self._outcome: SharedFuture[None] | None = None
        """The outcome of the deletion; there is no second one, because this dispatcher ends with it."""

    def prepare(self, request: PrepareDeletion) -> None:
        if request.withdrawn:
            self._held_until = 0
        else:
            self._check(request.deletion)
            self._hold()

    def check_attaching(self) -> None:
        """Raise Unavailable while no consumer may attach."""
        if self._context.ports.clock.monotonic() < self._held_until:
            raise Unavailable(f"subscription {self._context.identity.subscription!r} is being deleted")

    async def delete(self, request: DeleteSubscription) -> None:
        """See messages.DeleteSubscription. This dispatcher ends with it, also when it fails halfway.

        A second caller gets the outcome of the deletion that is under way. It is another controller, which does not
        hear the first one, and would begin again if it were refused. Raises Fenced if there is a newer owner, and
        errors of the stores.
        """
        if self._outcome is None:
            self._check(request)
            self._outcome = SharedFuture()
            try:
                await self._delete()
            except BaseException as error:
                self._outcome.set_exception(error)
                raise
            self._outcome.set_result(None)
        await self._outcome

    async def _delete(self) -> None:
        context = self._context
        self._hold()
        for session in context.sessions.all():
            self._leases.end(session, "deleted")
        context.state.delete()
        await context.store.barrier()
        try:
            for forget in (
                context.tracker.delete,
                context.changed_delays.delete,
                context.reporter.gone,
                context.history.clear,
            ):
                await forget()
                context.ownership.check_owner()
            await context.store.remove()
        except SluiceError as error:
            context.ownership.end(f"the subscription was deleted, but not all of it: {error}")
            raise
        # not before: its process does not wait for what it awaits
        context.ownership.end("the subscription was deleted")

    def _hold(self) -> None:
        self._held_until = self._context.ports.clock.monotonic() + HOLD_MS

    def _check(self, request: DeleteSubscription) -> None:
        connected = len(self._context.sessions) + self._consumers.attaching
        if connected and not request.force:
            raise Invalid(f"{connected} consumers are connected; close them, or use force")
        if request.only_unused and not self._use.unused():
            raise Invalid("the subscription is durable, or in use")
