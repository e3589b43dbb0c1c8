"""The options of a pool of workers, and their valid values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from sluice.actors.ownership.names import check_name
from sluice.cluster.client.settings_input import wanted_settings
from sluice.cluster.workers.scaling import ScalingLimits
from sluice.storage.errors import Invalid

STOP = "stop"
Count = Annotated[int, Meta(ge=1, le=1_000)]
Milliseconds = Annotated[int, Meta(ge=0, le=24 * 3600 * 1000)]


class WorkersOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Names after Ray Serve's and Pulsar's. Times in milliseconds.

    name: of the pool in the cluster, and the beginning of its workers' names. detached: it outlives the program, and
    is found by its name. version: of the handler; by default, what the handler is.
    spare_workers: 1 keeps a process of Ray ready that takes the place of one that dies, with the resources of a worker;
    None: unless these are more than CPUs. ray_actor_options: what Ray gives each worker; None has the workers as
    threads of this process. connect: how a worker on Ray connects, as `sluice.connect` does.
    handler_timeout_ms: a handler that takes longer is named, and its worker is replaced if it is an actor; 0 is for
    ever. retry_delay_ms, max_retry_delay_ms: how long a message that failed waits before it comes again: twice as long
    each time, up to the second.
    output: the topic, or topics, to which the handler's results go.
    schema: the type of the values that the handler gets; the annotation of its argument is enough.
    batch_size: so many messages at the most are handed over at once, as an Arrow record batch; 0: each as a Message.
    batch_wait_ms: how long the first of a batch waits for others. prefetch: messages that wait at a worker.
    dead_letter_policy: what becomes of a message that fails after max_redeliver_count redeliveries. park: its key waits
    for an operator. skip: it goes to the dead letter topic, its key goes on. stop: the pool stops, and nothing is lost.
    """

    name: str = ""
    detached: bool = False
    version: Annotated[str, Meta(max_length=128)] = ""
    min_workers: Count = 1
    max_workers: Count = 1
    concurrency: Count = 1
    batch_size: Annotated[int, Meta(ge=0, le=100_000)] = 0
    batch_wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    prefetch: Annotated[int, Meta(ge=1, le=50_000)] = 1_000
    target_age_ms: Milliseconds = 1_000
    upscale_delay_ms: Milliseconds = 3_000
    downscale_delay_ms: Milliseconds = 60_000
    handler_timeout_ms: Milliseconds = 0
    retry_delay_ms: Milliseconds = 100
    max_retry_delay_ms: Milliseconds = 60_000
    max_redeliver_count: Annotated[int, Meta(ge=1, le=254)] = 5
    dead_letter_policy: Literal["park", "skip", "stop"] = "park"
    dead_letter_topic: str = ""
    grace_ms: Milliseconds = 30_000
    spare_workers: Annotated[int, Meta(ge=0, le=1)] | None = None
    initial_position: str = "earliest"
    ray_actor_options: dict[str, Any] | None = None
    connect: dict[str, Any] = {}
    output: str | list[str] = ""
    schema: Any = None
    schema_type: Literal["json", "avro"] = "json"

    @property
    def spares(self) -> int:
        """How many processes wait for the place of one that dies."""
        wanted = self.ray_actor_options or {}
        scarce = any(wanted.get(name) for name in ("num_gpus", "resources", "memory"))
        return self.spare_workers if self.spare_workers is not None else int(not scarce)

    @property
    def outputs(self) -> list[str]:
        """The topics to which results go."""
        return [one for one in ([self.output] if isinstance(self.output, str) else self.output) if one]

    @property
    def limits(self) -> ScalingLimits:
        """Return the options that decide about scaling."""
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
            "dead_letter_policy": "skip" if self.dead_letter_policy == "skip" else "park",
            "dead_letter_topic": self.dead_letter_topic,
            "max_redeliver_count": self.max_redeliver_count,
            "grace_ms": self.grace_ms,
        }


def wanted_options(values: dict[str, Any], subscription: str) -> WorkersOptions:
    """Check what a user gave. Raises Invalid naming what is wrong."""
    if "min_workers" in values:
        values = {"max_workers": values["min_workers"], **values}
    if (folder := values.get("connect", {}).get("data_dir")) is not None:  # workers have other working folders
        values = {**values, "connect": {**values["connect"], "data_dir": str(Path(folder).absolute())}}
    options: WorkersOptions = wanted_settings({"name": f"{subscription}-workers", **values}, WorkersOptions)
    check_name("consumer", options.name)
    for topic in options.outputs:
        check_name("topic", topic)
    if options.min_workers > options.max_workers:
        raise Invalid(f"min_workers = {options.min_workers} is more than max_workers = {options.max_workers}")
    if options.detached and options.ray_actor_options is None:
        raise Invalid("a detached pool has its workers on Ray: give ray_actor_options, {} for one CPU each")
    if options.batch_size and options.outputs:
        raise Invalid("results are given message by message: leave batch_size, and use concurrency; or leave output")
    if options.batch_size and options.concurrency > 1:
        raise Invalid("a handler of columns is called once at a time in each worker: leave concurrency, or batch_size")
    return options
