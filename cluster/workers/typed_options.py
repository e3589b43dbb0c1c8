"""The options and the handler of a pool as type checkers see them.

At run time `cluster.workers.options` checks them.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypedDict

import pyarrow as pa

from sluice.cluster.client.message import Message


class MessageHandler(Protocol):
    """A handler of one message at a time; a coroutine function as well."""

    def __call__(self, message: Message, /) -> object: ...


class ValueHandler(Protocol):
    """A handler of one typed value at a time; a coroutine function as well."""

    def __call__(self, value: Any, /) -> object: ...


class BatchHandler(Protocol):
    """A handler of columns, with `batch_size`; a coroutine function as well."""

    def __call__(self, batch: pa.RecordBatch, /) -> object: ...


class WorkersSettings(TypedDict, total=False):
    """Options of `Workers`; see cluster.workers.options.WorkersOptions."""

    name: str
    detached: bool
    version: str
    min_workers: int
    max_workers: int
    concurrency: int
    batch_size: int
    batch_wait_ms: int
    prefetch: int
    target_age_ms: int
    upscale_delay_ms: int
    downscale_delay_ms: int
    handler_timeout_ms: int
    retry_delay_ms: int
    max_retry_delay_ms: int
    max_redeliver_count: int
    dead_letter_policy: Literal["park", "skip", "stop"]
    dead_letter_topic: str
    grace_ms: int
    spare_workers: int | None
    initial_position: Literal["latest", "earliest"]
    ray_actor_options: dict[str, Any] | None
    connect: dict[str, Any]
    output: str | list[str]
    schema: Any
    schema_type: Literal["json", "avro"]
