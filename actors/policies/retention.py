"""How long messages are kept, and where: operators set it at any time, for a topic or all topics of a namespace.

The records are `lifetime/namespace/<tenant>/<namespace>` and `lifetime/topic/<topic>`. A topic's value comes first,
then the value that it was made with, then that of its namespace. The owner of a partition looks, at most every LOOK_MS,
before it deletes anything; the owners of its subscriptions let messages expire (actors.policies.expiry).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from sluice.actors.messages import TopicSettings
from sluice.actors.messages.settings import check_topic
from sluice.actors.policies.policy_records import (
    LIFETIMES,
    SeldomRead,
    decoded,
    names_for,
    revise,
    value_of,
    values_of,
)
from sluice.actors.ports import Meta, Ports, Records


class Retention(msgspec.Struct, frozen=True):
    """How long and how much is kept of messages that all subscriptions have seen. -1: no limit; both 0: nothing."""

    ms: int
    bytes: int

    def __post_init__(self) -> None:
        check_topic(TopicSettings(retention_ms=self.ms, retention_bytes=self.bytes))


class Lifetime(msgspec.Struct, frozen=True, omit_defaults=True):
    """ttl_ms: older messages count as done; 0: none do. The rest is as in TopicSettings. None for a field: no value was
    set.
    """

    ttl_ms: int | None = None
    retention: Retention | None = None
    offload_threshold_bytes: int | None = None
    offload_threshold_seconds: int | None = None
    offload_deletion_lag_ms: int | None = None
    compaction_threshold_bytes: int | None = None

    def __post_init__(self) -> None:
        check_topic(msgspec.structs.replace(TopicSettings(ttl_ms=self.ttl_ms or 0), **self.thresholds()))

    def thresholds(self) -> dict[str, int]:
        """Return the thresholds that are set, by their names in TopicSettings."""
        return {name: value for name in THRESHOLDS if (value := getattr(self, name)) is not None}


THRESHOLDS = (
    "offload_threshold_bytes",
    "offload_threshold_seconds",
    "offload_deletion_lag_ms",
    "compaction_threshold_bytes",
)
"""When ledgers leave for the object store and the bookies, and when a log is compacted."""
_DEFAULTS = TopicSettings()


class Lifetimes:
    """The records. Names: actors.policies.policy_records. Every method may raise Unavailable, and readers Corrupt."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta

    async def read(self, name: str) -> Lifetime:
        return _lifetime_in(name, await value_of(self._meta, LIFETIMES + name))

    async def change(self, name: str, **values: int | Retention | None) -> None:
        """Set fields of Lifetime; None removes the value. Raises Invalid."""

        def changed(value: bytes | None) -> bytes:
            return msgspec.json.encode(msgspec.structs.replace(_lifetime_in(name, value), **values))

        await revise(self._meta, LIFETIMES + name, changed, f"the lifetime of {name} is")

    async def remove(self, name: str) -> None:
        """Nothing is said any more."""
        await self._meta.remove(LIFETIMES + name)


async def _look_for(meta: Records, topic: str) -> tuple[Callable[[], Lifetime], Callable[[], Lifetime]]:
    """Return decoders of a topic's own lifetime record and of its namespace's. Each may raise Corrupt when called, so a
    damaged record disturbs only a caller that needs it.
    """
    names = names_for(topic)
    own, shared = await values_of(meta, [LIFETIMES + name for name in names])
    return partial(_lifetime_in, names[0], own), partial(_lifetime_in, names[1], shared)


def _lifetime_in(name: str, value: bytes | None) -> Lifetime:
    return Lifetime() if value is None else decoded(value, Lifetime, f"the lifetime of {name}")


class TopicRetention:
    """The retention of a topic. made: the settings that the topic was made with."""

    def __init__(self, ports: Ports, topic: str) -> None:
        self._topic, self._meta = topic, ports.meta
        self._known = SeldomRead[Retention](ports.clock)

    async def now(self, made: TopicSettings) -> Retention:
        """See above; what was said in the last LOOK_MS may not be known yet. Raises Unavailable, Corrupt."""
        return await self._known.get(lambda: retention_of(self._meta, self._topic, made))

    def fresh_for(self) -> int:
        return self._known.fresh_for()


async def retention_of(meta: Records, topic: str, made: TopicSettings) -> Retention:
    """The retention of a topic now. made: the settings that it was made with. Raises Unavailable, Corrupt."""
    own, shared = await _look_for(meta, topic)
    return own().retention or made_with(made) or shared().retention or Retention(0, 0)


class TopicThresholds:
    """When ledgers of a topic leave, and when it is compacted."""

    def __init__(self, ports: Ports, topic: str) -> None:
        self._topic, self._meta = topic, ports.meta
        self._known = SeldomRead[TopicSettings](ports.clock)

    async def now(self, made: TopicSettings) -> TopicSettings:
        """The settings that the topic was made with, with those in place of them that hold now; what was said in the
        last LOOK_MS may not be known yet. Raises Unavailable, Corrupt.
        """
        return await self._known.get(lambda: thresholds_of(self._meta, self._topic, made))

    def fresh_for(self) -> int:
        return self._known.fresh_for()


async def thresholds_of(meta: Records, topic: str, made: TopicSettings) -> TopicSettings:
    """The settings of a topic with the thresholds that hold now. made: as below. Raises Unavailable, Corrupt."""
    own, shared = await _look_for(meta, topic)
    unmade = {
        name: value for name, value in shared().thresholds().items() if getattr(made, name) == getattr(_DEFAULTS, name)
    }
    return msgspec.structs.replace(made, **{**unmade, **own().thresholds()})


async def ttl_of(meta: Records, topic: str, made: TopicSettings) -> int:
    """Milliseconds after which messages of a topic count as done now; 0: they never do. made: as above.

    Raises Unavailable, Corrupt.
    """
    own, shared = await _look_for(meta, topic)
    ttl = own().ttl_ms
    if ttl is None and not made.ttl_ms:
        ttl = shared().ttl_ms
    return made.ttl_ms if ttl is None else ttl


def made_with(made: TopicSettings) -> Retention | None:
    """The retention that a topic was made with, None if that is none."""
    return Retention(made.retention_ms, made.retention_bytes) if made.retention_ms or made.retention_bytes else None
