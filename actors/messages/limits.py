"""Limits of what operators may ask for, as types of the fields of their requests."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from sluice.storage.format.batch import LAST_TIME, MAX_KEY_BYTES

MOST_SHOWN = 10_000
"""Rows that one question may ask for."""
MOST_ADDED = 1_000
"""Consumers that `WhatIf` may add."""
MOST_BOOKIES = 256
"""Bookies that may be added at a time."""
MOST_BEATS = 10_000
"""Sessions that one heartbeat may renew; a process with more of them sends several."""
SEQUENCES = 1 << 62
"""A producer's sequences are below this: what they are written into has 63 bits. A gateway uses all of them."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Bytes of payloads, shared ones too, that a read brings before it ends, and that wait in one outbox. With one
more run (64 MiB) and the columns an answer stays far below what a frame takes, also where payloads cannot be shared.
"""
KEPT_MS = 60_000
"""Milliseconds after which a process sends nothing any more that it has in memory of a log that it does not own: a key
may have been erased.
"""

Name = Annotated[str, Meta(min_length=1, max_length=256)]
"""A name as given; whoever makes something of that name checks it closer (`actors.ownership.names`)."""
Shown = Annotated[int, Meta(ge=1, le=MOST_SHOWN)]
Key = Any
"""A message's key, see `check_key`; a field of msgspec is not text or bytes."""
Time = Annotated[int, Meta(ge=-LAST_TIME, le=LAST_TIME)]


def check_key(key: object) -> None:
    """A key is text, or bytes where it is none, which an older process refuses. Raises ValueError."""
    if not isinstance(key, str | bytes | None):
        raise ValueError(f"a key is text, not {type(key).__name__}")
    if key is not None and len(key) > MAX_KEY_BYTES:
        raise ValueError(f"a key has at most {MAX_KEY_BYTES:,} bytes, not {len(key):,}")
