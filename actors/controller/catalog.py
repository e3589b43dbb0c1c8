"""The records of topics and subscriptions in the metadata, and the checks of their contents.

A record each, `topic/<topic>` with its settings, and `subscription/<topic>/<partition>/<subscription>`, which the
dispatcher writes that serves it.

Who subscribes asks for the same topic several times in a moment: where it is, and those that are started ask as well.
So settings that were read count for FRESH_MS, as those of a read count that took so long. What is changed through this
catalog counts at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from sluice.actors.ledger.record import record_key, unpack_record
from sluice.actors.messages import SubscriptionSettings, TopicSettings
from sluice.actors.messages.settings import check_topic, dead_letter_topic, stored_settings
from sluice.actors.ownership.names import check_name, namespace_of
from sluice.actors.policies.namespaces import Namespaces
from sluice.actors.policies.policy_records import forget_topic
from sluice.actors.ports import Clock, Log, Meta
from sluice.storage.errors import Conflict, Corrupt, Invalid, NotFound, Unavailable

_TOPICS = "topic/"
FRESH_MS, MOST_FRESH = 1_000, 1_000
"""How long settings count that were read, and of how many topics."""


class TopicCatalog:
    """The records. Every method may raise Unavailable, and NotFound if there is no such topic."""

    def __init__(self, meta: Meta, log: Log, clock: Clock) -> None:
        self._meta, self._log, self._clock = meta, log, clock
        self._namespaces = Namespaces(meta)
        self._fresh: dict[str, tuple[int, TopicSettings]] = {}
        """By topic: since when they were read, and the settings. Those that were read first come first."""
        self._changes = 0
        self.damaged: dict[str, str] = {}
        """Topics whose record could not be read when somebody last tried, and why."""

    async def names(self) -> list[str]:
        return [key.removeprefix(_TOPICS) for key in await self._meta.keys(_TOPICS)]

    async def all(self) -> dict[str, TopicSettings]:
        """Every topic and its settings, by name; without those that are deleted meanwhile. One whose record is damaged
        is there with the usual settings, so that the others can be seen, and nobody takes it for one that is not there.
        """
        found: dict[str, TopicSettings] = {}
        for topic in await self.names():
            with contextlib.suppress(NotFound):
                try:
                    found[topic] = await self.settings(topic)
                except Corrupt:
                    found[topic] = TopicSettings()
        return found

    async def create(self, topic: str, settings: TopicSettings) -> None:
        """Nothing happens if it exists so already. Raises Conflict if it exists with other settings, NotFound if its
        namespace does not exist.
        """
        await self.check_can_be_made(topic)
        with self._changing(topic):
            new = await self._meta.create(_TOPICS + topic, 1, msgspec.json.encode(settings))
        if not new and (there := await self.settings(topic)) != settings:
            raise Conflict(f"topic {topic} exists with other settings: {_difference(there, settings)}")

    async def check_can_be_made(self, topic: str) -> None:
        """Raises NotFound if neither the topic's namespace nor the topic exists."""
        try:
            await self._namespaces.check_exists(namespace_of(topic)[0])
        except NotFound:
            if await self._meta.read(_TOPICS + topic) is None:
                raise

    async def settings(self, topic: str) -> TopicSettings:
        """Return the settings of a topic, read again if a change overtook the first read.

        A deleted topic must not be returned, because its owners would be started. Raises NotFound and Unavailable.
        """
        for _ in range(2):
            began, changes = self._clock.monotonic(), self._changes
            if (fresh := self._fresh.get(topic)) is not None and began - fresh[0] <= FRESH_MS:
                return fresh[1]
            _, settings = await self.record(topic)
            if changes == self._changes:
                self._fresh.pop(topic, None)
                self._fresh[topic] = began, settings
                if len(self._fresh) > MOST_FRESH:
                    del self._fresh[next(iter(self._fresh))]
                break
        return settings

    async def record(self, topic: str) -> tuple[int, TopicSettings]:
        """The number of the version that holds, and the settings in it. Raises Corrupt."""
        try:
            record = await self._meta.read(_TOPICS + topic)
        except Corrupt as error:
            self.damaged[topic] = str(error)
            raise
        self.damaged.pop(topic, None)
        if record is None:
            raise NotFound(f"there is no topic {topic!r}")
        settings, notes = stored_settings(record.value, TopicSettings)
        for line in notes:
            self._log("settings_repaired", topic=topic, change=line)
        return record.number, settings

    async def replace(self, topic: str, number: int, settings: TopicSettings) -> None:
        """Replace the settings of this version. Raises Unavailable if it is not the newest any more."""
        with self._changing(topic):
            written = await self._meta.create(_TOPICS + topic, number + 1, msgspec.json.encode(settings))
        if not written:
            raise Unavailable(f"topic {topic!r} was changed by somebody else; ask again")

    async def remove(self, topic: str) -> None:
        """Forget a topic, and what else is kept of it.

        That goes first: if this ends halfway, the topic is there to be removed again, and no other topic of its name
        has anything of it. What somebody has written meanwhile goes at last.
        """
        await forget_topic(self._meta, topic)
        with self._changing(topic):
            await self._meta.remove(_TOPICS + topic)
        await forget_topic(self._meta, topic)

    async def subscriptions(self, topic: str) -> list[str]:
        """Return the names of a topic's subscriptions. Raises NotFound if there is no such topic."""
        await self.settings(topic)
        return await self._subscriptions(topic)

    async def check_subscription_exists(self, topic: str, subscription: str) -> None:
        """Raises NotFound if there is none."""
        if subscription not in await self._subscriptions(topic):
            raise NotFound(f"topic {topic!r} has no subscription {subscription!r}")

    async def beyond(self, topic: str, subscription: str) -> list[int]:
        """Partitions that the topic does not have, and on which a subscription has a record: it was to get them, and
        that ended halfway. Ascending.
        """
        _, settings = await self.record(topic)
        keys = [key.rsplit("/", 2) for key in await self._meta.keys(f"subscription/{topic}/")]
        partitions = sorted(int(partition) for _, partition, name in keys if name == subscription)
        return [partition for partition in partitions if partition >= settings.partitions]

    async def partitions_beyond(self, topic: str) -> list[int]:
        """Partitions that the topic does not have and that somebody has owned since its name was given: see `beyond`.
        Ascending. Raises Corrupt.
        """
        _, settings = await self.record(topic)
        keys = await self._meta.keys(record_key(topic, 0)[:-1])
        found = []
        for partition in sorted(int(key.rsplit("/", 1)[1]) for key in keys):
            if partition >= settings.partitions:
                newest = await self._meta.read(record_key(topic, partition))
                if newest is not None and not unpack_record(newest.value).deleted:
                    found.append(partition)
        return found

    @contextlib.contextmanager
    def _changing(self, topic: str) -> Iterator[None]:
        """Discard settings that are read before the block ends: the block changes the topic's record."""
        try:
            yield
        finally:
            self._changes += 1
            self._fresh.pop(topic, None)

    async def _subscriptions(self, topic: str) -> list[str]:
        keys = await self._meta.keys(f"subscription/{topic}/")
        return sorted({key.rsplit("/", 1)[1] for key in keys})


