"""Asks the owners while a page is open, and sends their answers as server-sent events.

All who look at one subscription share one round of questions: EVERY_MS apart for what moves fast (the dispatchers),
SLOW rounds apart for the rest. Nobody looks: nobody asks. A round begins when the former has ended, so owners that are
slow are asked less often, and a viewer that is slow gets the newest picture and skips those in between; events are kept
for it, EVENTS_KEPT at the most.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Protocol, TypeVar

from sluice.actors.ports import Ports, Task
from sluice.cluster.watch.rates import OwnerRates
from sluice.cluster.watch.story import Picture, Stats, concerned, events, of_audit, picture
from sluice.storage.errors import SluiceError

T = TypeVar("T")

EVERY_MS = 200
SLOW = 5
"""Rounds between two questions for topics, delayed messages and the controller's view."""
EVENTS_KEPT = 500


class Owners(Protocol):
    """The owners of a subscription. None stands for one that does not answer now."""

    async def dispatchers(self, topic: str, subscription: str) -> Sequence[Stats | None]:
        """Statistics of the subscription on each partition."""

    async def topics(self, topic: str) -> Sequence[Stats | None]:
        """Statistics of each partition."""

    async def delayed(self, topic: str, subscription: str) -> Sequence[Stats | None]:
        """How many messages are due when, on each partition."""

    async def status(self) -> Stats | None:
        """The cluster's processes and actors, and where they run."""


class Audits(Protocol):
    """A reader of an audit: see cluster.base.audit."""

    def new(self) -> list[dict[str, Any]]:
        """Return the lines since the last call."""


class Feed:
    """Pictures and events for open pages, with one channel for each subscription."""

    def __init__(self, ports: Ports, owners: Owners, audits: Callable[[], Audits] | None = None) -> None:
        """audits: makes what has the lines of an audit, from then on."""
        self._ports, self._owners, self._audits = ports, owners, audits
        self._channels: dict[tuple[str, str], _Channel] = {}

    async def follow(self, topic: str, subscription: str) -> AsyncGenerator[str]:
        """Server-sent events, as text, for as long as it is iterated."""
        key = (topic, subscription)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = _Channel(
                self._ports, self._owners, topic, subscription, None if self._audits is None else self._audits()
            )
        channel.viewers += 1
        try:
            async for text in channel.follow():
                yield text
        finally:
            channel.viewers -= 1
            if not channel.viewers:
                self._channels.pop(key, None)
                channel.close()


class _Channel:
    """One subscription, and the pages that show it."""

    def __init__(
        self, ports: Ports, owners: Owners, topic: str, subscription: str, audits: Audits | None = None
    ) -> None:
        self.viewers = 0
        self._audits = audits
        self._ports, self._owners = ports, owners
        self._topic, self._subscription = topic, subscription
        self._numbers = count(1)
        self._events: deque[tuple[int, dict[str, Any]]] = deque(maxlen=EVENTS_KEPT)
        self._latest: Picture | None = None
        self._shown = ""
        """The same as every viewer gets it."""
        self._error = ""
        self._published = OwnerRates({"published": "msgInCounter"})
        self._delivered = OwnerRates({"delivered": "msgOutCounter", "acknowledged": "msgAckCounter"})
        self._round = 0
        self._changed = asyncio.Condition()
        self._asking: Task = ports.spawn(self._ask(), f"watch-{topic}-{subscription}")

    async def follow(self) -> AsyncIterator[str]:
        seen_round = seen_event = 0
        while True:
            async with self._changed:
                while self._round == seen_round:
                    await self._changed.wait()
            seen_round = self._round
            if self._error:
                yield event("trouble", {"reason": self._error})
                continue
            fresh = [one for number, one in self._events if number > seen_event]
            seen_event = self._events[-1][0] if self._events else 0
            if fresh:
                yield event("events", fresh)
            yield self._shown

    def close(self) -> None:
        self._asking.cancel()

    async def _ask(self) -> None:
        slow: tuple[Sequence[Stats | None], Sequence[Stats | None], Stats | None] = ([], [], None)
        asked, published = 0, dict[str, float]()
        for number in count():
            began = self._ports.clock.monotonic()
            try:
                if number % SLOW == 0:
                    slow, asked = await self._slow(), self._ports.clock.now()
                    # Topics are asked less often: their rate is that between the last two answers.
                    published = self._published.update(asked, slow[0])
                fast = await self._owners.dispatchers(self._topic, self._subscription)
                self._error = ""
                new = picture(self._ports.clock.now(), fast, slow[0], slow[2])
                new["rates"] = published | self._delivered.update(new["at"], fast)
                new["pools"] = self._pools(slow[2])
                self._take(new, slow[1])
            except SluiceError as error:
                self._error = str(error)
            async with self._changed:
                self._round += 1
                self._changed.notify_all()
            spent = self._ports.clock.monotonic() - began
            # As long again as it took, at least: watching takes no more than half of anybody's time.
            await self._ports.clock.sleep(max(EVERY_MS - spent, spent, 1))

    async def _slow(self) -> tuple[Sequence[Stats | None], Sequence[Stats | None], Stats | None]:
        topics, delayed, status = await asyncio.gather(
            self._owners.topics(self._topic),
            _or(self._owners.delayed(self._topic, self._subscription), list[Stats | None]()),
            self._owners.status(),
        )
        return topics, delayed, concerned(self._topic, self._subscription, status)

    def _pools(self, status: Stats | None) -> list[Any]:
        """The pools of workers of this subscription, as the controller knows them."""
        known = [] if status is None else status.get("workerPools", [])
        return [row for row in known if (row["topic"], row["subscription"]) == (self._topic, self._subscription)]

    def _take(self, new: Picture, delayed: Sequence[Stats | None]) -> None:
        new["due"] = [[row.get("count", 0), row.get("histogram", [])] for row in delayed if row is not None]
        audited = [] if self._audits is None else self._audits.new()
        told = of_audit(new["at"], self._topic, self._subscription, audited)
        for one in [*events(self._latest, new), *told]:
            self._events.append((next(self._numbers), one))
        self._latest, self._shown = new, event("picture", new)


async def _or(work: Awaitable[T], otherwise: T) -> T:
    with suppress(SluiceError):
        return await work
    return otherwise


def event(name: str, data: object) -> str:
    """A server-sent event, as text."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"
