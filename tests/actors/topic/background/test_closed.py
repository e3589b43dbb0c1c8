"""A record shows what is to be done although no owner runs to do it."""

from __future__ import annotations

import msgspec
import pytest

from sluice.actors.ledger.record import Asked, Erasure, LedgerState, Offloaded, PartitionRecord
from sluice.actors.messages import TopicSettings
from sluice.actors.policies.expiry import ExpiryLimits
from sluice.actors.policies.retention import Retention
from sluice.actors.topic.background.closed import has_expired, has_work
from sluice.storage.format.position import position
from tests.actors.topic.background.test_trimming import NOW, record

PLAIN, NOTHING, EVERYTHING = TopicSettings(), Retention(0, 0), Retention(-1, -1)


def seen(up_to: int, ledgers: int = 4) -> PartitionRecord:
    """The ledgers of `record`, with a subscription that has come so far. Each was opened when the last was closed."""
    of = record(ledgers=ledgers)
    chain = [msgspec.structs.replace(one, opened_at=one.closed_at - 1_000) for one in of.ledgers]
    return msgspec.structs.replace(of, ledgers=tuple(chain), subscriptions={"s": up_to})


def settled(of: PartitionRecord) -> PartitionRecord:
    """The same, with no ledger open."""
    chain = [msgspec.structs.replace(one, state=LedgerState.CLOSED) for one in of.ledgers]
    return msgspec.structs.replace(of, ledgers=tuple(chain))


def test_ledger_past_retention_is_work() -> None:
    of = seen(position(2, 9))
    assert has_work(of, NOW, NOTHING, PLAIN)
    assert not has_work(of, NOW, EVERYTHING, PLAIN)
    assert has_work(of, NOW, Retention(2_500, -1), PLAIN)
    assert not has_work(of, NOW, Retention(3_500, -1), PLAIN)
    assert not has_work(seen(position(1, 8)), NOW, NOTHING, PLAIN)
    assert not has_work(msgspec.structs.replace(of, deleted=True), NOW, NOTHING, PLAIN)


def test_an_open_ledger_may_be_consumed_old_and_large() -> None:
    """The subscription's mark is in the open ledger, whose end is not known."""
    of = seen(position(1, 3), ledgers=1)
    assert has_work(of, NOW, NOTHING, PLAIN)
    assert has_work(of, NOW, Retention(999, -1), PLAIN)
    assert not has_work(of, NOW, Retention(1_000, -1), PLAIN), "it was opened 1,000 ms ago"
    assert has_work(of, NOW, Retention(-1, 1 << 50), PLAIN)
    assert not has_work(of, NOW, EVERYTHING, PLAIN)
    assert not has_work(seen(-1, ledgers=1), NOW, NOTHING, PLAIN)
    for kept in (NOTHING, Retention(1, -1), Retention(-1, 1)):
        assert not has_work(settled(of), NOW, kept, PLAIN), "by now it is known that something waits"


def test_ledger_due_for_the_object_store_is_work() -> None:
    of = msgspec.structs.replace(seen(-1), covered_ledger=3, covered_run=4)
    leaving = TopicSettings(offload_threshold_seconds=3)
    assert has_work(of, NOW, EVERYTHING, leaving)
    assert not has_work(of, NOW, EVERYTHING, PLAIN)
    stored = of.with_ledger(msgspec.structs.replace(of.ledgers[0], offloaded=Offloaded(NOW - 10, ())))
    assert has_work(stored, NOW, EVERYTHING, TopicSettings(offload_deletion_lag_ms=10))
    assert not has_work(stored, NOW, EVERYTHING, TopicSettings(offload_deletion_lag_ms=11))


def test_keys_that_are_to_be_erased_are_work() -> None:
    of = msgspec.structs.replace(seen(-1), erasures=(Erasure(b"k", 1, NOW),))
    assert has_work(of, NOW, EVERYTHING, PLAIN)


@pytest.mark.parametrize("asked", [Asked(keep_bytes=0), Asked(before=3), Asked(compact=True)])
def test_request_of_an_operator_is_work(asked: Asked) -> None:
    of = msgspec.structs.replace(seen(-1), asked=asked)
    assert has_work(of, NOW, EVERYTHING, PLAIN)


@pytest.mark.parametrize(("age", "old"), [(1_000, True), (4_000, True), (4_001, False), (0, False)])
def test_the_oldest_ledger_behind_the_mark_says_what_expires(age: int, old: bool) -> None:
    of = settled(seen(-1))
    assert has_expired(of, -1, ExpiryLimits(age, None), NOW) == old
    assert not has_expired(of, position(4, 9), ExpiryLimits(age, None), NOW), "nothing waits"
    assert not has_expired(of, position(3, 9), ExpiryLimits(max(age, 1_001), None), NOW)


def test_how_much_waits_says_what_is_evicted() -> None:
    of = settled(seen(-1))
    assert has_expired(of, position(2, 9), ExpiryLimits(0, 200), NOW)
    assert not has_expired(of, position(2, 9), ExpiryLimits(0, 201), NOW)
    assert has_expired(seen(-1), position(2, 9), ExpiryLimits(0, 201), NOW), "how large the open one is, is not known"
    assert not has_expired(of, position(4, 9), ExpiryLimits(0, 1), NOW)
