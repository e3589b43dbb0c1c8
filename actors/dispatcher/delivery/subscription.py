"""The subscription that a dispatcher owns: its identity, the state in its record, and how that becomes durable.

Acknowledgements are grouped: while one version of the record is being written the next gathers. A version holds the
cursor as it was when the write began; the acknowledgement turns that had arrived by then are confirmed when it is on
disk, and not before (promise 4). Losing the write means that a newer owner exists: the dispatcher stops at once.

**An idle owner.** A dispatcher whose consumers have nothing to acknowledge writes nothing, and so would not notice that
it was replaced: its consumers would keep their leases for ever, and both owners would send. So when it has not written
for a while it makes sure that the record is still its own, with all owners of its process at once
(`actors.ownership.fenced_record`), and extends a consumer's lease only if it knew that at most `trust_ms` ago. A
newer owner that took the record at T therefore knows that no lease of the old one outlasts T + lease + trust
(`membership`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from sluice.actors.dispatcher.delivery.membership import Membership
from sluice.actors.dispatcher.delivery.sessions import Session
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.messages.settings import stored_settings
from sluice.actors.ownership.fenced_record import FencedRecord, record_in
from sluice.actors.ports import Log, Ports
from sluice.actors.runtime.waiting import Signal, SignalTask
from sluice.storage.errors import Corrupt, Fenced, SluiceError, Unavailable
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
    """A part that is recorded with the subscription, in a field of its own. field: its name in the record. used:
    whether there can be anything to record, else no version of the record asks.
    """

    @property
    def field(self) -> str: ...

    @property
    def used(self) -> bool: ...

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

    def contents(self, parts: Iterable[Recorded]) -> dict[str, Any]:
        """Check the state, and return the present contents of the whole record."""
        fields = {part.field: part.to_record() for part in parts if part.used}
        return self.to_record() | {field: value for field, value in fields.items() if value is not None}

    def mark_delete(self) -> int:
        """Return the position up to which all is done."""
        return self.cursor.mark_delete

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


GROUP_MS = 10
"""Milliseconds between two versions at the least."""
LINGER_MS = 100
"""Milliseconds for which acknowledgements gather before a version is written, unless a caller waits for it.

