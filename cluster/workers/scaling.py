"""How many workers a pool should have, by how long messages wait. No I/O and no clock.

The target is the age of the oldest message, as Ray Serve has a target for its replicas. It grows at once, by what the
late keys need and at most to the double, and shrinks one by one after a long calm. Between half of the target and the
target nothing changes, so a load that swings there moves no keys. How many workers a steady load needs is found out by
having one too few: then that one comes back, alone, and the pool keeps its size for long, or until there is no load.

A worker handles several keys at once, but each key alone: late keys that have a place each would not become quicker
with more workers, and are named instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

REGRET_DELAYS = 20
"""So many downscale delays a pool stays as large as it was before it shrank too far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingLimits:
    """Times in milliseconds. concurrency: keys that a worker handles at once. upscale_delay_ms: between two growths,
    for the new workers to take keys. downscale_delay_ms: of calm before each worker that goes.
    """

    min_workers: int
    max_workers: int
    concurrency: int
    target_age_ms: int
    upscale_delay_ms: int
    downscale_delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """The load of one worker: ages of the oldest message of each key, in ms, by key."""

    ages: dict[bytes, int]

    @property
    def oldest(self) -> int:
        """Return the age of the oldest message; 0 if there is none."""
        return max(self.ages.values(), default=0)


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """workers: how many there should be. reason: why, for the status; empty if there is nothing to say."""

    workers: int
    reason: str = ""


class Scaling:
    """Decides again and again; `now` in ms, of a clock that never goes back."""

    def __init__(self, limits: ScalingLimits) -> None:
        self.limits = limits
        self._grown_at: int | None = None
        self._calm_since: int | None = None
        self._shrunk: tuple[int, int] | None = None
        """When it shrank last, and from how many workers; not after it has grown since."""
        self._enough: tuple[int, int] | None = None
        """Until when it has at least so many workers, because fewer were too few."""
        self._busy_at = 0
        """When something waited last."""

    def decide(self, now: int, loads: Sequence[WorkerLoad], workers: int) -> ScalingDecision:
        """loads: of the workers that have told theirs. workers: how many there are, those that start included."""
        limits = self.limits
        within = min(max(workers, limits.min_workers), limits.max_workers)
        oldest = max((load.oldest for load in loads), default=0)
        if any(load.ages for load in loads):
            self._busy_at = now
        elif now - self._busy_at >= limits.downscale_delay_ms:
            self._enough = None
        if within != workers:
            return ScalingDecision(within, f"there are {limits.min_workers} to {limits.max_workers} workers")
        if oldest > limits.target_age_ms:
            self._calm_since = None
            return self._grow(now, loads, workers, oldest)
        if 2 * oldest > limits.target_age_ms or workers == limits.min_workers:
            self._calm_since = None
            return ScalingDecision(workers)
        if self._calm_since is None:
            self._calm_since = now
        if now - self._calm_since < limits.downscale_delay_ms:
            return ScalingDecision(workers)
        if self._enough is not None and now < self._enough[0] and workers <= self._enough[1]:
            return ScalingDecision(workers)
        self._calm_since, self._shrunk = now, (now, workers)
        return ScalingDecision(workers - 1, f"the oldest message has waited {oldest} ms, which fewer workers can keep")

    def _grow(self, now: int, loads: Sequence[WorkerLoad], workers: int, oldest: int) -> ScalingDecision:
        limits = self.limits
        late = [sum(age > limits.target_age_ms for age in load.ages.values()) for load in loads]
        without_place = sum(max(count - limits.concurrency, 0) for count in late)
        if not without_place:
            _, key = max((age, key) for load in loads for key, age in load.ages.items())
            slowest = key.decode("utf-8", "replace")
            reason = f"key {slowest!r} has waited {oldest} ms and cannot be split: more workers would not help"
            return ScalingDecision(workers, reason)
        if workers == limits.max_workers:
            return ScalingDecision(workers, f"the oldest message has waited {oldest} ms, with max_workers = {workers}")
        if self._grown_at is not None and now - self._grown_at < limits.upscale_delay_ms:
            return ScalingDecision(workers, "the workers that were added take their keys")
        self._grown_at = now
        shrunk, self._shrunk = self._shrunk, None
        if shrunk is not None and now - shrunk[0] <= limits.downscale_delay_ms and workers < shrunk[1]:
            self._enough = (now + REGRET_DELAYS * limits.downscale_delay_ms, shrunk[1])
            return ScalingDecision(
                min(shrunk[1], limits.max_workers), f"the oldest message has waited {oldest} ms: {workers} were too few"
            )
        more = min(-(-without_place // limits.concurrency), workers)
        wanted = min(workers + max(more, 1), limits.max_workers)
        return ScalingDecision(wanted, f"the oldest message has waited {oldest} ms, of {without_place} keys too many")
