"""Rates: what passes in a period, debts, and buckets that are forgotten."""

from __future__ import annotations

import pytest

from sluice.actors.policies.limits import Rate
from sluice.actors.pulsar.conversation.limits.rates import TokenBucket, Use


def passed(rate: Rate, sizes: list[tuple[int, int]], until: int) -> int:
    """How many of these pass in so many milliseconds, each as soon as it may."""
    bucket, now, count = TokenBucket(rate, 0), 0, 0
    while now < until:
        messages, size = sizes[count % len(sizes)]
        wait = bucket.consume(messages, size, now)
        count += 1
        now += wait
        if not wait:
            now += 1
    return count


@pytest.mark.parametrize("size", [1, 7, 50])
def test_over_some_periods_the_rate_holds(size: int) -> None:
    many = passed(Rate(messages=100), [(size, 10)], 20_000) * size
    assert 20 * 100 <= many <= 21 * 100 + size


def test_bytes_and_messages_both_count() -> None:
    assert 20 <= passed(Rate(messages=1_000, bytes=1_000), [(1, 1_000)], 20_000) <= 22
    assert 20 <= passed(Rate(messages=1, bytes=1_000_000), [(1, 1_000)], 20_000) <= 22


def test_message_larger_than_a_period_passes_into_debt() -> None:
    bucket = TokenBucket(Rate(bytes=100), 0)
    assert bucket.consume(1, 1_000, 0) == 9_001
    assert bucket.consume(1, 1, 9_001) > 0
    assert bucket.consume(1, 1, 60_000) == 0, "and what is saved is no more than one period"
    assert bucket.consume(1, 200, 60_000) == 1_011


def test_a_period_may_be_longer() -> None:
    assert 2 <= passed(Rate(messages=1, period_s=10), [(1, 1)], 20_000) <= 3


def test_no_rate_is_no_limit() -> None:
    bucket = TokenBucket(Rate(), 0)
    assert [bucket.consume(10**9, 10**12, 0) for _ in range(3)] == [0, 0, 0]


def together(*wanted: int) -> list[float]:
    """Return what passes each gateway in a second, under one rate of 100 messages a second, once they know each other's
    wishes. wanted: messages a second that each gateway wants.
    """
    buckets = [TokenBucket(Rate(messages=100), 0) for _ in wanted]
    passed, until = [0] * len(wanted), [0] * len(wanted)
    for now in range(0, 60_001, 10):
        for at, (bucket, each) in enumerate(zip(buckets, wanted, strict=True)):
            if now >= until[at] and now * each // 1_000 > passed[at]:
                until[at] = now + bucket.consume(1, 0, now)
                passed[at] += 1
            elif now >= until[at]:
                until[at] = now
        if now % 5_000 == 0 and now:
            uses = [bucket.use(now) for bucket in buckets]
            for at, bucket in enumerate(buckets):
                bucket.share(uses[:at] + uses[at + 1 :])
        if now == 40_000:
            before = list(passed)
    return [(each - earlier) / 20 for each, earlier in zip(passed, before, strict=True)]


@pytest.mark.parametrize(
    ("wanted", "get"),
    [
        ([1_000], [100]),
        ([1_000, 1_000], [50, 50]),
        ([1_000, 10], [90, 10]),
        ([1_000, 0, 0], [100, 0, 0]),
        ([30, 30], [30, 30]),
    ],
)
def test_gateways_share_a_rate_by_their_needs(wanted: list[int], get: list[int]) -> None:
    assert together(*wanted) == pytest.approx(get, rel=0.1, abs=0.5)


def test_bytes_without_a_rate_have_no_share() -> None:
    bucket = TokenBucket(Rate(messages=100), 0)
    bucket.share([Use(1_000, 1_000)])
    assert bucket.consume(0, 10**12, 0) == 0
    assert bucket.consume(51, 0, 0) == 21