def check_settings(settings: TopicSettings, bookies: int) -> None:
    """Refuse a topic that could never be written, or is too large: see check_topic; and ensemble <= bookies."""
    check_topic(settings)
    if settings.ensemble > bookies:
        raise Invalid(f"an ensemble of {settings.ensemble} needs as many bookies; this cluster has {bookies}")


def check_growth(topic: str, settings: TopicSettings, wanted: TopicSettings) -> None:
    """Raises Invalid if a topic cannot have this number of partitions."""
    if not settings.has_partitions and wanted.partitions != 1:
        raise Invalid(f"topic {topic} is not a partitioned topic: it keeps its one partition")
    if wanted.partitions < settings.partitions:
        raise Invalid(f"topic {topic} has {settings.partitions} partitions, which cannot become {wanted.partitions}")
    check_topic(wanted)


def check_dead_letters(topic: str, subscription: str, settings: SubscriptionSettings) -> None:
    """Raises Invalid where a dead letter topic has a name that no topic can have, or is the topic itself."""
    if settings.max_redeliver_count or settings.dead_letter_topic:
        target = check_name("topic", dead_letter_topic(topic, subscription, settings))
        if target == topic:
            raise Invalid(f"dead_letter_topic is {topic} itself: its messages would come back for ever")


def _difference(there: TopicSettings, wanted: TopicSettings) -> str:
    """Each setting in which they differ, for a person."""
    is_now, asked = msgspec.structs.asdict(there), msgspec.structs.asdict(wanted)
    return ", ".join(f"{name} is {is_now[name]}, not {asked[name]}" for name in asked if is_now[name] != asked[name])
