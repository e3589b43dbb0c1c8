"""Authorizes a gateway's clients, and disconnects their producers and consumers when a right is revoked.

A client's wish is checked when it asks. Producers and consumers are remembered with the right that they live by,
and checked again when permissions change: no message waits for that, and none is asked about. Without settings that
name rights everybody may do everything, and nothing is remembered. Many may live by a right that changes, so they are
checked in turns, and others have theirs between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sluice.actors.ownership.names import check_space
from sluice.actors.policies.authorization import NO_PROXIES, Authorization, Forbidden, Wish
from sluice.actors.policies.permission_cache import PermissionCache, keys_of
from sluice.actors.ports import Ports
from sluice.actors.pulsar.codec.protocol import ServerError
from sluice.actors.pulsar.conversation.limits.intake import REST_MS
from sluice.actors.pulsar.refusals import CommandRefused
from sluice.storage.errors import SluiceError

TURN = 500
"""The number of producers and consumers that are looked at before other tasks have their turn."""


@dataclass(frozen=True, slots=True)
class _Admitted:
    """roles: the client's. wishes: what it was let in for. on_revoked: called when one of them is not permitted."""

    roles: Sequence[str]
    wishes: Sequence[Wish]
    on_revoked: Callable[[], None]


class AccessControl:
    """Checks what clients ask for, and sends those away whose right was revoked."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self.permissions: PermissionCache | None = None
        """None: everybody may do everything."""
        self.anonymous = ""
        """The role of clients that present no credentials; empty: they are not let in where rights are enforced."""
        self._admitted: dict[object, _Admitted] = {}
        self.most_per_role = 0
        """Connections that one role may have at this gateway; 0: any number."""
        self._connections: Counter[str] = Counter()

    def enter(self, roles: Sequence[str]) -> None:
        """Count one more connection of the first of a client's roles. Raises CommandRefused if it has enough."""
        if roles and self.most_per_role and self._connections[roles[0]] >= self.most_per_role:
            text = f"role {roles[0]!r} has {self.most_per_role} connections to this gateway, which are the most"
            raise CommandRefused(ServerError.TOO_MANY_REQUESTS, text)
        self._connections.update(roles[:1])

    def leave(self, roles: Sequence[str]) -> None:
        """A connection that entered is over."""
        self._connections.subtract(roles[:1])
        self._connections += Counter()  # roles that have none are forgotten

    def enforce(self, authorization: Authorization, anonymous: str = "") -> None:
        """From now on clients may do what their roles may."""
        self.permissions, self.anonymous = PermissionCache(self._ports, authorization), anonymous

    async def check(self, roles: Sequence[str], *wishes: Wish) -> None:
        """Raise Forbidden if one of these is not permitted, Unavailable or Corrupt if that is not known now."""
        if self.permissions is not None:
            for wish in wishes:
                check_space("namespace", wish.space)
                await self.permissions.check(roles, wish)

    def check_speaks_for_itself(self, original: str) -> None:
        """original: for whom a client says that it asks, as proxies do. Raises Forbidden where rights are enforced."""
        if original and self.permissions is not None:
            raise Forbidden(NO_PROXIES)

    def admit(self, one: object, roles: Sequence[str], wishes: Sequence[Wish], on_revoked: Callable[[], None]) -> None:
        """Register a producer or consumer with the rights that it needs. The caller checks them again afterwards."""
        if self.permissions is not None:
            self._admitted[one] = _Admitted(roles, wishes, on_revoked)

    def remove(self, one: object) -> None:
        """Drop a producer or consumer that has gone. Idempotent."""
        self._admitted.pop(one, None)

    async def run(self) -> None:
        """Send those away whose rights are revoked, for ever; returns at once where none are enforced."""
        if self.permissions is not None:
            await self.permissions.run(self._changed)

    async def _changed(self, keys: Collection[str] | None) -> bool:
        """Whether it is known of everybody who lives by these records whether he may stay; None: by any."""
        changed = None if keys is None else frozenset(keys)
        found: dict[tuple[tuple[str, ...], Wish], bool | None] = {}
        for number, (one, admitted) in enumerate(list(self._admitted.items()), 1):
            if number % TURN == 0:
                await self._ports.clock.sleep(REST_MS)
            asked = [(tuple(admitted.roles), wish) for wish in admitted.wishes]
            for each in asked:
                if each not in found:
                    same = changed is not None and changed.isdisjoint(keys_of(each[1]))
                    found[each] = same or await self._still(*each)
            if any(found[each] is False for each in asked) and self._admitted.get(one) is admitted:
                self._ports.log("revoked", role=admitted.roles[0], topic=admitted.wishes[0].topic)
                admitted.on_revoked()
        return None not in found.values()

    async def _still(self, roles: Sequence[str], wish: Wish) -> bool | None:
        """Return whether these may go on; None: that is not known now."""
        if self.permissions is None:
            return True
        try:
            return await self.permissions.still(roles, wish)
        except SluiceError as error:
            self._ports.log("permission_unknown", error=str(error))
            return None
