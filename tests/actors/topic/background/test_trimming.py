"""Which ledgers may go: only what every durable subscription has passed and retention does not keep."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.actors.ledger.record import LedgerState, Offloaded, PartitionRecord
from sluice.actors.messages import TopicSettings
from sluice.actors.policies.retention import Retention, made_with
from sluice.actors.topic.background.leaving import offloadable
from sluice.actors.topic.background.trimming import trimmable
from sluice.storage.format.position import position
from tests.actors.ledger.fakes import make_ledger

NOW = 1_000_000


def record(retention_ms: int = 0, retention_bytes: int = 0, ever: bool = True, ledgers: int = 4) -> PartitionRecord:
    """Ledgers 1, 2, ... of 10 entries and 100 bytes, closed 4, 3, ... thousand ms ago; the last one is open."""
    chain = [
        msgspec.structs.replace(
            make_ledger(ledger_id=number, state=LedgerState.CLOSED if number < ledgers else LedgerState.OPEN),
            last_run=4,
            last_entry=9,
            bytes=100,
            closed_at=NOW - 1000 * (ledgers - number),
        )
        for number in range(1, ledgers + 1)
    ]
    return PartitionRecord(
        topic="t", partition=0, ledgers=tuple(chain), ever_subscribed=ever,
        settings=TopicSettings(retention_ms=retention_ms, retention_bytes=retention_bytes),
    )  # fmt: skip


def trimmed(of: PartitionRecord, marks: dict[str, int], now: int) -> list[int]:
    """Return the ledgers that may go, with the retention that the topic was made with."""
    return trimmable(of, marks, now, made_with(of.settings) or Retention(0, 0))


def test_the_slowest_subscription_decides() -> None:
    assert trimmed(record(), {"a": position(2, 9), "b": position(3, 9)}, NOW) == [1, 2]
    assert trimmed(record(), {"a": position(2, 8), "b": position(3, 9)}, NOW) == [1]
    assert trimmed(record(), {"a": -1}, NOW) == []


def test_the_open_ledger_is_never_trimmed() -> None:
    assert trimmed(record(), {"a": position(9, 0)}, NOW) == [1, 2, 3]


def test_a_clock_that_was_ahead_keeps_nothing_for_ever() -> None:
    """A ledger that was closed in the future keeps no other one, once another was closed with a clock that is right."""
    done, of = {"a": position(4, 0)}, record(retention_ms=1500)
    ahead = [msgspec.structs.replace(one, opened_at=10 * NOW, closed_at=10 * NOW) for one in of.ledgers[:2]]
    wrong = msgspec.structs.replace(of, ledgers=(*ahead, *of.ledgers[2:]))
    assert trimmed(of, done, NOW) == [1, 2]
    assert trimmed(wrong, done, NOW) == []
    assert trimmed(wrong, done, NOW + 501) == [1, 2, 3], "as old as the third one, at least"
    leaving = TopicSettings(offload_threshold_seconds=1)
    covered = msgspec.structs.replace(wrong, covered_ledger=9)
    assert offloadable(covered, leaving, NOW - 1) == []
    assert offloadable(covered, leaving, NOW) == [1, 2, 3]
    last = msgspec.structs.replace(wrong, ledgers=wrong.ledgers[:1])
    assert trimmed(last, done, NOW) == [], "nobody knows how old it is"


def test_without_a_subscription_ever_everything_is_kept() -> None:
    assert trimmed(record(ever=False), {}, NOW) == []
    assert trimmed(record(ever=True), {}, NOW) == [1, 2, 3]


def test_retention_keeps_what_is_young_and_fits() -> None:
    done = {"a": position(4, 0)}
    assert trimmed(record(retention_ms=2500), done, NOW) == [1]
    assert trimmed(record(retention_ms=-1), done, NOW) == []
    assert trimmed(record(retention_bytes=200), done, NOW) == [1]
    assert trimmed(record(retention_ms=-1, retention_bytes=100), done, NOW) == [1, 2]
    assert trimmed(record(retention_ms=1, retention_bytes=-1), done, NOW) == [1, 2, 3]
    assert trimmed(record(retention_ms=2500, ever=False), {}, NOW) == [1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(-1, 9)), min_size=1, max_size=4), st.integers(-1, 5000))
def test_nothing_above_any_mark_ever_goes(marks: list[tuple[int, int]], retention_ms: int) -> None:
    at = {str(n): position(ledger, max(entry, 0)) - (entry < 0) for n, (ledger, entry) in enumerate(marks)}
    gone = trimmed(record(retention_ms=retention_ms), at, NOW)
    assert gone == list(range(1, len(gone) + 1))
    assert all(position(ledger, 9) <= min(at.values()) for ledger in gone)


def test_ledger_in_the_store_stays_longer() -> None:
    done = {"a": position(4, 0)}
    kept = msgspec.structs.replace(record().settings, history_retention_ms=2_500)
    of = msgspec.structs.replace(record(), settings=kept)
    assert trimmable(of, done, NOW, Retention(0, 0)) == [1, 2, 3], "nothing of it is there, or goes there"
    assert trimmable(of, done, NOW, Retention(0, 0), leaves=True) == [1]
    assert trimmable(of, done, NOW, Retention(-1, -1), leaves=True) == [], "retention is for all of it"
    there = [msgspec.structs.replace(ledger, offloaded=Offloaded(NOW, ())) for ledger in of.ledgers[:3]]
    of = msgspec.structs.replace(of, ledgers=(*there, of.ledgers[3]))
    assert trimmable(of, done, NOW, Retention(0, 0)) == [1]
    kept = msgspec.structs.replace(kept, history_retention_ms=0, history_retention_bytes=100)
    assert trimmable(msgspec.structs.replace(of, settings=kept), done, NOW, Retention(0, 0)) == [1, 2]
    for without_end in ({"history_retention_ms": -1}, {"history_retention_bytes": -1}):
        for_good = msgspec.structs.replace(record().settings, **without_end)
        assert trimmable(msgspec.structs.replace(of, settings=for_good), done, NOW, Retention(0, 0)) == []
    unused = msgspec.structs.replace(of, ever_subscribed=False)
    assert trimmable(unused, {}, NOW, Retention(0, 0)) == [1]
