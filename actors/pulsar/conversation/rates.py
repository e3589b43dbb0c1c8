"""Rates at which a gateway takes and hands out the messages of a partition.

Of each rate there is a bucket of tokens, which one period fills. What comes is taken even if the bucket has less: it is
then in debt, and nothing more is taken, or handed out, until time has filled it again. So a message larger than what a
period allows passes as well, and over some periods the rate holds.
"""

from __future__ import annotations

from actors.policies.limits import LimitRecords, Rate
from actors.ports import Clock

IDLE_MS = 60_000
MOST_BUCKETS = 4_096
"""When there are more, those are forgotten that nobody used for so long."""


class TokenBucket:
    """Messages and bytes under one rate; now: monotonic milliseconds."""

    def __init__(self, rate: Rate, now: int) -> None:
        self.rate, self.used = rate, now
        self._left = [float(rate.messages), float(rate.bytes)]

    def take(self, messages: int, size: int, now: int) -> int:
        """These pass. How many milliseconds nothing more may; 0: it may at once."""
        period, passed = self.rate.period_s * 1000, now - self.used
        self.used, wait = now, 0.0
        for index, (most, taken) in enumerate(((self.rate.messages, messages), (self.rate.bytes, size))):
            if most > 0:
                self._left[index] = min(self._left[index] + most * passed / period, most) - taken
                wait = max(wait, -self._left[index] * period / most)
        return 0 if wait <= 0 else int(wait) + 1


class RateLimiter:
    """The buckets of a gateway. limits: what is known of the limits of topics."""

    def __init__(self, clock: Clock, limits: LimitRecords) -> None:
        self._clock, self._limits = clock, limits
        self._buckets: dict[tuple[str, int, bool], TokenBucket] = {}

    def published(self, topic: str, partition: int, messages: int, size: int) -> int:
        """These came. For how many milliseconds no more of that partition should be taken."""
        if not self._limits.any:
            return 0
        return self._take((topic, partition, True), self._limits.that_hold(topic).publish_rate, messages, size)

    def delivered(self, topic: str, partition: int, messages: int, size: int) -> int:
        """These went out. For how many milliseconds no more of that partition should be handed out."""
        if not self._limits.any:
            return 0
        return self._take((topic, partition, False), self._limits.that_hold(topic).dispatch_rate, messages, size)

    def at_once(self, topic: str, most: int) -> int:
        """How many messages of a topic may be on their way to one consumer: no more than a period allows."""
        rate = self._limits.that_hold(topic).dispatch_rate if self._limits.any else None
        return most if rate is None or rate.messages < 1 else min(rate.messages, most)

    def _take(self, key: tuple[str, int, bool], rate: Rate | None, messages: int, size: int) -> int:
        if rate is None:
            self._buckets.pop(key, None)
            return 0
        now, bucket = self._clock.monotonic(), self._buckets.get(key)
        if bucket is None or bucket.rate != rate:
            bucket = self._buckets[key] = TokenBucket(rate, now)
            if len(self._buckets) > MOST_BUCKETS:
                self._buckets = {one: kept for one, kept in self._buckets.items() if now - kept.used < IDLE_MS}
        return bucket.take(messages, size, now)
