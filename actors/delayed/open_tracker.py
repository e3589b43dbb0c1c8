"""The choice between the trackers of delayed messages.

`bucket` is the default: the index lies in bucket objects and memory stays small. `memory` keeps everything in memory.
With `delayed_delivery_shared_index_enabled` the subscription has a view of the index that all such subscriptions of the
partition share.
A subscription without a manifest has no bucket index before its first delayed message (`IndexOnDemand`).
If the bucket index cannot be opened now, the bucket tracker begins in memory: delayed messages still wait, and are
found by reading the log (BD-33). It goes on with buckets as soon as the store lets it. Only a subscription whose
delayed delivery is switched off delivers at once (BD-1).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sluice.actors.delayed.buckets import LOOK_AHEAD_MS
from sluice.actors.delayed.index_removal import IndexRemoval
from sluice.actors.delayed.manifest import newest_manifest
from sluice.actors.delayed.memory import InMemoryTracker
from sluice.actors.delayed.shared import SharedIndex, SharedView
from sluice.actors.delayed.tracker import DelayedTracker, IndexOnDemand, OwnIndex
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.messages.settings import CHOICES
from sluice.actors.ports import Address, Ports
from sluice.actors.runtime.store_attempts import REFUSALS, attempt
from sluice.storage.delayed.entries import Mask, Times
from sluice.storage.errors import Invalid
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import Positions


class NoDelayTracker(InMemoryTracker):
    """Delayed delivery is off: every message is delivered at once (BD-1)."""

    def add(self, positions: Positions, hashes: Hashes, deliver_at: Times, now: int) -> Mask:
        """Nothing is delayed."""
        return np.zeros(positions.size, np.bool_)


async def make_tracker(
    ports: Ports,
    *,
    topic: str,
    partition: int,
    subscription: str,
    settings: SubscriptionSettings,
    changed: Callable[[], None],
    owner_epoch: int,
    look_ahead_ms: int = LOOK_AHEAD_MS,
    shared: SharedIndex | None = None,
    indexed: bool | None = None,
) -> DelayedTracker:
    """The tracker that the settings choose, started or about to start. Raises Fenced, Invalid.

    indexed: whether there is a manifest, by somebody who has looked; None: look, there may be one by now.
    shared: the index of the partition's subscriptions in this process, for those that say so in their settings.
    """
    if settings.delayed_tracker not in CHOICES["delayed_tracker"]:
        raise Invalid(f"delayed_tracker is bucket or memory, not {settings.delayed_tracker!r}")
    own = OwnIndex(
        ports=ports,
        topic=topic,
        partition=partition,
        subscription=subscription,
        settings=settings,
        changed=changed,
        epoch=owner_epoch,
        look_ahead_ms=look_ahead_ms,
    )
    other = _other(settings, shared, ports.me, changed)
    if other is not None:
        removal = IndexRemoval(ports, own.key, own.make)
        other.delete_other_index = removal.delete
        ports.spawn(removal.run(), "removal of another index")
        return other
    try:
        if indexed is None:
            indexed = await attempt(ports, lambda: newest_manifest(ports, own.key)) is not None
        if not indexed:
            return IndexOnDemand(own)
        tracker = own.make()
        await tracker.start()
    except REFUSALS as error:
        ports.log("delayed_fallback", key=own.key, error=str(error))
        tracker = own.make()
        tracker.start_later(error)
    return tracker


def delays(settings: SubscriptionSettings) -> bool:
    """Whether a subscription honours deliver_at (BD-1)."""
    return settings.delayed_delivery_enabled and settings.type in ("key_shared", "shared")


def _other(
    settings: SubscriptionSettings,
    shared: SharedIndex | None,
    owner: Address,
    changed: Callable[[], None],
) -> InMemoryTracker | SharedView | None:
    """The tracker if the settings want another one than buckets of the subscription's own."""
    if not delays(settings):
        return NoDelayTracker()
    if settings.delayed_tracker == "memory":
        return InMemoryTracker(tick_ms=settings.delayed_delivery_tick_time_millis)
    if settings.delayed_delivery_shared_index_enabled and shared is not None:
        return shared.view(owner, changed, settings)
    return None
