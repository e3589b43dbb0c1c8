"""What users set for a pool of workers, and what it may be."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from actors.names import check_name
from cluster.settings_input import wanted_settings
from cluster.workers.scaling import ScalingLimits
from storage.errors import Invalid

Count = Annotated[int, Meta(ge=1, le=1_000)]
Milliseconds = Annotated[int, Meta(ge=0, le=24 * 3600 * 1000)]


class WorkersOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Names after Ray Serve's and Pulsar's. Times in milliseconds.

    ray_actor_options: what Ray gives each worker; None has the workers as threads of this process. connect: how a
    worker on Ray connects, as `cluster.connect` does. handler_timeout_ms: a handler that takes longer is named, and its
    worker is replaced if it is an actor; 0 is for ever. retry_delay_ms, max_retry_delay_ms: how long a message that
    failed waits before it comes again: twice as long each time, up to the second.
    """

    name: str = ""
    min_workers: Count = 1
    max_workers: Count = 1
    concurrency: Count = 1
    prefetch: Annotated[int, Meta(ge=1, le=50_000)] = 200
    target_age_ms: Milliseconds = 1_000
    upscale_delay_ms: Milliseconds = 3_000
    downscale_delay_ms: Milliseconds = 60_000
    handler_timeout_ms: Milliseconds = 0
    retry_delay_ms: Milliseconds = 100
    max_retry_delay_ms: Milliseconds = 60_000
    max_redeliver_count: Annotated[int, Meta(ge=1, le=254)] = 5
    grace_ms: Milliseconds = 30_000
    initial_position: str = "earliest"
    ray_actor_options: dict[str, Any] | None = None
    connect: dict[str, Any] = {}

    @property
    def limits(self) -> ScalingLimits:
        """What the decision about scaling needs."""
        return ScalingLimits(
            min_workers=self.min_workers,
            max_workers=self.max_workers,
            concurrency=self.concurrency,
            target_age_ms=self.target_age_ms,
            upscale_delay_ms=self.upscale_delay_ms,
            downscale_delay_ms=self.downscale_delay_ms,
        )

    @property
    def subscription_settings(self) -> dict[str, Any]:
        """A message that fails keeps its place and parks its key in the end. A replaced worker keeps its keys."""
        return {
            "initial_position": self.initial_position,
            "nack_order": "key",
            "dead_letter_policy": "park",
            "max_redeliver_count": self.max_redeliver_count,
            "grace_ms": self.grace_ms,
        }


def wanted_options(values: dict[str, Any], subscription: str) -> WorkersOptions:
    """Check what a user gave. Raises Invalid naming what is wrong."""
    if "min_workers" in values:
        values = {"max_workers": values["min_workers"], **values}
    options: WorkersOptions = wanted_settings({"name": f"{subscription}-workers", **values}, WorkersOptions)
    check_name("consumer", options.name)
    if options.min_workers > options.max_workers:
        raise Invalid(f"min_workers = {options.min_workers} is more than max_workers = {options.max_workers}")
    return options
