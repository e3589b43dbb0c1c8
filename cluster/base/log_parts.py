"""The loggers of the parts, `sluice.client` for one, and the events that a part logs as warnings.

All other events of actors are logged at INFO, and each by one part alone: a program that handles warnings reads a
lost lease once, though the broker knows of it as well.
"""

from __future__ import annotations

import logging

_PARTS = {"pulsar": "gateway"}
"""Parts that have another name than the kind of their actors."""

WARNINGS = {
    "session_lost": "the lease was lost, and what was not acknowledged goes to other consumers",
    "key_parked": "a message failed too often, and its key is parked",
    "parking_limit_reached": "no more keys can be parked, and messages that fail block their keys",
    "bookie_read_only": "the disk is full, and takes no more messages",
    "bookie_failed": "the disk failed",
    "defect": "a conversation with a client failed",
}
"""Events that somebody may have to look at, in words."""


def logger_of(actor: str) -> logging.Logger:
    """Return the logger of an actor's part. actor: its address, `process/topic-0-1a2b` for one, or its kind."""
    kind = actor.rpartition("/")[2].partition("-")[0]
    return logging.getLogger(f"sluice.{_PARTS.get(kind, kind)}")
