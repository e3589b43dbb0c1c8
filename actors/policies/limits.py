"""Limits of a topic, or of each topic of a namespace: rates, and how many producers and consumers it may have.

The records are `limits/namespace/<tenant>/<namespace>` and `limits/topic/<topic>`. Each limit of a topic comes before
that of its namespace. They hold for clients of Pulsar, for each partition by itself, as with Pulsar, and for all
gateways together (actors.pulsar.conversation.limits.rates, actors.pulsar.conversation.limits.head_count).
"""

from __future__ import annotations

import msgspec

from sluice.actors.ownership.names import namespace_of
from sluice.actors.policies.policy_records import LIMITS, decoded, look_at_all, of_namespace, of_topic, revise, value_of
from sluice.actors.ports import Meta
from sluice.storage.errors import Corrupt, Invalid

MOST = 1 << 50
MOST_PERIOD_S = 3_600


class Rate(msgspec.Struct, frozen=True, omit_defaults=True):
    """Messages and bytes in each period of so many seconds; below 1: any number."""

    messages: int = -1
    bytes: int = -1
    period_s: int = 1

    def __post_init__(self) -> None:
        if not (-1 <= self.messages <= MOST and -1 <= self.bytes <= MOST and 1 <= self.period_s <= MOST_PERIOD_S):
            raise Invalid(f"a rate is a number of messages and one of bytes in 1 to {MOST_PERIOD_S} seconds, or -1")


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """None: nothing is said; 0 producers or consumers: any number, also where a namespace says otherwise."""

    publish_rate: Rate | None = None
    dispatch_rate: Rate | None = None
    producers: int | None = None
    consumers: int | None = None
    consumers_per_subscription: int | None = None

    def __post_init__(self) -> None:
        for limit in (self.producers, self.consumers, self.consumers_per_subscription):
            if limit is not None and not 0 <= limit <= MOST:
                raise Invalid(f"a limit is a number of 0 or more, not {limit}")


NONE = Limits()


class LimitRecords:
    """The records. Names: actors.policies.policy_records. Those methods that ask may raise Unavailable, Corrupt."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta
        self._known: dict[str, Limits] = {}
        self._merged: dict[str, Limits] = {}

    async def read(self, name: str) -> Limits:
        value = await value_of(self._meta, LIMITS + name)
        return NONE if value is None else decoded(value, Limits, f"the limits of {name}")

    async def change(self, name: str, **values: Rate | int | None) -> None:
        """Set fields of Limits; None removes the value. Raises Invalid."""

        def changed(value: bytes | None) -> bytes:
            known = NONE if value is None else decoded(value, Limits, f"the limits of {name}")
            return msgspec.json.encode(msgspec.structs.replace(known, **values))

        await revise(self._meta, LIMITS + name, changed, f"the limits of {name} are")
        await self.refresh()

    async def remove(self, name: str) -> None:
        """Remove the limits of a deleted topic or namespace."""
        await self._meta.remove(LIMITS + name)

    async def refresh(self) -> list[Corrupt]:
        """Read all limits; return the errors of damaged records, whose last known limits stay in force."""
        names = [key.removeprefix(LIMITS) for key in await self._meta.keys(LIMITS)]
        found, damage = await look_at_all(names, self.read, self._known)
        self._known, self._merged = dict(found), {}
        return damage

    @property
    def any(self) -> bool:
        """Whether there are some, as far as it is known here."""
        return bool(self._known)

    def that_hold(self, topic: str) -> Limits:
        """For a topic, as far as they are known here."""
        if topic not in self._merged:
            own = self._known.get(of_topic(topic), NONE)
            shared = self._known.get(of_namespace(namespace_of(topic)[0]), NONE)
            said = {name: value for name, value in msgspec.structs.asdict(own).items() if value is not None}
            self._merged[topic] = msgspec.structs.replace(shared, **said)
        return self._merged[topic]
