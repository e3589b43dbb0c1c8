"""Refusals in Pulsar's error codes."""

from __future__ import annotations

from sluice.actors.policies.authorization import Forbidden
from sluice.actors.pulsar.codec.protocol import ServerError
from sluice.storage.errors import (
    Conflict,
    Corrupt,
    Fenced,
    Invalid,
    NotFound,
    Overloaded,
    ProducerFenced,
    SluiceError,
    Terminated,
    Unavailable,
)

_CODES: tuple[tuple[type[SluiceError], int], ...] = (
    (NotFound, ServerError.TOPIC_NOT_FOUND),
    (Overloaded, ServerError.TOO_MANY_REQUESTS),
    (ProducerFenced, ServerError.PRODUCER_FENCED),
    (Fenced, ServerError.SERVICE_NOT_READY),
    (Unavailable, ServerError.SERVICE_NOT_READY),
    (Corrupt, ServerError.PERSISTENCE),
    (Conflict, ServerError.CONSUMER_BUSY),
    (Terminated, ServerError.TOPIC_TERMINATED),
    (Forbidden, ServerError.AUTHORIZATION),
    (Invalid, ServerError.NOT_ALLOWED),
)


class CommandRefused(Invalid):
    """A request is refused with one of Pulsar's codes."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def code_of(error: SluiceError) -> int:
    """Pulsar's code for an error."""
    if isinstance(error, CommandRefused):
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), ServerError.UNKNOWN)
