"""The errors of Sluice: few, coarse, and each says what to do.

    SluiceError
    |-- Unavailable   try again later, unchanged; the outcome of a write is not known
    |   `-- AccessDenied  a store refuses who asks: a person, or a renewed token, has to mend that
    |-- Timeout       no message came in time; nothing is wrong
    |-- Overloaded    slow down, then try again
    |-- Fenced        a newer owner has this; reopen or look the owner up again
    |   `-- ProducerFenced  a newer producer has taken the name; this one is at its end
    |-- Conflict      the record moved on; read it again, then decide
    |-- NotFound      no such topic, subscription, ledger, entry or object
    |-- Invalid       the call itself is wrong; mend it, a repetition cannot succeed
    |   `-- Terminated  the topic takes no more messages, for good
    `-- Corrupt       stored bytes fail their checksum; stop and let replicas or a rescan answer

    InvariantViolation (not a SluiceError): a promise of the broker itself was broken. It stops the actor.

The detail is in the message and is not an interface; the class is.
"""

from __future__ import annotations


class SluiceError(Exception):
    """Base of every error that a caller is expected to handle."""


class Unavailable(SluiceError):
    """The peer or the store did not answer, or answered that it cannot serve now. Retry the same call."""


class AccessDenied(Unavailable):
    """A store refuses the caller: credentials, permissions, a bucket that is not there.

    The error says nothing about the stored data. An expired token is renewed after some seconds, so a running process
    waits as for a store that is away; a starting process reports the error to the person who started it.
    """


class Timeout(SluiceError):
    """No message came within the time that its receiver gave."""


class Overloaded(SluiceError):
    """A limit on work in flight is reached. Slow down and retry."""


class Fenced(SluiceError):
    """The caller's epoch or session was replaced by a newer one. Stop, and look the owner up again."""


class ProducerFenced(Fenced):
    """A newer producer of the same name was opened. No owner accepts messages from this one again."""


class Conflict(SluiceError):
    """A conditional write lost its race, or a sequence does not follow. Read and decide again."""


class NotFound(SluiceError):
    """The named thing does not exist, and the answer is explicit (unlike `Unavailable`)."""


class Invalid(SluiceError, ValueError):
    """The request can never succeed as it stands: a bad name, size, type or combination."""


class Terminated(Invalid):
    """The topic was terminated: it keeps its messages and takes no more."""


class Corrupt(SluiceError):
    """Stored bytes contradict their checksum or their format. Never read on past this.

    version: the number of the damaged version of a metadata record; 0: it is something else, or not known.
    """

    def __init__(self, text: str = "", *, version: int = 0) -> None:
        super().__init__(text)
        self.version = version


class InvariantViolation(AssertionError):
    """A broken promise of the broker, with the story of how it came to be. Never caught, always fatal."""


WIRE_ERRORS: dict[str, type[SluiceError]] = {
    error.__name__: error
    for error in (
        Unavailable,
        AccessDenied,
        Overloaded,
        Fenced,
        ProducerFenced,
        Conflict,
        NotFound,
        Invalid,
        Terminated,
        Corrupt,
    )
}
"""The errors that may cross a process border, by the name that travels."""
