"""Rates at which gateways take and hand out messages: of a partition, and of a role over all its partitions.

Of each rate there is a bucket of tokens, which one period fills. What comes is taken even if the bucket has less: it is
then in debt, and nothing more is taken, or handed out, until time has filled it again. So a message larger than what a
period allows passes as well, and over some periods the rate holds.

A rate holds for all gateways together. Each tells the others now and then what it lets pass (`rate_shares.py`). What
the others need is theirs, and the rest is its own, but never less than an equal share among those who need something.
So a gateway that is alone has the whole rate, and two that want everything have half of it each. Until they have heard
of each other both have the whole.

What is owed may take hours. Who waits for that looks now and then whether it still does: the rate may be another one by
then, or there may be none any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sluice.actors.policies.backlog_quotas import CHECK_MS
from sluice.actors.policies.limits import LimitRecords, Rate
from sluice.actors.ports import Clock

IDLE_MS = 60_000
MOST_BUCKETS = 4_096
"""When there are more, those are forgotten that nobody used for so long."""
OF_ROLE = -1
"""In the place of a partition: it is the rate of a role."""


class Passed(NamedTuple):
    """Messages of a partition and their bytes that a client of this role published, or was sent."""

    topic: str
    partition: int
    role: str
    messages: int
    size: int


class Limited(NamedTuple):
    """The subject of a rate: a partition or, with OF_ROLE, a role; its publishing, or its deliveries."""

    name: str
    number: int
    published: bool


class Use(NamedTuple):
    """Messages and bytes that pass in a second."""

    messages: float
    bytes: float


class TokenBucket:
    """Messages and bytes under one rate; now: monotonic milliseconds."""

    def __init__(self, rate: Rate, now: int) -> None:
        self.rate, self.used = rate, now
        self._most = [float(rate.messages), float(rate.bytes)]
        """The amounts that a period fills: the rate, or this gateway's share of it."""
        self._left = list(self._most)
        self._taken, self._since = [0, 0], now

    def consume(self, messages: int, size: int, now: int) -> int:
        """Take `messages` of `size` bytes; return for how many milliseconds nothing more may pass, 0 for none."""
        period, passed = self.rate.period_s * 1000, now - self.used
        self.used, wait = now, 0.0
        for index, taken in enumerate((messages, size)):
            self._taken[index] += taken
            most = self._most[index]
            if most > 0:
                self._left[index] = min(self._left[index] + most * passed / period, most) - taken
                wait = max(wait, -self._left[index] * period / most)
        return 0 if wait <= 0 else int(wait) + 1

    def take_over(self, before: TokenBucket) -> None:
        """Take over the debt under an earlier rate."""
        owed = [left if most > 0 else 0.0 for most, left in zip(before._most, before._left, strict=True)]
        self._left = [left if debt >= 0 else debt for left, debt in zip(self._left, owed, strict=True)]

    def use(self, now: int) -> Use:
        """Return how much passed a second since the last call, in messages and bytes."""
        passed = max(now - self._since, 1)
        messages, size = (taken * 1000 / passed for taken in self._taken)
        self._taken, self._since = [0, 0], now
        return Use(messages, size)

    def share(self, others: Sequence[Use]) -> None:
        """Other gateways let this much pass of the same rate."""
        for index, full in enumerate((self.rate.messages, self.rate.bytes)):
            needed = [use[index] * self.rate.period_s for use in others if use[index] > 0]
            self._most[index] = max(full - sum(needed), full / (len(needed) + 1)) if full > 0 else full


class RateLimiter:
    """The buckets of a gateway. limits: what is known of the limits of topics."""

    def __init__(self, clock: Clock, limits: LimitRecords) -> None:
        self._clock, self._limits = clock, limits
        self.role_publish: Rate | None = None
        self.role_dispatch: Rate | None = None
        """The rates of each role; None: any."""
        self._buckets: dict[Limited, TokenBucket] = {}
        self.uses: dict[Limited, Use] = {}
        """The amounts that passed here between the last two looks."""

    def published(self, passed: Passed) -> int:
        """Count published messages; return for how many ms no more of that partition and client should be taken."""
        return self._take(passed, True, self.role_publish)

    def delivered(self, passed: Passed) -> int:
        """Count delivered messages; return for how many ms no more of that partition should go to that client."""
        return self._take(passed, False, self.role_dispatch)

    def at_once(self, topic: str, role: str, most: int) -> int:
        """Return how many messages of a topic may be on their way to one consumer: no more than a period allows."""
        of_topic = self._limits.that_hold(topic).dispatch_rate if self._limits.any else None
        for rate in (of_topic, self.role_dispatch if role else None):
            if rate is not None and rate.messages > 0:
                most = min(most, rate.messages)
        return most

    @property
    def any(self) -> bool:
        """Whether something has a rate here that was used lately."""
        return bool(self._buckets)

    def measure(self) -> None:
        """Find out what has passed since the last look."""
        now, uses = self._clock.monotonic(), dict[Limited, Use]()
        for key, bucket in self._buckets.items():
            if any(use := bucket.use(now)):
                uses[key] = use
        self.uses = uses

    def share(self, others: Sequence[dict[Limited, Use]]) -> None:
        """Each of the other gateways lets this much pass."""
        for key, bucket in self._buckets.items():
            bucket.share([uses[key] for uses in others if key in uses])

    def _take(self, passed: Passed, published: bool, of_role: Rate | None) -> int:
        wait = 0
        if self._limits.any:
            limits = self._limits.that_hold(passed.topic)
            rate = limits.publish_rate if published else limits.dispatch_rate
            wait = self._take_from(Limited(passed.topic, passed.partition, published), rate, passed)
        if of_role is not None and passed.role:
            wait = max(wait, self._take_from(Limited(passed.role, OF_ROLE, published), of_role, passed))
        return wait

    def _take_from(self, key: Limited, rate: Rate | None, passed: Passed) -> int:
        if rate is None:
            self._buckets.pop(key, None)
            return 0
        now, bucket = self._clock.monotonic(), self._buckets.get(key)
        if bucket is None or bucket.rate != rate:
            before, bucket = bucket, TokenBucket(rate, now)
            if before is not None:
                bucket.take_over(before)
            self._buckets[key] = bucket
            if len(self._buckets) > MOST_BUCKETS:
                self._buckets = {one: kept for one, kept in self._buckets.items() if now - kept.used < IDLE_MS}
        return bucket.consume(passed.messages, passed.size, now)


async def held_back(
    clock: Clock, until: dict[Passed, int], look: Callable[[Passed], int], goes_on: Callable[[], bool]
) -> None:
    """Wait until all these moments (monotonic ms) are over; more may come meanwhile. Now and then `look` says of what
    passes next, which is nothing, how long it would be held back now: if that is shorter it holds. goes_on: whether
    anybody still waits for this.
    """
    while until and goes_on():
        left = max(until.values()) - clock.monotonic()
        await clock.sleep(min(max(left, 0), CHECK_MS))
        now = clock.monotonic()
        for passed, moment in list(until.items()):
            if moment > now:
                until[passed] = moment = min(moment, now + look(passed))
            if moment <= now:
                del until[passed]
