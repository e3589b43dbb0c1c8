"""Rates: what passes in a period, debts, and buckets that are forgotten."""

from __future__ import annotations

import pytest

from actors.policies.limits import Rate
from actors.pulsar.conversation.rates import TokenBucket


def passed(rate: Rate, sizes: list[tuple[int, int]], until: int) -> int:
    """How many of these pass in so many milliseconds, each as soon as it may."""
    bucket, now, count = TokenBucket(rate, 0), 0, 0
    while now < until:
        messages, size = sizes[count % len(sizes)]
        wait = bucket.take(messages, size, now)
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


def test_what_is_larger_than_a_period_passes_and_is_paid_for() -> None:
    bucket = TokenBucket(Rate(bytes=100), 0)
    assert bucket.take(1, 1_000, 0) == 9_001
    assert bucket.take(1, 1, 9_001) > 0
    assert bucket.take(1, 1, 60_000) == 0, "and what is saved is no more than one period"
    assert bucket.take(1, 200, 60_000) == 1_011


def test_a_period_may_be_longer() -> None:
    assert 2 <= passed(Rate(messages=1, period_s=10), [(1, 1)], 20_000) <= 3


def test_no_rate_is_no_limit() -> None:
    bucket = TokenBucket(Rate(), 0)
    assert [bucket.take(10**9, 10**12, 0) for _ in range(3)] == [0, 0, 0]
