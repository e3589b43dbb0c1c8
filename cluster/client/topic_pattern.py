"""The topics that a consumer subscribes to: one, a list, or all whose names match a pattern, also those that come."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.actors.messages import ListTopics, SubscriptionSettings
from sluice.actors.messages.settings import dead_letter_topic
from sluice.actors.ownership.names import TENANT_NAMESPACE, check_name, namespace_of
from sluice.actors.ports import Ports
from sluice.cluster.client.consumer_core import ConsumerCore
from sluice.storage.errors import Invalid, NotFound, SluiceError

Topics = str | Sequence[str] | re.Pattern[str]
"""A topic's name, several names, or a pattern for whole names."""


def named_topics(topics: Topics) -> list[str]:
    """Return the checked names, each once; none for a pattern. Raises Invalid."""
    if isinstance(topics, re.Pattern):
        if not isinstance(topics.pattern, str):
            raise Invalid("a pattern of topics is made of text, not of bytes")
        return []
    if isinstance(topics, list | tuple | set | frozenset):
        found = list(dict.fromkeys(check_name("topic", topic) for topic in topics))
        if not found:
            raise Invalid("the list of topics is empty")
        return found
    return [check_name("topic", topics)]  # type: ignore[arg-type]


def shown_topics(topics: Topics) -> str:
    """How a consumer calls what it follows: `orders`, `orders, refunds`, or the text of the pattern."""
    return topics.pattern if isinstance(topics, re.Pattern) else ", ".join(named_topics(topics))


def matches(pattern: re.Pattern[str], topic: str) -> bool:
    """Whether a topic's whole name matches. A pattern with a slash is of full names (`persistent://public/default/a`,
    also without the scheme), any other one of the names in the default namespace.
    """
    space, own = namespace_of(topic)
    if "/" not in pattern.pattern:
        return space == TENANT_NAMESPACE and pattern.fullmatch(own) is not None
    return any(pattern.fullmatch(f"{scheme}{space}/{own}") for scheme in ("persistent://", ""))


@dataclass(slots=True)
class TopicPattern:
    """Keeps a consumer subscribed to the topics that match, while it is open.

    ask: asks the controller. join: subscribes the consumer to a topic that came. period_ms: between two looks; a topic
    that was deleted is noticed at once.
    """

    pattern: re.Pattern[str]
    ports: Ports
    ask: Callable[[ListTopics], Coroutine[Any, Any, Any]]
    join: Callable[[str], Coroutine[Any, Any, object]]
    period_ms: int

    async def matching(self, subscription: str, wanted: SubscriptionSettings) -> list[str]:
        """The topics that match by now, without the dead letter topics of the subscription itself."""
        found = [topic for topic in (await self.ask(ListTopics())).topics if matches(self.pattern, topic)]
        dead = {dead_letter_topic(topic, subscription, wanted) for topic in found}
        return [topic for topic in found if topic not in dead]

    async def follow(self, consumer: ConsumerCore, wanted: SubscriptionSettings) -> None:
        """Look again and again, until the consumer is closed."""
        while await consumer.missed_topic(self.period_ms):
            try:
                now = await self.matching(consumer.subscription_name(), wanted)
            except SluiceError as error:
                self.ports.log("pattern_waits", pattern=self.pattern.pattern, error=str(error))
                continue
            known = consumer.topics()
            for topic in known:
                if topic not in now:
                    consumer.drop_topic(topic)
            for topic in now:
                if topic not in known:
                    await self._join(topic)

    async def _join(self, topic: str) -> None:
        try:
            await self.join(topic)
        except NotFound:
            pass  # it was deleted again
        except SluiceError as error:
            self.ports.log("pattern_waits", topic=topic, error=str(error))
