"""Backlog quotas: how many bytes may wait on a partition, and for how long, before its producers are kept out.

Each quota is a record, `quota/namespace/<tenant>/<namespace>` or `quota/topic/<topic>`; a quota of age is one below
`quota-age/`. That of a topic comes before that of its namespace. A quota may instead let the oldest messages count as
done, which the owners of subscriptions carry out (`actors/policies/expiry.py`). Quotas change seldom, so a gateway that
keeps producers out caches all of them and looks again now and then.
"""

from __future__ import annotations

import msgspec

from sluice.actors.ownership.names import namespace_of
from sluice.actors.policies.policy_records import (
    QUOTAS,
    decoded,
    look_at_all,
    names_for,
    of_namespace,
    of_topic,
    revise,
    value_of,
    values_of,
)
from sluice.actors.ports import Meta, Records
from sluice.storage.errors import Corrupt, Invalid

CHECK_MS = 5_000
"""So often quotas that were set elsewhere are seen."""
MOST = 1 << 50
HOLDS = ("producer_request_hold", "producer_exception")
"""The policies by which producers are kept out: with the first their clients wait, with the second they fail."""
EVICTION = "consumer_backlog_eviction"
"""The policy by which producers go on, and what is too old or too much counts as done."""


class Quota(msgspec.Struct, frozen=True):
    """limit: bytes behind the slowest subscription of a partition, or seconds; 0 seconds are no limit, as with Pulsar.
    policy: one of HOLDS, or EVICTION.
    """

    limit: int
    policy: str

    def __post_init__(self) -> None:
        if self.policy not in (*HOLDS, EVICTION):
            raise Invalid(f"there is no policy {self.policy[:40]!r}: use {', '.join(HOLDS)} or {EVICTION}")
        if not 0 <= self.limit <= MOST:
            raise Invalid(f"a quota is a number of bytes or seconds, not {self.limit}")


class Quotas:
    """The records below a prefix. Names and prefixes: actors.policies.policy_records."""

    def __init__(self, meta: Meta, prefix: str = QUOTAS) -> None:
        self._meta, self._prefix = meta, prefix
        self._known: dict[str, Quota] = {}

    @property
    def any(self) -> bool:
        """Whether there is any, as far as it is known here."""
        return bool(self._known)

    def that_holds(self, topic: str) -> Quota | None:
        """For a topic, as far as it is known here; None if there is none."""
        if not self._known:
            return None
        space, _ = namespace_of(topic)
        return self._known.get(of_topic(topic)) or self._known.get(of_namespace(space))

    async def refresh(self) -> list[Corrupt]:
        """Read all quotas; return the errors of damaged records, whose last known quotas stay in force. Raises
        Unavailable.
        """
        names = [key.removeprefix(self._prefix) for key in await self._meta.keys(self._prefix)]
        known: dict[str, Quota | None] = {**self._known}
        found, damage = await look_at_all(names, self.read, known)
        self._known = {name: quota for name, quota in found.items() if quota is not None}
        return damage

    async def read(self, name: str) -> Quota | None:
        """One of them, None if it is not set. Raises Unavailable, Corrupt."""
        return _quota_in(name, await value_of(self._meta, self._prefix + name))

    async def set(self, name: str, quota: Quota) -> None:
        """Store a quota. The quota holds here at once, and elsewhere within CHECK_MS. Raises Unavailable."""
        value = msgspec.json.encode(quota)
        await revise(self._meta, self._prefix + name, lambda _: value, f"the backlog quota of {name} is")
        await self.refresh()

    async def unset(self, name: str) -> None:
        """There is none any more. Raises Unavailable."""
        await self._meta.remove(self._prefix + name)
        await self.refresh()


async def quota_of(meta: Records, prefix: str, topic: str) -> Quota | None:
    """The one that holds for a topic now, None if there is none. prefix: as above. Raises Unavailable, Corrupt."""
    own, shared = names_for(topic)
    values = await values_of(meta, [prefix + own, prefix + shared])
    return _quota_in(own, values[0]) or _quota_in(shared, values[1])


def _quota_in(name: str, value: bytes | None) -> Quota | None:
    return None if value is None else decoded(value, Quota, f"the backlog quota of {name}")
