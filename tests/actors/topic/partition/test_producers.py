"""Deduplication by (producer, sequence): each publish is exactly one of five things."""

from __future__ import annotations

import pytest

from sluice.actors.messages import Published
from sluice.actors.runtime.waiting import SharedFuture
from sluice.actors.runtime.wall_clock import RETURN_MS
from sluice.actors.topic.partition.producers import (
    FORGET_MS,
    MOST_CLOSED,
    REMEMBERED_RUNS,
    SPARE,
    Join,
    KnownProducer,
    NotYet,
    Pending,
    Producers,
    Stored,
    StoreNow,
    Tail,
)
from sluice.actors.topic.partition.results import Results
from sluice.storage.errors import Fenced, Invalid


def outcome() -> SharedFuture[Published]:
    return SharedFuture()


def opened(producers: Producers, name: str = "p") -> KnownProducer:
    return producers.open(name, "one", epoch=1, now=0)


def push(producers: Producers, producer: KnownProducer, first: int, count: int) -> None:
    producers.push(producer, Pending(first, count, outcome()), now=0)


async def test_the_five_judgements() -> None:
    producers = Producers(Results)
    producer = opened(producers)
    judge = producers.judge
    assert judge(producer, 0, 3) == StoreNow()
    assert judge(producer, 3, 2) == NotYet(predecessor=True)
    push(producers, producer, 0, 3)
    assert isinstance(judge(producer, 0, 3), Join)
    assert judge(producer, 0, 5) == NotYet(predecessor=False)
    assert judge(producer, 3, 2) == StoreNow()
    producers.confirm("p", 0, 3, ledger=4, first_entry=10)
    stored = judge(producer, 1, 2)
    assert isinstance(stored, Stored)
    assert stored.published == Published(ledger=4, first_entry=11, count=2, duplicate=True)
    assert judge(producer, 0, 5) == Tail(skip=3)


async def test_a_gap_is_accepted_when_the_producer_calls_it_final() -> None:
    producers = Producers(Results)
    producer = opened(producers)
    producers.confirm("p", 0, 3, 1, 0)
    assert producers.judge(producer, 7, 1) == NotYet(predecessor=True)
    assert producers.judge(producer, 7, 1, follows=2) == StoreNow()
    assert producers.judge(producer, 7, 1, follows=4) == NotYet(predecessor=True)


async def test_places_beyond_memory_are_told_as_unknown() -> None:
    producers = Producers(Results)
    producer = opened(producers)
    for run in range(REMEMBERED_RUNS + 1):
        producers.confirm("p", run, 1, 1, run)
    assert producer.published(0, 1).ledger == 0
    assert producer.published(1, 1) == Published(ledger=1, first_entry=1, count=1, duplicate=True)


async def test_a_newer_incarnation_fences_the_older_for_good() -> None:
    producers = Producers(Results)
    first = producers.open("p", "one", 1, 0).session
    assert producers.open("p", "one", 1, 0).session == first
    second = producers.open("p", "two", 1, 0).session
    assert producers.find("p", second).session == second
    with pytest.raises(Fenced):
        producers.find("p", first)
    with pytest.raises(Fenced):
        producers.open("p", "one", 1, 0)


async def test_sessions_of_different_owners_differ() -> None:
    assert opened(Producers(Results)).session != Producers(Results).open("p", "one", epoch=2, now=0).session


async def test_a_snapshot_and_a_replay_bring_everything_back() -> None:
    producers = Producers(Results)
    opened(producers)
    producers.confirm("p", 0, 3, 1, 0)
    restored = Producers(Results)
    restored.restore(producers.snapshot(now=5), now=6)
    restored.replay("p", 3, 2, 1, 3, now=6)
    restored.replay("q", 0, 1, 1, 5, now=6)
    producer = opened(restored)
    assert (producer.stored, producer.pushed) == (4, 4)
    assert producer.published(0, 3).first_entry == 0
    assert producer.published(3, 2).first_entry == 3
    assert opened(restored, "q").stored == 0


async def test_silent_producers_without_pending_are_forgotten() -> None:
    producers = Producers(Results)
    push(producers, opened(producers, "busy"), 0, 1)
    opened(producers, "gone")
    producers.confirm("gone", 0, 1, 1, 0)
    producers.snapshot(now=FORGET_MS + 1)
    assert len(producers) == 1


@pytest.mark.parametrize("ahead", [FORGET_MS * 1000, -FORGET_MS * 1000])
async def test_an_owner_with_another_clock_forgets_as_late(ahead: int) -> None:
    """A producer that was heard just now is still known when it repeats, for any clock of the next owner."""
    producers, later, now = Producers(Results), Producers(Results), FORGET_MS * 2000
    for name in ("p", "q"):
        producers.replay(name, 0, 1, 1, 0, now)
    later.restore(producers.snapshot(now), now + ahead)
    later.snapshot(now + ahead + RETURN_MS)
    producer = later.open("p", "one", 2, now + ahead)
    assert isinstance(later.judge(producer, 0, 1), Stored)
    assert later.snapshot(now + ahead + FORGET_MS + 1) == {}


async def test_a_forgotten_producer_is_believed_what_it_was_answered() -> None:
    producers = Producers(Results)
    producer = opened(producers)
    producers.believe(producer, 6, given_up=False)
    assert isinstance(producers.judge(producer, 5, 2), Stored)
    assert isinstance(producers.judge(producer, 7, 1), StoreNow)
    producers.believe(producer, 9, given_up=False)  # known by now: a gap is one
    assert producer.stored == 6


async def test_a_stopping_owner_leaves_nobody_waiting() -> None:
    producers = Producers(Results)
    producer = opened(producers)
    push(producers, producer, 0, 1)
    producers.fail(Fenced("stopped"))
    waiting = producers.judge(producer, 0, 1)
    assert isinstance(waiting, Join)
    with pytest.raises(Fenced):
        await waiting.pending.published()


async def test_names_that_do_not_fit_a_header_are_refused() -> None:
    for name in ("", "x" * 1025):
        with pytest.raises(Invalid):
            Producers(Results).open(name, "one", 1, 0)


async def test_a_flood_of_names_leaves_the_newest() -> None:
    """Names that are opened, used once and closed are bounded in memory and in the record. Who is open stays."""
    producers = Producers(Results)
    push(producers, opened(producers, "open"), 0, 1)
    producers.confirm("open", 0, 1, ledger=1, first_entry=0)
    for number in range(2 * MOST_CLOSED):
        producers.open(f"p{number}", "one", epoch=1, now=number)
        producers.confirm(f"p{number}", 0, 1, ledger=1, first_entry=number)
        producers.end(f"p{number}", "one")
        assert len(producers) <= MOST_CLOSED + SPARE + 1
    left = producers.snapshot(now=2 * MOST_CLOSED)
    assert sorted(left) == sorted(["open", *(f"p{number}" for number in range(MOST_CLOSED, 2 * MOST_CLOSED))])


async def test_a_name_that_was_forgotten_goes_on_where_it_was() -> None:
    """The producer says up to where it was answered, so nothing is stored twice."""
    producers = Producers(Results)
    for number in range(2 * MOST_CLOSED):
        producers.open(f"p{number}", "one", epoch=1, now=number)
        producers.confirm(f"p{number}", 0, 5, ledger=1, first_entry=number)
        producers.end(f"p{number}", "one")
    again = producers.open("p0", "two", epoch=1, now=2 * MOST_CLOSED)
    producers.believe(again, 4, given_up=False)
    assert producers.judge(again, 5, 1) == StoreNow()
