"""The identity of the subscription that a dispatcher owns, and the state in its record, as its owner knows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from sluice.actors.dispatcher.delivery.membership import Membership
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.messages.settings import stored_settings
from sluice.actors.ownership.fenced_record import record_in
from sluice.actors.ports import Log
from sluice.storage.errors import Corrupt, SluiceError
from sluice.storage.format.cursor import Cursor

_DAMAGE = (LookupError, TypeError, ValueError, AttributeError)
"""The errors of reading a record that holds another kind of thing than was written."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Raise Corrupt if the parts of a record that are read within the block cannot be read."""
    try:
        yield
    except SluiceError:
        raise
    except _DAMAGE as error:
        raise Corrupt(f"{what} cannot be read: {error!r}") from error


@dataclass(frozen=True, slots=True)
class PartitionSubscription:
    """A subscription on one partition of a topic."""

    topic: str
    partition: int
    subscription: str

    @property
    def key(self) -> str:
        """The key of the subscription's metadata record."""
        return f"subscription/{self.topic}/{self.partition}/{self.subscription}"


class Recorded(Protocol):
    """A part that is recorded with the subscription, in a field of its own. field: its name in the record."""

    @property
    def field(self) -> str: ...

    def to_record(self) -> Any:
        """Return the present state, in types of msgpack; None leaves the field out."""

    async def load(self, stored: Any) -> None:
        """Begin with the state that the last owner left; None: there was no such field. Raises Corrupt, Unavailable."""


def settings_in(key: str, value: bytes) -> SubscriptionSettings:
    """Return the settings that the next owner works with, from a version's bytes. Raises Corrupt.

    For callers that only look: an owner uses `recorded_settings`.
    """
    return recorded_settings(record_in(key, value), key)[0]


def recorded_settings(
    value: Mapping[str, Any], key: str = "of a subscription"
) -> tuple[SubscriptionSettings, list[str]]:
    """Return the settings in the contents of a record, and which had to be changed to be usable. Raises Corrupt."""
    stored = value.get("settings")
    if not isinstance(stored, bytes):
        raise Corrupt(f"the record {key} has no settings that can be read, but {str(stored)[:40]}")
    return stored_settings(stored, SubscriptionSettings)


@dataclass(slots=True)
class SubscriptionState:
    """The state of a subscription that its record keeps.

    settings: those in force; an owner keeps the ones that it began with. next_settings: those of the next owner, if
    they differ. known: the topic has a durable note of this subscription. by_index: see messages.Poll. apart: see
    messages.SentApart. properties: those that clients keep with it. deleted: an owner that takes the record over begins
    a new subscription.
    """

    settings: SubscriptionSettings
    cursor: Cursor
    membership: Membership
    paused: bool = False
    known: bool = False
    by_index: bool = False
    apart: bool = False
    properties: dict[str, str] = field(default_factory=dict)
    deleted: bool = False
    next_settings: SubscriptionSettings | None = None

    @classmethod
    def begun(cls, settings: SubscriptionSettings, cursor: Cursor) -> SubscriptionState:
        """Return the state of a new subscription."""
        return cls(settings, cursor, Membership(lease_ms=settings.lease_ms))

    @classmethod
    def stored(cls, value: Mapping[str, Any], log: Log) -> SubscriptionState:
        """Return the state that the last owner left in the record. Raises Corrupt if it cannot be read."""
        settings, notes = recorded_settings(value)
        for line in notes:
            log("settings_repaired", change=line)
        with reading("the record of a subscription"):
            return cls(
                settings,
                Cursor.decode(value["cursor"]),
                Membership(value["members"], lease_ms=settings.lease_ms),
                paused=bool(value.get("paused", False)),
                known=bool(value.get("known", True)),
                by_index=bool(value.get("by_index", False)),
                apart=bool(value.get("apart", False)),
                properties=dict(value.get("properties", {})),
            )

    def check(self) -> None:
        """Raise InvariantViolation for a state that no next owner should go on from."""
        self.cursor.check()
        self.membership.check()

    def to_record(self) -> dict[str, Any]:
        """Check the state, and return its fields of the record (`actors.ownership.fenced_record`), a msgpack map."""
        self.check()
        return {
            "settings": msgspec.json.encode(self.next_settings or self.settings),
            "cursor": self.cursor.encode(),
            "members": self.membership.rows(),
            "paused": self.paused,
            "known": self.known,
            "by_index": self.by_index,
            "apart": self.apart,
            **({"properties": self.properties} if self.properties else {}),
            **({"deleted": True} if self.deleted else {}),
        }

    def introduced(self) -> None:
        """Note that the topic knows the subscription durably."""
        self.known = True

    def acknowledged_by_index(self) -> None:
        """Note that a client acknowledges single messages of a batch; the record that names them says this too."""
        self.by_index = True

    def sent_apart(self) -> None:
        """Note that a client is sent a part of a batch."""
        self.apart = True

    def pause(self, paused: bool) -> None:
        """Pause sending, or go on."""
        self.paused = paused

    def adopt(self, properties: dict[str, str]) -> bool:
        """Keep the properties that a consumer brings, unless there are some already, as in Pulsar.

        Return whether they are kept.
        """
        if self.properties or not properties:
            return False
        self.properties = properties
        return True

    def set_properties(self, properties: dict[str, str]) -> None:
        """Replace the properties."""
        self.properties = properties

    def delete(self) -> None:
        """Mark the subscription as deleted; it is so once the record says it."""
        self.deleted = True

    def begin_next_with(self, settings: SubscriptionSettings) -> None:
        """Set the settings that the next owner works with."""
        self.next_settings = settings
