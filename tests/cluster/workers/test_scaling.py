"""How many workers there should be: quickly more, slowly fewer, no flapping, and no more for a key alone."""

from __future__ import annotations

import itertools

from sluice.cluster.workers.scaling import Scaling, ScalingDecision, ScalingLimits, WorkerLoad

LIMITS = ScalingLimits(
    min_workers=2,
    max_workers=8,
    concurrency=1,
    target_age_ms=1_000,
    upscale_delay_ms=3_000,
    downscale_delay_ms=30_000,
)


def load(*ages: int) -> WorkerLoad:
    """A worker with a key of each age."""
    return WorkerLoad(ages={b"key-%d" % number: age for number, age in enumerate(ages)})


def test_late_keys_without_a_place_call_for_workers() -> None:
    scaling = Scaling(LIMITS)
    assert scaling.decide(0, [load(1_500, 1_200, 1_100), load(100)], 2).workers == 4
    waiting = scaling.decide(2_999, [load(1_500, 1_200, 1_100), load(100)], 4)
    assert waiting == ScalingDecision(4, "the workers that were added take their keys")
    assert scaling.decide(3_000, [load(*[2_000] * 9)], 4).workers == 8
    full = scaling.decide(9_000, [load(*[2_000] * 9)], 8)
    assert full.workers == 8
    assert "max_workers = 8" in full.reason


def test_a_key_that_cannot_be_split_is_named() -> None:
    decision = Scaling(LIMITS).decide(0, [load(60_000), load(10, 20)], 2)
    assert decision.workers == 2
    assert "'key-0'" in decision.reason
    assert "cannot be split" in decision.reason


def test_workers_go_one_by_one_after_a_calm() -> None:
    scaling = Scaling(LIMITS)
    counts, workers = [], 5
    for now in range(0, 200_000, 1_000):
        decided = scaling.decide(now, [load(10)] * workers, workers).workers
        if decided != workers:
            counts.append((now, decided))
        workers = decided
    assert counts == [(30_000, 4), (60_000, 3), (90_000, 2)]


def test_a_load_that_swings_moves_nobody() -> None:
    """Calm spells that are shorter than the delay, and ages between half of the target and the target."""
    scaling = Scaling(LIMITS)
    for now in range(0, 600_000, 1_000):
        age = 700 if now % 20_000 == 0 else 100
        assert scaling.decide(now, [load(age, 50)] * 4, 4) == ScalingDecision(4)


def test_a_step_of_load_is_met_and_left_again() -> None:
    """Each worker handles 100 messages of 100 ms keys a second; 500 a second come, then 100."""
    scaling = Scaling(LIMITS)
    workers, backlog = 2, 0.0
    counts = []
    for now in range(0, 400_000, 250):
        rate = 500 if now < 60_000 else 100
        backlog = max(backlog + (rate - 100 * workers) / 4, 0)
        age = round(backlog / rate * 1_000)
        decided = scaling.decide(now, [load(*[age] * 20)] * workers, workers).workers
        if decided != workers:
            counts.append(decided)
        workers = decided
    top = counts.index(max(counts))
    assert counts[: top + 1] == sorted(counts[: top + 1])
    assert counts[top:] == sorted(counts[top:], reverse=True)
    assert max(counts) >= 5
    assert workers == 2


def steady(rate: int, until: int) -> list[tuple[int, int]]:
    """When the number of workers changed, and to what. Each handles 100 messages of 100 ms keys a second."""
    scaling, workers, backlog = Scaling(LIMITS), 2, 0.0
    changes = []
    for now in range(0, until, 250):
        backlog = max(backlog + (rate - 100 * workers) / 4, 0)
        age = round(backlog / rate * 1_000)
        decided = scaling.decide(now, [load(*[age] * 20)] * workers, workers).workers
        if decided != workers:
            changes.append((now, decided))
        workers = decided
    return changes


def test_a_steady_load_finds_its_size_and_keeps_it() -> None:
    """450 a second need five workers: four are tried once, for seconds, and then not again for ten minutes."""
    changes = steady(450, 700_000)
    sizes = [size for _, size in changes]
    assert sizes == [4, 8, 7, 6, 5, 4, 5]
    assert changes[-1][0] - changes[-2][0] < LIMITS.downscale_delay_ms
    again = [at for at, size in steady(450, 3_000_000) if size == 4][1:]
    assert all(later - before > 20 * LIMITS.downscale_delay_ms for before, later in itertools.pairwise(again))


def test_without_a_load_a_pool_shrinks_whatever_it_needed() -> None:
    scaling = Scaling(LIMITS)
    assert [scaling.decide(now, [load(10)] * 4, 4).workers for now in (0, 30_000)] == [4, 3]
    assert scaling.decide(40_000, [load(*[1_500] * 9)] * 3, 3).workers == 4
    assert {scaling.decide(now, [load(10)] * 4, 4).workers for now in range(41_000, 201_000, 1_000)} == {4}
    assert [scaling.decide(now, [load()] * 4, 4).workers for now in (201_000, 229_000, 230_000)] == [4, 4, 3]


def test_a_load_that_rises_after_the_pool_shrank_is_met() -> None:
    """The one that went comes back first, and more come if that is not enough."""
    scaling = Scaling(LIMITS)
    assert [scaling.decide(now, [load(10)] * 4, 4).workers for now in (0, 30_000)] == [4, 3]
    late = [load(*[1_500] * 9)] * 3
    assert scaling.decide(40_000, late, 3).workers == 4
    assert scaling.decide(43_000, late, 4).workers == 8


def test_the_limits_hold() -> None:
    assert Scaling(LIMITS).decide(0, [], 0).workers == 2
    assert Scaling(LIMITS).decide(0, [], 9).workers == 8
