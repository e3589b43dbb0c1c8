"""Permissions: which role may do what with the topics of a namespace, or with one topic, as with Pulsar.

The records are `permission/namespace/<tenant>/<namespace>` and `permission/topic/<topic>`. Each change is written to
its record first, and then counted in the record `permission-changes`, which is all that gateways look at again and
again (actors.policies.permission_cache). So a change that was confirmed is seen by every gateway within moments. One
whose writer died between the two is not confirmed; it is seen when the record is read again in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from sluice.actors.ownership.names import namespace_of
from sluice.actors.policies.namespaces import MOST_ROLES, check_role
from sluice.actors.policies.policy_records import (
    PERMISSIONS,
    decoded,
    forget_rights,
    of_namespace,
    of_topic,
    revise,
    tell_changed,
    value_of,
)
from sluice.actors.ports import Meta
from sluice.storage.errors import Invalid, NotFound

ACTIONS = ("produce", "consume", "functions", "sources", "sinks", "packages")
"""Actions as Pulsar names them. What the last four permit is not offered here; they are kept and shown."""
MOST_SUBSCRIPTIONS = 1_000
"""Subscriptions of a namespace that have roles of their own."""


class Grants(msgspec.Struct, frozen=True, omit_defaults=True):
    """roles: actions by role. subscriptions: the only roles that may use a subscription of that name."""

    roles: dict[str, list[str]] = {}
    subscriptions: dict[str, list[str]] = {}


class Permissions:
    """The records. Names: actors.policies.policy_records. Every method may raise Unavailable, Corrupt."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta

    async def read(self, name: str) -> Grants:
        return grants_in(name, await value_of(self._meta, PERMISSIONS + name))

    async def grant(self, name: str, role: str, actions: Sequence[str]) -> None:
        """A role may do these from now on, and nothing else of what was granted there before. Raises Invalid."""
        check_grant(role, actions)

        def granted(known: Grants) -> Grants:
            roles = {**known.roles, role: sorted(set(actions))}
            if len(roles) > MOST_ROLES:
                raise Invalid(f"{name} has permissions for {MOST_ROLES} roles already")
            return msgspec.structs.replace(known, roles=roles)

        await self._change(name, granted)

    async def revoke(self, name: str, role: str) -> None:
        """A role has no permission there any more. Idempotent."""

        def revoked(known: Grants) -> Grants:
            left = {other: actions for other, actions in known.roles.items() if other != role}
            return msgspec.structs.replace(known, roles=left)

        await self._change(name, revoked)

    async def grant_subscription(self, space: str, subscription: str, roles: Sequence[str]) -> None:
        """Only these roles may use subscriptions of a name in a namespace, where they may consume. Raises Invalid."""

        def granted(known: Grants) -> Grants:
            subscriptions = {**known.subscriptions, subscription: list(roles)}
            if len(subscriptions) > MOST_SUBSCRIPTIONS:
                raise Invalid(f"{space} has roles for {MOST_SUBSCRIPTIONS} subscriptions already")
            return msgspec.structs.replace(known, subscriptions=subscriptions)

        await self._change(of_namespace(space), granted)

    async def revoke_subscription(self, space: str, subscription: str, role: str) -> None:
        """A role may use these subscriptions no more; when it was the last one, all may that consume there.

        Raises NotFound if the subscription has no roles.
        """

        def revoked(known: Grants) -> Grants:
            if subscription not in known.subscriptions:
                raise NotFound(f"subscription {subscription} has no roles in {space}")
            left = [other for other in known.subscriptions[subscription] if other != role]
            others = {name: roles for name, roles in known.subscriptions.items() if name != subscription}
            return msgspec.structs.replace(known, subscriptions={**others, subscription: left} if left else others)

        await self._change(of_namespace(space), revoked)

    async def forget_space(self, space: str) -> None:
        """Remove all grants of a deleted namespace and of its topics: a later namespace of that name has none."""
        for key in await self._meta.keys(PERMISSIONS + of_topic("")):
            if namespace_of(key.removeprefix(PERMISSIONS + of_topic("")))[0] == space:
                await forget_rights(self._meta, key)
        await forget_rights(self._meta, PERMISSIONS + of_namespace(space))

    async def _change(self, name: str, change: Callable[[Grants], Grants]) -> None:
        def changed(value: bytes | None) -> bytes:
            return msgspec.json.encode(change(grants_in(name, value)))

        await revise(self._meta, PERMISSIONS + name, changed, f"the permissions of {name} are")
        await tell_changed(self._meta, PERMISSIONS + name)


def check_grant(role: str, actions: object) -> None:
    """Raises Invalid for what cannot be granted."""
    check_role(role)
    if not isinstance(actions, list | tuple) or not actions or not all(action in ACTIONS for action in actions):
        raise Invalid(f"actions are some of {', '.join(ACTIONS)}, not {str(actions)[:80]}")


def grants_in(name: str, value: bytes | None) -> Grants:
    """Decode the grants in a record; no record grants nothing. Raises Corrupt."""
    return Grants() if value is None else decoded(value, Grants, f"the permissions of {name}")