An owner that dies meanwhile forgets them, and the consumers, who know what was not confirmed, say them again to the
next one. Only when owner and consumer are lost at once do those messages come a second time.
"""
MOST_REST_MS = 500
"""Between two versions passes as much time as the first took to write, at the most this, unless a caller waits."""
RETRY_MS = 50


class CursorStore:
    """Writes snapshots of the dispatcher's state, one at a time, and tells what became durable."""

    def __init__(
        self,
        ports: Ports,
        record: FencedRecord,
        snapshot: Callable[[], dict[str, Any]],
        mark_delete: Callable[[], int],
        behind: Callable[[], list[Session]],
        fenced: Callable[[str], None],
        trust_ms: int,
    ) -> None:
        """snapshot: the present contents of the record, which was just written. mark_delete: the position up to which
        they say that all is done. behind: sessions with acknowledgements that have arrived and are not durable.
        """
        self._ports = ports
        self._trust = trust_ms
        self._record = record
        self._snapshot, self._mark_delete = snapshot, mark_delete
        self._behind = behind
        self._fenced = fenced
        self._dirty = Signal()
        self._urgent = Signal()
        self._done = Signal()
        self._on_saved: Callable[[], None] | None = None
        self.mark_delete = mark_delete()
        """The mark-delete position in the newest version. Invariant: only a seek lowers it."""
        self._not_before = self._rests_until = 0
        self._asked = 0
        self._completed = 0
        """Invariant: never falls, and is at most `_asked`. What was asked up to here is durable."""
        self._first = 0
        """Nothing may be sent before so much of what was asked is completed."""
        self._writing = asyncio.Lock()
        self._over = False
        """There is a newer owner, and everybody was told."""

    def on_saved(self, call: Callable[[], None]) -> None:
        """Call this after each version."""
        self._on_saved = call

    def dirty(self, *, gather: bool = False) -> None:
        """Make the present state durable soon. gather: the writer may wait LINGER_MS for more changes."""
        self._asked += 1
        self._dirty.set()
        if not gather:
            self._urgent.set()

    async def barrier(self) -> None:
        """Wait until everything up to now is durable. Raises Fenced when that can no longer happen."""
        self.dirty()
        await self._until(self._asked)

    def hold_back(self) -> None:
        """Send nothing more until the present state is durable: a newer owner would not know of the change."""
        self.dirty()
        self._first = self._asked

    @property
    def holds_back(self) -> bool:
        """Whether something must become durable before anything more is sent."""
        return self._completed < self._first

    async def until_may_send(self) -> None:
        """Wait for what `holds_back` now; more may come meanwhile. Raises Fenced when that can no longer end."""
        await self._until(self._first)

    async def _until(self, wanted: int) -> None:
        while self._completed < wanted:
            if self._record.lost:
                raise Fenced("this dispatcher has a newer owner")
            self._done.clear()
            await self._done.wait(self._ports)

    @property
    def settled(self) -> bool:
        """Whether everything is durable."""
        return self._completed >= self._asked

    def look_if_idle(self, age: int | None = None) -> None:
        """Look at the record unless it was written or looked at in the last `age` ms, a quarter of the time of trust if
        that is not said, or somebody looks for all owners of this process.
        """
        since = self._ports.clock.monotonic() - (self._trust // 4 if age is None else age)
        if not self._record.is_proved(since) and not self._record.leaves_proof():
            self._dirty.set()

    def _fresh(self) -> bool:
        return self._record.is_proved(self._ports.clock.monotonic() - self._trust // 4)

    def certain(self, now: int | None = None) -> bool:
        """Whether this dispatcher knows, recently enough to lengthen a lease, that it owns the subscription. now:
        monotonic ms, for who knows it.
        """
        now = self._ports.clock.monotonic() if now is None else now
        return self._record.is_proved(now - self._trust)

    async def be_certain(self) -> None:
        """Wait until `certain`. Raises Fenced when there is a newer owner."""
        while not self.certain():
            if self._record.lost:
                raise Fenced("this dispatcher has a newer owner")
            self._dirty.set()
            self._done.clear()
            await self._done.wait(self._ports)

    async def remove(self) -> None:
        """Forget the record: nothing is written from now on. Raises Fenced if there is a newer owner."""
        async with self._writing:
            await self._record.remove()

    def start(self) -> None:
        """Write whenever something has changed, until the record is lost."""
        SignalTask(self._ports, self._dirty, self._keep, "keep")

    async def _keep(self) -> None:
        writes = self._completed < self._asked
        # A slow store has a rest, but a caller that waits for a version does not wait for that as well.
        rest = max(self._rests_until - self._ports.clock.monotonic(), LINGER_MS if writes else 0)
        if rest:
            await self._urgent.wait(self._ports, rest)
        if (pause := self._not_before - self._ports.clock.monotonic()) > 0:
            await self._ports.clock.sleep(pause)
        self._dirty.clear()
        self._urgent.clear()
        if self._over:
            return
        try:
            async with self._writing:
                await (self._save() if self._completed < self._asked else self._look())
        except Fenced as error:
            self._over = True
            self._done.set()
            self._fenced(str(error))

    async def _look(self) -> None:
        try:
            if not self._fresh():  # others of this process may have looked meanwhile
                await self._record.prove()
            self._done.set()
        except Unavailable:
            await self._ports.clock.sleep(RETRY_MS)
            self._dirty.set()
            self._urgent.set()

    async def _save(self) -> None:
        began = self._ports.clock.monotonic()
        asked = self._asked
        turns = [(session, session.received) for session in self._behind()]
        mark_delete = self._mark_delete()
        await self._record.save(self._snapshot())
        self.mark_delete = mark_delete
        for session, received in turns:
            session.confirm(received)
        self._completed = asked
        self._done.set()
        if self._on_saved is not None:
            self._on_saved()
        now = self._ports.clock.monotonic()
        self._not_before, self._rests_until = now + GROUP_MS, now + min(now - began, MOST_REST_MS)
