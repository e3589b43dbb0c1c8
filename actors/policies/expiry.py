"""Which messages of a topic expire, and count as done without an acknowledgement.

They are older than a time to live (actors.policies.retention) or than a quota of age that evicts
(actors.policies.backlog_quotas), or they are the oldest ones of a subscription that has reached a quota of size that
evicts. The owner of each subscription looks, at most every LOOK_MS, and carries it out
(`actors/dispatcher/operator/seek.py`).
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from sluice.actors.messages import TopicSettings
from sluice.actors.policies.backlog_quotas import EVICTION, quota_of
from sluice.actors.policies.policy_records import AGES, QUOTAS, SeldomRead
from sluice.actors.policies.retention import ttl_of
from sluice.actors.ports import Ports, Records

LEFT = 0.9
"""Of a quota of size that is reached, so much is left, as with Pulsar: not every look is to find it reached again."""


class ExpiryLimits(NamedTuple):
    """age: milliseconds, 0: messages of any age are kept. size: bytes, None: any number may wait."""

    age: int
    size: int | None


class TopicExpiry:
    """How long, and how much of, what waits on a topic may wait; read seldom."""

    def __init__(self, ports: Ports, topic: str) -> None:
        self._topic, self._meta = topic, ports.meta
        self._known = SeldomRead[ExpiryLimits](ports.clock)

    async def now(self, made: TopicSettings) -> ExpiryLimits:
        """A change of the last LOOK_MS may not be known yet. made: the settings that the topic was made with.

        Raises Unavailable, Corrupt: nothing expires while it is not known.
        """
        return await self._known.get(lambda: expiry_of(self._meta, self._topic, made))


async def expiry_of(meta: Records, topic: str, made: TopicSettings) -> ExpiryLimits:
    """The limits that hold for a topic now. made: as above. Raises Unavailable, Corrupt."""
    evicting_age, ttl, evicting_size = await asyncio.gather(
        _evicts(meta, AGES, topic), ttl_of(meta, topic, made), _evicts(meta, QUOTAS, topic)
    )
    ages = [age for age in (ttl, (evicting_age or 0) * 1000) if age]
    return ExpiryLimits(min(ages, default=0), evicting_size)


async def _evicts(meta: Records, prefix: str, topic: str) -> int | None:
    """The limit of the quota by which messages are evicted, None if there is none."""
    quota = await quota_of(meta, prefix, topic)
    return quota.limit if quota is not None and quota.policy == EVICTION else None
