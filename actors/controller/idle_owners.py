"""Closes owners of topics and subscriptions that nobody uses, and wakes those that have something to do.

An owner says in its answer to a ping for how long it has been idle. After `close_after_ms` it is asked to end
(`CloseIdle`). It refuses if somebody has come meanwhile; else it ends, and is forgotten here: what is left of a topic
that nobody uses is its records. A client that needs it asks the controller for its address, and that starts it.

An owner that closes says when it has something to do: the next delayed message is due, or retention deletes
a ledger. One timer wakes them all. A new controller reads from the manifests of the delayed indexes when those are due
that nobody has opened, a few at a time. What else there is to do is found by `actors/controller/closed_owners.py`.

Closing is an end like any other. If its answer is lost, the next ping finds the owner gone, and it is started again; a
caller with its old address learns that it is gone, and asks again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from sluice.actors.controller.running import Running, key_of
from sluice.actors.controller.supervisor import Supervisor
from sluice.actors.delayed.shared import NAME
from sluice.actors.dispatcher.delivery.subscription import PartitionSubscription
from sluice.actors.ledger.record import record_key
from sluice.actors.messages import CloseIdle, SubscriptionSettings, TopicSettings
from sluice.actors.messages.settings import plain_settings
from sluice.actors.ports import Places, Ports, Unknown
from sluice.storage.delayed.manifest import decode_manifest
from sluice.storage.errors import Corrupt, NotFound, SluiceError

CLOSE_IDLE_AFTER_MS = 600_000
LOOK_MS = 1_000
CLOSE_TIMEOUT = 5_000
AT_ONCE = 64
"""The most owners that are closed, woken, or looked up in manifests in one round."""
DELAYED = "delayed/"


class IdleOwners:
    """close_after_ms: 0 closes none. settings_of: those of a topic now. changes: whether a topic is being deleted or
    grows, so that nothing is closed.
    """

    def __init__(
        self,
        ports: Ports,
        places: Places,
        supervisor: Supervisor,
        close_after_ms: int,
        settings_of: Callable[[str], Awaitable[TopicSettings]],
        changes: Callable[[str], bool],
    ) -> None:
        self._ports, self._places, self._supervisor = ports, places, supervisor
        self._close_after, self._settings_of, self._changes = close_after_ms, settings_of, changes
        self._closing: dict[str, None] = {}
        self._wakes: dict[str, tuple[int, str, dict[str, Any]]] = {}
        """By name: when a closed owner has something to do, and how it is started."""
        self.closed = 0

    async def run(self) -> None:
        """Look again and again, for ever."""
        if self._close_after:
            self._ports.spawn(self._remember_delayed(), "delayed of closed topics")
        while True:
            await self._ports.clock.sleep(LOOK_MS)
            self._wake_due()
            if not self._close_after:
                continue
            for entry in self._supervisor.idle(self._close_after)[: AT_ONCE - len(self._closing)]:
                if entry.name not in self._closing and not self._changes(entry.settings["topic"]):
                    self._closing[entry.name] = None
                    self._ports.spawn(self._close(entry), "close")

    def wake(self, kind: str, settings: dict[str, Any]) -> None:
        """An owner has something to do. settings: those of `Places.start`; what says where it is suffices."""
        self._wakes[key_of(kind, settings)] = self._ports.clock.now(), kind, settings

    async def _close(self, entry: Running) -> None:
        address, entry.closing = entry.address, True
        try:
            reply = await self._ports.net.call(address, CloseIdle(idle_ms=self._close_after), CLOSE_TIMEOUT)
            if isinstance(reply, Unknown):
                return  # if it has closed, the next ping finds it gone
            if reply.closed and reply.wake_at:  # also if another was begun meanwhile, which may close before it knows
                self._wakes[entry.name] = reply.wake_at, entry.kind, entry.settings
            if not reply.closed or not self._supervisor.release(entry, address):
                entry.idle_ms = 0
                return
            self.closed += 1
            self._ports.log("closed", key=entry.name, wake_at=reply.wake_at)
            await self._places.stop(address)
        except SluiceError as error:
            self._ports.log("close_refused", key=entry.name, error=str(error))
        finally:
            entry.closing = False
            del self._closing[entry.name]

    def _wake_due(self) -> None:
        now = self._ports.clock.now()
        for name in [name for name, (at, _, _) in self._wakes.items() if at <= now][:AT_ONCE]:
            _, kind, settings = self._wakes.pop(name)
            self._ports.spawn(self._wake(name, now, kind, settings), "wake")

    async def _wake(self, name: str, at: int, kind: str, settings: dict[str, Any]) -> None:
        """Start a closed owner, unless it was deleted: a start would create it again.

        If its topic was deleted and created again since, its settings are those of the new topic, if that has the
        partition.
        """
        topic, partition = settings["topic"], settings["partition"]
        is_topic = kind == "topic"
        key = record_key(topic, partition) if is_topic else subscription_key(settings)
        try:
            if await self._ports.meta.read(key) is None:
                return
            made = await self._settings_of(topic)
        except NotFound:
            return
        except SluiceError as error:
            self._ports.log("wake_waits", key=name, error=str(error))
            self._wakes.setdefault(name, (at, kind, settings))
            return
        if self._changes(topic):  # what was deleted is gone when it is looked for again
            self._wakes.setdefault(name, (at, kind, settings))
        elif partition < made.partitions:
            wanted = {**settings, "topic_settings": plain_settings(made)} if is_topic else goes_by_itself(settings)
            self._supervisor.start_aside(kind, wanted)

    async def _remember_delayed(self) -> None:
        """When the delayed messages of subscriptions are due that nobody has opened since this controller began."""
        while True:
            await self._ports.clock.sleep(LOOK_MS)
            try:
                keys = await self._ports.meta.keys(DELAYED)
                break
            except SluiceError as error:
                self._ports.log("delayed_unknown", error=str(error))
        for number, key in enumerate(keys):
            if number % AT_ONCE == AT_ONCE - 1:
                await self._ports.clock.sleep(LOOK_MS)
            try:
                await self._remember(key)
            except SluiceError as error:
                self._ports.log("delayed_unknown", key=key, error=str(error))

    async def _remember(self, key: str) -> None:
        _, topic, partition, subscription = key.split("/")
        newest = await self._ports.meta.read(key)
        if newest is None or subscription == NAME:
            return
        try:
            times = [bucket.min_time for bucket in decode_manifest(newest.value, key).buckets]
        except Corrupt:
            return  # its owner says so, and makes it again
        due = min((at for at in times if at > self._ports.clock.now()), default=0)
        settings = {"topic": topic, "partition": int(partition), "subscription": subscription}
        if due and self._supervisor.find("dispatcher", settings) is None:
            self._wakes.setdefault(key_of("dispatcher", settings), (due, "dispatcher", settings))


def subscription_key(settings: dict[str, Any]) -> str:
    """The key of the record of a dispatcher with these settings."""
    return PartitionSubscription(settings["topic"], settings["partition"], settings["subscription"]).key


def goes_by_itself(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings for a subscription that is not durable. The record's settings win; one deleted just now must not
    stay.
    """
    return {**settings, "subscription_settings": msgspec.to_builtins(SubscriptionSettings(durable=False))}
