"""A cache of permissions for one process: no message and no request waits for a read of the store.

One record counts all changes of permissions. A look at that record shows which records changed since; the cache forgets
them, and reads them again when they are needed. A cache older than FRESH_MS admits no client: if the store cannot be
asked then, a newcomer is told to come again, and an admitted client stays. A change reaches an admitted client within
LOOK_MS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

from sluice.actors.ownership.fenced_record import newest_version
from sluice.actors.policies.authorization import Authorization, KnownRights, Wish, refusal
from sluice.actors.policies.namespaces import tenant_in
from sluice.actors.policies.permissions import grants_in
from sluice.actors.policies.policy_records import (
    CHANGES,
    PERMISSIONS,
    TENANTS,
    changes_in,
    of_namespace,
    value_of,
)
from sluice.actors.policies.policy_records import of_topic as record_of_topic
from sluice.actors.ports import Ports
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import SluiceError

LOOK_MS = 300
FRESH_MS = 1_000
MOST_LOOKS = 8
"""So many may wait for the store's answer at once."""
OLD_MS = 60_000
"""What was read is read again after so long, for changes whose writer died before it could tell of them."""
MOST_KNOWN = 10_000
"""Records that are kept."""
MOST_OLD = 20
"""So many are read again at one look."""


class PermissionCache:
    """Permissions that were read, and forgotten when the record of changes names them."""

    def __init__(self, ports: Ports, authorization: Authorization) -> None:
        self._ports, self._authorization = ports, authorization
        self._known: dict[str, tuple[bytes | None, int]] = {}
        """By key: the value, and when it was read. Those that were read first come first."""
        self._number = -1
        self._looked: int | None = None
        self._looking = asyncio.Lock()
        self._changed: dict[str, None] = {}
        """Keys of records that may say something else than when somebody was let in."""
        self._under_way = 0
        self._any_changed = False
        """So may any record: there were more changes than are named. Not all records are known here."""

    async def check(self, roles: Sequence[str], wish: Wish) -> None:
        """Raises Forbidden if these may not do this, Unavailable or Corrupt if that is not known now."""
        if self._authorization.known_from_settings(roles, wish):
            return
        await self._refresh()
        if not self._authorization.permits(roles, wish, await self._rights(wish)):
            raise refusal(roles, wish)

    async def still(self, roles: Sequence[str], wish: Wish) -> bool:
        """Whether those may go on who were let in; also while the store is away. Raises Unavailable, Corrupt."""
        if self._authorization.known_from_settings(roles, wish):
            return True
        return self._authorization.permits(roles, wish, await self._rights(wish))

    async def run(self, changed: Callable[[Collection[str] | None], Awaitable[bool]]) -> None:
        """Look again and again, for ever. changed: called with the keys of records that changed, None for any, until it
        returns True, that all have been heard who live by these.
        """
        while True:
            await self._ports.clock.sleep(LOOK_MS)
            if self._under_way < MOST_LOOKS:
                ended = Signal()
                self._ports.spawn(self._try_to_look(ended), "look")
                await ended.wait(self._ports, LOOK_MS)
            if self._changed or self._any_changed:
                (keys, self._changed), (every, self._any_changed) = (self._changed, {}), (self._any_changed, False)
                if not await changed(None if every else keys):
                    self._changed, self._any_changed = {**keys, **self._changed}, every or self._any_changed

    async def _try_to_look(self, ended: Signal) -> None:
        """Look for changes and log a failure. A lookup without an answer delays neither later nor finished lookups."""
        self._under_way += 1
        try:
            await self.refresh()
        except SluiceError as error:
            self._ports.log("permissions_unknown", error=str(error))
        finally:
            self._under_way -= 1
            ended.set()

    async def refresh(self) -> None:
        """Forget what has changed; everything where the record does not say what. Raises Unavailable, Corrupt."""
        begun = self._ports.clock.monotonic()
        found = await newest_version(self._ports.meta, CHANGES)
        number, names = found.number, changes_in(found.value)
        missed = number - self._number
        if missed and self._number >= 0:
            named = 0 < missed <= len(names)
            self._forget(names[:missed] if named else list(self._known))
            self._any_changed = self._any_changed or not named
        if number > self._number:
            self._number = number
        self._looked = begun
        for key in list(self._known)[:MOST_OLD]:
            if begun - self._known[key][1] > OLD_MS:
                self._forget([key])

    def _forget(self, keys: Collection[str]) -> None:
        for key in keys:
            self._known.pop(key, None)
            self._changed[key] = None

    async def _refresh(self) -> None:
        """See that what is known is not old."""
        async with self._looking:
            if self._looked is None or self._ports.clock.monotonic() - self._looked > FRESH_MS:
                await self.refresh()

    async def _rights(self, wish: Wish) -> KnownRights:
        tenant, space, topic = keys_of(wish)
        values = await asyncio.gather(*(self._value(key) for key in (tenant, space, topic)))
        return KnownRights(
            tenant_in(wish.tenant, values[0]), grants_in(wish.space, values[1]), grants_in(wish.topic, values[2])
        )

    async def _value(self, key: str) -> bytes | None:
        if not key:
            return None
        while key not in self._known:
            before, now = self._number, self._ports.clock.monotonic()
            value = await value_of(self._ports.meta, key)
            if before == self._number:  # else it may be among those that changed meanwhile
                self._keep(key, value, now)
                return value
        return self._known[key][0]

    def _keep(self, key: str, value: bytes | None, now: int) -> None:
        self._known[key] = value, now
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]


def keys_of(wish: Wish) -> tuple[str, str, str]:
    """The keys of the records that decide about it: of the tenant, the namespace and the topic; "" where none does."""
    return (
        TENANTS + wish.tenant if wish.tenant else "",
        PERMISSIONS + of_namespace(wish.space) if wish.space else "",
        PERMISSIONS + record_of_topic(wish.topic) if wish.topic else "",
    )
